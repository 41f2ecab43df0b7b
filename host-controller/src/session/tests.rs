//! Sessions against an executor played by a thread, over a pair of sockets.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use graft_protocol::call::{ConsoleOutput, Reserve, RunAsVoidFunction};
use graft_protocol::{Blob, Expected, ReserveArgs, Seq, Setup, Text};

use super::*;

const RESERVE: ExecAddr = ExecAddr(0x1010);
const RUN_VOID: ExecAddr = ExecAddr(0x1020);
const LIMIT: Duration = Duration::from_secs(10);

/// The executor's end.
struct Played {
    reader: MessageReader<UnixStream>,
    writer: UnixStream,
}

impl Played {
    fn send(&mut self, message: &Message<'_>) {
        self.writer.write_all(WholeMessage::new(message).bytes()).unwrap();
    }

    fn setup(&mut self) {
        let symbols = [
            (Text::new("__llvm_orc_SimpleExecutorMemoryManager_reserve_wrapper"), RESERVE),
            (Text::new("__llvm_orc_SimpleExecutorMemoryManager_initialize_wrapper"), ExecAddr(0x1040)),
            (Text::new("__llvm_orc_bootstrap_run_as_void_function_wrapper"), RUN_VOID),
        ];
        let setup = Setup {
            triple: Text::new("x86_64-unknown-none-elf"),
            page_size: 4096,
            symbols: Seq::new(&symbols),
            ..Setup::default()
        };
        self.send(&Message::Setup(setup));
    }

    fn call(&mut self) -> WholeMessage {
        self.reader.next_message().unwrap().expect("a message")
    }

    fn answer(&mut self, seq_no: u64, value: &dyn Encode) {
        let mut payload = vec![0; encoded_len(value)];
        encode(value, &mut payload).unwrap();
        self.send(&Message::Result { seq_no, payload: &payload });
    }
}

fn pair() -> (Wire, Played) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let played = Played { reader: MessageReader::new(theirs.try_clone().unwrap(), DEFAULT_LIMIT), writer: theirs };
    (Wire::unix(ours).unwrap(), played)
}

fn open(act: impl FnOnce(Played) + Send + 'static) -> (Session, thread::JoinHandle<()>) {
    let (wire, mut played) = pair();
    let executor = thread::spawn(move || {
        played.setup();
        act(played);
    });
    (Session::open(wire, Options::default()).unwrap(), executor)
}

fn size(size: u64) -> ReserveArgs {
    ReserveArgs { instance: ExecAddr(1), size }
}

fn seq_no(message: &WholeMessage) -> u64 {
    message.message().head().1
}

#[test]
fn answers_find_their_calls_in_any_order() {
    let (session, executor) = open(|mut played| {
        let calls: Vec<_> = (0..3).map(|_| played.call()).collect();
        for call in calls.iter().rev() {
            let address = ExecAddr(0x1_0000 + seq_no(call));
            played.answer(seq_no(call), &Expected(Ok(address)));
        }
        let last = played.call();
        played.answer(seq_no(&last), &Expected::<ExecAddr>(Err(Text::new("no more"))));
        assert_eq!(played.call().message(), Message::Hangup(Some(Outcome(Ok(())))));
        assert!(played.reader.next_message().unwrap().is_none());
    });
    assert_eq!(session.peer().triple(), "x86_64-unknown-none-elf");
    let pending: Vec<_> = (0..3).map(|n| session.start::<Reserve>(&size(n)).unwrap()).collect();
    for (n, pending) in pending.into_iter().enumerate() {
        let reply = pending.wait().unwrap();
        assert_eq!(reply.read().unwrap(), Expected(Ok(ExecAddr(0x1_0000 + n as u64))));
    }
    assert_eq!(session.figures().round_trips, 1);
    let reply = session.call::<Reserve>(&size(9)).unwrap();
    assert_eq!(reply.read().unwrap(), Expected(Err(Text::new("no more"))));
    let figures = session.finish();
    assert_eq!((figures.round_trips, figures.messages_out, figures.messages_in), (2, 5, 5));
    executor.join().unwrap();
}

#[test]
fn a_handler_may_call_and_outputs_are_answered() {
    let (session, executor) = open(|mut played| {
        let run = played.call();
        played.send(&Message::Call { seq_no: 0, target: ExecAddr(7), args: b"\x02\0\0\0\0\0\0\0hi" });
        played.send(&Message::Call { seq_no: 1, target: ExecAddr(8), args: b"question" });
        // The order of the two is not defined.
        let (mut nested, mut answer) = (played.call(), played.call());
        if nested.message().head().0 == graft_protocol::Opcode::RESULT {
            std::mem::swap(&mut nested, &mut answer);
        }
        assert_eq!(answer.message(), Message::Result { seq_no: 0, payload: b"" });
        assert_eq!(nested.message().head().2, RESERVE);
        played.answer(seq_no(&nested), &Expected(Ok(ExecAddr(0x5000))));
        assert_eq!(played.call().message(), Message::Result { seq_no: 1, payload: b"0x5000" });
        played.send(&Message::Call { seq_no: 2, target: ExecAddr(9), args: b"" });
        assert_eq!(played.call().message(), Message::Result { seq_no: 2, payload: b"" });
        played.answer(seq_no(&run), &-3_i32);
    });
    let (said, heard) = mpsc::channel();
    session.on_output::<ConsoleOutput>(ExecAddr(7), move |Blob(bytes)| said.send(bytes.to_vec()).unwrap());
    session.on_call(ExecAddr(8), |caller, args| {
        assert_eq!(args, b"question");
        let reply = caller.call::<Reserve>(&size(1)).unwrap();
        reply.read().unwrap().0.unwrap().to_string().into_bytes()
    });
    let reply = session.call::<RunAsVoidFunction>(&ExecAddr(0x4000)).unwrap();
    assert_eq!(reply.read().unwrap(), -3);
    assert_eq!(heard.recv_timeout(LIMIT).unwrap(), b"hi");
    drop(session);
    executor.join().unwrap();
}

/// What every pending call fails with after the executor did `act` instead of answering.
fn end_after(act: impl FnOnce(&mut Played) + Send + 'static) -> String {
    let (session, executor) = open(|mut played| {
        let _ = (played.call(), played.call());
        act(&mut played);
    });
    let pending = [session.start::<Reserve>(&size(1)).unwrap(), session.start::<Reserve>(&size(2)).unwrap()];
    let ends = pending.map(|pending| pending.wait().unwrap_err().end().cloned().unwrap());
    executor.join().unwrap();
    assert_eq!(ends[0], ends[1]);
    let later = session.start::<Reserve>(&size(3)).unwrap_err();
    assert_eq!(later.end(), Some(&ends[0]));
    ends[0].to_string()
}

#[test]
fn every_end_has_its_own_words() {
    let reason = |text| Message::Hangup(Some(Outcome(Err(Text::new(text)))));
    assert_eq!(end_after(move |p| p.send(&reason("page fault"))), "the executor ended the session: page fault");
    assert_eq!(end_after(|p| p.send(&Message::Hangup(None))), "the executor ended the session");
    assert!(end_after(|_| {}).contains("it ended, was killed, or was reset"));
    assert!(end_after(Played::setup).contains("restarted in the middle"));
    assert!(end_after(|p| p.writer.write_all(b"abc").unwrap()).contains("3 bytes after its start, of 32"));
    assert!(end_after(|p| p.writer.write_all(&[0xff; 32]).unwrap()).contains("unknown opcode 0xffffffffffffffff"));
    assert!(end_after(|p| p.answer(77, &0_u8)).contains("a Result for call 77, which waits for none"));
}

#[test]
fn a_session_that_does_not_begin_says_why() {
    let patience = Options { setup_patience: Duration::from_millis(50), ..Options::default() };
    let (wire, played) = pair();
    assert_eq!(Session::open(wire, patience).unwrap_err(), OpenError::Silent(Duration::from_millis(50)));
    drop(played);

    let (wire, mut played) = pair();
    played.send(&Message::Hangup(Some(Outcome(Err(Text::new("busy"))))));
    let error = Session::open(wire, Options::default()).unwrap_err();
    assert_eq!(error, OpenError::Ended(End::HungUpBecause(String::from("busy"))));

    let (wire, mut played) = pair();
    played.send(&Message::Setup(Setup { page_size: 3, ..Setup::default() }));
    let error = Session::open(wire, Options::default()).unwrap_err();
    assert_eq!(error, OpenError::Unusable(PeerError::PageSize(3)));

    let (wire, mut played) = pair();
    played.answer(0, &0_u8);
    assert!(Session::open(wire, Options::default()).unwrap_err().to_string().contains("came before the Setup"));
}

#[test]
fn an_executor_of_another_architecture_is_refused_by_name() {
    for (triple, refused) in [
        ("aarch64-none-elf", true),
        ("i386-pc-linux-gnu", true),
        ("x86_64h-apple-darwin", true),
        ("x86_64-unknown-none-elf", false),
        ("x86_64-pc-linux-gnu", false),
    ] {
        let (wire, mut played) = pair();
        played.send(&Message::Setup(Setup { page_size: 4096, triple: Text::new(triple), ..Setup::default() }));
        match Session::open(wire, Options::default()) {
            Ok(_) => assert!(!refused, "{triple}"),
            Err(error) => assert!(refused && error.to_string().contains(triple), "{triple}: {error}"),
        }
    }
}

#[test]
fn a_silent_executor_is_nudged() {
    let (wire, mut played) = pair();
    let executor = thread::spawn(move || {
        assert_eq!(played.call().message(), NUDGE);
        played.setup();
        played
    });
    let options = Options { nudge_after: Some(Duration::from_millis(20)), ..Options::default() };
    let session = Session::open(wire, options).unwrap();
    let _played = executor.join().unwrap();
    assert_eq!(session.peer().page_size(), 4096);
}

#[test]
fn calls_can_fail_alone() {
    let (session, executor) = open(|mut played| {
        let _never_answered = played.call();
        let run = played.call();
        played.send(&Message::Result { seq_no: seq_no(&run), payload: b"" });
        let reserve = played.call();
        played.send(&Message::Result { seq_no: seq_no(&reserve), payload: b"\x07" });
        let _ = played.reader.next_message();
    });
    let error = session.call::<graft_protocol::call::Release>(&graft_protocol::AddrsArgs {
        instance: ExecAddr(1),
        addrs: Seq::new(&[]),
    });
    assert!(error.unwrap_err().to_string().contains("does not offer Release (none of: __llvm_orc_SimpleExecutorMem"));
    let slow = session.start::<Reserve>(&size(1)).unwrap();
    let late = slow.wait_until(Some(Instant::now() + Duration::from_millis(20))).unwrap_err();
    assert!(late.to_string().contains("did not answer a call of Reserve within"), "{late}");
    let empty = session.call::<RunAsVoidFunction>(&ExecAddr(1)).unwrap();
    assert!(empty.read().unwrap_err().to_string().contains("answered a call of RunAsVoidFunction with nothing"));
    let bad = session.call::<Reserve>(&size(1)).unwrap();
    assert!(bad.read().unwrap_err().to_string().contains("leading byte 0x07"));
    drop(session);
    executor.join().unwrap();
}

/// A session with an executor that was nudged and then plays `act`.
fn nudged(patience: Duration, act: impl FnOnce(&mut Played) + Send + 'static) -> Result<Session, OpenError> {
    let (wire, mut played) = pair();
    thread::spawn(move || {
        assert_eq!(played.call().message(), NUDGE);
        act(&mut played);
    });
    Session::open(wire, Options { nudge_after: Some(Duration::ZERO), setup_patience: patience, ..Options::default() })
}

#[test]
fn a_nudged_executor_may_repeat_itself_until_it_has_answered() {
    let session = nudged(LIMIT, |played| {
        played.setup();
        played.setup();
        let call = played.call();
        played.answer(seq_no(&call), &Expected(Ok(ExecAddr(0x5000))));
        let _ = played.call();
        // Reset.
        played.setup();
    })
    .unwrap();
    session.call::<Reserve>(&size(1)).unwrap();
    assert_eq!(session.call::<Reserve>(&size(2)).unwrap_err().end(), Some(&End::Restarted));

    let session = nudged(LIMIT, |played| {
        played.setup();
        let call = played.call();
        played.answer(seq_no(&call), &Expected(Ok(ExecAddr(0x5000))));
        let _ = played.call();
        played.setup();
    })
    .unwrap();
    session.call::<Reserve>(&size(1)).unwrap();
    assert_eq!(session.call::<Reserve>(&size(2)).unwrap_err().end(), Some(&End::Restarted));
}

#[test]
fn a_hangup_for_whoever_was_there_before_is_ignored() {
    let hangup = |played: &mut Played| {
        played.send(&Message::Hangup(Some(Outcome(Err(Text::new("fell silent in a message"))))));
    };
    let session = nudged(LIMIT, move |played| {
        hangup(played);
        played.setup();
        let _ = played.reader.next_message();
    })
    .unwrap();
    drop(session);
    let error = nudged(LIMIT, hangup).unwrap_err();
    assert_eq!(error, OpenError::Ended(End::HungUpBecause(String::from("fell silent in a message"))));
}

#[test]
fn a_session_leaves_nothing_behind() {
    let probe = Arc::new(());
    let (noted, handled) = (Arc::clone(&probe), Arc::clone(&probe));
    let (wire, mut played) = pair();
    played.setup();
    let note = move |_: &str| drop(Arc::clone(&noted));
    let session = Session::open(wire, Options { note: Box::new(note), ..Options::default() }).unwrap();
    let caller = session.caller();
    session.on_output::<ConsoleOutput>(ExecAddr(7), move |_| drop((Arc::clone(&handled), caller.clone())));
    drop(session);
    let deadline = Instant::now() + LIMIT;
    while Arc::strong_count(&probe) > 1 {
        assert!(Instant::now() < deadline, "the session's threads are gone, the session is not");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_end_waits_for_the_answer_to_an_output_that_is_being_handled() {
    let (entered, inside) = mpsc::channel();
    let (registered, go) = mpsc::channel();
    let (session, executor) = open(move |mut played| {
        go.recv().unwrap();
        played.send(&Message::Call { seq_no: 4, target: ExecAddr(7), args: b"\0\0\0\0\0\0\0\0" });
        assert_eq!(played.call().message(), Message::Result { seq_no: 4, payload: b"" });
        assert_eq!(played.call().message(), Message::Hangup(Some(Outcome(Ok(())))));
    });
    session.on_output::<ConsoleOutput>(ExecAddr(7), move |_| {
        entered.send(()).unwrap();
        thread::sleep(Duration::from_millis(50));
    });
    registered.send(()).unwrap();
    inside.recv_timeout(LIMIT).unwrap();
    session.finish();
    executor.join().unwrap();
}
