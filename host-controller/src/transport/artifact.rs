//! Finds the runtime: the program that runs as a process here, and the image that boots.
//!
//! An environment variable names it, or it lies beside this program, or this program belongs to a checkout, where Cargo
//! builds it when it is missing or older than its sources.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use thiserror::Error;

/// Why there is no runtime.
#[derive(Debug, Error)]
pub enum ArtifactError {
    /// What the variable names is not there.
    #[error("{variable} names `{}`, which cannot be read: {reason}", .path.display())]
    Named {
        /// The variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// It is nowhere.
    #[error(
        "no {what}: set {variable} to its path, put it at `{}`, or build it in a checkout with `cargo {build}`",
        .beside.display()
    )]
    Nowhere {
        /// What is missing.
        what: &'static str,
        /// The variable that can name it.
        variable: &'static str,
        /// Where it could lie beside this program.
        beside: PathBuf,
        /// Cargo's arguments.
        build: String,
    },
    /// Cargo cannot be run.
    #[error("no {what}, and Cargo, which would build it, does not run: {reason}")]
    NoCargo {
        /// What is missing.
        what: &'static str,
        /// What the system said.
        reason: io::Error,
    },
    /// Cargo could not build it.
    #[error("no {what}: `cargo {build}` failed, see above{hint}")]
    Build {
        /// What is missing.
        what: &'static str,
        /// Cargo's arguments.
        build: String,
        /// What may help, with a leading separator.
        hint: &'static str,
    },
}

struct Artifact {
    what: &'static str,
    variable: &'static str,
    beside: &'static str,
    /// Where Cargo leaves it, below its target directory.
    built: &'static str,
    build: &'static [&'static str],
    hint: &'static str,
}

const HOSTED: Artifact = Artifact {
    what: "hosted executor",
    variable: "GRAFT_RUNTIME",
    beside: "graft-runtime",
    built: "release/graft-runtime",
    build: &["build", "--package", "graft-runtime", "--release"],
    hint: "",
};

const IMAGE: Artifact = Artifact {
    what: "runtime image",
    variable: "GRAFT_RUNTIME_IMAGE",
    beside: "graft-runtime.elf",
    built: "x86_64-unknown-none/image/graft-runtime",
    build: &["build", "--package", "graft-runtime", "--target", "x86_64-unknown-none", "--profile", "image"],
    hint: "; if the target is missing: `rustup target add x86_64-unknown-none`",
};

/// What the runtime is made from, relative to the checkout.
const SOURCES: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo", "protocol", "arch", "runtime"];

/// The executor that runs as a process here.
pub(super) fn hosted() -> Result<PathBuf, ArtifactError> {
    find(&HOSTED)
}

/// The image that boots.
pub(super) fn image() -> Result<PathBuf, ArtifactError> {
    find(&IMAGE)
}

fn find(artifact: &Artifact) -> Result<PathBuf, ArtifactError> {
    let &Artifact { what, variable, .. } = artifact;
    if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
        return match File::open(&path) {
            Ok(_) => Ok(path),
            Err(reason) => Err(ArtifactError::Named { variable, path, reason }),
        };
    }
    let own = env::current_exe().unwrap_or_default();
    let build = || artifact.build.join(" ");
    let target_dir = target_dir_of(&own);
    // In a build directory the neighbour is what Cargo left there, of any age.
    let beside = own.with_file_name(artifact.beside);
    let Some(target_dir) = target_dir else {
        return if beside.is_file() {
            Ok(beside)
        } else {
            Err(ArtifactError::Nowhere { what, variable, beside, build: build() })
        };
    };
    let built = target_dir.join(artifact.built);
    let Some(checkout) = checkout_of(&target_dir) else {
        return if built.is_file() {
            Ok(built)
        } else {
            Err(ArtifactError::Nowhere { what, variable, beside, build: build() })
        };
    };
    if is_newer(&built, &checkout) {
        return Ok(built);
    }
    eprintln!("graft: building the {what} (cargo {})", build());
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(artifact.build)
        .arg("--quiet")
        .current_dir(&checkout)
        .env("CARGO_TARGET_DIR", &target_dir)
        .stdin(Stdio::null())
        // Standard output is the loaded program's console.
        .stdout(io::stderr())
        .status()
        .map_err(|reason| ArtifactError::NoCargo { what, reason })?;
    if !status.success() || !built.is_file() {
        return Err(ArtifactError::Build { what, build: build(), hint: artifact.hint });
    }
    // Cargo leaves a file alone that would not change; its age must say that it was looked at.
    if let Ok(file) = File::options().append(true).open(&built) {
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(built)
}

/// Cargo's target directory, when `program` lies in one: the nearest folder above that Cargo has tagged.
fn target_dir_of(program: &Path) -> Option<PathBuf> {
    program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()).map(Path::to_path_buf)
}

/// The checkout that `target_dir` belongs to: around it, or else where this program was compiled.
fn checkout_of(target_dir: &Path) -> Option<PathBuf> {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    target_dir.parent().into_iter().chain(compiled).find(|folder| is_checkout(folder)).map(Path::to_path_buf)
}

fn is_checkout(folder: &Path) -> bool {
    ["Cargo.toml", "runtime/Cargo.toml", "protocol/Cargo.toml"].iter().all(|file| folder.join(file).is_file())
}

/// Whether `built` is there and no source of the runtime is younger.
fn is_newer(built: &Path, checkout: &Path) -> bool {
    let Ok(age) = built.metadata().and_then(|metadata| metadata.modified()) else { return false };
    SOURCES.iter().all(|source| !has_younger(&checkout.join(source), age))
}

fn has_younger(path: &Path, age: SystemTime) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    if !metadata.is_dir() {
        return metadata.modified().is_ok_and(|modified| modified > age);
    }
    let Ok(entries) = fs::read_dir(path) else { return false };
    entries.flatten().any(|entry| has_younger(&entry.path(), age))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_source_that_is_younger_is_seen() {
        let folder = env::temp_dir().join(format!("graft-artifact-{}", std::process::id()));
        fs::create_dir_all(folder.join("runtime/src")).unwrap();
        let built = folder.join("built");
        assert!(!is_newer(&built, &folder));
        fs::write(&built, "").unwrap();
        assert!(is_newer(&built, &folder));
        let source = folder.join("runtime/src/lib.rs");
        fs::write(&source, "").unwrap();
        let later = SystemTime::now() + Duration::from_secs(60);
        File::options().append(true).open(&source).unwrap().set_modified(later).unwrap();
        assert!(!is_newer(&built, &folder));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn tests_run_inside_a_checkout() {
        let target_dir = target_dir_of(&env::current_exe().unwrap()).unwrap();
        assert!(checkout_of(&target_dir).is_some());
    }
}
