//! Loaded code calls the controller (`jit_dispatch`), and the executor serves the controller while it waits.
//!
//! The code is a compiled object, linked by the linker and called as a wrapper function: it hands a blob to the
//! executor's dispatch function and says what came back. On the hosted executor and on machines.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use graft::link::{Collect, Externals, Input, Options, parse, resolve};
use graft_protocol::{
    AddrsArgs, ExecAddr, Expected, FinalizeArgs, Instance, LookupArgs, Opcode, OpenArgs, Prot, ResolveArgs, Segment,
    Seq, SymbolDef, SymbolQuery, Text, Wrapper, call, decode,
};
use graft_tests::child::End;
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::raw::{Client, Said, bytes_of, expected, outcome};
use graft_tests::rig::{CODE, PAGE, Rig, on_each_executor, segment};
use graft_tests::target::Target;
use graft_tests::{objects, place};

/// The handler's tag: the controller's to choose.
const TAG: ExecAddr = ExecAddr(0x7a67_7a67_7a67);

/// How many calls into loaded code may wait for the controller inside one another.
const LEVELS: usize = 16;

/// The object file, compiled once.
fn object() -> &'static [u8] {
    static OBJECT: OnceLock<Vec<u8>> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let unit = Unit { source: "dispatch.c", compiler: Compiler::Gcc, flags: "-O1 -fPIC" };
        fs::read(objects::compile(&unit, &place::scratch("dispatch")).unwrap()).unwrap()
    })
}

fn instance(client: &Client, which: Instance) -> ExecAddr {
    client.symbol(which.names()[0].name)
}

fn library(client: &mut Client) -> ExecAddr {
    let request = OpenArgs { instance: instance(client, Instance::DylibManager), path: Text::new(""), mode: 0 };
    expected(&client.call::<call::Open>(&request)).unwrap()
}

/// Where `name` is: a name of Setup, or one that is looked up.
fn address(client: &mut Client, handle: ExecAddr, name: &str) -> ExecAddr {
    if client.publishes(name) {
        return client.symbol(name);
    }
    let symbols = [SymbolQuery { name: Text::new(name), required: true }];
    let answer = client.call::<call::Resolve22>(&ResolveArgs { handle, symbols: Seq::new(&symbols) });
    let found: Seq<'_, Option<SymbolDef>> = expected(&answer).unwrap();
    found.iter().next().flatten().unwrap_or_else(|| panic!("the executor has no {name}")).addr
}

/// Links and loads the relay; returns its entry and what to release.
fn load(client: &mut Client) -> (ExecAddr, ExecAddr) {
    let inputs = [Input::new("dispatch.o", object())];
    let parsed = parse(&inputs).unwrap();
    let options = Options { collect: Collect::All, ..Options::default() };
    let linked = resolve(&parsed, &options).unwrap();
    let layout = linked.layout().unwrap();
    let manager = instance(client, Instance::MemoryManager);
    let handle = library(client);
    let request = graft_protocol::ReserveArgs { instance: manager, size: layout.reservation() };
    let base = expected(&client.call::<call::Reserve>(&request)).unwrap();
    let mut externals = Externals::default();
    for external in layout.externals() {
        externals.insert(external.name, address(client, handle, external.name));
    }
    let image = layout.link(base, &externals).unwrap();
    let segments: Vec<Segment<'_>> = image
        .segments
        .iter()
        .map(|segment| Segment {
            group: segment.group,
            addr: segment.addr,
            size: segment.size,
            content: graft_protocol::Blob(&segment.content),
        })
        .collect();
    let request = FinalizeArgs { instance: manager, segments: Seq::new(&segments), actions: Seq::default() };
    assert!(expected::<ExecAddr>(&client.call::<call::Initialize>(&request)).is_ok());
    (image.address_of("relay").unwrap(), base)
}

/// A call of the relay that waits for the controller.
struct Waiting {
    /// The number of our call.
    ours: u64,
    /// The number of the executor's.
    theirs: u64,
}

/// Calls the relay, whose call of the handler comes back with the blob it was given.
fn begin(client: &mut Client, relay: ExecAddr, blob: &[u8]) -> Waiting {
    let mut args = bytes_of(&TAG);
    args.extend_from_slice(blob);
    let ours = client.send_call(relay, &args);
    match client.receive() {
        Said::Call { seq_no: theirs, tag: TAG, args } if args == blob => Waiting { ours, theirs },
        other => panic!("{other:?} instead of a call of the handler"),
    }
}

fn answer(client: &mut Client, waiting: &Waiting, payload: &[u8]) {
    client.send(Opcode::RESULT, waiting.theirs, ExecAddr::NULL, payload);
}

/// What the relay returns at `level` for an answer that arrived in `how`.
fn report(how: &str, level: usize, payload: &[u8]) -> Vec<u8> {
    let mut report = how.as_bytes().to_vec();
    report.push(u8::try_from(level).unwrap());
    report.extend(bytes_of(&(payload.len() as u64)));
    report.extend(payload.iter().map(|byte| byte.wrapping_add(1)));
    report
}

fn returns(client: &mut Client, waiting: &Waiting, report: Vec<u8>) {
    let Said::Result { seq_no, payload } = client.receive() else { panic!("no Result of call {}", waiting.ours) };
    assert_eq!(seq_no, waiting.ours);
    assert!(payload == report, "{} bytes {:?}.. of {}", payload.len(), payload.get(..16), report.len());
}

fn release(client: &mut Client, base: ExecAddr) {
    let bases = [base];
    let request = AddrsArgs { instance: instance(client, Instance::MemoryManager), addrs: Seq::new(&bases) };
    assert_eq!(outcome(&client.call::<call::Release>(&request)), Ok(()));
}

#[test]
fn answers_of_every_size_arrive_in_loaded_code() {
    on_each_executor(|rig| {
        let (relay, base) = load(&mut rig.client);
        let large: Vec<u8> = (0_u32..9_000).map(|index| index.to_le_bytes()[1]).collect();
        // Twice: what the answers took comes back.
        let mut free = Vec::new();
        for _ in 0..2 {
            for payload in [&b""[..], b"1", b"12345678", b"123456789", &large] {
                for blob in [&b""[..], &large] {
                    let waiting = begin(&mut rig.client, relay, blob);
                    answer(&mut rig.client, &waiting, payload);
                    let how = if payload.len() <= 8 { "inline." } else { "memory." };
                    returns(&mut rig.client, &waiting, report(how, 1, payload));
                }
            }
            free.push(rig.bytes_free());
        }
        assert_eq!(free[0], free[1]);
        release(&mut rig.client, base);
    });
}

/// What a controller asks for in the middle of a call: everything a load needs, in both forms of `resolve`.
fn nested_load(rig: &mut Rig) {
    let base = rig.reserve(2 * PAGE).unwrap();
    let handle = library(&mut rig.client);
    let symbols = [
        SymbolQuery { name: Text::new("malloc"), required: true },
        SymbolQuery { name: Text::new("no such thing"), required: false },
    ];
    let symbols = Seq::new(&symbols);
    let answer = rig.client.call::<call::Resolve22>(&ResolveArgs { handle, symbols });
    let defs: Vec<Option<SymbolDef>> = sequence(&answer);
    let of_23 = call::Resolve::ID.names().iter().map(|name| name.name);
    for name in of_23 {
        let request = LookupArgs { instance: rig.dylibs(), handle, symbols };
        let answer = rig.client.call_bytes(rig.client.symbol(name), &bytes_of(&request));
        let addrs: Vec<Option<ExecAddr>> = sequence(&answer);
        assert_eq!(addrs, [defs[0].map(|def| def.addr), Some(ExecAddr::NULL)], "{name}");
    }
    let code = base.checked_add(PAGE).unwrap();
    let segments = [segment(Prot::ReadWrite, base, b"data"), segment(Prot::ReadExec, code, CODE)];
    assert_eq!(rig.initialize(&segments), Ok(base));
    assert_eq!(rig.read(base, 4), b"data");
    assert_eq!(rig.run_main(code), 41_i64.to_le_bytes());
    release(&mut rig.client, base);
}

fn sequence<T: for<'a> graft_protocol::Decode<'a> + graft_protocol::Encode + Copy + 'static>(answer: &[u8]) -> Vec<T> {
    let Expected(result) = decode::<Expected<'_, Seq<'_, T>>>(answer).unwrap();
    result.unwrap().iter().collect()
}

#[test]
fn whole_loads_are_served_while_a_call_waits() {
    on_each_executor(|rig| {
        let (relay, base) = load(&mut rig.client);
        let mut free = Vec::new();
        for _ in 0..2 {
            let waiting = begin(&mut rig.client, relay, b"what now?");
            nested_load(rig);
            rig.good_load(graft_tests::rig::Load::Llvm19);
            // Loaded code in the middle of loaded code, which calls as well.
            let inner = begin(&mut rig.client, relay, b"and now?");
            nested_load(rig);
            answer(&mut rig.client, &inner, b"this is more than eight bytes");
            returns(&mut rig.client, &inner, report("memory.", 2, b"this is more than eight bytes"));
            nested_load(rig);
            answer(&mut rig.client, &waiting, b"go on");
            returns(&mut rig.client, &waiting, report("inline.", 1, b"go on"));
            free.push(rig.bytes_free());
        }
        assert_eq!(free[0], free[1]);
        release(&mut rig.client, base);
    });
}

#[test]
fn calls_nest_up_to_the_limit_and_one_more_is_refused() {
    on_each_executor(|rig| {
        let (relay, base) = load(&mut rig.client);
        let mut free = Vec::new();
        for crossing in [false, true, false] {
            let levels: Vec<Waiting> =
                (0..LEVELS).map(|level| begin(&mut rig.client, relay, &[level as u8; 3])).collect();
            // One more is an empty answer, and the reason in the log; what needs no stack is served as before.
            let mut args = bytes_of(&TAG);
            args.push(b'x');
            assert_eq!(rig.client.call_bytes(relay, &args), [0_u8; 0]);
            assert_eq!(rig.run_main(relay), [0_u8; 0]);
            let log = rig.log();
            assert!(log.contains("calls into loaded code are nested 16 deep, the limit"), "{log}");
            let inside = rig.reserve(PAGE).unwrap();
            assert_eq!(rig.initialize(&[segment(Prot::ReadExec, inside, CODE)]), Ok(inside));
            let payload = |level: usize| vec![level as u8; level + 1];
            if crossing {
                // The outermost is answered first, and returns last all the same.
                for (level, waiting) in levels.iter().enumerate() {
                    answer(&mut rig.client, waiting, &payload(level));
                }
            }
            for (level, waiting) in levels.iter().enumerate().rev() {
                if !crossing {
                    answer(&mut rig.client, waiting, &payload(level));
                }
                let how = if payload(level).len() <= 8 { "inline." } else { "memory." };
                returns(&mut rig.client, waiting, report(how, level + 1, &payload(level)));
            }
            assert_eq!(rig.run_main(inside), 41_i64.to_le_bytes());
            release(&mut rig.client, inside);
            free.push(rig.bytes_free());
        }
        // The stacks of the first time stay.
        assert_eq!((free[1], free[2]), (free[0], free[0]));
        release(&mut rig.client, base);
    });
}

#[test]
fn a_limit_ends_nested_calls_from_the_inside_out() {
    /// `jmp $`.
    const FOR_EVER: &[u8] = &[0xeb, 0xfe];
    const LIMIT_NS: u64 = 200_000_000;
    on_each_executor(|rig| {
        let mut free = Vec::new();
        for _ in 0..3 {
            let (relay, base) = load(&mut rig.client);
            let inside = rig.reserve(PAGE).unwrap();
            assert_eq!(rig.initialize(&[segment(Prot::ReadExec, inside, FOR_EVER)]), Ok(inside));
            assert_eq!(rig.client.call::<call::TimeLimit>(&LIMIT_NS), bytes_of(&LIMIT_NS));
            let waiting = begin(&mut rig.client, relay, b"");
            // The inner call has what is left of the outer one's time.
            assert_eq!(rig.run_main(inside), [0_u8; 0]);
            assert!(rig.log().contains(&format!("call of {inside} ended: time limit exceeded")), "{}", rig.log());
            // The outer one waits in the executor's own code: it ends when that returns to it.
            answer(&mut rig.client, &waiting, b"too late");
            returns(&mut rig.client, &waiting, Vec::new());
            assert!(rig.log().contains(&format!("call of {relay} ended: time limit exceeded")), "{}", rig.log());
            assert_eq!(rig.client.call::<call::TimeLimit>(&0), bytes_of(&0_u64));
            release(&mut rig.client, inside);
            release(&mut rig.client, base);
            rig.good_load(graft_tests::rig::Load::Llvm22);
            free.push(rig.bytes_free());
        }
        // The stacks of the first time stay.
        assert_eq!(free[1], free[2]);
    });
}

#[test]
fn line_5_a_number_that_is_in_flight() {
    on_each_executor(|rig| {
        rig.ends_session("is under way already", |rig| {
            let (relay, _) = load(&mut rig.client);
            let waiting = begin(&mut rig.client, relay, b"");
            let reserve = rig.client.wrapper::<call::Reserve>();
            let args = bytes_of(&graft_protocol::ReserveArgs { instance: rig.manager(), size: PAGE });
            rig.client.send(Opcode::CALL_WRAPPER, waiting.ours, reserve, &args);
        });
        // The other way: an answer for a call that nobody made, and a second one for one that was.
        rig.ends_session("no call for sequence number", |rig| {
            let (relay, _) = load(&mut rig.client);
            let waiting = begin(&mut rig.client, relay, b"");
            rig.client.send(Opcode::RESULT, waiting.theirs + 1, ExecAddr::NULL, b"x");
        });
        rig.ends_session("no call for sequence number", |rig| {
            let (relay, _) = load(&mut rig.client);
            let outer = begin(&mut rig.client, relay, b"outer");
            begin(&mut rig.client, relay, b"inner");
            // The outer one cannot return yet, so its answer is kept.
            answer(&mut rig.client, &outer, b"x");
            answer(&mut rig.client, &outer, b"y");
        });
    });
}

#[test]
fn a_controller_that_hangs_up_in_the_middle_takes_nothing_along() {
    on_each_executor(|rig| {
        for levels in [1, 3, LEVELS] {
            rig.outlives(|rig| {
                let (relay, _) = load(&mut rig.client);
                for _ in 0..levels {
                    begin(&mut rig.client, relay, b"to be answered never");
                    let inside = rig.reserve(3 * PAGE).unwrap();
                    rig.initialize(&[segment(Prot::ReadWrite, inside, b"left behind")]).unwrap();
                }
                rig.client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
            });
        }
    });
}

#[test]
fn a_controller_that_vanishes_in_the_middle_leaves_a_usable_executor() {
    // The process serves one session and ends well.
    let mut client = Client::hosted();
    let (relay, _) = load(&mut client);
    for _ in 0..3 {
        begin(&mut client, relay, b"to be answered never");
    }
    assert_eq!(client.vanish().unwrap().end, End::Exit(0));

    // A machine that stays goes on.
    let machine = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &machine else { panic!("one of ours") };
    let path = name.strip_prefix("unix:").unwrap_or_else(|| panic!("{name} is no socket"));
    let mut free = Vec::new();
    for _ in 0..4 {
        let mut client = connect(path);
        let (relay, base) = load(&mut client);
        let waiting = begin(&mut client, relay, b"");
        answer(&mut client, &waiting, b"");
        returns(&mut client, &waiting, report("inline.", 1, b""));
        release(&mut client, base);
        free.push(bytes_free(&mut client));
        let (relay, _) = load(&mut client);
        for _ in 0..3 {
            begin(&mut client, relay, b"to be answered never");
        }
        assert!(client.vanish().is_none());
    }
    // The stacks of the first time stay.
    assert!(free[1..].iter().all(|bytes| *bytes == free[1]), "{free:?}");
}

fn connect(path: &str) -> Client {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        match UnixStream::connect(path) {
            Ok(line) => return Client::on_line(line),
            // The one before is being taken leave of.
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn bytes_free(client: &mut Client) -> u64 {
    let reply = client.call::<call::Info>(&graft_protocol::Void);
    decode::<graft_protocol::InfoReply<'_>>(&reply).unwrap().bytes_free
}
