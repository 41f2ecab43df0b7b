//! `graft serve`: a machine for controllers of anybody's make, over TCP and over descriptors. Whatever one of them does, the
//! next one works.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use graft_protocol::{ExecAddr, Opcode, RunMainArgs, Seq, call};
use graft_tests::child::{self, End, Outcome, Running, kill, machines_of};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::raw::Client;
use graft_tests::target::Target;
use graft_tests::{objects, place, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// How soon a client that found out that it cannot link is let go.
const LET_GO: Duration = Duration::from_secs(30);

/// Graft could not do its job.
const FAILED: End = End::Exit(125);

fn graft(words: &[&str]) -> Command {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(words).env_remove("GRAFT_TARGET").env("GRAFT_RUNTIME_IMAGE", place::image().unwrap());
    command
}

fn compile(test: &str, source: &'static str) -> PathBuf {
    let folder = place::scratch("serve").join(test);
    fs::create_dir_all(folder.join("bad")).unwrap();
    objects::compile(&Unit { source, compiler: Compiler::Gcc, flags: "-O1" }, &folder).unwrap()
}

/// The stock controllers: each with the words it takes before all others.
fn stock() -> [(PathBuf, &'static [&'static str]); 3] {
    let (of_19, of_22) = (tools::llvm19("llvm-jitlink").unwrap(), tools::llvm22("llvm-jitlink").unwrap());
    [(of_19, &[]), (of_22.clone(), &["-use-memmgr=generic"]), (of_22, &["-use-memmgr=simple-remote"])]
}

/// A served target and its address.
fn serving(target: &str) -> (Running, String) {
    let server = child::spawn(&mut graft(&["serve", "-t", target, "--listen", "127.0.0.1:0"])).unwrap();
    let said = server.said("at tcp:", LIMIT).unwrap();
    let address = said.rsplit_once("tcp:").unwrap().1.to_owned();
    (server, address)
}

#[test]
fn stock_controllers_come_and_go_on_a_served_machine() {
    const TEST: &str = "come-and-go";
    let (server, address) = serving("qemu");
    let (ret, misbehave) = (compile(TEST, "ret.c"), compile(TEST, "misbehave.c"));
    let undefined = compile(TEST, "bad/undefined_other.c");
    for (jitlink, options) in &stock() {
        let stock = |words: &[&str], object: &Path| {
            let mut command = Command::new(jitlink);
            command.args(*options).arg(format!("-oop-executor-connect={address}")).arg(object).args(words);
            child::spawn(&mut command).unwrap()
        };
        let works = || {
            let outcome = stock(&[], &ret).finish(LIMIT);
            assert_eq!(outcome.end, End::Exit(41), "{jitlink:?} {options:?}: {}", outcome.stderr);
        };
        works();
        // One that fails to link. LLVM 22's then waits, until it is let go.
        let outcome = stock(&[], &undefined).finish(LIMIT);
        assert_eq!(outcome.end, End::Exit(1), "{jitlink:?} {options:?}: {}", outcome.stderr);
        assert!(outcome.took < LET_GO, "{jitlink:?} {options:?}: {:?}", outcome.took);
        works();
        // One whose program faults, one that is killed while its program runs.
        assert_eq!(
            stock(&["-args", "undefined"], &misbehave).finish(LIMIT).end,
            End::Exit(1),
            "{jitlink:?} {options:?}"
        );
        works();
        let printed = server.stdout(0, Duration::ZERO).len();
        let running = stock(&["-args", "loop"], &misbehave);
        assert!(server.stdout(printed + 5, LIMIT).ends_with(b"loop\n"));
        running.signal("KILL");
        assert_eq!(running.finish(LIMIT).end, End::Signal(9));
        works();
        // And QEMU itself dies while a program runs.
        let printed = server.stdout(0, Duration::ZERO).len();
        let running = stock(&["-args", "loop"], &misbehave);
        assert!(server.stdout(printed + 5, LIMIT).ends_with(b"loop\n"));
        kill(machines_of(server.id())[0]);
        assert_eq!(running.finish(Duration::from_secs(30)).end, End::Exit(1), "{jitlink:?} {options:?}");
        works();
    }
}

#[test]
fn a_fault_is_told_once_on_a_shared_terminal() {
    const TEST: &str = "told-once";
    let (ret, misbehave) = (compile(TEST, "ret.c"), compile(TEST, "misbehave.c"));
    let machine = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, machine: Some(boot) } = &machine else { panic!("a machine that stays") };
    // Our own command is told how the call ended, and says so itself.
    let mut command = graft(&["run", "-t", name]);
    let outcome = child::run(command.arg(&misbehave).args(["--", "undefined"]), LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(132), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("invalid opcode"), "{}", outcome.stderr);
    let outcome = child::run(graft(&["run", "-t", name]).arg(&ret), LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(41), "{}", outcome.stderr);
    assert_eq!(boot.stderr(), "");
    // A stock controller knows that the call failed and no more: whoever keeps the machine says it.
    for (jitlink, options) in &stock() {
        let mut command = Command::new(jitlink);
        let mut word = std::ffi::OsString::from("-oop-executor=");
        word.push(&place::graft().unwrap().command);
        command.args(*options).arg(word).arg(&misbehave).args(["-args", "undefined"]).env("GRAFT_TARGET", name);
        let outcome = child::run(&mut command, LIMIT).unwrap();
        assert_eq!(outcome.end, End::Exit(1), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("invalid opcode"), "{}", outcome.stderr);
        boot.said("loaded code faulted: ", LIMIT).unwrap();
    }
    assert_eq!(boot.stderr().matches("invalid opcode").count(), 3, "{}", boot.stderr());
}

#[test]
fn descriptors_that_cannot_be_talked_over_are_a_failure() {
    for (streams, words) in [
        ("5</dev/null 6>/dev/full", "No space left"),
        ("5</dev/zero 6>/dev/null", "cannot be served"),
        ("5</etc/passwd 6>/dev/null", "this is text, not the protocol"),
    ] {
        let script = format!("exec \"$0\" serve -t hosted --fds 5,6 {streams}");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(&place::graft().unwrap().command);
        let outcome = child::run(&mut command, LIMIT).unwrap();
        assert_eq!(outcome.end, FAILED, "{streams}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(words), "{streams}: {}", outcome.stderr);
    }
}

/// Both numbers of a refusal for want of memory, and that they make sense on a machine of `mib`.
#[track_caller]
fn refused_with_numbers(outcome: &Outcome, end: End, mib: u64) {
    assert_eq!(outcome.end, end, "{}", outcome.stderr);
    let (_, numbers) =
        outcome.stderr.split_once("Cannot allocate memory: ").unwrap_or_else(|| panic!("{}", outcome.stderr));
    let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|word| word.parse().ok()).take(2).collect();
    // The program is a gibibyte of zero-fill and a few pages.
    let &[wanted, free] = &numbers[..] else { panic!("{}", outcome.stderr) };
    assert!((1 << 30..(1 << 30) + (4 << 20)).contains(&wanted), "{}", outcome.stderr);
    assert!((mib << 19..mib << 20).contains(&free), "{}", outcome.stderr);
}

#[test]
fn a_served_machine_that_is_out_of_memory_says_so_to_every_client() {
    const TEST: &str = "out-of-memory";
    let (_server, address) = serving("qemu:mem=32");
    let (ret, glutton) = (compile(TEST, "ret.c"), compile(TEST, "bad/glutton.c"));
    for _ in 0..2 {
        for (jitlink, options) in &stock() {
            let run = |object: &Path| {
                let mut command = Command::new(jitlink);
                command.args(*options).arg(format!("-oop-executor-connect={address}")).arg(object);
                child::run(&mut command, LIMIT).unwrap()
            };
            refused_with_numbers(&run(&glutton), End::Exit(1), 32);
            let next = run(&ret);
            assert_eq!(next.end, End::Exit(41), "{jitlink:?} {options:?}: {}", next.stderr);
        }
        for options in [&["--memory", "generic"][..], &["--memory", "slab", "--slab-size", "2G"]] {
            let run = |object: &Path| {
                let mut command = graft(&["run", "-t", &format!("tcp:{address}")]);
                child::run(command.args(options).arg(object), LIMIT).unwrap()
            };
            refused_with_numbers(&run(&glutton), FAILED, 32);
            let next = run(&ret);
            assert_eq!(next.end, End::Exit(41), "{options:?}: {}", next.stderr);
        }
    }
}

/// A program that a stock controller can start as its executor, and which does what `line` says: `$1` is the word
/// `filedescs=IN,OUT`.
fn script(name: &str, line: &str) -> PathBuf {
    let path = place::scratch("serve").join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn descriptors_are_served_by_that_word() {
    const TEST: &str = "descriptors";
    let (ret, args) = (compile(TEST, "ret.c"), compile(TEST, "args.c"));
    let undefined = compile(TEST, "bad/undefined_main.c");
    let machine = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &machine else { panic!("one of ours") };
    let command = &place::graft().unwrap().command;
    for (kind, target) in [("hosted", "hosted"), ("microvm", name.as_str())] {
        let line = format!("exec '{}' serve -t '{target}' --fds \"${{1#filedescs=}}\"", command.display());
        let executor = script(&format!("fds-{kind}"), &line);
        for (jitlink, options) in &stock() {
            let run = |object: &Path, words: &[&str]| {
                let mut command = Command::new(jitlink);
                let mut word = std::ffi::OsString::from("-oop-executor=");
                word.push(&executor);
                child::run(command.args(*options).arg(word).arg(object).args(words), LIMIT).unwrap()
            };
            let ran = run(&ret, &[]);
            assert_eq!((ran.end, ran.stderr.as_str()), (End::Exit(41), ""), "{target}, {jitlink:?} {options:?}");
            let ran = run(&args, &["-args", "one", "two"]);
            assert_eq!(ran.end, End::Exit(2), "{target}, {jitlink:?} {options:?}: {}", ran.stderr);
            // Standard output is the console, where the target's own comes to us.
            if kind == "hosted" {
                assert_eq!(ran.stdout, b"one\ntwo\n", "{jitlink:?} {options:?}");
            }
            let failed = run(&undefined, &[]);
            assert_eq!(failed.end, End::Exit(1), "{target}, {jitlink:?} {options:?}");
            assert!(failed.stderr.contains("missing_function"), "{}", failed.stderr);
            assert_eq!(run(&ret, &[]).end, End::Exit(41), "{target}, {jitlink:?} {options:?}");
        }
    }
}

#[test]
fn one_descriptor_may_be_both_and_the_session_ends_with_it() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = graft(&["serve", "-t", "hosted", "--fds", "0,0"]);
    let mut server = command.stdin(Stdio::from(OwnedFd::from(theirs))).stderr(Stdio::piped()).spawn().unwrap();
    // The copy of the descriptor that the command holds would keep the line open.
    drop(command);
    let mut client = Client::on_line(ours);
    // A call that faults is answered, and the session goes on.
    let nowhere = RunMainArgs { entry: ExecAddr(0x1000), args: Seq::default() };
    assert_eq!(client.call::<call::RunAsMain>(&nowhere), [0_u8; 0]);
    assert!(client.publishes("__llvm_orc_bootstrap_run_as_main_wrapper"));
    client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = server.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            server.kill().unwrap();
            panic!("it goes on after the session");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn descriptors_that_cannot_be_served_are_named() {
    // Standard input is open and at its end.
    for (fds, words) in [
        ("77,78", "descriptor 77 is not open; the program that starts this one must hand it over"),
        ("0,77", "descriptor 77 is not open"),
        ("0,1", "descriptor 1 is taken: standard output is the console"),
        ("0", "no pair of descriptors"),
        ("0,x", "no pair of descriptors"),
        ("-1,0", "no pair of descriptors"),
    ] {
        let outcome = child::run(&mut graft(&["serve", "-t", "hosted", &format!("--fds={fds}")]), LIMIT).unwrap();
        assert_eq!(outcome.end, FAILED, "{fds}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(words), "{fds}: {}", outcome.stderr);
    }
    let neither = child::run(&mut graft(&["serve", "-t", "hosted"]), LIMIT).unwrap();
    assert_eq!(neither.end, FAILED);
    assert!(neither.stderr.contains("--fds <IN,OUT>"), "{}", neither.stderr);
    // Who is gone before the executor is up is not waited for, and cannot be told anything.
    let gone = child::run(&mut graft(&["serve", "-t", "hosted", "--fds", "0,0"]), Duration::from_secs(20)).unwrap();
    assert_eq!(gone.end, FAILED, "{}", gone.stderr);
    assert!(gone.stderr.contains("Bad file descriptor"), "{}", gone.stderr);
}
