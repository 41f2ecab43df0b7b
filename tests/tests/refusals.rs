//! What LLVM's executors do not check and ours does: section 18 of the wire specification, a test per line.
//!
//! Each request is refused with its own words, changes nothing (what is initialized keeps its bytes, what is free stays
//! free), and the next good load works. Each test runs against the hosted executor and against machines.
//!
//! Line 1, that whoever connects runs code, is no request but a property of the transport: the protocol has no word for
//! who somebody is, so that only those may connect who may run code anyway. A machine's line is a Unix socket in a folder
//! of its user alone; the hosted executor listens where it is told to, nowhere else, and takes one connection.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use graft_protocol::{
    ActionPair, AddrsArgs, Blob, ExecAddr, FinalizeArgs, Header, LookupArgs, Opcode, OpenArgs, Prot, ReserveArgs,
    ResolveArgs, RunIntArgs, RunMainArgs, Segment, Seq, SymbolDef, SymbolQuery, Text, WrapperCall, call, decode,
    map_key,
};
use graft_qemu::MachineKind;
use graft_tests::child::{self, End};
use graft_tests::interop::Executor;
use graft_tests::place;
use graft_tests::raw::{Said, bytes_of, expected, outcome};
use graft_tests::rig::{CODE, Load, PAGE, Rig, group, on_each_executor, on_executors, segment};
use graft_tests::target::Target;

/// An address no executor gives out.
const NOWHERE: ExecAddr = ExecAddr(0x6660_0000_0000);

fn refused<T: std::fmt::Debug>(result: Result<T, String>, words: &str) {
    match result {
        Ok(value) => panic!("accepted, with {value:?}, instead of refused with {words:?}"),
        Err(text) => assert!(text.contains(words), "{text:?} says nothing of {words:?}"),
    }
}

/// The executor's log says so: what is refused without a text of its own is told there.
#[track_caller]
fn logged(rig: &mut Rig, words: &str) {
    let log = rig.log();
    assert!(log.contains(words), "the log says nothing of {words:?}:\n{log}");
}

fn at(base: ExecAddr, offset: u64) -> ExecAddr {
    base.checked_add(offset).unwrap()
}

/// Every address that loaded code may not be called at.
fn not_code(rig: &Rig) -> [ExecAddr; 5] {
    [ExecAddr::NULL, NOWHERE, rig.witness, rig.reserved, ExecAddr(0xffff_ffff_ffff_fff0)]
}

#[test]
fn line_1_only_the_user_reaches_a_machine_that_stays() {
    let machine = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &machine else { panic!("one of ours") };
    let socket = Path::new(name.strip_prefix("unix:").unwrap());
    let folder = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o7777, 0o700, "{name}");
    assert_eq!(folder.uid(), fs::metadata("/proc/self").unwrap().uid());
}

#[test]
fn line_1_the_hosted_executor_takes_one_connection_where_it_was_told_to() {
    let mut command = Command::new(&place::graft().unwrap().hosted);
    let executor = child::spawn(command.arg("listen=127.0.0.1:0")).unwrap();
    let said = executor.said("listening on ", Duration::from_secs(20)).unwrap();
    let (_, address) = said.rsplit_once(' ').unwrap();
    let first = TcpStream::connect(address).unwrap();
    let mut byte = [0];
    (&first).read_exact(&mut byte).unwrap();
    // From its Setup on, nobody else gets in.
    assert_eq!(TcpStream::connect(address).map_err(|error| error.kind()).err(), Some(ErrorKind::ConnectionRefused));
    drop(first);
    assert_eq!(executor.finish(Duration::from_secs(20)).end, End::Exit(0));
}

#[test]
fn line_2_a_message_above_the_limit() {
    on_each_executor(|rig| {
        let limit: u64 = decode(&rig.client.map[map_key::MAX_MESSAGE]).unwrap();
        rig.ends_session("above the limit", |rig| {
            rig.client.send_bytes(&bytes_of(&(limit + 1, Opcode::CALL_WRAPPER.0, 0_u64, 0_u64)));
        });
        rig.ends_session("above the limit", |rig| {
            rig.client.send_bytes(&bytes_of(&(u64::MAX, Opcode::CALL_WRAPPER.0, 0_u64, 0_u64)));
        });
        rig.ends_session("smaller than its header", |rig| {
            rig.client.send_bytes(&bytes_of(&(31_u64, Opcode::CALL_WRAPPER.0, 0_u64, 0_u64)));
        });
    });
}

#[test]
fn line_2_counts_above_what_the_message_holds() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let manager = rig.manager();
            let initialize = rig.client.wrapper::<call::Initialize>();
            let segments = bytes_of(&(manager, u64::MAX, 0_u64));
            refused(expected::<ExecAddr>(&rig.client.call_bytes(initialize, &segments)), "bytes needed");
            let release = rig.client.wrapper::<call::Release>();
            let addrs = bytes_of(&(manager, 1_u64 << 61, 0_u64));
            refused(outcome(&rig.client.call_bytes(release, &addrs)), "bytes needed");
            let dylibs = rig.dylibs();
            let open = rig.client.wrapper::<call::Open>();
            let path = bytes_of(&(dylibs, u64::MAX / 2, 0_u64));
            refused(expected::<ExecAddr>(&rig.client.call_bytes(open, &path)), "bytes needed");
        });
    });
}

#[test]
fn line_3_opcodes_and_numbers_where_none_belong() {
    on_each_executor(|rig| {
        let head = |opcode: u64, seq_no: u64, tag: u64| bytes_of(&(Header::SIZE as u64, opcode, seq_no, tag));
        rig.ends_session("unknown opcode 0x103", |rig| rig.client.send_bytes(&head(0x103, 0, 0)));
        rig.ends_session("sequence number", |rig| rig.client.send_bytes(&head(Opcode::HANGUP.0, 1, 0)));
        rig.ends_session("tag address", |rig| rig.client.send_bytes(&head(Opcode::HANGUP.0, 0, 1)));
        rig.ends_session("tag address", |rig| rig.client.send_bytes(&head(Opcode::RESULT.0, 0, 1)));
        rig.ends_session("no call for sequence number 77", |rig| {
            rig.client.send_bytes(&head(Opcode::RESULT.0, 77, 0));
        });
        rig.ends_session("Setup", |rig| rig.client.send_bytes(&head(Opcode::SETUP.0, 0, 0)));
    });
}

#[test]
fn line_4_calls_of_addresses_that_are_no_function() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            for target in not_code(rig) {
                assert_eq!(rig.client.call_bytes(target, &[]), [0_u8; 0], "{target}");
                logged(
                    rig,
                    &format!("call of wrapper function {target}: {target} is not in initialized executable memory"),
                );
            }
        });
    });
}

#[test]
fn line_5_sequence_numbers_that_come_twice() {
    on_each_executor(|rig| {
        // One call is answered before the next is read, so these two are never in flight together.
        rig.refuses(|rig| {
            let (reserve, instance) = (rig.client.wrapper::<call::Reserve>(), rig.manager());
            let args = bytes_of(&ReserveArgs { instance, size: 0 });
            rig.client.send(Opcode::CALL_WRAPPER, 7, reserve, &args);
            rig.client.send(Opcode::CALL_WRAPPER, 7, ExecAddr::NULL, &[]);
            assert_eq!(rig.client.receive(), Said::Result { seq_no: 7, payload: vec![1, 0, 0, 0, 0, 0, 0, 0, 0] });
            assert_eq!(rig.client.receive(), Said::Result { seq_no: 7, payload: Vec::new() });
        });
    });
}

#[test]
fn line_6_trailing_bytes_and_undefined_flags() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let instance = rig.manager();
            let reserve = rig.client.wrapper::<call::Reserve>();
            let args = bytes_of(&(ReserveArgs { instance, size: PAGE }, 0_u8));
            refused(expected::<ExecAddr>(&rig.client.call_bytes(reserve, &args)), "behind the last value");

            let handle = open(rig);
            let lookup = rig.client.wrapper::<call::Lookup>();
            let args = bytes_of(&(rig.dylibs(), handle, 1_u64, (Text::new("puts"), 2_u8)));
            refused(expected::<Seq<'_, SymbolDef>>(&rig.client.call_bytes(lookup, &args)), "bool");

            refused(initialize_with_group(rig, 0x11), "undefined bits");
        });
    });
}

#[test]
fn line_7_instances_and_handles_that_were_never_given_out() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let (manager, dylibs, handle) = (rig.manager(), rig.dylibs(), open(rig));
            for wrong in [ExecAddr::NULL, NOWHERE, dylibs, rig.witness] {
                let words = "is not the memory manager's instance";
                let reserve = ReserveArgs { instance: wrong, size: PAGE };
                refused(expected::<ExecAddr>(&rig.client.call::<call::Reserve>(&reserve)), words);
                let content = [segment(Prot::ReadWrite, rig.reserved, b"x")];
                let request = FinalizeArgs { instance: wrong, segments: Seq::new(&content), actions: Seq::default() };
                refused(expected::<ExecAddr>(&rig.client.call::<call::Initialize>(&request)), words);
                refused(outcome(&rig.client.call::<call::Finalize>(&request)), words);
                let addrs = [rig.reserved];
                let request = AddrsArgs { instance: wrong, addrs: Seq::new(&addrs) };
                refused(outcome(&rig.client.call::<call::Release>(&request)), words);
                refused(outcome(&rig.client.call::<call::Deallocate>(&request)), words);
                refused(outcome(&rig.client.call::<call::Deinitialize>(&request)), words);
            }
            let symbols = [SymbolQuery { name: Text::new("puts"), required: false }];
            for wrong in [ExecAddr::NULL, NOWHERE, manager, rig.witness] {
                let request = OpenArgs { instance: wrong, path: Text::new(""), mode: 0 };
                refused(expected::<ExecAddr>(&rig.client.call::<call::Open>(&request)), "instance");
                let request = LookupArgs { instance: wrong, handle, symbols: Seq::new(&symbols) };
                refused(expected::<u64>(&rig.client.call::<call::Lookup>(&request)), "instance");
                let request = LookupArgs { instance: dylibs, handle: wrong, symbols: Seq::new(&symbols) };
                refused(expected::<u64>(&rig.client.call::<call::Lookup>(&request)), "handle");
                let request = ResolveArgs { handle: wrong, symbols: Seq::new(&symbols) };
                refused(expected::<u64>(&rig.client.call::<call::Resolve22>(&request)), "handle");
            }
            let request = OpenArgs { instance: dylibs, path: Text::new(""), mode: 1 };
            refused(expected::<ExecAddr>(&rig.client.call::<call::Open>(&request)), "mode");
            let request = OpenArgs { instance: dylibs, path: Text::new("/lib/libc.so.6"), mode: 0 };
            refused(expected::<ExecAddr>(&rig.client.call::<call::Open>(&request)), "/lib/libc.so.6");
        });
    });
}

#[test]
fn line_8_reads_and_writes_outside_what_is_mapped() {
    on_each_executor(|rig| {
        let code = rig.reserve(PAGE).unwrap();
        rig.initialize(&[segment(Prot::ReadExec, code, CODE)]).unwrap();
        rig.refuses(|rig| {
            // A memory access has no way to carry a text: the answer is empty.
            let empty = [0_u8; 0];
            let wrong = [ExecAddr::NULL, NOWHERE, at(rig.witness, PAGE - 1), ExecAddr(u64::MAX)];
            for addr in wrong {
                assert_eq!(rig.client.call::<call::ReadUint64s>(&Seq::new(&[addr])), empty, "{addr}");
                assert_eq!(rig.client.call::<call::ReadPointers>(&Seq::new(&[addr])), empty, "{addr}");
                logged(
                    rig,
                    if addr.0 == u64::MAX { "past the end of the address space" } else { "in one reservation" },
                );
            }
            for addr in wrong.into_iter().chain([code]) {
                // A good element in front of the bad one is not written either.
                let elements = [(rig.witness, Blob(b"bad")), (addr, Blob(b"badbadbad"))];
                assert_eq!(rig.client.call::<call::WriteBuffers>(&Seq::new(&elements)), empty, "{addr}");
                let elements = [(rig.witness, 1_u64), (addr, 2)];
                assert_eq!(rig.client.call::<call::WriteUint64s>(&Seq::new(&elements)), empty, "{addr}");
                // Nor does it take memory, where it was never touched.
                let elements = [(rig.reserved, 1_u64), (at(rig.reserved, PAGE), 1), (addr, 2)];
                assert_eq!(rig.client.call::<call::WriteUint64s>(&Seq::new(&elements)), empty, "{addr}");
                let elements = [rig.reserved, at(rig.reserved, PAGE), NOWHERE];
                assert_eq!(rig.client.call::<call::ReadUint64s>(&Seq::new(&elements)), empty, "{addr}");
            }
            logged(rig, "is not writable: it is initialized as R-X");
            assert_eq!(rig.read(code, CODE.len() as u64), CODE);
        });
        // The newest reservation, with nothing behind it that a string could run on into.
        let tail = rig.reserve(PAGE).unwrap();
        let last = at(tail, PAGE - 8);
        rig.client.call::<call::WriteUint64s>(&Seq::new(&[(last, u64::MAX)]));
        rig.refuses(|rig| assert_eq!(rig.client.call::<call::ReadStrings>(&Seq::new(&[last])), [0_u8; 0]));
    });
}

#[test]
fn line_9_initializing_what_is_not_reserved_or_is_taken() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let words = "not part of any reserved address range";
            refused(rig.initialize(&[segment(Prot::ReadWrite, NOWHERE, b"x")]), words);
            let (first, behind) = (rig.reserved, at(rig.reserved, 4 * PAGE));
            let half_outside = [segment(Prot::ReadWrite, first, b"written?"), segment(Prot::ReadWrite, behind, b"x")];
            refused(rig.initialize(&half_outside), words);
            let into_the_witness = [segment(Prot::ReadWrite, rig.witness, b"overwritten")];
            refused(rig.initialize(&into_the_witness), "overlaps");
        });
        assert_eq!(rig.read(rig.reserved, 8), [0; 8]);
    });
}

#[test]
fn line_10_finalizing_twice() {
    on_each_executor(|rig| {
        let base = rig.reserve(PAGE).unwrap();
        rig.finalize(&[segment(Prot::ReadExec, base, CODE)]).unwrap();
        rig.refuses(|rig| {
            refused(rig.finalize(&[segment(Prot::ReadWrite, base, b"again")]), "a second time");
            assert_eq!(rig.run_main(base), 41_i64.to_le_bytes());
        });
    });
}

#[test]
fn line_11_segments_out_of_order_overlapping_or_past_the_end() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let (first, second) = (rig.reserved, at(rig.reserved, PAGE));
            let sized =
                |addr, size, content| Segment { group: group(Prot::ReadWrite), addr, size, content: Blob(content) };
            let cases: &[(&[Segment<'_>], &str)] = &[
                (&[sized(first, u64::MAX, b"x")], "past the end"),
                (&[sized(first, 2, b"three")], "exceeds segment size"),
                (&[sized(second, PAGE, b"x"), sized(first, PAGE, b"y")], "begins before the end of the one in front"),
                (
                    &[sized(first, 2 * PAGE, b"x"), sized(second, PAGE, b"y")],
                    "begins before the end of the one in front",
                ),
                (&[sized(first, PAGE, b"x"), sized(first, PAGE, b"y")], "begins before the end of the one in front"),
                (&[sized(first, 8, b"x"), segment(Prot::ReadExec, at(first, 64), CODE)], "two segments share it"),
            ];
            for (segments, words) in cases {
                refused(rig.initialize(segments), words);
            }
        });
        assert_eq!(rig.read(rig.reserved, 64), [0; 64]);
    });
}

#[test]
fn line_11_a_page_has_one_protection() {
    on_each_executor(|rig| {
        // A segment that begins in the middle of a page is served, and takes the page with it.
        let base = rig.reserve(PAGE).unwrap();
        let sized = |addr, prot, content| Segment { group: group(prot), addr, size: 8, content: Blob(content) };
        rig.initialize(&[sized(at(base, 64), Prot::ReadExec, CODE)]).unwrap();
        rig.refuses(|rig| {
            for prot in [Prot::ReadWrite, Prot::Read, Prot::ReadExec] {
                refused(rig.initialize(&[sized(base, prot, b"x")]), "overlaps");
                refused(rig.initialize(&[sized(at(base, 128), prot, b"x")]), "overlaps");
            }
            assert_eq!(rig.run_main(at(base, 64)), 41_i64.to_le_bytes());
        });
    });
}

#[test]
fn line_12_protections_nobody_may_have() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            for bits in [7, 6, 15] {
                refused(initialize_with_group(rig, bits), "writable and executable");
            }
            for bits in [0, 2, 4, 8] {
                refused(initialize_with_group(rig, bits), "not readable");
            }
        });
    });
}

#[test]
fn line_13_actions_that_are_no_functions() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            let (instance, reserved) = (rig.manager(), rig.reserved);
            let none = WrapperCall { function: ExecAddr::NULL, args: Blob(&[]) };
            for function in not_code(rig).into_iter().filter(|addr| !addr.is_null()) {
                let bad = WrapperCall { function, args: Blob(&[]) };
                for pair in [ActionPair { finalize: bad, dealloc: none }, ActionPair { finalize: none, dealloc: bad }] {
                    let segments = [segment(Prot::ReadWrite, reserved, b"written?")];
                    let actions = [pair];
                    let request = FinalizeArgs { instance, segments: Seq::new(&segments), actions: Seq::new(&actions) };
                    let answer = rig.client.call::<call::Initialize>(&request);
                    refused(expected::<ExecAddr>(&answer), &function.to_string());
                }
            }
        });
        assert_eq!(rig.read(rig.reserved, 8), [0; 8]);
    });
}

#[test]
fn line_14_running_what_is_not_initialized_code() {
    on_each_executor(|rig| {
        let code = rig.reserve(2 * PAGE).unwrap();
        rig.initialize(&[segment(Prot::ReadExec, code, CODE)]).unwrap();
        let gone = rig.reserve(PAGE).unwrap();
        rig.initialize(&[segment(Prot::ReadExec, gone, CODE)]).unwrap();
        let keys = [gone];
        let request = AddrsArgs { instance: rig.manager(), addrs: Seq::new(&keys) };
        assert_eq!(outcome(&rig.client.call::<call::Deinitialize>(&request)), Ok(()));
        rig.refuses(|rig| {
            for entry in not_code(rig).into_iter().chain([at(code, PAGE), gone]) {
                let empty = [0_u8; 0];
                let main = RunMainArgs { entry, args: Seq::default() };
                assert_eq!(rig.client.call::<call::RunAsMain>(&main), empty, "{entry}");
                assert_eq!(rig.client.call::<call::RunAsVoidFunction>(&entry), empty, "{entry}");
                let int = RunIntArgs { function: entry, arg: 1 };
                assert_eq!(rig.client.call::<call::RunAsIntFunction>(&int), empty, "{entry}");
                logged(rig, &format!("{entry} is not in initialized executable memory"));
            }
            assert_eq!(rig.run_main(code), 41_i64.to_le_bytes());
        });
    });
}

#[test]
fn line_15_reserving_nothing() {
    on_each_executor(|rig| {
        // LLVM's remote MCJIT asks for 0 bytes and expects to be told address 0; it owns nothing by that.
        rig.refuses(|rig| {
            assert_eq!(rig.reserve(0), Ok(ExecAddr::NULL));
            refused(rig.release(Load::Llvm22, ExecAddr::NULL), "not part of any reserved address range");
            refused(rig.release(Load::Llvm19, ExecAddr::NULL), "No allocation entry found");
            refused(rig.initialize(&[segment(Prot::ReadWrite, ExecAddr::NULL, b"x")]), "not part of any");
        });
    });
}

#[test]
fn line_16_reserving_more_than_there_is() {
    on_each_executor(|rig| {
        rig.refuses(|rig| {
            for size in [u64::MAX, u64::MAX - PAGE, 1 << 62, 1 << 47] {
                refused(rig.reserve(size), &format!("{size:#x} bytes"));
            }
        });
        // As many as are given out, and all of them back.
        let all = |rig: &mut Rig| {
            let mut held = Vec::new();
            let text = loop {
                match rig.reserve(1 << 30) {
                    Ok(base) => held.push(base),
                    Err(text) => break text,
                }
                assert!(held.len() < 1 << 16, "no end of reservations");
            };
            assert!(text.contains("cannot reserve"), "{text}");
            for base in held {
                assert_eq!(rig.release(Load::Llvm22, base), Ok(()));
            }
        };
        // What the list of so many takes, the first time, stays.
        all(rig);
        rig.refuses(all);
    });
}

fn open(rig: &mut Rig) -> ExecAddr {
    let request = OpenArgs { instance: rig.dylibs(), path: Text::new(""), mode: 0 };
    expected(&rig.client.call::<call::Open>(&request)).unwrap()
}

/// Initializes a page of the reserved range with a protection byte that no well-formed request can hold.
fn initialize_with_group(rig: &mut Rig, bits: u8) -> Result<ExecAddr, String> {
    let mut request = bytes_of(&(rig.manager(), 1_u64));
    request.extend(bytes_of(&(bits, rig.reserved, PAGE, Blob(b"written?"))));
    request.extend(bytes_of(&0_u64));
    let initialize = rig.client.wrapper::<call::Initialize>();
    expected(&rig.client.call_bytes(initialize, &request))
}

/// Neighbours share their page tables: what they need is not more than it is for one large write.
#[test]
fn small_writes_to_many_new_pages_are_taken_while_there_is_memory() {
    const PAGES: u64 = 400;
    on_executors(&[Some(MachineKind::Microvm)], |rig| {
        let base = rig.reserve(1 << 30).unwrap();
        let new = base.checked_add(512 << 20).unwrap();
        let size = rig.bytes_free() - (PAGES + PAGES / 2) * PAGE;
        let rest = Segment { size, ..segment(Prot::ReadWrite, base, b"") };
        assert_eq!(rig.initialize(&[rest]), Ok(base));
        let free = rig.bytes_free() / PAGE;
        assert!((PAGES + 10..2 * PAGES).contains(&free), "{free} pages are free");
        let elements: Vec<_> = (0..PAGES).map(|page| (new.checked_add(page * PAGE).unwrap(), 7)).collect();
        assert_eq!(rig.client.call::<call::WriteUint8s>(&Seq::new(&elements)), b"");
        assert_eq!(rig.read(new, 1), [7]);
        assert!(rig.bytes_free() / PAGE <= free - PAGES);
    });
}
