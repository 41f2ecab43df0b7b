//! Where things are: the checkout, the build directory, and Graft's own programs, built on first use.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::child;

/// The target of the bare-metal image.
pub const BARE_TARGET: &str = "x86_64-unknown-none";

/// The root of the checkout.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// The build directory of the running program: the nearest folder above it that Cargo has tagged.
#[must_use]
pub fn target_dir() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    let tagged = own.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    tagged.map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// A folder for what the tests produce, inside the build directory.
///
/// # Panics
///
/// Panics when it cannot be created.
#[must_use]
pub fn scratch(name: &str) -> PathBuf {
    let folder = target_dir().join("graft-tests").join(name);
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
    folder
}

/// `cargo`, the one that runs us when there is one, started in the checkout and building where we were built.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// Graft's programs for this machine, as release builds.
#[derive(Clone, Debug)]
pub struct Graft {
    /// The command `graft`.
    pub command: PathBuf,
    /// The hosted executor.
    pub hosted: PathBuf,
}

/// Builds Graft's programs for this machine, once per process.
///
/// # Errors
///
/// Fails with Cargo's words when the build fails.
pub fn graft() -> Result<&'static Graft, String> {
    static BUILT: OnceLock<Result<Graft, String>> = OnceLock::new();
    let build = || {
        build(BUILD_HOST)?;
        let folder = target_dir().join("release");
        Ok(Graft { command: folder.join("graft"), hosted: folder.join("graft-runtime") })
    };
    BUILT.get_or_init(build).as_ref().map_err(Clone::clone)
}

/// Builds the bare-metal runtime image, once per process, and says where it is.
///
/// # Errors
///
/// Fails with Cargo's words when the build fails.
pub fn image() -> Result<&'static Path, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || build(BUILD_IMAGE).map(|()| target_dir().join(BARE_TARGET).join("image/graft-runtime"));
    BUILT.get_or_init(build).as_deref().map_err(Clone::clone)
}

/// Cargo's arguments that build Graft's programs for this machine.
pub const BUILD_HOST: &[&str] = &["build", "--release", "-p", "graft", "-p", "graft-runtime", "--bins"];

/// Cargo's arguments that build the image.
pub const BUILD_IMAGE: &[&str] = &["build", "-p", "graft-runtime", "--target", BARE_TARGET, "--profile", "image"];

fn build(arguments: &[&str]) -> Result<(), String> {
    let mut command = cargo();
    let outcome = child::run(command.args(arguments), Duration::from_secs(1200))?;
    if outcome.success() {
        return Ok(());
    }
    Err(format!("`cargo {}`: {}\n{}", arguments.join(" "), outcome.end, outcome.stderr))
}
