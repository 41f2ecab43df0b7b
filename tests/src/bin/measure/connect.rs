//! Running: from starting the command to its exit, for a small object on a machine that is up.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End};
use graft_tests::interop::Executor;
use graft_tests::target::Target;
use graft_tests::{objects, place, programs, tools};

use crate::figures::{Figure, line};

const RUNS: usize = 15;

/// The object: `int main(void) { return 41; }`.
const PROGRAM: &str = "ret/gcc-O2";

pub(crate) fn report() -> Result<(), String> {
    println!("run on a booted microvm: from starting the command to its exit code, `return 41`");
    let small = programs::PROGRAMS.iter().find(|small| small.name == PROGRAM).ok_or("no such program")?;
    let inputs = &objects::built(small)?.inputs;
    let target = Target::start(Executor::Microvm)?;
    let Target::Ours { name, .. } = &target else { return Err("no machine".to_owned()) };
    let graft = &place::graft()?.command;
    let found = |tool: Result<PathBuf, tools::Missing>| tool.map_err(|missing| missing.to_string());
    let (jitlink19, jitlink22) = (found(tools::llvm19("llvm-jitlink"))?, found(tools::llvm22("llvm-jitlink"))?);
    let through = format!("-oop-executor={}", graft.display());
    let run = |program: &PathBuf, words: &[&str]| -> Result<Duration, String> {
        let mut command = Command::new(program);
        let outcome = child::run(command.args(words).args(inputs).env("GRAFT_TARGET", name), Duration::from_secs(60))?;
        match outcome.end {
            End::Exit(status) if status == small.status => Ok(outcome.took),
            end => Err(format!("{}: {end}: {}", program.display(), outcome.stderr)),
        }
    };
    // Taken in turns, so that whatever else the host does falls on all of them.
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..RUNS {
        times[0].push(run(graft, &["run"])?);
        times[1].push(run(&jitlink19, &[&through])?);
        times[2].push(run(&jitlink22, &[&through])?);
    }
    for (name, times) in ["graft run", "llvm-jitlink 19", "llvm-jitlink 22"].into_iter().zip(times) {
        line(name, &Figure::of_times(times), None);
    }
    Ok(())
}
