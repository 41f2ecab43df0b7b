//! What the command does when something is missing, wrong, or dies in the middle: `graft run` and `boot`
//! (`serve.rs` has `serve`).
//!
//! Whatever happens, standard error names the cause, the exit code is the one of `--help`, and the next command works.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use graft_protocol::{ExecAddr, Header, Opcode};
use graft_tests::child::{self, End, Outcome, Running, kill, machines_of};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::raw::Client;
use graft_tests::target::{self, Target};
use graft_tests::{objects, place, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// Graft could not do its job.
const FAILED: End = End::Exit(125);

fn graft(words: &[&str]) -> Command {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(words).env_remove("GRAFT_TARGET").env("GRAFT_RUNTIME_IMAGE", place::image().unwrap());
    command
}

fn run(words: &[&str], inputs: &[&Path]) -> Outcome {
    child::run(graft(&[&["run"], words].concat()).args(inputs), LIMIT).unwrap()
}

fn compile(source: &'static str) -> PathBuf {
    compile_with(source, Compiler::Gcc, "-O1")
}

fn compile_with(source: &'static str, compiler: Compiler, flags: &'static str) -> PathBuf {
    // A folder for each test: they run at the same time.
    let folder = place::scratch("cli").join(thread::current().name().unwrap_or("main").replace(':', "-"));
    fs::create_dir_all(folder.join("bad")).unwrap();
    objects::compile(&Unit { source, compiler, flags }, &folder).unwrap()
}

/// A machine that stays, and its name.
fn booted() -> (Target, String) {
    let target = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let name = name.clone();
    (target, name)
}

#[track_caller]
fn fails_with(outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.end, FAILED, "{}", outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "{:?} says nothing of {word:?}", outcome.stderr);
    }
}

/// The target is as good as new: the next program works.
#[track_caller]
fn still_works(target: &str) {
    let outcome = run(&["-t", target], &[&compile("ret.c")]);
    assert_eq!(outcome.end, End::Exit(41), "{}", outcome.stderr);
}

#[test]
fn inputs_that_cannot_be_linked() {
    let (_machine, name) = booted();
    let target = ["-t", &name];
    let ret = compile("ret.c");

    fails_with(&run(&target, &[Path::new("nowhere/missing.o")]), &["nowhere/missing.o", "No such file"]);

    let text = ret.with_file_name("text.o");
    fs::write(&text, "not an object at all").unwrap();
    fails_with(&run(&target, &[&text]), &["text.o", "ELF"]);

    let cut = ret.with_file_name("cut.o");
    fs::write(&cut, &fs::read(&ret).unwrap()[..200]).unwrap();
    fails_with(&run(&target, &[&cut]), &["cut.o"]);

    for (target_flag, words) in
        [("--target=aarch64-linux-gnu", "wrong architecture"), ("--target=i386-linux-gnu", "64-bit")]
    {
        let foreign = ret.with_file_name("foreign.o");
        let clang = tools::llvm19("clang").unwrap();
        let mut command = Command::new(clang);
        command.args([target_flag, "-c"]).arg(objects::case("ret.c")).arg("-o").arg(&foreign);
        assert!(child::run(&mut command, LIMIT).unwrap().success());
        fails_with(&run(&target, &[&foreign]), &["foreign.o", words]);
    }

    let (main, other) = (compile("bad/undefined_main.c"), compile("bad/undefined_other.c"));
    let outcome = run(&target, &[&main, &other]);
    // Each missing symbol, and who wants it.
    fails_with(&outcome, &["missing_function", "missing_datum", "undefined_main.o", "undefined_other.o"]);

    let (main, other) = (compile("bad/duplicate_main.c"), compile("bad/duplicate_other.c"));
    fails_with(&run(&target, &[&main, &other]), &["twice", "duplicate_main.o", "duplicate_other.o"]);

    fails_with(&run(&target, &[&compile("bad/narrow.c")]), &["narrow.o", "main", "limit 0xff"]);

    fails_with(&run(&["-t", &name, "--entry", "start"], &[&ret]), &["start"]);
    still_works(&name);
}

#[test]
fn out_of_memory_on_the_target() {
    let (_machine, name) = booted();
    // More address space than there is: refused before anything is sent.
    let huge = compile_with("bad/huge.c", Compiler::Gcc, "-O1 -mcmodel=large");
    fails_with(&run(&["-t", &name], &[&huge]), &["reserve"]);
    still_works(&name);
    // As much as one may reserve, and more than the machine of 128 MiB has: refused with both numbers.
    fails_with(&run(&["-t", &name], &[&compile("bad/glutton.c")]), &["Cannot allocate memory", "bytes free"]);
    still_works(&name);
    // A program that takes all there is gets no more, and what it took comes back.
    let greedy = compile("misbehave.c");
    for _ in 0..2 {
        let outcome = child::run(graft(&["run", "-t", &name]).arg(&greedy).args(["--", "use-up"]), LIMIT).unwrap();
        assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
        still_works(&name);
    }
}

/// Starts the program that loops for ever, and waits until it does.
fn looping(target: &str) -> Running {
    let object = compile("misbehave.c");
    let running = child::spawn(graft(&["run", "-t", target]).arg(object).args(["--", "loop"])).unwrap();
    assert_eq!(running.stdout(5, LIMIT), b"loop\n", "{}", running.stderr());
    running
}

#[test]
fn a_time_limit_ends_the_program_and_not_the_machine() {
    let (_machine, name) = booted();
    let object = compile("misbehave.c");
    let mut command = graft(&["run", "-t", &name, "--timeout", "0.5"]);
    let outcome = child::run(command.arg(object).args(["--", "loop"]), LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(124), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, b"loop\n");
    assert!(outcome.took < Duration::from_secs(20), "took {:?}", outcome.took);
    still_works(&name);
}

#[test]
fn qemu_killed_in_the_middle_of_a_run() {
    let running = looping("qemu");
    let machines = machines_of(running.id());
    assert_eq!(machines.len(), 1, "{machines:?}");
    kill(machines[0]);
    fails_with(&running.finish(Duration::from_secs(20)), &["QEMU"]);
    still_works("qemu");
}

#[test]
fn qemu_killed_under_a_machine_that_stays() {
    let (machine, name) = booted();
    let running = looping(&name);
    let machines = machines_of(machine.machine().unwrap().id());
    assert_eq!(machines.len(), 1, "{machines:?}");
    kill(machines[0]);
    fails_with(&running.finish(Duration::from_secs(20)), &["executor"]);
    // `graft boot` starts the machine anew.
    still_works(&name);
}

#[test]
fn the_controller_killed_in_the_middle_of_a_run() {
    let (_machine, name) = booted();
    for _ in 0..2 {
        let running = looping(&name);
        running.signal("KILL");
        assert_eq!(running.finish(LIMIT).end, End::Signal(9));
        still_works(&name);
    }
}

#[test]
fn the_controller_gone_in_the_middle_of_a_message() {
    let (_machine, name) = booted();
    let path = name.strip_prefix("unix:").unwrap();
    // A header that announces 4096 bytes, cut in the header, right behind it, and in the payload.
    let mut message = Header::bytes(Opcode::CALL_WRAPPER, 0, ExecAddr(0x1234), 4096).to_vec();
    message.resize(Header::SIZE + 1000, 0);
    for sent in [1, 31, 32, 33, message.len()] {
        let mut client = Client::on_line(UnixStream::connect(path).unwrap());
        client.send_bytes(&message[..sent]);
        drop(client);
        still_works(&name);
    }
}

#[test]
fn an_interrupt_ends_a_machine_that_stays_without_a_trace() {
    let (target, name) = booted();
    let Target::Ours { machine: Some(machine), .. } = target else { panic!("a machine") };
    let socket = PathBuf::from(name.strip_prefix("unix:").unwrap());
    assert!(socket.exists());
    let qemu = machines_of(machine.id());
    machine.signal("INT");
    let outcome = machine.finish(Duration::from_secs(10));
    assert_ne!(outcome.end, End::TimeOut, "{}", outcome.stderr);
    assert!(!socket.exists());
    assert!(qemu.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

#[test]
fn a_program_that_resets_its_machine_is_said_to() {
    let misbehave = compile("misbehave.c");
    let words = ["the machine was reset", "triple fault", "while a call of CallMain was unanswered"];
    let own =
        child::run(graft(&["run", "-t", "qemu", "--ring", "kernel"]).arg(&misbehave).args(["--", "reset"]), LIMIT)
            .unwrap();
    fails_with(&own, &words);
    let (target, name) = booted();
    let kept =
        child::run(graft(&["run", "-t", &name, "--ring", "kernel"]).arg(&misbehave).args(["--", "reset"]), LIMIT)
            .unwrap();
    fails_with(&kept, &words[..2]);
    assert_eq!(run(&["-t", &name], &[&compile("ret.c")]).end, End::Exit(41));
    drop(target);
}

#[test]
fn an_entry_that_is_only_an_address_is_nothing_to_load() {
    let folder = place::scratch("cli-absolute");
    fs::write(folder.join("main.s"), ".globl main\nmain = 0x1234\n").unwrap();
    let object = folder.join("main.o");
    let assembled = child::run(Command::new("gcc").arg("-c").arg(folder.join("main.s")).arg("-o").arg(&object), LIMIT);
    assert!(assembled.unwrap().success());
    fails_with(&run(&["-t", "hosted"], &[&object]), &["nothing to load", "absolute symbol"]);
}

#[test]
fn a_slab_larger_than_the_address_space_is_refused_with_its_size() {
    let ret = compile("ret.c");
    for size in ["18446744073709551615", "18446744073709547520", "9223372036854775808"] {
        fails_with(&run(&["-t", "hosted", "--memory", "slab", "--slab-size", size], &[&ret]), &[size]);
    }
}

#[test]
fn an_input_is_never_overwritten_nor_a_device_read() {
    let ret = compile("ret.c");
    let before = fs::read(&ret).unwrap();
    let (hard, soft) = (ret.with_extension("hard"), ret.with_extension("soft"));
    for link in [&hard, &soft] {
        let _ = fs::remove_file(link);
    }
    fs::hard_link(&ret, &hard).unwrap();
    std::os::unix::fs::symlink(&ret, &soft).unwrap();
    for path in [&ret, &hard, &soft] {
        let outcome = run(&["--no-exec", "--emit-elf", path.to_str().unwrap()], &[&ret]);
        fails_with(&outcome, &["is an input and would be overwritten"]);
    }
    assert_eq!(fs::read(&ret).unwrap(), before);
    fails_with(&run(&["--no-exec"], &[Path::new("/dev/zero")]), &["/dev/zero", "is a device"]);
}

#[test]
fn nothing_but_the_program_writes_to_standard_output() {
    let outcome = run(&["-t", "qemu:mem=2"], &[&compile("ret.c")]);
    fails_with(&outcome, &["too little memory: "]);
    assert_eq!(outcome.stdout, b"");
}

#[test]
fn no_target_there() {
    let ret = compile("ret.c");
    let port = target::free_port();
    fails_with(&run(&["-t", &format!("tcp:127.0.0.1:{port}")], &[&ret]), &["no target", "refused"]);
    fails_with(&run(&["-t", "unix:/nowhere/graft.sock"], &[&ret]), &["no target", "/nowhere/graft.sock"]);
    fails_with(&run(&["-t", "serial:/dev/nowhere"], &[&ret]), &["/dev/nowhere"]);
    fails_with(&run(&["-t", "exec:/nowhere/executor"], &[&ret]), &["/nowhere/executor"]);
    fails_with(&run(&["-t", "exec:/bin/true"], &[&ret]), &["/bin/true"]);
    fails_with(&run(&["-t", "qemu:image=/nowhere/image"], &[&ret]), &["/nowhere/image"]);
    for (target, words) in [
        ("qemu:image=/etc/passwd", &["(image `/etc/passwd`): qemu"]),
        ("qemu:mem=1", &["give it at least 2"]),
        ("qemu:mem=2", &["too little memory: "]),
    ] {
        fails_with(&run(&["-t", target], &[&ret]), words);
        fails_with(&child::run(&mut graft(&["boot", "-t", target]), LIMIT).unwrap(), words);
    }
    fails_with(&run(&["-t", "balloon"], &[&ret]), &["balloon"]);
    let serve = ["serve", "-t", &format!("tcp:127.0.0.1:{port}"), "--listen", "127.0.0.1:0"];
    fails_with(&child::run(&mut graft(&serve), LIMIT).unwrap(), &["no target", "refused"]);
}

#[test]
fn somebody_there_who_is_no_executor() {
    let ret = compile("ret.c");
    let greetings =
        [("HTTP/1.1 400 Bad Request\r\n\r\n", "this is text, not the protocol"), ("", "did not introduce itself")];
    for (greeting, words) in greetings {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            // Whoever says nothing stays silent until the other leaves.
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let _ = stream.read(&mut [0]);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let started = Instant::now();
        fails_with(&run(&["-t", &format!("tcp:127.0.0.1:{port}")], &[&ret]), &[words]);
        assert!(started.elapsed() < Duration::from_secs(60), "{greeting:?} took {:?}", started.elapsed());
        other.join().unwrap();
    }
}

#[test]
fn link_only_ships_nothing_and_reports_are_json() {
    let (_machine, name) = booted();
    let ret = compile("ret.c");
    let outcome = run(&["-t", &name, "--no-exec"], &[&ret]);
    assert_eq!((outcome.end, outcome.stdout.len()), (End::Exit(0), 0), "{}", outcome.stderr);
    let outcome = run(&["-t", &name, "--json", "--stats"], &[&ret]);
    assert_eq!(outcome.end, End::Exit(41));
    let events: Vec<&str> = outcome.stderr.lines().collect();
    assert!(events.iter().all(|line| line.starts_with("{\"event\":\"") && line.ends_with('}')), "{events:?}");
    for wanted in ["{\"event\":\"result\",\"value\":41,", "{\"event\":\"stats\",\"round_trips\":"] {
        assert!(events.iter().any(|line| line.starts_with(wanted)), "no {wanted} in {events:?}");
    }
}
