//! `cargo measure`: prints what Graft costs, as medians with their noise, beside stock tools in the same run;
//! `cargo measure linkers` does so for links of large sets.

mod boot;
mod chain;
mod connect;
mod figures;
mod linkers;
mod wire;

use std::process::ExitCode;

use graft_tests::{install, place};

use crate::figures::{Aim, Figure, line};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let report = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => report,
        ["linkers"] => linkers::report,
        _ => {
            eprintln!("usage: cargo measure [linkers]");
            return ExitCode::from(2);
        }
    };
    match install::ensure(install::VERIFY).and_then(|()| report()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("measure: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<(), String> {
    println!("executor image");
    let image = place::image()?;
    let bytes = std::fs::metadata(image).map_err(|error| format!("{}: {error}", image.display()))?.len();
    line("file", &Figure::new([bytes as f64 / 1024.0], "KiB"), Some(Aim { at_most: 256.0 }));
    boot::report()?;
    connect::report()?;
    wire::report()?;
    chain::report()
}
