//! Programs that would run for ever: the executor itself ends each at its time limit, and goes on in the same session's
//! machine without a byte lost.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::target::Target;
use graft_tests::{objects, place};

const LIMIT: Duration = Duration::from_secs(60);

fn graft(words: &[&str], object: &Path, how: &str) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(words).arg(object).args(["--", how]).env_remove("GRAFT_TARGET");
    child::run(&mut command, LIMIT).unwrap()
}

/// What `graft info` says is free.
fn free_memory(target: &str) -> String {
    let mut command = Command::new(&place::graft().unwrap().command);
    let info = child::run(command.args(["info", "-t", target]), LIMIT).unwrap();
    let text = String::from_utf8(info.stdout).unwrap();
    let line = text.lines().find(|line| line.contains(" free")).map(str::to_owned);
    line.unwrap_or_else(|| panic!("{text} says nothing of free memory"))
}

fn ends_in_time(executor: Executor, ring: &str, ways: &[&str]) {
    let target = Target::start(executor).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let unit = Unit { source: "limits.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch(&format!("limits-{executor:?}-{ring}"))).unwrap();
    let stays = executor != Executor::Hosted;
    let before = stays.then(|| free_memory(name));
    for how in ways {
        let outcome = graft(&["run", "-t", name, "--ring", ring, "--timeout", "0.2"], &object, how);
        assert_eq!(outcome.end, End::Exit(124), "{how}: {}", outcome.stderr);
        assert!(outcome.stdout.starts_with(format!("{how}\n").as_bytes()), "{how}");
        // Said by the executor: only it knows where.
        for words in ["did not end within 0.2 s", "time limit exceeded, instruction at 0x"] {
            assert!(outcome.stderr.contains(words), "{how}: {}", outcome.stderr);
        }
        let next = graft(&["run", "-t", name, "--timeout", "20"], &object, "well");
        assert_eq!((next.end, &next.stdout[..]), (End::Exit(7), &b"well\n"[..]), "after {how}: {}", next.stderr);
        // Without a limit there is none, also after a session that had one.
        assert_eq!(graft(&["run", "-t", name], &object, "well").end, End::Exit(7), "after {how}");
    }
    assert_eq!(before, stays.then(|| free_memory(name)));
}

const ANYWHERE: &[&str] = &["spin", "jump-to-self", "print", "allocate", "direction-flag"];

#[test]
fn on_the_hosted_executor() {
    // The C library's sleep ends early when the time is up: the program goes on, and returns as if all were well.
    ends_in_time(Executor::Hosted, "user", &[ANYWHERE, &["sleep"]].concat());
}

#[test]
fn on_a_machine() {
    ends_in_time(Executor::Microvm, "user", ANYWHERE);
}

#[test]
fn in_ring_0_of_microvm_also_with_interrupts_off() {
    ends_in_time(Executor::Microvm, "kernel", &[ANYWHERE, &["interrupts-off"]].concat());
}

#[test]
fn in_ring_0_of_q35_also_with_interrupts_off() {
    ends_in_time(Executor::Q35, "kernel", &[ANYWHERE, &["interrupts-off"]].concat());
}

#[test]
fn the_end_is_named_in_the_function_and_in_json() {
    let unit = Unit { source: "limits.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch("limits-json")).unwrap();
    let outcome = graft(&["run", "-t", "hosted", "--json", "--timeout", "0.1"], &object, "spin");
    assert_eq!(outcome.end, End::Exit(124), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("{\"event\":\"timeout\",\"limit_s\":0.100,\"exit_code\":124}"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("\"symbol\":\"main"), "{}", outcome.stderr);
}
