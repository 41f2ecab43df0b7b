//! Controllers that leave while their program runs, or never read: the executor goes on without them.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use graft_protocol::{
    ExecAddr, LookupArgs, Opcode, OpenArgs, Prot, ReserveArgs, RunMainArgs, Seq, SymbolDef, SymbolQuery, Text, call,
};
use graft_tests::child::End;
use graft_tests::place;
use graft_tests::raw::{Client, Said, bytes_of, expected};
use graft_tests::rig::{Load, PAGE, Rig, on_each_executor, segment};

/// The program that calls the controller again and again.
const CALLS: &str = "calls the controller";

/// `jmp $`.
const FOR_EVER: &[u8] = &[0xeb, 0xfe];

/// Calls `function` with two arguments again and again: `mov rbx, function; mov rdi, first; xor esi, esi; xor edx, edx;
/// xor ecx, ecx; sub rsp, 8; 1: call rbx; jmp 1b`, with `first` loaded anew for each.
fn calling(function: ExecAddr, first: ExecAddr) -> Vec<u8> {
    let mut code = vec![0x48, 0x83, 0xec, 0x08, 0x48, 0xbb];
    code.extend(function.0.to_le_bytes());
    let start = code.len();
    code.extend([0x48, 0xbf]);
    code.extend(first.0.to_le_bytes());
    code.extend([0x31, 0xf6, 0x31, 0xd2, 0x31, 0xc9, 0xff, 0xd3, 0xeb]);
    code.push((start as i64 - code.len() as i64 - 1) as u8);
    code
}

/// A function of the C library.
fn library_function(rig: &mut Rig, name: &str) -> ExecAddr {
    let open = OpenArgs { instance: rig.dylibs(), path: Text::new(""), mode: 0 };
    let handle = expected(&rig.client.call::<call::Open>(&open)).unwrap();
    let symbols = [SymbolQuery { name: Text::new(name), required: true }];
    let request = LookupArgs { instance: rig.dylibs(), handle, symbols: Seq::new(&symbols) };
    let answer = rig.client.call::<call::Lookup>(&request);
    let found: Seq<'_, SymbolDef> = expected(&answer).unwrap();
    found.iter().next().unwrap().addr
}

/// The programs that never end, by what they do.
fn programs(rig: &mut Rig) -> Vec<(&'static str, Vec<u8>)> {
    let dispatch = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_fn");
    let context = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_ctx");
    vec![("loops", FOR_EVER.to_vec()), (CALLS, calling(dispatch, context))]
}

/// Starts the program `name`, and waits until it runs.
fn start(rig: &mut Rig, name: &str, code: &[u8]) {
    let base = rig.reserve(PAGE).unwrap();
    assert_eq!(rig.initialize(&[segment(Prot::ReadExec, base, code)]), Ok(base));
    let main = rig.client.wrapper::<call::RunAsMain>();
    rig.client.send_call(main, &bytes_of(&RunMainArgs { entry: base, args: Seq::default() }));
    if name == CALLS {
        assert!(matches!(rig.client.receive(), Said::Call { .. }));
    }
    thread::sleep(Duration::from_millis(20));
}

/// Starts one of the programs, hangs up, and takes what comes before the next session.
fn leave(rig: &mut Rig, number: usize) {
    let (name, code) = programs(rig).swap_remove(number);
    start(rig, name, &code);
    let before = Instant::now();
    rig.client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
    // Its call was over before the Hangup was taken. What the other came to is nobody's any more.
    if code == FOR_EVER {
        assert!(matches!(rig.client.receive(), Said::Result { .. }), "{name}");
    }
    assert!(before.elapsed() < Duration::from_secs(3), "{name}: {:?}", before.elapsed());
}

#[test]
fn a_hangup_ends_what_runs() {
    on_each_executor(|rig| {
        for number in 0..2 {
            // The executor's heap grows once, and stays.
            leave(rig, number);
            rig.begins_anew();
            rig.outlives(|rig| leave(rig, number));
        }
    });
}

#[test]
fn the_hosted_executor_ends_when_the_peer_of_its_socket_vanishes() {
    for number in 0..2 {
        let mut rig = Rig::hosted();
        let (name, code) = programs(&mut rig).swap_remove(number);
        start(&mut rig, name, &code);
        let outcome = rig.client.vanish().unwrap();
        assert_eq!(outcome.end, End::Exit(0), "{name}: {}", outcome.stderr);
    }
}

#[test]
fn the_hosted_executor_ends_though_its_program_waits_inside_the_c_library() {
    let mut rig = Rig::hosted();
    // Reserved memory is zeroed, as is a new lock. Whoever takes it twice waits for ever, whatever signals come.
    let lock = library_function(&mut rig, "pthread_mutex_lock");
    let code = calling(lock, rig.reserved);
    start(&mut rig, "waits", &code);
    let outcome = rig.client.vanish().unwrap();
    assert_eq!(outcome.end, End::Exit(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("does not come back from the C library"), "{}", outcome.stderr);
}

#[test]
fn the_hosted_executor_ends_when_the_peer_of_its_pipes_vanishes() {
    for number in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" filedescs=3,4 3<&0 4>&1 </dev/null >/dev/null"]);
        command.arg(&place::graft().unwrap().hosted).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut executor = command.spawn().unwrap();
        let client = Client::on_pipes(executor.stdin.take().unwrap(), executor.stdout.take().unwrap());
        let mut rig = Rig::over(client);
        let (name, code) = programs(&mut rig).swap_remove(number);
        start(&mut rig, name, &code);
        let _ = rig.client.vanish();
        let limit = Instant::now() + Duration::from_secs(20);
        while executor.try_wait().unwrap().is_none() {
            if Instant::now() > limit {
                executor.kill().unwrap();
                panic!("{name}: it went on");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn thousands_of_calls_may_be_sent_before_an_answer_is_read() {
    const CALLS: u64 = 2_000;
    on_each_executor(|rig| {
        let instance = rig.manager();
        let reserve = (rig.client.wrapper::<call::Reserve>(), bytes_of(&ReserveArgs { instance, size: PAGE }));
        rig.client.send_calls(&vec![reserve; CALLS as usize]);
        let answers = (0..CALLS).filter(|_| matches!(rig.client.receive(), Said::Result { .. })).count();
        assert_eq!(answers as u64, CALLS);
        rig.good_load(Load::Llvm22);
    });
}
