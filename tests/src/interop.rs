//! Crosses controllers with executors: every program of the table through every pair, status and output checked.
//!
//! A *row* is a pair; a *cell* is a row and a program. What a stock tool cannot do is listed by name in [`KNOWN`] with
//! the words it fails with, and a listed cell must fail in just that way, so that the list cannot rot.

mod known;
mod run;
mod table;

pub use known::{KNOWN, Known, RACES, Race, Sign};
pub use table::table_file;

use crate::child::{End, Outcome};
use crate::objects;
use crate::programs::{PROGRAMS, Program};
use crate::target::Target;

/// Where the code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Executor {
    /// Our runtime as a Linux process.
    Hosted,
    /// Our runtime on QEMU's microvm.
    Microvm,
    /// Our runtime on QEMU's q35.
    Q35,
    /// `llvm-jitlink-executor` 19 (for `lli`: its `lli-child-target`).
    Stock19,
    /// `llvm-jitlink-executor` 22 (for `lli`: its `lli-child-target`).
    Stock22,
}

impl Executor {
    const fn short(self) -> &'static str {
        match self {
            Self::Hosted => "hosted",
            Self::Microvm => "microvm",
            Self::Q35 => "q35",
            Self::Stock19 => "stock19",
            Self::Stock22 => "stock22",
        }
    }
}

/// What links and ships the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// `graft run`.
    Graft,
    /// `llvm-jitlink` 19.
    Jitlink19,
    /// `llvm-jitlink` 22 with its generic memory manager.
    Jitlink22,
    /// `llvm-jitlink` 22 with its slab manager, `-use-memmgr=simple-remote`.
    Jitlink22Slab,
    /// `llvm-jitlink` 19 over TCP instead of pipes.
    Jitlink19Tcp,
    /// `llvm-jitlink` 22 over TCP instead of pipes.
    Jitlink22Tcp,
    /// The remote MCJIT of `lli` 19, on IR.
    Lli19,
    /// The remote MCJIT of `lli` 22, on IR.
    Lli22,
}

impl Controller {
    const fn short(self) -> &'static str {
        match self {
            Self::Graft => "graft",
            Self::Jitlink19 => "jl19",
            Self::Jitlink22 => "jl22",
            Self::Jitlink22Slab => "jl22slab",
            Self::Jitlink19Tcp => "jl19tcp",
            Self::Jitlink22Tcp => "jl22tcp",
            Self::Lli19 => "lli19",
            Self::Lli22 => "lli22",
        }
    }

    const fn is_lli(self) -> bool {
        matches!(self, Self::Lli19 | Self::Lli22)
    }
}

/// What became of a cell.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Status and output are right.
    Right,
    /// Right, though not at the first attempt: the controller lost a race with itself, as often as this says.
    RightAfterRace(&'static Race, usize),
    /// It failed as the list says.
    Known(&'static Known),
    /// Wrong; the text says how.
    Wrong(String),
    /// The controller does not run this program's form.
    Absent,
}

/// Runs a row over all programs and adds it to the table, which is printed once it has `rows_in_all` rows.
///
/// # Panics
///
/// Panics with every cell that is wrong, or when the executor cannot be started.
pub fn row(executor: Executor, controller: Controller, rows_in_all: usize) {
    let mut retries_left = known::ROW_RETRIES;
    let verdicts: Vec<Verdict> = match Target::start(executor) {
        Ok(target) => {
            let cells = PROGRAMS.iter();
            cells.map(|program| cell(&target, executor, controller, program, &mut retries_left)).collect()
        }
        Err(error) => vec![Verdict::Wrong(error); PROGRAMS.len()],
    };
    let named = PROGRAMS.iter().zip(&verdicts);
    let wrong: Vec<String> = named
        .filter_map(|(program, verdict)| match verdict {
            Verdict::Wrong(how) => Some(format!("{}: {how}", program.name)),
            _ => None,
        })
        .collect();
    table::record(executor, controller, verdicts, rows_in_all);
    assert!(wrong.is_empty(), "{executor:?} x {controller:?}: {} wrong\n\n{}", wrong.len(), wrong.join("\n\n"));
}

fn cell(
    target: &Target,
    executor: Executor,
    controller: Controller,
    program: &'static Program,
    retries_left: &mut usize,
) -> Verdict {
    if controller.is_lli() && !program.lli || !is_asked_for(program) {
        return Verdict::Absent;
    }
    let known = known::of(executor, controller, program);
    if let Some(known) = known.filter(|known| known.sign.is_none()) {
        return Verdict::Known(known);
    }
    let mut hit = None;
    for retries in 0..known::ATTEMPTS {
        let may_race = known::races(executor, controller, program).next().is_some();
        let ends = run::Ends { must_fail: known.is_some(), may_race };
        let outcome = objects::built(program).and_then(|built| run::run(target, controller, program, built, ends));
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Verdict::Wrong(error),
        };
        let how = match (judge(known, program, &outcome), hit) {
            (Verdict::Right, Some(race)) => return Verdict::RightAfterRace(race, retries),
            (Verdict::Wrong(how), _) => how,
            (verdict, _) => return verdict,
        };
        let shows = |race: &&Race| race.signs.iter().any(|sign| sign.shows(program, &outcome));
        hit = known::races(executor, controller, program).find(shows);
        if hit.is_none() {
            return Verdict::Wrong(how);
        }
        if *retries_left == 0 {
            return Verdict::Wrong(format!("the row took {} further attempts already: {how}", known::ROW_RETRIES));
        }
        *retries_left -= 1;
    }
    Verdict::Wrong(format!("{} attempts, and each time {}", known::ATTEMPTS, hit.map_or("", |race| race.why)))
}

/// `GRAFT_PROGRAMS=data,!large` runs only programs with the first word in their names, and none with the second.
fn is_asked_for(program: &Program) -> bool {
    let words = std::env::var("GRAFT_PROGRAMS").unwrap_or_default();
    let mut wanted = words.split(',').filter(|word| !word.is_empty() && !word.starts_with('!')).peekable();
    let all = wanted.peek().is_none();
    let mut unwanted = words.split(',').filter_map(|word| word.strip_prefix('!'));
    (all || wanted.any(|word| program.name.contains(word))) && !unwanted.any(|word| program.name.contains(word))
}

fn judge(known: Option<&'static Known>, program: &Program, outcome: &Outcome) -> Verdict {
    let known = known.and_then(|known| Some((known, known.sign.as_ref()?)));
    match (known, difference(program, outcome)) {
        (None, None) => Verdict::Right,
        (None, Some(how)) => Verdict::Wrong(how),
        (Some((known, _)), None) => Verdict::Wrong(format!("works, though it is listed as impossible: {}", known.why)),
        (Some((known, sign)), Some(_)) if sign.shows(program, outcome) => Verdict::Known(known),
        (Some((_, sign)), Some(how)) => Verdict::Wrong(format!("fails, but without {sign}: {how}")),
    }
}

fn difference(program: &Program, outcome: &Outcome) -> Option<String> {
    let console = String::from_utf8_lossy(&outcome.stdout);
    let mut wrong = Vec::new();
    if outcome.end != End::Exit(program.status) {
        wrong.push(format!("{}, not {}", outcome.end, program.status));
    }
    if console != program.console {
        wrong.push(format!("console {console:?}, not {:?}", program.console));
    }
    if wrong.is_empty() {
        return None;
    }
    wrong.push(format!("stderr: {}", outcome.stderr.trim()));
    Some(wrong.join("\n    "))
}
