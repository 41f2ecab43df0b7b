//! Finds the tools of others: compilers, LLVM 19 and 22, QEMU.
//!
//! A tool that is missing is an error with the command that installs it, never a skipped test.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{child, place};

/// A tool that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What was looked for.
    pub tool: String,
    /// The command that installs it.
    pub command: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is missing; install it with `{}`, or let `cargo verify` do it", self.tool, self.command)
    }
}

impl std::error::Error for Missing {}

/// The first program of this name in `PATH`.
#[must_use]
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A program of `PATH` that a Debian package brings.
///
/// # Errors
///
/// [`Missing`] when it is not there.
pub fn packaged(name: &str, package: &str) -> Result<PathBuf, Missing> {
    let command = || format!("apt-get install {package}");
    in_path(name).ok_or_else(|| Missing { tool: name.to_owned(), command: command() })
}

/// GRUB's modules for a machine with a BIOS, of the Debian package `grub-pc-bin`.
pub const GRUB_MODULES: &str = "/usr/lib/grub/i386-pc";

/// A program of LLVM 19, such as `llvm-jitlink`.
///
/// # Errors
///
/// [`Missing`] when it is not there.
pub fn llvm19(name: &str) -> Result<PathBuf, Missing> {
    let own = PathBuf::from("/usr/lib/llvm-19/bin").join(name);
    if own.is_file() {
        return Ok(own);
    }
    let package = match name {
        "clang" | "clang++" => "clang-19",
        "ld.lld" => "lld-19",
        _ => "llvm-19",
    };
    packaged(&format!("{name}-19"), package)
}

/// Where the tools of LLVM 22 are unpacked.
#[must_use]
pub fn llvm22_dir() -> PathBuf {
    place::target_dir().join("llvm-22")
}

/// A program of LLVM 22, such as `llvm-jitlink`.
///
/// # Errors
///
/// [`Missing`] when it is not there.
pub fn llvm22(name: &str) -> Result<PathBuf, Missing> {
    let file = llvm22_dir().join("llvm/bin").join(name);
    if file.is_file() {
        return Ok(file);
    }
    Err(Missing { tool: format!("{name} of LLVM 22"), command: "cargo verify --install".to_owned() })
}

/// `rustc` of the pinned toolchain.
#[must_use]
pub fn rustc() -> Command {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.current_dir(place::root());
    rustc
}

/// The target that `rustc` itself runs on.
#[must_use]
pub fn host_triple() -> String {
    let outcome = child::run(rustc().arg("-vV"), Duration::from_secs(60));
    let words = outcome.map(|outcome| String::from_utf8_lossy(&outcome.stdout).into_owned()).unwrap_or_default();
    let host = words.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap_or("x86_64-unknown-linux-gnu").to_owned()
}

/// The folder of `rustc`'s libraries for `target`.
///
/// # Errors
///
/// [`Missing`] when the target is not installed.
pub fn rust_libraries(target: &str) -> Result<PathBuf, Missing> {
    let missing = || Missing { tool: format!("Rust target {target}"), command: format!("rustup target add {target}") };
    let outcome = child::run(rustc().args(["--print", "target-libdir", "--target", target]), Duration::from_secs(60));
    let folder = outcome.ok().filter(child::Outcome::success).ok_or_else(missing)?;
    let folder = PathBuf::from(String::from_utf8_lossy(&folder.stdout).trim());
    if folder.is_dir() { Ok(folder) } else { Err(missing()) }
}
