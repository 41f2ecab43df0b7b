//! The command line: words in, a plan, its outcome as an exit code.
//!
//! The loaded program's console is standard output, byte for byte; everything Graft says is on standard error.

mod artifact;
mod attach;
mod boot;
mod console;
mod exit;
mod fault;
mod help;
mod info;
mod inputs;
mod json;
mod link_args;
mod map;
mod own_folder;
mod report;
mod rules;
mod run;
mod serve;
mod signals;

use std::ffi::OsString;

use anyhow::Context;
use clap::{Parser, Subcommand};
use graft::transport::{FORMS, Target};

use self::report::Report;

/// Link objects, ship them to an executor, run them.
#[derive(Debug, Parser)]
#[command(name = "graft", version, after_help = help::GENERAL.as_str(), disable_help_subcommand = true)]
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
    #[command(after_help = help::RUN.as_str())]
    Run(Box<run::Args>),
    /// Give an LLVM controller a target
    Serve(serve::Args),
    /// Boot the runtime in QEMU and keep it; print the TARGET to use
    Boot(boot::Args),
    /// Describe the executor: triple, memory map, protections, link figures, runtime version
    Info(info::Args),
}

/// Runs the command line `words`, program name included, and returns the exit code.
pub(crate) fn main(words: Vec<OsString>) -> u8 {
    let plain: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(args) = serve::Args::of_executor(&plain) {
        let report = Report::new(false, false);
        let common = Common { target: None, json: false, verbose: false };
        return report.exit_code(common.target().and_then(|target| serve::run(&args, &target, report)));
    }
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            let failed = error.use_stderr();
            if failed && wants_json(&plain) {
                let text = error.to_string();
                let text = text.trim_end();
                return Report::new(true, false)
                    .exit_code(Err(anyhow::Error::msg(text.strip_prefix("error: ").unwrap_or(text).to_owned())));
            }
            // Nowhere left to say that saying it failed.
            let _ = error.print();
            return if failed { exit::FAILED } else { 0 };
        }
    };
    let report = Report::new(cli.common.json, cli.common.verbose);
    report.exit_code(dispatch(&cli, report))
}

/// Whether a command line that does not parse asks for reports as JSON.
fn wants_json(words: &[String]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

fn dispatch(cli: &Cli, report: Report) -> anyhow::Result<u8> {
    match &cli.command {
        Command::Run(args) => {
            let target = if args.runs() { Some(cli.common.target()?) } else { cli.common.named()? };
            run::run(args, target.as_ref(), report)
        }
        Command::Serve(args) => serve::run(args, &cli.common.target()?, report),
        Command::Boot(args) => boot::run(args, &args.target(cli.common.bootable()?)?, report),
        Command::Info(args) => info::run(args, &cli.common.target()?, report),
    }
}

impl Common {
    fn target(&self) -> anyhow::Result<Target> {
        match self.named()? {
            Some(target) => Ok(target),
            None => Ok("qemu".parse()?),
        }
    }

    /// The target that the command line or the environment names, if either does.
    fn named(&self) -> anyhow::Result<Option<Target>> {
        if let Some(text) = &self.target {
            return Ok(Some(text.parse()?));
        }
        match std::env::var("GRAFT_TARGET") {
            Ok(text) if !text.is_empty() => text.parse().map(Some).context("GRAFT_TARGET"),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(_) => anyhow::bail!("GRAFT_TARGET is not UTF-8; a target is {FORMS}"),
        }
    }

    /// The target to boot, when one is named. The variable may well name the one that is to be booted only now.
    fn bootable(&self) -> anyhow::Result<Option<Target>> {
        if self.target.is_some() {
            return self.target().map(Some);
        }
        Ok(self.target().ok().filter(|target| matches!(target, Target::Qemu(_))))
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
    fn usage_errors_are_json_where_that_was_asked_for() {
        let wants = |words: &[&str]| wants_json(&words.iter().map(|word| String::from(*word)).collect::<Vec<_>>());
        assert!(wants(&["run", "--json"]) && wants(&["--json", "frobnicate", "--", "x"]));
        assert!(!wants(&["run", "x.o", "--", "--json"]) && !wants(&["run", "json"]));
    }

    #[test]
    fn arguments_of_the_program_are_any_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let words = [&b"graft"[..], b"run", b"x.o", b"--", b"\xff", b"--json", b""];
        let cli = Cli::try_parse_from(words.map(std::ffi::OsStr::from_bytes)).unwrap();
        let Command::Run(args) = cli.command else { panic!("not `run`") };
        assert_eq!(args.words(), [&b"\xff"[..], b"--json", b""]);
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
