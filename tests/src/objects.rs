//! Compiles the programs of [`crate::programs`] into objects, archives and IR.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::programs::{Compiler, Library, PROGRAMS, Program, Unit};
use crate::{child, place, tools};

/// What a program is on disk.
#[derive(Clone, Debug)]
pub struct Built {
    /// Objects and archives, in the order they are given to a linker.
    pub inputs: Vec<PathBuf>,
    /// The IR form, where the program has one.
    pub ir: Option<PathBuf>,
}

/// Compiles `program`, once per process.
///
/// # Errors
///
/// Fails with the words of the compiler, or the name of a tool that is missing.
pub fn built(program: &'static Program) -> Result<&'static Built, String> {
    static BUILT: [OnceLock<Result<Built, String>>; PROGRAMS.len()] = [const { OnceLock::new() }; PROGRAMS.len()];
    let place = PROGRAMS.iter().position(|other| other.name == program.name).ok_or("not a program of the table")?;
    BUILT[place].get_or_init(|| build(program)).as_ref().map_err(Clone::clone)
}

fn build(program: &Program) -> Result<Built, String> {
    let folder = place::scratch("objects").join(program.name.replace('/', "-"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot clear {}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let mut inputs = compile_all(program.units, &folder)?;
    match program.library {
        Library::None => {}
        Library::Archive(members) => inputs.push(archive(members, &folder)?),
        Library::RustCoreRlib => inputs.extend(rlibs()?),
        Library::RustCore => {
            for rlib in rlibs()? {
                inputs.push(without_metadata(&rlib, &folder)?);
            }
        }
    }
    let ir = program.lli.then(|| to_ir(program.units[0].source, &folder)).transpose()?;
    Ok(Built { inputs, ir })
}

fn compile_all(units: &[Unit], folder: &Path) -> Result<Vec<PathBuf>, String> {
    units.iter().map(|unit| compile(unit, folder)).collect()
}

/// Compiles `unit` into an object in `folder`.
///
/// # Errors
///
/// Fails with the words of the compiler, or the name of a tool that is missing.
pub fn compile(unit: &Unit, folder: &Path) -> Result<PathBuf, String> {
    let source = case(unit.source);
    let object = folder.join(unit.source).with_extension("o");
    let missing = |missing: tools::Missing| missing.to_string();
    let mut command = match unit.compiler {
        Compiler::Gcc => Command::new(tools::packaged("gcc", "gcc").map_err(missing)?),
        Compiler::Gxx => Command::new(tools::packaged("g++", "g++").map_err(missing)?),
        Compiler::Clang => Command::new(tools::llvm19("clang").map_err(missing)?),
        Compiler::ClangXx => Command::new(tools::llvm19("clang++").map_err(missing)?),
        Compiler::RustBare | Compiler::RustHost => tools::rustc(),
    };
    match unit.compiler {
        Compiler::Gcc | Compiler::Clang => command.arg("-c"),
        Compiler::Gxx | Compiler::ClangXx => command.args(["-c", "-fno-exceptions", "-fno-rtti"]),
        Compiler::RustBare | Compiler::RustHost => {
            command.args(["--edition=2024", "--emit=obj", "--crate-type=lib", "-Cpanic=abort"])
        }
    };
    if unit.compiler == Compiler::RustBare {
        tools::rust_libraries(place::BARE_TARGET).map_err(missing)?;
        command.args(["--target", place::BARE_TARGET]);
    }
    command.args(unit.flags.split_whitespace()).arg(source).arg("-o").arg(&object);
    succeed(&mut command)?;
    Ok(object)
}

/// The path of a file in `tests/cases`.
#[must_use]
pub fn case(name: &str) -> PathBuf {
    place::root().join("tests/cases").join(name)
}

fn archive(members: &[Unit], folder: &Path) -> Result<PathBuf, String> {
    let objects = compile_all(members, folder)?;
    let library = folder.join("liblibrary.a");
    succeed(
        Command::new(tools::packaged("ar", "binutils").map_err(|m| m.to_string())?)
            .arg("rcs")
            .arg(&library)
            .args(objects),
    )?;
    Ok(library)
}

fn to_ir(source: &str, folder: &Path) -> Result<PathBuf, String> {
    let ir = folder.join(source).with_extension("ll");
    let clang = tools::llvm19("clang").map_err(|missing| missing.to_string())?;
    succeed(Command::new(clang).args(["-O1", "-S", "-emit-llvm"]).arg(case(source)).arg("-o").arg(&ir))?;
    Ok(ir)
}

fn rlibs() -> Result<Vec<PathBuf>, String> {
    let folder = tools::rust_libraries(place::BARE_TARGET).map_err(|missing| missing.to_string())?;
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".rlib") && (name.starts_with("libcore-") || name.starts_with("libcompiler_builtins-"))
    };
    Ok(entries.filter_map(Result::ok).map(|entry| entry.path()).filter(wanted).collect())
}

/// A copy of `rlib` with objects only. LLVM's `ar`, because GNU's loses the symbol table of objects with newer bitcode.
fn without_metadata(rlib: &Path, folder: &Path) -> Result<PathBuf, String> {
    let copy = folder.join(rlib.file_name().unwrap_or_default()).with_extension("a");
    fs::copy(rlib, &copy).map_err(|error| format!("cannot copy {}: {error}", rlib.display()))?;
    let ar = tools::llvm19("llvm-ar").map_err(|missing| missing.to_string())?;
    succeed(Command::new(ar).arg("d").arg(&copy).arg("lib.rmeta"))?;
    Ok(copy)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let outcome = child::run(command, Duration::from_secs(120))?;
    if outcome.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}\n{}", outcome.end, outcome.stderr))
}
