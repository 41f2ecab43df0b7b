//! The command line: words in, a plan, its outcome as an exit code.
//!
//! The loaded program's console is standard output, byte for byte; everything Graft says is on standard error.

mod attach;
mod console;
mod exit;
mod fault;
mod info;
mod inputs;
mod json;
mod report;
mod run;

use std::ffi::OsString;

use anyhow::Context;
use clap::{Parser, Subcommand};
use graft::transport::{FORMS, Target};

use self::report::Report;

/// Link objects, ship them to an executor, run them.
#[derive(Debug, Parser)]
#[command(name = "graft", version, after_help = exit::HELP, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Common {
    /// The executor: hosted | qemu[:KEY=VALUE,...] | tcp:HOST:PORT | unix:PATH | serial:DEVICE[@BAUD] | exec:PROGRAM
    /// [default: GRAFT_TARGET, else qemu]
    #[arg(short, long, global = true, value_name = "TARGET")]
    target: Option<String>,
    /// Report on standard error as one JSON object per event
    #[arg(long, global = true)]
    json: bool,
    /// Say more, and show the executor's own log
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Link, ship, run `main` (or --entry); exit with its code
    Run(run::Args),
    /// Describe the executor: triple, memory map, protections, link figures, runtime version
    Info(info::Args),
}

/// Runs the command line `words`, program name included, and returns the exit code.
pub(crate) fn main(words: Vec<OsString>) -> u8 {
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            let failed = error.use_stderr();
            // Nowhere left to say that saying it failed.
            let _ = error.print();
            return if failed { exit::FAILED } else { 0 };
        }
    };
    let report = Report::new(cli.common.json, cli.common.verbose);
    match dispatch(&cli, report) {
        Ok(code) => code,
        Err(error) => {
            report.error(&error);
            exit::FAILED
        }
    }
}

fn dispatch(cli: &Cli, report: Report) -> anyhow::Result<u8> {
    let target = cli.common.target()?;
    match &cli.command {
        Command::Run(args) => run::run(args, &target, report),
        Command::Info(args) => info::run(args, &target, report),
    }
}

impl Common {
    fn target(&self) -> anyhow::Result<Target> {
        if let Some(text) = &self.target {
            return Ok(text.parse()?);
        }
        match std::env::var("GRAFT_TARGET") {
            Ok(text) if !text.is_empty() => text.parse().context("GRAFT_TARGET"),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok("qemu".parse()?),
            Err(_) => anyhow::bail!("GRAFT_TARGET is not UTF-8; a target is {FORMS}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_failures_and_help_is_not() {
        let run = |words: &[&str]| main(words.iter().map(OsString::from).collect());
        assert_eq!(run(&["graft", "frobnicate"]), 125);
        assert_eq!(run(&["graft", "run"]), 125);
        assert_eq!(run(&["graft", "--help"]), 0);
        assert_eq!(run(&["graft", "run", "-t", "nowhere", "x.o"]), 125);
    }
}
