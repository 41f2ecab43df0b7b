//! Calls of the controller by loaded code, and what the executor does meanwhile.

use graft_protocol::{ExecAddr, Message, Outcome, call, decode};
use graft_runtime::SessionEnd;

use super::fake::{FRAMES, Machine, PAGE};
use super::wire::{Controller, Received};

const TAG: ExecAddr = ExecAddr(0x7777);

/// Code that calls the controller with `args` and returns the first byte of its answer, or -1 without one.
fn calling(machine: &Machine, args: &'static [u8]) -> Vec<u8> {
    machine.code(move |machine, _| {
        let services = machine.services();
        let block = services.allocate(args.len() as u64, 1).unwrap();
        graft_runtime::Platform::store(machine, block, args);
        let result = services.call_controller(TAG, block, args.len() as u64);
        services.free(block);
        let first = match result {
            [data, 1..=8] => data & 0xff,
            [0, 0] => 0xff,
            [at, 0] => {
                let text = machine.peek(at, 4).unwrap();
                services.free(ExecAddr(at));
                u64::from_le_bytes([text[0], text[1], text[2], text[3], 0, 0, 0, 0])
            }
            [at, _] => {
                let byte = machine.peek(at, 1).unwrap()[0];
                services.free(ExecAddr(at));
                u64::from(byte)
            }
        };
        Ok([first, 0])
    })
}

fn answer(c: &Controller, seq_no: u64, payload: &[u8]) {
    c.send_message(&Message::Result { seq_no, payload });
}

#[test]
fn an_answer_comes_back_whatever_its_size() {
    let mut c = Controller::new();
    let code = calling(&c.machine, b"ping");
    let at = c.load(&code);
    for payload in [&b"7"[..], b"12345678", b"nine bytes and more"] {
        let run = c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
        let Received::Call { seq_no, tag: TAG, args } = c.receive() else { panic!() };
        assert_eq!(args, b"ping");
        answer(&c, seq_no, payload);
        assert_eq!(decode(&c.result(run)), Ok(i32::from(payload[0])));
    }
    c.finish();
}

#[test]
fn calls_are_served_while_one_waits() {
    let mut c = Controller::new();
    let code = calling(&c.machine, b"");
    let at = c.load(&code);
    let run = c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
    let Received::Call { seq_no, .. } = c.receive() else { panic!() };
    // As a REPL does: a whole load in the middle of a call.
    c.check_good_load();
    let base = c.reserve(PAGE).unwrap();
    c.initialize(&[(3, base, PAGE, b"x")], &[]).unwrap();
    answer(&c, seq_no, b"!");
    assert_eq!(decode(&c.result(run)), Ok(i32::from(b'!')));
    c.finish();
}

#[test]
fn nesting_has_a_limit_and_answers_may_cross() {
    let mut c = Controller::new();
    let code = calling(&c.machine, b"");
    let at = c.load(&code);
    let mut pending = Vec::new();
    for _ in 0..4 {
        let run = c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
        let Received::Call { seq_no, .. } = c.receive() else { panic!() };
        pending.push((run, seq_no));
    }
    assert_eq!(c.run(at), None, "a fifth level");
    assert!(c.machine.log().iter().any(|line| line.contains("calls into loaded code are nested 4 deep, the limit")));
    c.reserve(PAGE).unwrap();
    // The outermost is answered first, and must wait for the ones above it.
    for (level, (_, seq_no)) in pending.iter().enumerate() {
        answer(&c, *seq_no, &[level as u8 + 1]);
    }
    for (level, (run, _)) in pending.iter().enumerate().rev() {
        assert_eq!(decode(&c.result(*run)), Ok(level as i32 + 1));
    }
    c.check_good_load();
    c.finish();
}

#[test]
fn a_vanished_controller_lets_loaded_code_return() {
    for hangup in [true, false] {
        let mut c = Controller::new();
        let code = c.machine.code(|machine, _| {
            let services = machine.services();
            let text = |[at, size]: [u64; 2]| {
                assert_eq!(size, 0);
                let text: Vec<u8> =
                    (0..).map_while(|i| Some(machine.peek(at + i, 1)?[0]).filter(|b| *b != 0)).collect();
                String::from_utf8(text).unwrap()
            };
            assert_eq!(text(services.call_controller(TAG, ExecAddr::NULL, 0)), "disconnecting");
            let again = text(services.call_controller(TAG, ExecAddr::NULL, 0));
            assert_eq!(again, "jit_dispatch not available (EPC server shut down)");
            services.write_console(b"nobody reads this\n");
            Ok([0, 0])
        });
        let at = c.load(&code);
        c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
        assert!(matches!(c.receive(), Received::Call { .. }));
        if hangup {
            c.send_message(&Message::Hangup(Some(Outcome(Ok(())))));
        } else {
            c.close();
        }
        // No Result: the session it belonged to is over.
        assert_eq!(c.receive(), Received::End);
        assert_eq!(c.join(), [if hangup { SessionEnd::Hangup } else { SessionEnd::Closed }]);
        assert_eq!(c.machine.free_frames(), FRAMES);
    }
}

#[test]
fn memory_in_use_by_its_own_actions_cannot_go() {
    let mut c = Controller::new();
    let code = c.machine.code(|machine, _| {
        machine.services().call_controller(TAG, ExecAddr::NULL, 0);
        Ok([0, 1])
    });
    let f = c.load(&code);
    let base = c.reserve(PAGE).unwrap();
    let (segments, actions) = ([(3, base, PAGE, &b"x"[..])], [((f, &b""[..]), (f, &b""[..]))]);
    let (segments, actions) = (super::wire::segments_of(&segments), super::wire::actions_of(&actions));
    let initialize = c.start_row::<call::Initialize>(&c.finalize_args(&segments, &actions));
    let Received::Call { seq_no, .. } = c.receive() else { panic!() };
    let busy = format!("region {base:#x} -- {:#x} is busy: its own actions are running", base + PAGE);
    assert_eq!(c.release(&[base]), Err(busy.clone()));
    assert_eq!(c.deinitialize(&[base]), Err(busy.clone()));
    assert!(c.initialize(&[(3, base, PAGE, b"y")], &[]).unwrap_err().contains("overlaps"));
    answer(&c, seq_no, b"");
    assert_eq!(super::wire::expected::<ExecAddr>(&c.result(initialize)), Ok(ExecAddr(base)));
    // The same while it goes.
    let instance = c.symbol("__llvm_orc_SimpleExecutorMemoryManager_Instance");
    let addrs = [ExecAddr(base)];
    let args = graft_protocol::AddrsArgs { instance, addrs: graft_protocol::Seq::new(&addrs) };
    let release = c.start_row::<call::Release>(&args);
    let Received::Call { seq_no, .. } = c.receive() else { panic!() };
    assert_eq!(c.release(&[base]), Err(busy));
    answer(&c, seq_no, b"");
    assert_eq!(super::wire::outcome(&c.result(release)), Ok(()));
    c.check_good_load();
    c.finish();
}

#[test]
fn code_that_is_released_under_itself_harms_only_itself() {
    let mut c = Controller::new();
    let code = calling(&c.machine, b"");
    let at = c.load(&code);
    let run = c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
    let Received::Call { seq_no, .. } = c.receive() else { panic!() };
    c.release(&[at]).unwrap();
    answer(&c, seq_no, b"x");
    c.result(run);
    c.check_good_load();
    c.finish();
}

#[test]
fn arguments_are_those_of_the_call_whatever_becomes_of_their_memory() {
    let mut c = Controller::new();
    let base = c.reserve(PAGE).unwrap();
    c.initialize(&[(3, base, PAGE, b"argument")], &[]).unwrap();
    let code = c.machine.code(move |machine, _| {
        for _ in 0..63 {
            machine.services().write_console(b"line\n");
        }
        // Not sent yet; the last of the window.
        machine.services().write_console(b"rest");
        let [data, size] = machine.services().call_controller(TAG, ExecAddr(base), 8);
        assert_eq!(size, 1);
        Ok([data, 0])
    });
    let at = c.load(&code);
    let main = graft_protocol::CallMainArgs { entry: ExecAddr(at), args: graft_protocol::Seq::new(&[]), console: TAG };
    let run = c.start_row::<call::CallMain>(&main);
    let mut lines = Vec::new();
    while lines.len() < 64 {
        let Received::Call { seq_no, .. } = c.receive() else { panic!() };
        lines.push(seq_no);
    }
    // The executor waits for answers before it goes on, and serves this in the meantime.
    c.release(&[base]).unwrap();
    lines.iter().for_each(|seq_no| answer(&c, *seq_no, b""));
    let Received::Call { seq_no, args, .. } = c.receive() else { panic!() };
    assert_eq!(args, b"argument");
    answer(&c, seq_no, b"!");
    let reply = c.result(run);
    assert_eq!(decode(&reply), Ok(graft_protocol::CallOutcome::Returned(i64::from(b'!'))));
    c.check_good_load();
    c.finish();
}
