//! One cell's processes: the controller, and what must stand beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Controller;
use crate::child::{self, Outcome, Running};
use crate::objects::Built;
use crate::programs::Program;
use crate::target::Target;
use crate::{place, tools};

/// How long one cell may take. The slowest ships a mebibyte over an emulated serial line: some 5 s on an idle host, and
/// many times that where everything else wants the processor too.
const CELL_LIMIT: Duration = Duration::from_secs(240);
/// How long one that must fail may take: over TCP `llvm-jitlink` 22 says why it fails before it loads anything, and then
/// waits for ever for an executor that knows of nothing.
const FAILING_CELL_LIMIT: Duration = Duration::from_secs(20);
/// How long one may take whose controller may lose a race with itself: over TCP it then waits for ever, too.
const RACING_CELL_LIMIT: Duration = Duration::from_secs(60);

/// How a cell may end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// It is listed as one that cannot work.
    pub(super) must_fail: bool,
    /// One of the races may hit it.
    pub(super) may_race: bool,
}

impl Ends {
    const fn limit(self) -> Duration {
        match self {
            Self { must_fail: true, .. } => FAILING_CELL_LIMIT,
            Self { may_race: true, .. } => RACING_CELL_LIMIT,
            _ => CELL_LIMIT,
        }
    }
}

pub(super) fn run(
    target: &Target,
    controller: Controller,
    program: &Program,
    built: &Built,
    ends: Ends,
) -> Result<Outcome, String> {
    let mut beside = None;
    let mut command;
    match controller {
        Controller::Graft => {
            command = Command::new(&place::graft()?.command);
            let name = match target {
                Target::Stock { executor, .. } => joined("exec:", executor),
                Target::Ours { name, .. } => name.into(),
            };
            command.args(["run", "-t"]).arg(name).args(&built.inputs);
            if !program.args.is_empty() {
                command.arg("--").args(program.args);
            }
        }
        Controller::Lli19 | Controller::Lli22 => {
            command = Command::new(tool(controller)?);
            command.args(["-jit-kind=mcjit", "-remote-mcjit"]);
            let child = match target {
                Target::Stock { lli_child, .. } => lli_child,
                Target::Ours { name, .. } => ours(&mut command, name)?,
            };
            command.arg(joined("-mcjit-remote-process=", child)).args(&built.ir);
        }
        Controller::Jitlink19 | Controller::Jitlink22 | Controller::Jitlink22Slab => {
            command = Command::new(tool(controller)?);
            let executor = match target {
                Target::Stock { executor, .. } => executor,
                Target::Ours { name, .. } => ours(&mut command, name)?,
            };
            command.arg(joined("-oop-executor=", executor));
            jitlink_inputs(&mut command, controller, program, built);
        }
        Controller::Jitlink19Tcp | Controller::Jitlink22Tcp => {
            let (running, address) = serving(target)?;
            beside = Some(running);
            command = Command::new(tool(controller)?);
            command.arg(format!("-oop-executor-connect={address}"));
            jitlink_inputs(&mut command, controller, program, built);
        }
    }
    // A machine that takes a mebibyte in keeps a processor busy, and its emulated serial line another one: two at a time
    // on two processors take many times as long.
    static LARGE: Mutex<()> = Mutex::new(());
    let large = program.name.starts_with("code/") && !matches!(target, Target::Stock { .. });
    let _alone = large.then(|| LARGE.lock().unwrap_or_else(PoisonError::into_inner));
    // What earlier sessions printed on a machine that stays.
    let printed = target.machine().map(|machine| machine.stdout(0, Duration::ZERO).len());
    let mut outcome = child::run(&mut command, ends.limit())?;
    if let Some(beside) = beside {
        // Whoever runs the code writes its console.
        let other = beside.finish(Duration::from_secs(10));
        outcome.stdout.extend(other.stdout);
        outcome.stderr.push_str(&format!("\n(beside it, {}: {})", other.end, other.stderr.trim()));
    }
    if let (Some(machine), Some(printed)) = (target.machine(), printed)
        && outcome.stdout.is_empty()
    {
        // Stock controllers know nothing of consoles: it stays with whoever keeps the machine.
        let all = machine.stdout(printed + program.console.len(), Duration::from_secs(2));
        outcome.stdout.extend_from_slice(&all[printed..]);
    }
    Ok(outcome)
}

/// The program a stock controller starts to reach the target `name`: the executor itself, or `graft` in front of it.
fn ours(command: &mut Command, name: &str) -> Result<&'static Path, String> {
    let graft = place::graft()?;
    if name == "hosted" {
        return Ok(&graft.hosted);
    }
    command.env("GRAFT_TARGET", name);
    Ok(&graft.command)
}

fn tool(controller: Controller) -> Result<PathBuf, String> {
    let tool = match controller {
        Controller::Graft => return place::graft().map(|graft| graft.command.clone()),
        Controller::Lli19 => tools::llvm19("lli"),
        Controller::Lli22 => tools::llvm22("lli"),
        Controller::Jitlink19 | Controller::Jitlink19Tcp => tools::llvm19("llvm-jitlink"),
        Controller::Jitlink22 | Controller::Jitlink22Slab | Controller::Jitlink22Tcp => tools::llvm22("llvm-jitlink"),
    };
    tool.map_err(|missing| missing.to_string())
}

fn jitlink_inputs(command: &mut Command, controller: Controller, program: &Program, built: &Built) {
    match controller {
        Controller::Jitlink22 | Controller::Jitlink22Tcp => command.arg("-use-memmgr=generic"),
        Controller::Jitlink22Slab => command.arg("-use-memmgr=simple-remote"),
        _ => command,
    };
    command.args(&built.inputs);
    if !program.args.is_empty() {
        command.arg("-args").args(program.args);
    }
}

fn joined(option: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(option);
    joined.push(path);
    joined
}

/// An executor that listens for one session: the process itself, or `graft serve` in front of a machine.
fn serving(target: &Target) -> Result<(Running, String), String> {
    let mut command;
    let words = match target {
        Target::Ours { name, .. } if name == "hosted" => {
            command = Command::new(&place::graft()?.hosted);
            command.arg("listen=127.0.0.1:0");
            "listening on "
        }
        Target::Ours { name, .. } => {
            command = Command::new(&place::graft()?.command);
            command.args(["serve", "-t", name, "--once", "--listen", "127.0.0.1:0"]);
            "at tcp:"
        }
        Target::Stock { .. } => return Err("over TCP the stock tools never end with each other".to_owned()),
    };
    let running = child::spawn(&mut command)?;
    let said = running.said(words, Duration::from_secs(60))?;
    let address = said.rsplit_once(words).map_or("", |(_, address)| address).to_owned();
    Ok((running, address))
}
