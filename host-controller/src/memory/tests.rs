//! The manager against an executor that keeps a book of its own and accepts nothing odd.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use graft_protocol::{
    AddrsArgs, AllocGroup, Encode, FinalizeArgs, Lifetime, Message, Outcome, Prot, ReserveArgs, Seq, Setup, Text,
    decode, encode, encoded_len,
};

use super::*;
use crate::session::{DEFAULT_LIMIT, MessageReader, Options, Session, WholeMessage, Wire};

const INSTANCE: ExecAddr = ExecAddr(0x77);
/// A reservation of this size is put where no page begins.
const ODD: u64 = 0x7000;
const V1: &[&str] = &["reserve", "finalize", "deallocate"];
const V2: &[&str] = &["reserve", "initialize", "deinitialize", "release"];

/// What the executor did, in words, and what is left at its end.
type Book = (Vec<String>, BTreeMap<u64, u64>);

fn name(function: &str) -> String {
    format!("__llvm_orc_SimpleExecutorMemoryManager_{function}_wrapper")
}

fn start(functions: &'static [&'static str], extra: &'static [&'static str]) -> (Session, JoinHandle<Book>) {
    start_with(functions, extra, Options::default())
}

fn start_with(
    functions: &'static [&'static str],
    extra: &'static [&'static str],
    options: Options,
) -> (Session, JoinHandle<Book>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let executor = thread::spawn(move || execute(theirs, functions, extra));
    (Session::open(Wire::unix(ours).unwrap(), options).unwrap(), executor)
}

fn execute(mut line: UnixStream, functions: &[&str], extra: &[&str]) -> Book {
    let names: Vec<_> = functions.iter().map(|function| name(function)).collect();
    let mut symbols = vec![(Text::new("__llvm_orc_SimpleExecutorMemoryManager_Instance"), INSTANCE)];
    for (index, name) in names.iter().map(String::as_str).chain(extra.iter().copied()).enumerate() {
        symbols.push((Text::new(name), ExecAddr(index as u64)));
    }
    let setup = Setup { page_size: 0x1000, symbols: Seq::new(&symbols), ..Setup::default() };
    line.write_all(WholeMessage::new(&Message::Setup(setup)).bytes()).unwrap();
    let mut reader = MessageReader::new(line.try_clone().unwrap(), DEFAULT_LIMIT);
    let (mut log, mut reserved) = (Vec::new(), BTreeMap::new());
    let mut base = 0x10_0000;
    while let Some(message) = reader.next_message().unwrap() {
        let Message::Call { seq_no, target, args } = message.message() else { break };
        let function = functions[usize::try_from(target.0).unwrap()];
        let refused = Text::new("no, thanks");
        let payload = match function {
            "reserve" => {
                let ReserveArgs { instance, size } = decode(args).unwrap();
                assert_eq!(instance, INSTANCE);
                log.push(format!("reserve {size:#x}"));
                if size > 1 << 30 {
                    bytes(&Expected::<ExecAddr>(Err(refused)))
                } else {
                    base += if size == ODD { 0x100_0008 } else { 0x100_0000 };
                    reserved.insert(base, size);
                    bytes(&Expected(Ok(ExecAddr(base))))
                }
            }
            "initialize" | "finalize" => {
                let FinalizeArgs { segments, .. } = decode(args).unwrap();
                let first = segments.iter().next().unwrap();
                log.push(format!("{function} {}", first.addr));
                let bad = first.content.0.first() == Some(&0xbd);
                match function {
                    "finalize" if bad => {
                        reserved.remove(&first.addr.0);
                        bytes(&Outcome(Err(refused)))
                    }
                    "finalize" => bytes(&Outcome(Ok(()))),
                    _ if bad => bytes(&Expected::<ExecAddr>(Err(refused))),
                    _ => bytes(&Expected(Ok(first.addr))),
                }
            }
            _ => {
                let AddrsArgs { addrs, .. } = decode(args).unwrap();
                log.push(format!("{function} {:?}", addrs));
                let mut known = true;
                if function != "deinitialize" {
                    addrs.iter().for_each(|addr| known &= reserved.remove(&addr.0).is_some());
                }
                bytes(&Outcome(if known { Ok(()) } else { Err(refused) }))
            }
        };
        line.write_all(WholeMessage::new(&Message::Result { seq_no, payload: &payload }).bytes()).unwrap();
    }
    (log, reserved)
}

fn bytes(value: &dyn Encode) -> Vec<u8> {
    let mut out = vec![0; encoded_len(value)];
    encode(value, &mut out).unwrap();
    out
}

fn image(room: &Room, first: u8) -> Vec<Segment> {
    let group = AllocGroup { prot: Prot::Read, lifetime: Lifetime::Standard };
    vec![Segment { group, addr: room.range().start(), size: 0x1000, content: vec![first] }]
}

fn reserve(memory: &mut Memory, size: u64) -> Room {
    let reserving = memory.reserve(size).unwrap();
    memory.room(reserving).unwrap()
}

fn load(memory: &mut Memory, size: u64) -> Loaded {
    let room = reserve(memory, size);
    let segments = image(&room, 1);
    let initializing = memory.initialize(room, &segments).unwrap();
    memory.loaded(initializing).unwrap()
}

fn unload(memory: &mut Memory, loaded: Loaded) {
    let releasing = memory.release(loaded).unwrap();
    memory.released(releasing).unwrap();
}

#[test]
fn each_program_has_its_reservation_in_both_dialects() {
    for (functions, fill, free) in [(V1, "finalize", "deallocate"), (V2, "initialize", "release")] {
        let (session, executor) = start(functions, &[]);
        let mut memory = Memory::new(session.caller(), Strategy::Generic).unwrap();
        let loaded = load(&mut memory, 0x3000);
        unload(&mut memory, loaded);
        let room = reserve(&mut memory, 0x1000);
        let abandoned = memory.abandon(room).unwrap();
        memory.released(abandoned).unwrap();
        memory.close().unwrap();
        session.finish();
        let (log, left) = executor.join().unwrap();
        let (fill, free) = (format!("{fill} 0x1100000"), |base: &str| format!("{free} [{base}]"));
        assert_eq!(log, ["reserve 0x3000", &fill, &free("0x1100000"), "reserve 0x1000", &free("0x2100000")]);
        assert!(left.is_empty());
    }
}

#[test]
fn refusals_leave_nothing_behind() {
    for functions in [V1, V2] {
        let (session, executor) = start(functions, &[]);
        let mut memory = Memory::new(session.caller(), Strategy::Generic).unwrap();
        let reserving = memory.reserve(1 << 40).unwrap();
        let error = memory.room(reserving).unwrap_err();
        assert_eq!(error.to_string(), "the executor cannot reserve 1099511627776 bytes: no, thanks");
        let room = reserve(&mut memory, 0x1000);
        let segments = image(&room, 0xbd);
        let initializing = memory.initialize(room, &segments).unwrap();
        let error = memory.loaded(initializing).unwrap_err();
        assert_eq!(error.to_string(), "the executor refused the image: no, thanks");
        session.finish();
        assert!(executor.join().unwrap().1.is_empty());
    }
}

#[test]
fn slabs_are_shared_and_released_at_the_end() {
    let (session, executor) = start(V2, &["graft_call_main_wrapper"]);
    let mut memory = Memory::new(session.caller(), Strategy::Slab { size: 0x4000 }).unwrap();
    let first = load(&mut memory, 0x1000);
    let second = load(&mut memory, 0x2001);
    assert_eq!(second.room.range().start(), ExecAddr(0x110_1000));
    unload(&mut memory, first);
    let again = load(&mut memory, 0x800);
    assert_eq!(again.room.range().start(), ExecAddr(0x110_0000));
    let large = load(&mut memory, 0x5000);
    for loaded in [second, again, large] {
        unload(&mut memory, loaded);
    }
    memory.close().unwrap();
    session.finish();
    let (log, left) = executor.join().unwrap();
    let reserves: Vec<_> = log.iter().filter(|line| line.starts_with("reserve")).collect();
    assert_eq!(reserves, ["reserve 0x4000", "reserve 0x5000"]);
    assert_eq!(log.last().unwrap(), "release [0x1100000, 0x2100000]");
    assert!(left.is_empty());
}

#[test]
fn those_who_ask_at_the_same_time_share_a_slab() {
    let (session, executor) = start(V2, &["graft_call_main_wrapper"]);
    let mut memory = Memory::new(session.caller(), Strategy::Slab { size: 0x4000 }).unwrap();
    // The last to be served finds no room left.
    let asked: Vec<_> = [0x1000, 0x1001, 0x1000, 0x1000].map(|size| memory.reserve(size).unwrap()).into();
    // In any order.
    let rooms: Vec<_> = asked.into_iter().rev().map(|asked| memory.room(asked).unwrap()).collect();
    let places: Vec<_> = rooms.iter().map(|room| room.range().start().0).collect();
    assert_eq!(places, [0x110_0000, 0x110_1000, 0x110_2000, 0x210_0000]);
    for room in rooms {
        let releasing = memory.abandon(room).unwrap();
        memory.released(releasing).unwrap();
    }
    memory.close().unwrap();
    session.finish();
    let (log, left) = executor.join().unwrap();
    assert_eq!(log, ["reserve 0x4000", "reserve 0x4000", "release [0x1100000, 0x2100000]"]);
    assert!(left.is_empty());
}

#[test]
fn a_slab_that_is_refused_fails_the_one_who_waits_for_it_and_no_other() {
    for beside_first in [false, true] {
        refused_beside(beside_first);
    }
}

fn refused_beside(beside_first: bool) {
    let (session, executor) = start(V2, &["graft_call_main_wrapper"]);
    let mut memory = Memory::new(session.caller(), Strategy::Slab { size: 0x1000 }).unwrap();
    let (huge, beside) = (memory.reserve((1 << 30) + 1).unwrap(), memory.reserve(0x1000).unwrap());
    let refused =
        |memory: &mut Memory, huge| assert!(memory.room(huge).unwrap_err().to_string().contains("no, thanks"));
    let room = if beside_first {
        let room = memory.room(beside).unwrap();
        refused(&mut memory, huge);
        room
    } else {
        refused(&mut memory, huge);
        memory.room(beside).unwrap()
    };
    let releasing = memory.abandon(room).unwrap();
    memory.released(releasing).unwrap();
    // And one that nobody waited for is given back, too.
    let forgotten = memory.reserve(0x2000).unwrap();
    memory.close().unwrap();
    session.finish();
    drop(forgotten);
    let (log, left) = executor.join().unwrap();
    assert_eq!(log[..3], ["reserve 0x40001000", "reserve 0x1000", "reserve 0x2000"]);
    assert!(left.is_empty(), "{log:?}");
}

#[test]
fn llvms_executors_get_no_range_twice() {
    let (session, executor) = start(V2, &[]);
    let mut memory = Memory::new(session.caller(), Strategy::Slab { size: 0x2000 }).unwrap();
    for expected in [0x110_0000, 0x110_1000, 0x210_0000] {
        let loaded = load(&mut memory, 0x1000);
        assert_eq!(loaded.room.range().start(), ExecAddr(expected));
        unload(&mut memory, loaded);
    }
    memory.close().unwrap();
    session.finish();
    assert!(executor.join().unwrap().1.is_empty());

    let (session, executor) = start(V1, &[]);
    let error = Memory::new(session.caller(), Strategy::Slab { size: 0x2000 }).unwrap_err();
    assert!(matches!(error, MemoryError::NoSlabs));
    drop(session);
    executor.join().unwrap();
}

#[test]
fn memory_can_be_left_to_the_end_of_the_session() {
    let (session, executor) = start(V2, &[]);
    let mut memory = Memory::new(session.caller(), Strategy::Generic).unwrap();
    load(&mut memory, 0x1000).leave();
    session.finish();
    assert_eq!(executor.join().unwrap().0, ["reserve 0x1000", "initialize 0x1100000"]);
}

#[test]
fn forgotten_memory_is_reported() {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&notes);
    let note = Box::new(move |text: &str| noted.lock().unwrap().push(text.to_owned()));
    let (session, executor) = start_with(V2, &[], Options { note, ..Options::default() });
    let mut memory = Memory::new(session.caller(), Strategy::Generic).unwrap();
    // Where assertions are on, it is one as well.
    let forget = |what: Box<dyn FnOnce()>| drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)));
    let room = reserve(&mut memory, 0x1000);
    forget(Box::new(|| drop(room)));
    let reserving = memory.reserve(0x2000).unwrap();
    forget(Box::new(|| drop(reserving)));
    let room = reserve(&mut memory, 0x1000);
    session.finish();
    // The session is over: the executor has freed it.
    drop(room);
    let notes = notes.lock().unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("was forgotten: 0x1100000"), "{notes:?}");
    assert!(notes[1].contains("was forgotten: 8192 bytes that were asked for"), "{notes:?}");
    assert_eq!(executor.join().unwrap().1.len(), 3);
}

#[test]
fn memory_at_a_useless_place_is_given_back() {
    let (session, executor) = start(V2, &[]);
    let mut memory = Memory::new(session.caller(), Strategy::Generic).unwrap();
    let reserving = memory.reserve(ODD).unwrap();
    let error = memory.room(reserving).unwrap_err();
    assert!(matches!(error, MemoryError::BadBase { .. }), "{error}");
    session.finish();
    assert!(executor.join().unwrap().1.is_empty());
}
