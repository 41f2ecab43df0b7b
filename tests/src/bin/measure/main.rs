//! `cargo measure`: prints what Graft costs, as medians with their noise, beside stock tools in the same run.

mod chain;
mod figures;

use std::process::ExitCode;

use graft_tests::install;

fn main() -> ExitCode {
    let done = install::ensure(install::VERIFY).and_then(|()| chain::report());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::FAILURE
        }
    }
}
