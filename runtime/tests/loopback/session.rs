//! How sessions begin and end.

use std::time::{Duration, Instant};

use graft_protocol::{ExecAddr, Message, RunMainArgs, Seq, Void, call};
use graft_runtime::{Ending, LineError, SessionEnd};

use super::fake::{FRAMES, PAGE};
use super::wire::{Controller, FASTER, Received, header};

fn run_main(c: &mut Controller, at: u64) {
    c.call::<call::RunAsMain>(&RunMainArgs { entry: ExecAddr(at), args: Seq::new(&[]) });
}

fn code(c: &Controller) -> Vec<u8> {
    c.machine.code(|_, _| Ok([41, 0]))
}

#[test]
fn each_session_begins_with_a_setup_and_an_empty_machine() {
    let mut c = Controller::serving(3, Ending::Controller);
    for _ in 0..2 {
        let code = code(&c);
        let at = c.load(&code);
        run_main(&mut c, at);
        c.reserve(1 << 24).unwrap();
        c.send_message(&Message::Hangup(None));
        c.take_setup();
        assert_eq!(c.machine.free_frames(), FRAMES);
    }
    assert_eq!(c.machine.trims(), 2);
    c.close();
    assert_eq!(c.join(), [SessionEnd::Hangup, SessionEnd::Hangup, SessionEnd::Closed]);
}

#[test]
fn several_calls_in_flight_are_answered_in_order() {
    let mut c = Controller::new();
    let calls: Vec<u64> = (0..10).map(|_| c.start_row::<call::Info>(&Void)).collect();
    for call in calls {
        assert!(!c.result(call).is_empty());
    }
    // Any number is echoed.
    let target = ExecAddr(c.symbol("graft_info_wrapper").0);
    c.send_message(&Message::Call { seq_no: u64::MAX, target, args: b"" });
    c.result(u64::MAX);
    c.finish();
}

#[test]
fn a_peer_that_stops_inside_a_message_is_told_and_forgotten() {
    let mut c = Controller::serving(2, Ending::Controller);
    c.reserve(PAGE).unwrap();
    c.send(&header(64, 3, 0, 0));
    c.send(b"half of it");
    let text = "the peer fell silent inside a message for 50 ms".to_owned();
    assert_eq!(c.receive(), Received::Hangup(Err(text)));
    c.take_setup();
    c.check_good_load();
    c.close();
    assert_eq!(c.join(), [SessionEnd::Line(LineError::Stalled { millis: 50 }), SessionEnd::Closed]);
}

#[test]
fn a_line_that_ends_inside_a_message_ends_the_session() {
    let mut c = Controller::new();
    c.send(&header(64, 3, 0, 0)[..7]);
    c.close();
    assert_eq!(c.join(), [SessionEnd::Line(LineError::Closed)]);
    assert_eq!(c.machine.free_frames(), FRAMES);
}

#[test]
fn the_executor_closes_first_after_the_last_release() {
    let mut c = Controller::serving(1, Ending::CloseFirst);
    let code = code(&c);
    let (a, b) = (c.load(&code), c.load(&code));
    // What is reserved and never initialized does not count.
    c.reserve(PAGE).unwrap();
    run_main(&mut c, a);
    c.release(&[a]).unwrap();
    let start = Instant::now();
    c.release(&[b]).unwrap();
    assert_eq!(c.receive(), Received::End, "no Hangup");
    assert!(start.elapsed() < Duration::from_millis(150) || cfg!(miri));
    assert_eq!(c.join(), [SessionEnd::Finished]);
}

#[test]
fn the_executor_closes_first_after_a_quiet_time() {
    let loaded = || {
        let mut c = Controller::serving(1, Ending::CloseFirst);
        let code = code(&c);
        let at = c.load(&code);
        (c, at)
    };
    let (mut c, at) = loaded();
    c.release(&[at]).unwrap();
    closes_after(c, 200);
    let (mut c, at) = loaded();
    run_main(&mut c, at);
    closes_after(c, 5_000);
    // Nothing was ever said, or only asked for.
    closes_after(Controller::serving(1, Ending::CloseFirst), 60_000);
    let mut c = Controller::serving(1, Ending::CloseFirst);
    c.reserve(PAGE).unwrap();
    closes_after(c, 60_000);
}

fn closes_after(mut c: Controller, millis: u64) {
    let start = Instant::now();
    assert_eq!(c.receive(), Received::End);
    let quiet = Duration::from_millis(millis) / FASTER;
    // The line had been quiet for a little while already.
    assert!(start.elapsed() >= quiet.mul_f32(0.9), "{:?} of {quiet:?}", start.elapsed());
    assert_eq!(c.join(), [SessionEnd::Finished]);
}

#[test]
fn a_controller_of_our_own_is_not_hurried() {
    let mut c = Controller::serving(1, Ending::CloseFirst);
    c.call::<call::Info>(&Void);
    c.check_good_load();
    std::thread::sleep(Duration::from_millis(300));
    c.check_good_load();
    c.finish();
}
