//! Running loaded code: arguments, results, faults, the console.

use graft_protocol::{
    Blob, CallMainArgs, CallOutcome, ExecAddr, FAULT_LINE, FaultKind, InfoReply, RunIntArgs, RunMainArgs, Seq, Text,
    Void, call, decode,
};
use graft_runtime::Entry;

use super::fake::{FRAMES, Machine, PAGE, fault};
use super::wire::{Controller, Received};

const TAG: ExecAddr = ExecAddr(0x5555_0000);

fn main_args<'a>(entry: u64, args: &'a [Text<'a>]) -> CallMainArgs<'a> {
    CallMainArgs { entry: ExecAddr(entry), args: Seq::new(args), console: TAG }
}

#[test]
fn main_gets_its_arguments_as_sent() {
    let mut c = Controller::new();
    let code = c.machine.code(|_, entry| match entry {
        Entry::Main { args } => {
            assert!(args.is_empty() || args == [&b"prog"[..], b"", b"x y"]);
            Ok([args.len() as u64, 0])
        }
        other => panic!("{other:?}"),
    });
    let at = c.load(&code);
    for (args, count) in [(&[][..], 0_i64), (&[Text::new("prog"), Text::new(""), Text::new("x y")], 3)] {
        let reply = c.call::<call::RunAsMain>(&RunMainArgs { entry: ExecAddr(at), args: Seq::new(args) });
        assert_eq!(decode(&reply), Ok(count));
    }
    c.finish();
}

#[test]
fn results_are_ints_sign_extended() {
    let mut c = Controller::new();
    let code = c.machine.code(|_, entry| match entry {
        Entry::Int(arg) => Ok([u64::from((arg + 1).cast_unsigned()), 9]),
        // The upper half of RAX may hold anything.
        _ => Ok([0x1234_5678_ffff_ffff, 9]),
    });
    let at = c.load(&code);
    let reply = c.call::<call::RunAsMain>(&RunMainArgs { entry: ExecAddr(at), args: Seq::new(&[]) });
    assert_eq!(reply, [0xff; 8]);
    let reply = c.call::<call::RunAsIntFunction>(&RunIntArgs { function: ExecAddr(at), arg: -3 });
    assert_eq!(decode(&reply), Ok(-2));
    assert_eq!(c.run(at), Some(-1));
    c.finish();
}

#[test]
fn a_fault_ends_the_call_and_nothing_else() {
    let mut c = Controller::new();
    let page_fault = fault(FaultKind::PAGE_FAULT, 0x1000_0010, 8);
    let code = c.machine.code(move |_, _| Err(page_fault));
    let at = c.load(&code);
    assert_eq!(c.run(at), None);
    let log = c.machine.log();
    let expected =
        format!("{FAULT_LINE}call of {at:#x} ended: page fault reading 0x8 (not mapped), instruction at 0x10000010");
    assert!(log.contains(&expected), "{log:?}");
    let reply = c.call::<call::CallMain>(&main_args(at, &[]));
    assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Faulted(page_fault)));
    c.check_good_load();
    c.finish();
}

#[test]
fn an_exit_is_told_from_a_return() {
    let mut c = Controller::new();
    let code = c.machine.code(|machine, _| {
        machine.services().note_exit();
        Ok([3, 0])
    });
    let at = c.load(&code);
    let plain = c.machine.code(|_, _| Ok([4, 0]));
    let plain = c.load(&plain);
    // An exit in a call that cannot say so is none of the next one's.
    assert_eq!(c.run(at), Some(3));
    let reply = c.call::<call::CallMain>(&main_args(plain, &[]));
    assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Returned(4)));
    let reply = c.call::<call::CallMain>(&main_args(at, &[]));
    assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Exited(3)));
    c.finish();
}

#[test]
fn too_many_arguments_are_refused() {
    let mut c = Controller::new();
    let code = c.machine.code(|_, _| Ok([0, 0]));
    let at = c.load(&code);
    let long = "x".repeat(200_000);
    let reply = c.call::<call::CallMain>(&main_args(at, &[Text::new(&long)]));
    let text = "the arguments take 200017 bytes, the limit is 131072 bytes";
    assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Refused(Text::new(text))));
    c.check_good_load();
    c.finish();
}

#[test]
fn wrapper_functions_of_loaded_code_can_be_called() {
    let mut c = Controller::new();
    let code = c.machine.code(|machine, entry| match entry {
        Entry::Wrapper { args: b"small" } => Ok([0x0807_0605_0403_0201, 5]),
        Entry::Wrapper { args: b"large" } => {
            let at = machine.services().allocate(9, 16).unwrap();
            graft_runtime::Platform::store(machine, at, b"nine byte");
            Ok([at.0, 9])
        }
        Entry::Wrapper { args: b"" } => Ok([0, 0]),
        other => panic!("{other:?}"),
    });
    let at = c.load(&code);
    assert_eq!(c.call_bytes(at, b"small"), [1, 2, 3, 4, 5]);
    assert_eq!(c.call_bytes(at, b"large"), b"nine byte");
    assert_eq!(c.call_bytes(at, b""), b"");
    c.finish();
}

fn printing(machine: &Machine, lines: usize) -> Vec<u8> {
    machine.code(move |machine, _| {
        for line in 0..lines {
            machine.services().write_console(format!("line {line}\n").as_bytes());
        }
        machine.services().write_console(b"no newline");
        Ok([0, 0])
    })
}

#[test]
fn the_console_goes_to_the_machine_unless_somebody_asks() {
    let mut c = Controller::new();
    let code = printing(&c.machine, 2);
    let at = c.load(&code);
    assert_eq!(c.run(at), Some(0));
    assert_eq!(c.machine.console(), b"line 0\nline 1\nno newline");
    c.finish();
}

#[test]
fn the_console_reaches_the_controller_before_the_result() {
    let mut c = Controller::new();
    let code = printing(&c.machine, 2);
    let at = c.load(&code);
    let call = c.start_row::<call::CallMain>(&main_args(at, &[]));
    let mut output: Vec<u8> = Vec::new();
    let reply = loop {
        match c.receive() {
            Received::Call { seq_no, tag: TAG, args } => {
                output.extend(decode::<Blob<'_>>(&args).unwrap().0);
                // The answer comes when it comes.
                c.send_message(&graft_protocol::Message::Result { seq_no, payload: b"" });
            }
            Received::Result { seq_no, payload } if seq_no == call => break payload,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Returned(0)));
    assert_eq!(output, b"line 0\nline 1\nno newline");
    // Afterwards it goes where it went before.
    assert_eq!(c.run(at), Some(0));
    assert_eq!(c.machine.console(), b"line 0\nline 1\nno newline");
    c.finish();
}

#[test]
fn a_slow_reader_of_the_console_is_waited_for_and_served() {
    let mut c = Controller::new();
    let code = printing(&c.machine, 100);
    let at = c.load(&code);
    let call = c.start_row::<call::CallMain>(&main_args(at, &[]));
    let mut unanswered = Vec::new();
    for _ in 0..64 {
        match c.receive() {
            Received::Call { seq_no, .. } => unanswered.push(seq_no),
            other => panic!("{other:?}"),
        }
    }
    // The window is full: the program is stopped, the executor is not.
    let base = c.reserve(PAGE).unwrap();
    c.release(&[base]).unwrap();
    for seq_no in unanswered {
        c.send_message(&graft_protocol::Message::Result { seq_no, payload: b"" });
    }
    let mut lines = 64;
    loop {
        match c.receive() {
            Received::Call { seq_no, .. } => {
                lines += 1;
                c.send_message(&graft_protocol::Message::Result { seq_no, payload: b"" });
            }
            Received::Result { seq_no, .. } if seq_no == call => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lines, 101);
    c.finish();
}

#[test]
fn the_executor_describes_itself() {
    let mut c = Controller::new();
    let at = c.load(b"");
    c.run(at);
    let reply = c.call::<call::Info>(&Void);
    let info: InfoReply<'_> = decode(&reply).unwrap();
    assert_eq!(info.version, Text::new(env!("CARGO_PKG_VERSION")));
    assert_eq!((info.machine, info.uptime_ns), (Text::new("a fake machine"), 77));
    assert_eq!((info.bytes_total, info.bytes_free), (FRAMES * PAGE, (FRAMES - 1) * PAGE));
    assert!(info.protections.iter().eq([Text::new("NX")]));
    assert_eq!(info.memory.len(), 1);
    let what: Vec<_> = info.mappings.iter().map(|mapping| mapping.what.to_string()).collect();
    assert_eq!(what, ["the executor", "reserved", "initialized"]);
    assert_eq!((info.traffic.messages_in, info.traffic.messages_out), (4, 4));
    assert!(info.log.to_string().contains("invalid opcode"), "{}", info.log);
    c.finish();
}

#[test]
fn a_run_that_names_no_console_leaves_it_where_it_is() {
    let mut c = Controller::new();
    let printer = printing(&c.machine, 1);
    let inner = c.load(&printer);
    let code = c.machine.code(|machine, _| {
        machine.services().call_controller(ExecAddr(0x55), ExecAddr::NULL, 0);
        Ok([0, 0])
    });
    let outer = c.load(&code);
    let run = c.start_row::<call::CallMain>(&main_args(outer, &[]));
    let Received::Call { seq_no, tag: ExecAddr(0x55), .. } = c.receive() else { panic!() };
    let quiet = CallMainArgs { console: ExecAddr::NULL, ..main_args(inner, &[]) };
    let nested = c.start_row::<call::CallMain>(&quiet);
    let Received::Call { tag: TAG, args, .. } = c.receive() else { panic!("the console went elsewhere") };
    assert_eq!(decode::<Blob<'_>>(&args).unwrap().0, b"line 0\n");
    assert!(matches!(c.receive(), Received::Call { tag: TAG, .. }));
    c.result(nested);
    c.send_message(&graft_protocol::Message::Result { seq_no, payload: b"" });
    c.result(run);
    assert_eq!(c.machine.console(), b"");
    c.finish();
}
