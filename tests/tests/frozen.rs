//! Targets that are there and silent: `graft run --timeout` gives them up soon after the limit, whatever it waits for.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use graft_tests::child::{self, End, Outcome, freeze, machines_of};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::target::Target;
use graft_tests::{objects, place};

const LIMIT: Duration = Duration::from_secs(60);

/// What is given to `--timeout`, how much longer an executor has for its answer, and what this host may take besides.
const GIVEN_UP: std::ops::Range<Duration> = Duration::from_secs(2)..Duration::from_secs(2 + 2 + 16);

fn graft(target: &str, words: &[&str]) -> Command {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(["run", "-t", target]).args(words).env_remove("GRAFT_TARGET");
    command.env("GRAFT_RUNTIME_IMAGE", place::image().unwrap());
    command
}

fn compile(test: &str, source: &'static str) -> PathBuf {
    let folder = place::scratch("frozen").join(test);
    fs::create_dir_all(&folder).unwrap();
    objects::compile(&Unit { source, compiler: Compiler::Gcc, flags: "-O1" }, &folder).unwrap()
}

/// It ended so, said who is silent, and did so soon after the limit had passed since `since`.
#[track_caller]
fn gave_up(outcome: &Outcome, end: End, target: &str, since: Instant) {
    assert_eq!(outcome.end, end, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(&format!("{target} does not answer")), "{}", outcome.stderr);
    let took = since.elapsed();
    assert!(GIVEN_UP.contains(&took), "took {took:?}: {}", outcome.stderr);
}

fn works(target: &str, object: &Path) {
    let outcome = child::run(graft(target, &["--timeout", "20"]).arg(object), LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(41), "{}", outcome.stderr);
}

#[test]
fn a_machine_that_freezes_before_or_while_a_program_runs() {
    const TEST: &str = "machine";
    let (ret, misbehave) = (compile(TEST, "ret.c"), compile(TEST, "misbehave.c"));
    let target = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, machine: Some(machine) } = &target else { panic!("a machine that stays") };
    // Before anything is loaded: Graft could not do its job. The machine has introduced itself.
    freeze(machines_of(machine.id())[0]);
    let since = Instant::now();
    let outcome = child::run(graft(name, &["--timeout", "2"]).arg(&ret), LIMIT).unwrap();
    gave_up(&outcome, End::Exit(125), name, since);
    // A machine that does not come back from a client is started afresh.
    works(name, &ret);

    // While the program runs: it did not end in time.
    let running = child::spawn(graft(name, &["--timeout", "2"]).arg(&misbehave).args(["--", "loop"])).unwrap();
    assert_eq!(running.stdout(5, LIMIT), b"loop\n");
    let since = Instant::now();
    freeze(machines_of(machine.id())[0]);
    gave_up(&running.finish(LIMIT), End::Exit(124), name, since);
    works(name, &ret);
}

#[test]
fn a_machine_of_the_runs_own_that_freezes_goes_with_it() {
    let misbehave = compile("own", "misbehave.c");
    let mut command = graft("qemu", &["--json", "--timeout", "2"]);
    let running = child::spawn(command.arg(&misbehave).args(["--", "loop"])).unwrap();
    assert_eq!(running.stdout(5, LIMIT), b"loop\n");
    let machine = machines_of(running.id())[0];
    let since = Instant::now();
    freeze(machine);
    let outcome = running.finish(LIMIT);
    assert_eq!(outcome.end, End::Exit(124), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"exit_code\":124,\"silent_target\":\"qemu\"}"), "{}", outcome.stderr);
    assert!(GIVEN_UP.contains(&since.elapsed()), "took {:?}", since.elapsed());
    assert!(!Path::new(&format!("/proc/{machine}")).exists());
}

/// A target that takes `taken` bytes of what is sent to it and nothing more; its answers to them arrive.
fn deaf_after(taken: u64, test: &str) -> (child::Running, String) {
    let executor = child::spawn(Command::new(&place::graft().unwrap().hosted).arg("listen=127.0.0.1:0")).unwrap();
    let said = executor.said("listening on ", LIMIT).unwrap();
    let behind = TcpStream::connect(said.split_once("listening on ").unwrap().1).unwrap();
    let path = place::scratch("frozen").join(test).with_extension("sock");
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let (mut answers, mut back) = (behind.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = answers.read(&mut piece) {
                if back.write_all(&piece[..count]).is_err() {
                    break;
                }
            }
        });
        let _ = std::io::copy(&mut (&client).take(taken), &mut &behind);
        thread::sleep(LIMIT);
    });
    (executor, format!("unix:{}", path.display()))
}

#[test]
fn a_target_that_stops_taking_in_the_image() {
    const TEST: &str = "image";
    // A mebibyte of code, which no buffer holds.
    let large = compile(TEST, "code.c");
    // In the middle of the image, and before the very first call.
    for (taken, test) in [(64 << 10, "middle"), (0, "start")] {
        let (_executor, target) = deaf_after(taken, test);
        let since = Instant::now();
        let outcome = child::run(graft(&target, &["--timeout", "2"]).arg(&large), LIMIT).unwrap();
        gave_up(&outcome, End::Exit(125), &target, since);
    }
}
