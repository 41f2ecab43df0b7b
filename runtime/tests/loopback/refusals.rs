//! What LLVM's executors do not check (section 18 of the wire specification), line by line: each request is refused with
//! its own text, nothing has changed, and the next good load works.

use graft_protocol::{
    CallMainArgs, CallOutcome, ExecAddr, Instance, Message, OpenArgs, Outcome, ReserveArgs, RunMainArgs, Seq, Text,
    WrapperId, call, decode,
};
use graft_runtime::{Ending, ProtocolError, SessionEnd};

use super::fake::{FRAMES, LOW, PAGE};
use super::wire::{Call, Controller, Received, expected, header, outcome};

const NONE: Call<'_> = (0, b"");

/// Does `request`, which must change nothing, and then a good load; returns what was said.
fn refused<R>(c: &mut Controller, request: impl FnOnce(&mut Controller) -> R) -> R {
    let before = c.machine.state();
    let answer = request(c);
    assert_eq!(c.machine.state(), before, "a refused request changed something");
    c.check_good_load();
    answer
}

/// Sends bytes that break the protocol; the session must end with that text, and the next one be good.
fn broken(bytes: &[u8], error: ProtocolError) {
    let mut c = Controller::serving(2, Ending::Controller);
    c.reserve(PAGE).unwrap();
    c.send(bytes);
    assert_eq!(c.receive(), Received::Hangup(Err(format!("protocol error: {error}"))));
    c.take_setup();
    assert_eq!(c.machine.state(), super::fake::State::default());
    c.check_good_load();
    c.send_message(&Message::Hangup(None));
    assert_eq!(c.join(), [SessionEnd::Protocol(error), SessionEnd::Hangup]);
    assert!(c.machine.log().iter().any(|line| line.contains(&error.to_string())), "logged");
}

fn initialize_args(c: &Controller, body: &[u64]) -> Vec<u8> {
    let instance = c.symbol(Instance::MemoryManager.names()[0].name).0;
    [instance].iter().chain(body).flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn line_2_sizes_and_counts_are_bounded() {
    let limit = (FRAMES * PAGE / 4).max(1 << 20);
    let size = limit + 1;
    let error = graft_protocol::MessageError::TooLarge { size, limit };
    broken(&header(size, 3, 0, 0), ProtocolError::Message(error));
    broken(
        &header(u64::MAX, 3, 0, 0),
        ProtocolError::Message(graft_protocol::MessageError::TooLarge { size: u64::MAX, limit }),
    );
    broken(&header(31, 3, 0, 0), ProtocolError::Message(graft_protocol::MessageError::TooSmall { size: 31 }));

    let mut c = Controller::new();
    let announced = c.map.iter().find(|(key, _)| key == graft_protocol::map_key::MAX_MESSAGE).unwrap().1.clone();
    assert_eq!(announced, limit.to_le_bytes());
    let target = c.address(WrapperId::Initialize);
    let args = initialize_args(&c, &[u64::MAX]);
    let text = refused(&mut c, |c| expected::<ExecAddr>(&c.call_bytes(target, &args)).unwrap_err());
    assert!(text.starts_with("could not deserialize the arguments: "), "{text}");
    c.finish();
}

#[test]
fn line_3_opcodes_count_in_all_64_bits_and_numbers_are_zero_where_they_must_be() {
    use graft_protocol::{MessageError, Opcode};
    broken(&header(32, 0x103, 0, 0), ProtocolError::Message(MessageError::UnknownOpcode(0x103)));
    broken(&header(32, 4, 0, 0), ProtocolError::Message(MessageError::UnknownOpcode(4)));
    let seq_no = MessageError::NonZeroSeqNo { opcode: Opcode::HANGUP, seq_no: 1 };
    broken(&header(32, 1, 1, 0), ProtocolError::Message(seq_no));
    let tag = MessageError::NonZeroTag { opcode: Opcode::HANGUP, tag: ExecAddr(2) };
    broken(&header(32, 1, 0, 2), ProtocolError::Message(tag));
    let tag = MessageError::NonZeroTag { opcode: Opcode::RESULT, tag: ExecAddr(1) };
    broken(&header(32, 2, 0, 1), ProtocolError::Message(tag));
    broken(&header(32, 0, 0, 0), ProtocolError::UnexpectedSetup);
    broken(&header(32, 2, 77, 0), ProtocolError::UnknownResult { seq_no: 77 });
}

#[test]
fn line_4_only_what_is_published_or_initialized_is_called() {
    let mut c = Controller::new();
    let data = c.reserve(2 * PAGE).unwrap();
    c.initialize(&[(3, data, PAGE, b"")], &[]).unwrap();
    let nowhere = c.symbol(Instance::DispatchContext.names()[0].name).0;
    for target in [0, 8, 0x10_0100, data, data + PAGE, nowhere, nowhere + 1, u64::MAX, LOW.1] {
        assert_eq!(refused(&mut c, |c| c.call_bytes(target, b"")), b"", "{target:#x}");
    }
    let log = c.machine.log();
    assert!(
        log.iter().any(|line| line
            == &format!("call of wrapper function {data:#x}: {data:#x} is not in initialized executable memory")),
        "{log:?}"
    );
    c.finish();
}

#[test]
fn line_5_a_number_is_not_used_twice_at_once() {
    let mut c = Controller::serving(2, Ending::Controller);
    let code = c.machine.code(|machine, _| {
        let [at, size] = machine.services().call_controller(ExecAddr(0x77), ExecAddr::NULL, 0);
        assert_eq!(size, 0);
        Ok([u64::from(at != 0), 0])
    });
    let at = c.load(&code);
    let run = c.start_row::<call::RunAsVoidFunction>(&ExecAddr(at));
    assert!(matches!(c.receive(), Received::Call { .. }));
    c.send_message(&Message::Call { seq_no: run, target: ExecAddr(0), args: b"" });
    let error = ProtocolError::DuplicateCall { seq_no: run };
    assert_eq!(c.receive(), Received::Hangup(Err(format!("protocol error: {error}"))));
    c.take_setup();
    c.check_good_load();
    c.send_message(&Message::Hangup(None));
    assert_eq!(c.join(), [SessionEnd::Protocol(error), SessionEnd::Hangup]);
}

#[test]
fn line_6_arguments_are_decoded_to_the_last_byte() {
    let mut c = Controller::new();
    let reserve = c.address(WrapperId::Reserve);
    let mut args = initialize_args(&c, &[PAGE]);
    args.push(0);
    let text = refused(&mut c, |c| expected::<ExecAddr>(&c.call_bytes(reserve, &args)).unwrap_err());
    assert_eq!(text, "could not deserialize the arguments: 1 bytes behind the last value");
    let text = refused(&mut c, |c| expected::<ExecAddr>(&c.call_bytes(reserve, &args[..15])).unwrap_err());
    assert_eq!(text, "could not deserialize the arguments: 8 bytes needed, 7 left");

    // A bool of 2.
    let lookup = c.address(WrapperId::Lookup);
    let mut args: Vec<u8> = [c.dylibs.0, 0, 1, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    args.extend(b"x\x02");
    let text = refused(&mut c, |c| expected::<Seq<'_, u8>>(&c.call_bytes(lookup, &args)).unwrap_err());
    assert_eq!(text, "could not deserialize the arguments: bool 0x02 is neither 0 nor 1");

    for (bits, why) in [
        (0x10, "allocation group 0x10 has undefined bits (defined: 0x0f)"),
        (0x07, "allocation group 0x07 is writable and executable; use two segments"),
        (0x00, "allocation group 0x00 is not readable"),
    ] {
        let text = refused(&mut c, |c| group(c, bits).unwrap_err());
        assert_eq!(text, format!("could not deserialize the arguments: {why}"));
    }
    // Void functions have nothing to say it with.
    let write = c.address(WrapperId::WriteUint8s);
    assert_eq!(refused(&mut c, |c| c.call_bytes(write, &[1])), b"");
    assert!(c.machine.log().iter().any(|line| line.starts_with("WriteUint8s: could not deserialize")));
    // The hooks that do nothing still want their arguments.
    let eh = c.address(WrapperId::RegisterEhFrame);
    assert!(refused(&mut c, |c| outcome(&c.call_bytes(eh, &[1])).is_err()));
    c.finish();
}

/// Initializes a page of a new reservation with any allocation group.
fn group(c: &mut Controller, bits: u8) -> Result<ExecAddr, String> {
    let before = c.machine.state();
    let base = c.reserve(PAGE).unwrap();
    let mut args = initialize_args(c, &[1]);
    args.push(bits);
    args.extend([base, PAGE, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    let target = c.address(WrapperId::Initialize);
    let result = expected::<ExecAddr>(&c.call_bytes(target, &args));
    c.release(&[base]).unwrap();
    assert_eq!(c.machine.state(), before);
    result
}

#[test]
fn line_7_instances_and_handles_are_those_we_gave_out() {
    let mut c = Controller::new();
    let wrong = ExecAddr(0x5555);
    let reply = refused(&mut c, |c| c.call::<call::Reserve>(&ReserveArgs { instance: wrong, size: PAGE }));
    assert_eq!(expected::<ExecAddr>(&reply), Err("0x5555 is not the memory manager's instance".to_owned()));
    let args = |c: &Controller| OpenArgs { instance: c.dylibs, path: Text::new(""), mode: 0 };
    let reply = refused(&mut c, |c| c.call::<call::Open>(&OpenArgs { instance: wrong, ..args(c) }));
    assert_eq!(expected::<ExecAddr>(&reply), Err("0x5555 is not the dylib manager's instance".to_owned()));
    let args = graft_protocol::LookupArgs { instance: c.dylibs, handle: wrong, symbols: Seq::new(&[]) };
    let reply = refused(&mut c, |c| c.call::<call::Lookup>(&args));
    assert_eq!(expected::<Seq<'_, u8>>(&reply), Err("0x5555 is not a handle that open returned".to_owned()));
    let addrs = graft_protocol::AddrsArgs { instance: wrong, addrs: Seq::new(&[]) };
    for reply in [
        refused(&mut c, |c| c.call::<call::Release>(&addrs)),
        refused(&mut c, |c| c.call::<call::Deallocate>(&addrs)),
        refused(&mut c, |c| c.call::<call::Deinitialize>(&addrs)),
    ] {
        assert_eq!(outcome(&reply), Err("0x5555 is not the memory manager's instance".to_owned()));
    }
    let args = graft_protocol::FinalizeArgs { instance: wrong, segments: Seq::new(&[]), actions: Seq::new(&[]) };
    let reply = refused(&mut c, |c| c.call::<call::Finalize>(&args));
    assert_eq!(outcome(&reply), Err("0x5555 is not the memory manager's instance".to_owned()));
    c.finish();
}

#[test]
fn line_9_initialize_touches_only_reserved_memory_that_is_free() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let next = c.reserve(4 * PAGE).unwrap();
    assert_eq!(next, base + 4 * PAGE);
    c.initialize(&[(3, base + PAGE, PAGE, b"here")], &[]).unwrap();
    let not_reserved = |low: u64, high: u64| {
        format!("In initialize, range {low:#x} -- {high:#x} is not part of any reserved address range")
    };
    let far = 0x6000_0000;
    let text = refused(&mut c, |c| c.initialize(&[(3, far, PAGE, b"")], &[]).unwrap_err());
    assert_eq!(text, not_reserved(far, far + PAGE));
    // Two reservations that touch are two reservations.
    let text = refused(&mut c, |c| c.initialize(&[(3, base + 3 * PAGE, 2 * PAGE, b"")], &[]).unwrap_err());
    assert_eq!(text, not_reserved(base + 3 * PAGE, base + 5 * PAGE));
    let segments = [(3, base + 2 * PAGE, PAGE, &b"mine"[..]), (3, next, PAGE, b"foreign")];
    let text = refused(&mut c, |c| c.initialize(&segments, &[]).unwrap_err());
    assert_eq!(text, not_reserved(base + 2 * PAGE, next + PAGE));

    let overlaps = |low: u64, high: u64, side: &str| {
        let (other, end) = (base + PAGE, base + 2 * PAGE);
        format!("In initialize, region {low:#x} -- {high:#x} overlaps {side} region {other:#x} -- {end:#x}")
    };
    let text = refused(&mut c, |c| c.initialize(&[(3, base + PAGE, PAGE, b"again")], &[]).unwrap_err());
    assert_eq!(text, overlaps(base + PAGE, base + 2 * PAGE, "previous"));
    let text = refused(&mut c, |c| c.initialize(&[(3, base, PAGE + 1, b"")], &[]).unwrap_err());
    assert_eq!(text, overlaps(base, base + 2 * PAGE, "following"));
    let text = refused(&mut c, |c| c.initialize(&[(3, base + 2 * PAGE - 8, PAGE, b"")], &[]).unwrap_err());
    assert_eq!(text, overlaps(base + PAGE, base + 3 * PAGE, "previous"));
    // Around it, too.
    let segments = [(3, base, PAGE, &b""[..]), (3, base + 2 * PAGE, PAGE, b"")];
    assert!(refused(&mut c, |c| c.initialize(&segments, &[]).unwrap_err()).contains("overlaps following"));

    assert_eq!(refused(&mut c, |c| c.initialize(&[], &[]).unwrap_err()), "Finalization request is empty");
    let text = refused(&mut c, |c| c.initialize(&[], &[(NONE, NONE)]).unwrap_err());
    assert_eq!(text, "Finalization actions attached to empty finalization request");
    assert_eq!(c.machine.peek(base + PAGE, 4).unwrap(), b"here");
    c.finish();
}

#[test]
fn line_10_llvm_19_finalizes_once_and_from_the_base() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let text = refused(&mut c, |c| c.finalize(&[(3, base + PAGE, PAGE, b"")], &[]).unwrap_err());
    assert_eq!(text, format!("Attempt to finalize unrecognized allocation {:#x}", base + PAGE));
    let text = refused(&mut c, |c| c.finalize(&[(3, 0x123_000, PAGE, b"")], &[]).unwrap_err());
    assert_eq!(text, "Attempt to finalize unrecognized allocation 0x123000");
    let text = refused(&mut c, |c| c.finalize(&[(3, base, 4 * PAGE + 1, b"")], &[]).unwrap_err());
    let end = base + 4 * PAGE;
    assert_eq!(
        text,
        format!("Segment {base:#x} -- {:#x} crosses boundary of allocation {base:#x} -- {end:#x}", end + 1)
    );
    c.finalize(&[(1, base, PAGE, b"first")], &[]).unwrap();
    let text = refused(&mut c, |c| c.finalize(&[(3, base, PAGE, b"second")], &[]).unwrap_err());
    assert_eq!(text, format!("Attempt to finalize allocation {base:#x} a second time"));
    assert_eq!(c.machine.peek(base, 5).unwrap(), b"first");
    c.deallocate(&[base]).unwrap();
    c.finish();
}

#[test]
fn line_11_segments_are_in_order_and_have_an_end() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let cases: [(&[super::wire::Spec<'_>], String); 5] = [
        (
            &[(3, base, 4, b"toolong")],
            format!("Segment {base:#x} content size (0x7 bytes) exceeds segment size (0x4 bytes)"),
        ),
        (
            &[(3, base, u64::MAX, b"")],
            format!("Segment {base:#x} of 0xffffffffffffffff bytes runs past the end of the address space"),
        ),
        (
            &[(3, base + PAGE, PAGE, b""), (3, base, PAGE, b"")],
            format!(
                "Segment {base:#x} begins before the end of the one in front of it, {:#x} -- {:#x}",
                base + PAGE,
                base + 2 * PAGE
            ),
        ),
        (
            &[(3, base, PAGE, b""), (3, base + PAGE - 1, PAGE, b"")],
            format!(
                "Segment {:#x} begins before the end of the one in front of it, {base:#x} -- {:#x}",
                base + PAGE - 1,
                base + PAGE
            ),
        ),
        (
            &[(1, base, 8, b""), (5, base + 16, 8, b"")],
            format!("Page {base:#x} would have to be R-- and R-X: two segments share it"),
        ),
    ];
    for (segments, text) in cases {
        assert_eq!(refused(&mut c, |c| c.initialize(segments, &[]).unwrap_err()), text);
        assert_eq!(refused(&mut c, |c| c.finalize(segments, &[]).unwrap_err()), text);
    }
    // Out of order in a way that hides the base from LLVM 19's rule.
    c.finish();
}

#[test]
fn line_12_no_page_is_writable_and_executable_or_neither() {
    let mut c = Controller::new();
    let cases = [
        (7, "writable and executable"),
        (6, "writable and executable"),
        (0, "not readable"),
        (2, "not readable"),
        (4, "not readable"),
    ];
    for (bits, why) in cases {
        let text = refused(&mut c, |c| group(c, bits).unwrap_err());
        assert!(text.contains(why), "{text}");
    }
    c.finish();
}

#[test]
fn line_13_actions_are_something_that_may_be_called() {
    let mut c = Controller::new();
    let base = c.reserve(3 * PAGE).unwrap();
    c.initialize(&[(3, base + 2 * PAGE, PAGE, b"")], &[]).unwrap();
    let code = c.machine.code(|_, _| Ok([0, 1]));
    let segments = [(5, base, PAGE, &code[..]), (13, base + PAGE, PAGE, &code)];
    let initialize = c.address(WrapperId::Initialize);
    let run = c.address(WrapperId::RunAsMain);
    for function in [8, base + 2 * PAGE, 0x10_0100, initialize, run, u64::MAX] {
        for (role, pair) in [("finalize", ((function, &b""[..]), NONE)), ("dealloc", (NONE, (function, &b""[..])))] {
            let good = (NONE, NONE);
            let text = refused(&mut c, |c| c.initialize(&segments, &[good, pair]).unwrap_err());
            assert_eq!(
                text,
                format!(
                    "{role} action 1 at {function:#x} is neither a wrapper function of this executor that can be an \
                     action nor in executable memory"
                )
            );
        }
    }
    // Code that is gone when the action's turn comes.
    let text = refused(&mut c, |c| c.initialize(&segments, &[(NONE, (base + PAGE, b""))]).unwrap_err());
    assert!(text.starts_with("dealloc action 0 "), "{text}");
    c.initialize(&segments, &[((base + PAGE, b""), (base, b""))]).unwrap();
    c.finish();
}

#[test]
fn line_14_runs_enter_initialized_code_only() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let code = c.machine.code(|_, _| Ok([41, 0]));
    c.initialize(&[(1, base, PAGE, &code), (5, base + PAGE, PAGE, &code), (3, base + 2 * PAGE, PAGE, &code)], &[])
        .unwrap();
    for at in [0, base, base + 2 * PAGE, base + 3 * PAGE, base + 4 * PAGE, 0x10_0100, c.address(WrapperId::Reserve)] {
        assert_eq!(refused(&mut c, |c| c.run(at)), None, "{at:#x}");
        let args = RunMainArgs { entry: ExecAddr(at), args: Seq::new(&[]) };
        assert_eq!(refused(&mut c, |c| c.call::<call::RunAsMain>(&args)), b"");
        let args = CallMainArgs { entry: ExecAddr(at), args: Seq::new(&[]), console: ExecAddr::NULL };
        let reply = refused(&mut c, |c| c.call::<call::CallMain>(&args));
        let text = format!("{at:#x} is not in initialized executable memory");
        assert_eq!(decode::<CallOutcome<'_>>(&reply), Ok(CallOutcome::Refused(Text::new(&text))));
    }
    assert_eq!(c.run(base + PAGE), Some(41));
    c.finish();
}

#[test]
fn line_15_nothing_is_reserved_for_nothing() {
    let mut c = Controller::new();
    // Not refused: LLVM's lli asks for it before it closes, and would fail.
    assert_eq!(refused(&mut c, |c| c.reserve(0)), Ok(0));
    let text = refused(&mut c, |c| c.release(&[0]).unwrap_err());
    assert_eq!(text, "In release, 0x0 is not part of any reserved address range");
    c.finish();
}

#[test]
fn line_16_address_space_and_memory_have_ends() {
    let mut c = Controller::new();
    let text = refused(&mut c, |c| c.reserve(u64::MAX).unwrap_err());
    assert_eq!(text, "cannot reserve 0xffffffffffffffff bytes: more than the address space");
    let text = refused(&mut c, |c| c.reserve(1 << 60).unwrap_err());
    assert_eq!(
        text,
        "cannot reserve 0x1000000000000000 bytes: this session holds 0x0 bytes, the limit is 0x10000000000"
    );
    let text = refused(&mut c, |c| c.reserve(1 << 30).unwrap_err());
    assert_eq!(text, "cannot reserve 0x40000000 bytes: the longest free range has 0x4000000 bytes");

    // More memory than there is: nothing is stored, and what fits still does.
    let pages = FRAMES + 1;
    let base = c.reserve(pages * PAGE).unwrap();
    let segments = [(3, base, PAGE, &b"x"[..]), (3, base + PAGE, (pages - 1) * PAGE, b"y")];
    let text = refused(&mut c, |c| c.initialize(&segments, &[]).unwrap_err());
    assert!(text.starts_with("Cannot allocate memory: "), "{text}");
    assert!(text.ends_with(&format!(" bytes wanted, {} bytes free", FRAMES * PAGE)), "{text}");
    c.initialize(&[(3, base, (FRAMES - 16) * PAGE, b"x")], &[]).unwrap();
    c.release(&[base]).unwrap();
    c.finish();
}

#[test]
fn hangups_with_a_reason_are_hangups() {
    let mut c = Controller::new();
    c.send_message(&Message::Hangup(Some(Outcome(Err(Text::new("going home"))))));
    assert_eq!(c.join(), [SessionEnd::Hangup]);
    assert!(c.machine.log().iter().any(|line| line.contains("going home")));
}
