//! The one table of example programs: what each is made of, and what it must do.
//!
//! They use only functions that both Graft's runtime and a hosted C library offer, so that the same objects run on every
//! executor. A row says how its units are compiled; the same source appears under several compilers and code models.

use Compiler::{Clang, ClangXx, Gcc, Gxx, RustBare, RustHost};

/// What turns a source into an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// `gcc`.
    Gcc,
    /// `g++`.
    Gxx,
    /// `clang-19`.
    Clang,
    /// `clang++-19`.
    ClangXx,
    /// `rustc` for bare metal.
    RustBare,
    /// `rustc` for the host, without unwinding.
    RustHost,
}

/// A source with its compiler.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// The file in `tests/cases`.
    pub source: &'static str,
    /// What compiles it.
    pub compiler: Compiler,
    /// Further options, separated by spaces.
    pub flags: &'static str,
}

/// What a program links besides its own objects.
#[derive(Clone, Copy, Debug)]
pub enum Library {
    /// Nothing.
    None,
    /// An archive of these units, of which the linker takes what it needs.
    Archive(&'static [Unit]),
    /// Rust's `core` for bare metal as the archives of objects it is.
    RustCore,
    /// The same as `rustc` ships it: with a metadata member that is no object.
    RustCoreRlib,
}

/// A program and what it must do.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in tables.
    pub name: &'static str,
    /// Its objects, in the order they are given to the linker.
    pub units: &'static [Unit],
    /// What it links besides.
    pub library: Library,
    /// Its arguments.
    pub args: &'static [&'static str],
    /// The exit status of the controller: the result of `main` modulo 256.
    pub status: i32,
    /// Its console output, byte for byte.
    pub console: &'static str,
    /// Whether the remote MCJIT of `lli` runs its IR form too.
    pub lli: bool,
}

const PLAIN: Program =
    Program { name: "", units: &[], library: Library::None, args: &[], status: 0, console: "", lli: false };

const fn unit(compiler: Compiler, source: &'static str, flags: &'static str) -> Unit {
    Unit { source, compiler, flags }
}

const RET: Program = Program { status: 41, ..PLAIN };
const ARGS: Program = Program { units: &[unit(Gcc, "args.c", "-O2")], ..PLAIN };
const DATA: Program = Program { status: 48, console: "alpha\nbeta\ngamma\npicked by a pointer in .data\n", ..PLAIN };
const INDIRECT: Program = Program { status: 176, console: "said through a pointer\n", ..PLAIN };
const WEAK: Program = Program { status: 42, console: "weak undefined symbols are null\n", ..PLAIN };
const OVERRIDDEN: Program = Program { status: 45, console: "strong\n", ..PLAIN };
const COMMON: Program = Program { status: 73, console: "one object of the larger size\n", ..PLAIN };
const PAIR: Program = Program { status: 29, console: "from the other object\n", ..PLAIN };
const ARCHIVE: Program = Program { status: 41, console: "main uses the archive\nwanted\n", ..PLAIN };
const CXX: Program = Program { status: 36, console: "square\nstrip\n", ..PLAIN };
const CODE: Program = Program { status: 42, console: "one mebibyte\n", ..PLAIN };
const DEBUG: Program = Program { status: 30, console: "with debug information\n", ..PLAIN };
const GOT: Program = Program { status: 49, console: "got\nrelaxed or not\n", ..PLAIN };
const SWITCH: Program = Program {
    status: 26,
    console: "eight\neight\neight\nexclusive or\nthousand\nseventy thousand\nunknown\n",
    ..PLAIN
};
const RUST: Program = Program { status: 92, console: "GRAFTED\nin rust\n", ..PLAIN };
const RUST_CORE: Program = Program {
    units: &[unit(RustBare, "rust_core.rs", "-O")],
    status: 7,
    console: "0: Leaf(7)\n1: Leaf(700)\n2: Node { depth: 2, name: \"root\" }\n   2.500|ab    |0x0bee\n",
    ..PLAIN
};

/// All programs.
#[rustfmt::skip] // one row, one line: it is a table
pub const PROGRAMS: &[Program] = &[
    Program { name: "ret/gcc-O2", units: &[unit(Gcc, "ret.c", "-O2")], lli: true, ..RET },
    Program { name: "ret/clang-O0", units: &[unit(Clang, "ret.c", "-O0")], ..RET },
    Program { name: "args/none", args: &[], status: 0, console: "", ..ARGS },
    Program { name: "args/three", args: &["one", "", "three words here"], status: 3, console: "one\n\nthree words here\n", ..ARGS },
    Program { name: "data/gcc-default", units: &[unit(Gcc, "data.c", "")], lli: true, ..DATA },
    Program { name: "data/gcc-pic", units: &[unit(Gcc, "data.c", "-O2 -fPIC")], ..DATA },
    Program { name: "data/clang-pie", units: &[unit(Clang, "data.c", "-O2 -fPIE")], ..DATA },
    Program { name: "data/gcc-no-pic", units: &[unit(Gcc, "data.c", "-O0 -fno-pic")], ..DATA },
    Program { name: "data/clang-no-pic", units: &[unit(Clang, "data.c", "-O2 -fno-pic")], ..DATA },
    Program { name: "data/gcc-kernel", units: &[unit(Gcc, "data.c", "-O2 -fno-pic -mcmodel=kernel")], ..DATA },
    Program { name: "data/clang-kernel", units: &[unit(Clang, "data.c", "-O0 -fno-pic -mcmodel=kernel")], ..DATA },
    Program { name: "data/gcc-large", units: &[unit(Gcc, "data.c", "-O2 -fno-pic -mcmodel=large")], ..DATA },
    Program { name: "data/gcc-large-pic", units: &[unit(Gcc, "data.c", "-O1 -fPIC -mcmodel=large")], ..DATA },
    Program { name: "data/clang-large", units: &[unit(Clang, "data.c", "-O2 -fno-pic -mcmodel=large")], ..DATA },
    Program { name: "data/clang-large-pic", units: &[unit(Clang, "data.c", "-O0 -fPIC -mcmodel=large")], ..DATA },
    Program { name: "indirect/gcc-O2", units: &[unit(Gcc, "indirect.c", "-O2")], lli: true, ..INDIRECT },
    Program { name: "indirect/clang-no-pic", units: &[unit(Clang, "indirect.c", "-O0 -fno-pic")], ..INDIRECT },
    Program { name: "weak/gcc-pie", units: &[unit(Gcc, "weak.c", "-O2 -fPIE")], ..WEAK },
    Program { name: "weak/clang-pic", units: &[unit(Clang, "weak.c", "-O0 -fPIC")], ..WEAK },
    Program { name: "weak/gcc-no-pic", units: &[unit(Gcc, "weak.c", "-O0 -fno-pic")], ..WEAK },
    Program { name: "weak/overridden", units: &[unit(Gcc, "weak_main.c", "-O2"), unit(Clang, "weak_strong.c", "-O2")], ..OVERRIDDEN },
    Program { name: "weak/strong-first", units: &[unit(Clang, "weak_strong.c", "-O0"), unit(Gcc, "weak_main.c", "-O0")], ..OVERRIDDEN },
    Program { name: "common/gcc", units: &[unit(Gcc, "common_main.c", "-O1 -fcommon"), unit(Gcc, "common_other.c", "-O1 -fcommon")], ..COMMON },
    Program { name: "common/clang", units: &[unit(Clang, "common_other.c", "-fcommon"), unit(Clang, "common_main.c", "-fcommon")], ..COMMON },
    Program { name: "pair/gcc", units: &[unit(Gcc, "pair_main.c", "-O2"), unit(Gcc, "pair_other.c", "-O0")], ..PAIR },
    Program { name: "pair/mixed", units: &[unit(Clang, "pair_other.c", "-O2 -fno-pic"), unit(Gcc, "pair_main.c", "-O0 -fPIC")], ..PAIR },
    Program { name: "archive/by-need", units: &[unit(Gcc, "archive_main.c", "-O2")], library: Library::Archive(&[
        unit(Gcc, "archive_unneeded.c", "-O2"), unit(Clang, "archive_deeper.c", "-O2"), unit(Gcc, "archive_wanted.c", "-O0")]), ..ARCHIVE },
    Program { name: "cxx/gcc-O0", units: &[unit(Gxx, "cxx.cpp", "-O0"), unit(Gxx, "cxx_other.cpp", "-O0")], ..CXX },
    Program { name: "cxx/clang-O2", units: &[unit(ClangXx, "cxx.cpp", "-O2"), unit(ClangXx, "cxx_other.cpp", "-O1")], ..CXX },
    Program { name: "cxx/mixed", units: &[unit(ClangXx, "cxx.cpp", "-O0"), unit(Gxx, "cxx_other.cpp", "-O1")], ..CXX },
    Program { name: "bss/8MiB", units: &[unit(Gcc, "bss.c", "-O2")], status: 67, console: "eight mebibytes\n", ..PLAIN },
    Program { name: "code/1MiB", units: &[unit(Clang, "code.c", "-O1")], ..CODE },
    Program { name: "console/gcc-O2", units: &[unit(Gcc, "console.c", "-O2")], console: include_str!("../cases/console.txt"), ..PLAIN },
    Program { name: "debug/gcc-g", units: &[unit(Gcc, "debug.c", "-g -O0")], ..DEBUG },
    Program { name: "debug/clang-g", units: &[unit(Clang, "debug.c", "-g -O2")], ..DEBUG },
    Program { name: "debug/gcc-gz", units: &[unit(Gcc, "debug.c", "-g3 -gz -O1 -ffunction-sections -fdata-sections")], ..DEBUG },
    Program { name: "got/gcc-pic", units: &[unit(Gcc, "got_main.c", "-O2 -fPIC"), unit(Gcc, "got_other.c", "-O2 -fPIC")], ..GOT },
    Program { name: "got/clang-no-plt", units: &[unit(Clang, "got_main.c", "-O0 -fPIC -fno-plt"), unit(Clang, "got_other.c", "-O0 -fno-pic")], ..GOT },
    Program { name: "switch/gcc-pic", units: &[unit(Gcc, "switch.c", "-O2 -fPIC")], ..SWITCH },
    Program { name: "switch/gcc-no-pic", units: &[unit(Gcc, "switch.c", "-O2 -fno-pic")], ..SWITCH },
    Program { name: "switch/clang-large", units: &[unit(Clang, "switch.c", "-O1 -fno-pic -mcmodel=large")], ..SWITCH },
    Program { name: "heap/gcc-O2", units: &[unit(Gcc, "heap.c", "-O2 -ffreestanding")], status: 241, console: "made of two pieces\n>>>>>made of two pieces\n", ..PLAIN },
    Program { name: "rust/bare", units: &[unit(RustBare, "rust.rs", "-O")], ..RUST },
    Program { name: "rust/host-O1", units: &[unit(RustHost, "rust.rs", "-Copt-level=1")], ..RUST },
    Program { name: "rust/core", library: Library::RustCore, ..RUST_CORE },
    Program { name: "rust/core-rlib", library: Library::RustCoreRlib, ..RUST_CORE },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sources_exist() {
        let cases = crate::place::root().join("tests/cases");
        for (place, program) in PROGRAMS.iter().enumerate() {
            assert!(PROGRAMS[..place].iter().all(|other| other.name != program.name), "{} twice", program.name);
            for unit in program.units {
                assert!(cases.join(unit.source).is_file(), "{}: no {}", program.name, unit.source);
            }
        }
        assert_eq!(PROGRAMS.iter().filter(|program| program.lli).count(), 3);
    }
}
