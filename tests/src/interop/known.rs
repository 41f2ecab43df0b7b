//! What stock tools cannot do, by name.

use super::Controller::{Graft, Jitlink19, Jitlink19Tcp, Jitlink22, Jitlink22Slab, Jitlink22Tcp};
use super::Executor::{Hosted, Microvm, Q35, Stock19, Stock22};
use super::{Controller, Executor};
use crate::child::{End, Outcome};
use crate::programs::Program;

/// How a failure shows.
#[derive(Debug)]
pub enum Sign {
    /// The controller ends in just this way, and standard error contains the words.
    Says(End, &'static str),
    /// It exits as if all were well, without a word, with what `main` should not return and not all it should print.
    Silent,
}

impl Sign {
    /// Whether `outcome` shows it.
    #[must_use]
    pub(super) fn shows(&self, program: &Program, outcome: &Outcome) -> bool {
        match self {
            Self::Says(end, words) => outcome.end == *end && outcome.stderr.contains(words),
            Self::Silent => {
                matches!(outcome.end, End::Exit(status) if status != program.status)
                    && outcome.stderr.is_empty()
                    && outcome.stdout.len() < program.console.len()
            }
        }
    }
}

impl std::fmt::Display for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Says(end, words) => write!(f, "{end} and `{words}`"),
            Self::Silent => f.write_str("a wrong status without a word"),
        }
    }
}

/// A cell that cannot work, and how it says so.
#[derive(Debug)]
pub struct Known {
    /// The controllers, any of them.
    pub controllers: &'static [Controller],
    /// The executors, any of them; none means all.
    pub executors: &'static [Executor],
    /// The programs, by name.
    pub programs: &'static [&'static str],
    /// How it must fail; none where the cell is left out because it ends in different ways.
    pub sign: Option<Sign>,
    /// Why, in one line.
    pub why: &'static str,
}

const JITLINKS_19: &[Controller] = &[Jitlink19, Jitlink19Tcp];
const JITLINKS_22: &[Controller] = &[Jitlink22, Jitlink22Slab, Jitlink22Tcp];
const JITLINKS: &[Controller] = &[Jitlink19, Jitlink19Tcp, Jitlink22, Jitlink22Slab, Jitlink22Tcp];

/// What only links below 2 GiB.
const BOUND: &[&str] = &[
    "data/gcc-no-pic",
    "data/clang-no-pic",
    "data/gcc-kernel",
    "data/clang-kernel",
    "indirect/clang-no-pic",
    "weak/gcc-no-pic",
    "switch/gcc-no-pic",
];

/// The list.
pub static KNOWN: &[Known] = &[
    Known {
        controllers: JITLINKS,
        executors: &[Stock19, Stock22],
        programs: BOUND,
        sign: Some(Sign::Says(End::Exit(1), "out of range")),
        why: "the stock executor reserves memory above 2 GiB, out of reach of the 32-bit addresses of this code model",
    },
    Known {
        controllers: &[Graft],
        executors: &[Stock19, Stock22],
        programs: BOUND,
        sign: Some(Sign::Says(End::Exit(125), "below 2 GiB")),
        why: "the same, in our own linker's words, which name the flag to compile with",
    },
    Known {
        controllers: &[Jitlink19, Jitlink19Tcp, Jitlink22, Jitlink22Slab],
        executors: &[],
        programs: &["data/gcc-large-pic"],
        sign: Some(Sign::Says(End::Exit(1), "Unsupported x86-64 relocation type R_X86_64_PLTOFF64")),
        why: "llvm-jitlink has no R_X86_64_PLTOFF64, which gcc emits for -mcmodel=large -fPIC",
    },
    Known {
        controllers: &[Jitlink22Tcp],
        executors: &[],
        programs: &["data/gcc-large-pic"],
        sign: Some(Sign::Says(End::TimeOut, "Unsupported x86-64 relocation type R_X86_64_PLTOFF64")),
        why: "the same; over TCP llvm-jitlink 22 says so and then waits for ever for an executor that knows of nothing",
    },
    Known {
        controllers: JITLINKS,
        executors: &[Hosted, Microvm, Q35],
        programs: &["got/clang-no-plt"],
        sign: Some(Sign::Says(End::Exit(1), "Error deserializing return value from blob in call")),
        why: "llvm-jitlink relaxes `call *f@GOTPCREL(%rip)` wrongly when f lies below 4 GiB: it calls into the void, and \
              our executor survives that",
    },
    Known {
        controllers: JITLINKS_19,
        executors: &[],
        programs: &["common/gcc", "common/clang"],
        sign: Some(Sign::Says(End::Exit(1), "Unexpected definitions in module")),
        why: "llvm-jitlink 19 does not merge COMMON symbols of two objects",
    },
    Known {
        controllers: JITLINKS_19,
        executors: &[],
        programs: &["rust/core-rlib"],
        sign: Some(Sign::Says(End::Exit(1), "The file was not recognized as a valid object file")),
        why: "llvm-jitlink 19 refuses an archive with a member that is no object, as in every rlib",
    },
    Known {
        controllers: JITLINKS_22,
        executors: &[],
        programs: &["rust/core-rlib"],
        sign: Some(Sign::Says(End::Exit(1), "does not contain a relocatable object file")),
        why: "llvm-jitlink 22 refuses an archive with a member that is no object, as in every rlib",
    },
    Known {
        controllers: JITLINKS,
        executors: &[Microvm, Q35],
        programs: &["rust/core"],
        sign: None,
        why: "left out: llvm-jitlink ships the whole of libcore, 3 MiB, and in the half minute that takes on a serial line \
              it nearly always loses its race with itself",
    },
];

pub(super) fn of(executor: Executor, controller: Controller, program: &Program) -> Option<&'static Known> {
    KNOWN.iter().find(|known| {
        known.controllers.contains(&controller)
            && (known.executors.is_empty() || known.executors.contains(&executor))
            && known.programs.contains(&program.name)
    })
}

/// A fault of a stock tool that strikes now and then: a cell that it hit is tried again.
#[derive(Debug)]
pub struct Race {
    /// The controllers, any of them.
    pub controllers: &'static [Controller],
    /// The executors, any of them.
    pub executors: &'static [Executor],
    /// The programs, by name: those that it was seen to hit, and their like. No other cell is ever tried again.
    pub programs: &'static [&'static str],
    /// How it shows, any of these; each was seen.
    pub signs: &'static [Sign],
    /// What happens, in one line.
    pub why: &'static str,
}

/// How often a cell is tried that is hit every time. The cell that is hit most often, in a third of its runs, fails by
/// bad luck once in four thousand times.
pub(super) const ATTEMPTS: usize = 8;

/// How many further attempts all cells of a row may take together; some two are usual.
pub(super) const ROW_RETRIES: usize = 20;

const OURS: &[Executor] = &[Hosted, Microvm, Q35];
const ALL: &[Executor] = &[Hosted, Microvm, Q35, Stock19, Stock22];

/// Programs whose `main` needs another object.
const NEEDY: &[&str] = &[
    "weak/overridden",
    "weak/strong-first",
    "pair/gcc",
    "pair/mixed",
    "archive/by-need",
    "cxx/gcc-O0",
    "cxx/clang-O2",
    "cxx/mixed",
    "got/gcc-pic",
    "got/clang-no-plt",
    "rust/core",
];

/// The list. Each stands in the traffic of its tool with LLVM's own executor, too.
pub static RACES: &[Race] = &[
    Race {
        controllers: JITLINKS_19,
        executors: OURS,
        programs: NEEDY,
        // Our executor reports the fault of `main` in an empty answer and goes on.
        signs: &[Sign::Says(End::Exit(1), "Error deserializing return value from blob in call")],
        why: "llvm-jitlink 19 now and then sends the call of main before an object that main needs; the cell was tried \
              again",
    },
    Race {
        controllers: JITLINKS_19,
        executors: &[Stock19],
        programs: NEEDY,
        // LLVM's executor dies of it, or runs whatever it finds there.
        signs: &[
            Sign::Says(End::Exit(1), "disconnecting"),
            Sign::Says(End::Signal(11), "disconnecting"),
            Sign::Says(End::Signal(6), "pure virtual method called"),
            Sign::Silent,
        ],
        why: "the same with LLVM's own executor; the cell was tried again",
    },
    Race {
        controllers: JITLINKS_19,
        executors: ALL,
        programs: NEEDY,
        signs: &[
            Sign::Says(End::Exit(1), "became defunct"),
            Sign::Says(End::Signal(11), "became defunct"),
            // Over TCP.
            Sign::Says(End::TimeOut, "became defunct"),
        ],
        why: "llvm-jitlink 19 now and then ends its session while it still links objects; the cell was tried again",
    },
    Race {
        controllers: JITLINKS_22,
        executors: ALL,
        programs: &["archive/by-need", "rust/core"],
        signs: &[Sign::Says(End::Signal(11), "became defunct"), Sign::Says(End::Signal(6), "ELFDebugObjectPlugin")],
        why: "llvm-jitlink 22 now and then ends its session while it still links objects that main does not need, and \
              dies of that; the cell was tried again",
    },
];

/// The races that can hit a cell.
pub(super) fn races(
    executor: Executor,
    controller: Controller,
    program: &Program,
) -> impl Iterator<Item = &'static Race> {
    RACES.iter().filter(move |race| {
        race.controllers.contains(&controller)
            && race.executors.contains(&executor)
            && race.programs.contains(&program.name)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::programs::PROGRAMS;

    fn outcome(end: End, stdout: &str, stderr: &str) -> Outcome {
        Outcome { end, stdout: stdout.into(), stderr: stderr.to_owned(), took: Duration::ZERO }
    }

    #[test]
    fn a_sign_is_the_end_and_the_words() {
        let program = PROGRAMS.iter().find(|program| program.name == "pair/gcc").unwrap();
        let sign = Sign::Says(End::Exit(1), "disconnecting");
        assert!(sign.shows(program, &outcome(End::Exit(1), "", "error: disconnecting\n")));
        assert!(!sign.shows(program, &outcome(End::Exit(1), "", "error: something else\n")));
        assert!(!sign.shows(program, &outcome(End::Signal(11), "", "error: disconnecting\n")));
        assert!(Sign::Silent.shows(program, &outcome(End::Exit(74), "", "")));
        for (end, stdout, stderr) in [
            (End::Exit(74), "", "words"),
            (End::Exit(74), program.console, ""),
            (End::Exit(29), "", ""),
            (End::TimeOut, "", ""),
        ] {
            assert!(!Sign::Silent.shows(program, &outcome(end, stdout, stderr)));
        }
    }

    #[test]
    fn the_lists_name_programs_that_exist_and_no_race_matches_everything() {
        let exists = |name: &&str| PROGRAMS.iter().any(|program| program.name == *name);
        assert!(KNOWN.iter().flat_map(|known| known.programs).all(exists));
        assert!(RACES.iter().flat_map(|race| race.programs).all(exists));
        for sign in KNOWN.iter().filter_map(|known| known.sign.as_ref()).chain(RACES.iter().flat_map(|race| race.signs))
        {
            assert!(!matches!(sign, Sign::Says(_, words) if words.is_empty()), "{sign}");
        }
        // Only of LLVM's own executor is it taken without a word.
        let silent = RACES.iter().filter(|race| race.signs.iter().any(|sign| matches!(sign, Sign::Silent)));
        assert!(silent.flat_map(|race| race.executors).all(|executor| *executor == Stock19));
    }
}
