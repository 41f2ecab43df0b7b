//! Programs that end badly: each gives the exit code it must, and the next program on the same machine works.

use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::objects;
use graft_tests::place;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::target::Target;

/// What else Graft says of some of them.
const EXPLAINED: &[(&str, &str)] = &[
    ("read-null", "0x0 is the null pointer"),
    ("write-null", "0x8 is 8 bytes behind the null pointer"),
    ("write-code", "misbehave.o), in `.text`, which is executable and not writable"),
    ("run-data", "misbehave.o), in `.data`, which is writable and not executable"),
    ("trap", "the instruction is `int3`"),
];

const LIMIT: Duration = Duration::from_secs(60);

/// How the program misbehaves, the exit code, and what Graft says of it.
const MISDEEDS: &[(&str, i32, &str)] = &[
    ("read-null", 139, "page fault reading 0x0"),
    ("write-null", 139, "page fault writing 0x8"),
    ("read-far", 139, "page fault reading 0x600000000000"),
    ("read-noncanonical", 139, "protection"),
    ("write-code", 139, "page fault writing"),
    ("run-data", 139, "page fault executing"),
    ("jump-null", 139, "page fault executing 0x0"),
    ("undefined", 132, "invalid opcode"),
    ("divide", 136, "divide"),
    ("trap", 133, "breakpoint"),
    ("overflow-stack", 139, "stack"),
    ("abort", 134, "abort"),
];

/// What only privileged code can do.
const PRIVILEGED: &[(&str, i32, &str)] = &[
    ("watch-data", 133, "debug trap"),
    // Whoever runs next runs into it, if anybody does.
    ("break-runtime", 0, ""),
    ("break-runtime-and-call", 133, "debug trap"),
    ("int-8", 139, "unexpected interrupt"),
    ("int-13", 139, "unexpected interrupt"),
    ("int-14", 139, "unexpected interrupt"),
    ("int-200", 139, "unexpected interrupt"),
];

fn run(target: &str, object: &std::path::Path, words: &[&str]) -> Outcome {
    run_in(target, "user", object, words)
}

fn run_in(target: &str, ring: &str, object: &std::path::Path, words: &[&str]) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    child::run(command.args(["run", "-t", target, "--ring", ring]).arg(object).arg("--").args(words), LIMIT).unwrap()
}

fn misbehave(executor: Executor, ring: &str, misdeeds: &[(&str, i32, &str)]) {
    let target = Target::start(executor).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let unit = Unit { source: "misbehave.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch(&format!("faults-{executor:?}-{ring}"))).unwrap();
    for (how, code, words) in misdeeds {
        let outcome = run_in(name, ring, &object, &[how]);
        assert_eq!(outcome.end, End::Exit(*code), "{how}: {}", outcome.stderr);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), format!("{how}\n"));
        assert!(outcome.stderr.contains(words), "{how}: {:?} says nothing of {words:?}", outcome.stderr);
        for (_, words) in EXPLAINED.iter().filter(|(other, _)| other == how) {
            assert!(outcome.stderr.contains(words), "{how}: {:?} says nothing of {words:?}", outcome.stderr);
        }
        let next = run(name, &object, &["well"]);
        assert_eq!((next.end, &next.stdout[..]), (End::Exit(0), &b"well\n"[..]), "after {how}: {}", next.stderr);
    }
}

#[test]
fn misdeeds_on_the_hosted_executor() {
    misbehave(Executor::Hosted, "user", MISDEEDS);
}

#[test]
fn misdeeds_on_a_machine_that_stays() {
    misbehave(Executor::Microvm, "user", MISDEEDS);
}

#[test]
fn misdeeds_on_another_board() {
    misbehave(Executor::Q35, "user", MISDEEDS);
}

#[test]
fn results_that_do_not_fit_and_calls_of_exit() {
    let unit = Unit { source: "misbehave.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch("faults-results")).unwrap();
    for (how, code, words) in [("large", 44, "300"), ("negative", 255, "-1"), ("exit", 7, "")] {
        let outcome = run("hosted", &object, &[how]);
        assert_eq!(outcome.end, End::Exit(code), "{how}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(words), "{how}: {:?} says nothing of {words:?}", outcome.stderr);
    }
}

#[test]
fn misdeeds_in_ring_0() {
    misbehave(Executor::Microvm, "kernel", &[MISDEEDS, PRIVILEGED].concat());
}

/// The report of a read through a null pointer names the function, the line of the source and the instruction.
fn explain(executor: Executor) {
    let target = Target::start(executor).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let unit = Unit { source: "misbehave.c", compiler: Compiler::Gcc, flags: "-g -O1" };
    let object = objects::compile(&unit, &place::scratch(&format!("reports-{executor:?}"))).unwrap();
    let source = std::fs::read_to_string(objects::case("misbehave.c")).unwrap();
    let line = 1 + source.lines().position(|line| line.ends_with("return *(volatile int *)0;")).unwrap();
    let place = format!("misbehave.c:{line}:");
    let outcome = run(name, &object, &["read-null"]);
    assert_eq!(outcome.end, End::Exit(139), "{}", outcome.stderr);
    for words in [" in main+0x", place.as_str(), "the instruction is `mov 0,%eax`"] {
        assert!(outcome.stderr.contains(words), "{words:?}: {}", outcome.stderr);
    }
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(["--json", "run", "-t", name]).arg(&object).args(["--", "read-null"]);
    let outcome = child::run(&mut command, LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(139), "{}", outcome.stderr);
    let fault = outcome.stderr.lines().find(|line| line.contains("\"event\":\"fault\"")).unwrap();
    for words in
        ["\"disassembly\":\"mov 0,%eax\"", "misbehave.c\"", &format!("\"line\":{line},"), "\"function\":\"main\""]
    {
        assert!(fault.contains(words), "{words:?}: {fault}");
    }
}

#[test]
fn reports_of_the_hosted_executor_name_the_source() {
    explain(Executor::Hosted);
}

#[test]
fn reports_of_a_machine_name_the_source() {
    explain(Executor::Microvm);
}
