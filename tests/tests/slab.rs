//! `graft run --memory slab` on real executors: programs of the table, each in a part of a larger reservation.

use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::programs::{PROGRAMS, Program};
use graft_tests::target::Target;
use graft_tests::{objects, place};

const LIMIT: Duration = Duration::from_secs(120);

/// Position-independent programs, which LLVM's executors can run too: of one object and of several, with archives,
/// constructors, common symbols, and more zeroes than a slab of the usual size holds.
const NAMES: &[&str] = &[
    "ret/gcc-O2",
    "args/three",
    "data/gcc-pic",
    "indirect/gcc-O2",
    "weak/gcc-pie",
    "common/gcc",
    "archive/by-need",
    "cxx/mixed",
    "bss/8MiB",
    "got/gcc-pic",
    "rust/host-O1",
];

fn run(target: &Target, program: &'static Program, options: &[&str]) -> Outcome {
    let name = match target {
        Target::Stock { executor, .. } => format!("exec:{}", executor.display()),
        Target::Ours { name, .. } => name.clone(),
    };
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(["run", "-t", &name, "--memory", "slab"]).args(options).args(&objects::built(program).unwrap().inputs);
    child::run(command.arg("--").args(program.args), LIMIT).unwrap()
}

fn slab(executor: Executor) {
    let target = Target::start(executor).unwrap();
    for name in NAMES {
        let program = PROGRAMS.iter().find(|program| program.name == *name).unwrap();
        // A slab of the usual size, and one that is larger than any program.
        for options in [&[][..], &["--slab-size", "33554432"]] {
            let outcome = run(&target, program, options);
            assert_eq!(outcome.end, End::Exit(program.status), "{name} {options:?}: {}", outcome.stderr);
            assert_eq!(String::from_utf8_lossy(&outcome.stdout), program.console, "{name} {options:?}");
        }
    }
}

#[test]
fn on_the_hosted_executor() {
    slab(Executor::Hosted);
}

#[test]
fn on_a_machine_that_stays() {
    slab(Executor::Microvm);
}

#[test]
fn llvm_19s_executor_has_no_slabs_and_that_is_said() {
    // It fills a reservation as a whole, so that there are no parts to hand out.
    let target = Target::start(Executor::Stock19).unwrap();
    let program = PROGRAMS.iter().find(|program| program.name == NAMES[0]).unwrap();
    let outcome = run(&target, program, &[]);
    assert_eq!(outcome.end, End::Exit(125), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("slabs need `initialize`; use the generic manager"), "{}", outcome.stderr);
}

#[test]
fn on_llvm_22s_executor() {
    slab(Executor::Stock22);
}
