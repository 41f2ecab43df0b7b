//! What stock tools cannot do, by name.

use super::Controller::{Graft, Jitlink19, Jitlink19Tcp, Jitlink22, Jitlink22Slab, Jitlink22Tcp};
use super::Executor::{Hosted, Microvm, Q35, Stock19, Stock22};
use super::{Controller, Executor};
use crate::programs::{Library, Program};

/// A cell that cannot work, and how it says so.
#[derive(Debug)]
pub struct Known {
    /// The controllers, any of them.
    pub controllers: &'static [Controller],
    /// The executors, any of them; none means all.
    pub executors: &'static [Executor],
    /// The programs, by name.
    pub programs: &'static [&'static str],
    /// What standard error must contain; none where the cell is left out because it ends in different ways.
    pub sign: Option<&'static str>,
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
        sign: Some("out of range"),
        why: "the stock executor reserves memory above 2 GiB, out of reach of the 32-bit addresses of this code model",
    },
    Known {
        controllers: &[Graft],
        executors: &[Stock19, Stock22],
        programs: BOUND,
        sign: Some("below 2 GiB"),
        why: "the same, in our own linker's words, which name the flag to compile with",
    },
    Known {
        controllers: JITLINKS,
        executors: &[],
        programs: &["data/gcc-large-pic"],
        sign: Some("Unsupported x86-64 relocation type R_X86_64_PLTOFF64"),
        why: "llvm-jitlink has no R_X86_64_PLTOFF64, which gcc emits for -mcmodel=large -fPIC",
    },
    Known {
        controllers: JITLINKS,
        executors: &[Hosted, Microvm, Q35],
        programs: &["got/clang-no-plt"],
        sign: Some("Error deserializing return value from blob in call"),
        why: "llvm-jitlink relaxes `call *f@GOTPCREL(%rip)` wrongly when f lies below 4 GiB: it calls into the void, and \
              our executor survives that",
    },
    Known {
        controllers: JITLINKS_19,
        executors: &[],
        programs: &["common/gcc", "common/clang"],
        sign: Some("Unexpected definitions in module"),
        why: "llvm-jitlink 19 does not merge COMMON symbols of two objects",
    },
    Known {
        controllers: JITLINKS_19,
        executors: &[],
        programs: &["rust/core-rlib"],
        sign: Some("The file was not recognized as a valid object file"),
        why: "llvm-jitlink 19 refuses an archive with a member that is no object, as in every rlib",
    },
    Known {
        controllers: JITLINKS_22,
        executors: &[],
        programs: &["rust/core-rlib"],
        sign: Some("does not contain a relocatable object file"),
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
    /// Whether it needs more than one object.
    pub several_objects: bool,
    /// What standard error contains, one of these.
    pub signs: &'static [&'static str],
    /// What happens, in one line.
    pub why: &'static str,
}

/// How often a cell that was hit is tried.
pub(super) const ATTEMPTS: usize = 10;

/// The list.
pub static RACES: &[Race] = &[
    Race {
        controllers: JITLINKS_19,
        several_objects: true,
        // What main then sees is memory that reads as zero or cannot be executed: any wrong end may come of it, with or
        // without words. Every one of them is tried again, and one right end is asked for.
        signs: &[""],
        why: "llvm-jitlink 19 now and then sends the call of main before an object that main needs (seen in its \
              traffic, with its own executor too); the cell was tried again",
    },
    Race {
        controllers: JITLINKS_22,
        several_objects: true,
        signs: &["ELFDebugObjectPlugin", "became defunct"],
        why: "llvm-jitlink 22 now and then ends its session while it still links objects that main does not need, and \
              dies of that (with its own executor too); the cell was tried again",
    },
];

pub(super) fn race(controller: Controller, program: &Program, stderr: &str) -> Option<&'static Race> {
    let several = program.units.len() > 1 || !matches!(program.library, Library::None);
    RACES.iter().find(|race| {
        race.controllers.contains(&controller)
            && (several || !race.several_objects)
            && race.signs.iter().any(|sign| stderr.contains(sign))
    })
}
