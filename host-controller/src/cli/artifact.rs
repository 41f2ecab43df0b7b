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

use graft::transport::{Connection, Runtime, Target};
use thiserror::Error;

use super::report::Report;

/// Why there is no runtime.
#[derive(Debug, Error)]
pub(crate) enum ArtifactError {
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
    #[error("no {what}: `cargo {build}` failed{hint}:\n{said}")]
    Build {
        /// What is missing.
        what: &'static str,
        /// Cargo's arguments.
        build: String,
        /// What may help, with a leading separator.
        hint: &'static str,
        /// What Cargo said.
        said: String,
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
const SOURCES: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo", "rust-toolchain.toml", "protocol", "arch", "runtime"];

/// Reaches `target`, with the runtime it needs.
pub(crate) fn connect(target: &Target, report: Report) -> anyhow::Result<Connection> {
    let artifact = match target.runtime() {
        None => None,
        Some(Runtime::Program) => Some(&HOSTED),
        Some(Runtime::Image) => Some(&IMAGE),
    };
    let path = artifact.map(|artifact| find(artifact, report)).transpose()?;
    Ok(target.connect(path.as_deref())?)
}

fn find(artifact: &Artifact, report: Report) -> Result<PathBuf, ArtifactError> {
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
    report.note(&format!("building the {what} (cargo {})", build()));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A source that changes from now on may be in the artifact or not.
    let began = SystemTime::now();
    let output = Command::new(cargo)
        .args(artifact.build)
        .arg("--quiet")
        .current_dir(&checkout)
        .env("CARGO_TARGET_DIR", &target_dir)
        .stdin(Stdio::null())
        // Standard output is the loaded program's console, standard error may be JSON.
        .output()
        .map_err(|reason| ArtifactError::NoCargo { what, reason })?;
    if !output.status.success() || !built.is_file() {
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(ArtifactError::Build { what, build: build(), hint: artifact.hint, said });
    }
    // Without that it is looked at again next time.
    let _ = date(&built, began);
    Ok(built)
}

/// Dates `built` at the time its sources were last looked at: Cargo leaves a file alone that would not change.
fn date(built: &Path, looked_at: SystemTime) -> io::Result<()> {
    File::options().append(true).open(built)?.set_modified(looked_at)
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

    fn folder(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("graft-artifact-{name}-{}", std::process::id()));
        for part in ["runtime/src", "protocol"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        folder
    }

    #[test]
    fn a_source_that_is_younger_is_seen() {
        let folder = folder("younger");
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
    fn a_source_saved_during_the_build_is_younger() {
        let folder = folder("during");
        let source = folder.join("protocol/lib.rs");
        let began = SystemTime::now() - Duration::from_secs(10);
        fs::write(&source, "").unwrap();
        let built = folder.join("built");
        fs::write(&built, "").unwrap();
        File::options().append(true).open(&source).unwrap().set_modified(began + Duration::from_secs(1)).unwrap();
        date(&built, began).unwrap();
        assert!(!is_newer(&built, &folder));
        date(&built, began + Duration::from_secs(2)).unwrap();
        assert!(is_newer(&built, &folder));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_checkout_is_found_around_a_target_directory() {
        let folder = folder("checkout");
        let target = folder.join("target");
        fs::create_dir_all(target.join("debug/deps")).unwrap();
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(target_dir_of(&target.join("debug/deps/graft")).as_deref(), Some(target.as_path()));
        assert!(!is_checkout(&folder));
        for file in ["Cargo.toml", "runtime/Cargo.toml", "protocol/Cargo.toml"] {
            fs::write(folder.join(file), "").unwrap();
        }
        assert_eq!(checkout_of(&target).as_deref(), Some(folder.as_path()));
        fs::remove_dir_all(folder).unwrap();
    }
}
