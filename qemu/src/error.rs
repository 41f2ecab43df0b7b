//! Why there is no machine.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a machine could not be started.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// There is no such program.
    #[error("QEMU is not installed: no `{}` in PATH; install it with `apt-get install qemu-system-x86`", .0.display())]
    NotInstalled(PathBuf),
    /// The program is there and cannot be run.
    #[error("cannot run `{}`", program.display())]
    CannotRun {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program is too old for the machines defined here.
    #[error("`{}` is version {found}, at least {needed} is needed; install a newer `qemu-system-x86`", program.display())]
    TooOld {
        /// The program.
        program: PathBuf,
        /// Its version.
        found: String,
        /// The oldest version that will do.
        needed: u32,
    },
    /// The program does not say a version as QEMU does.
    #[error("`{} --version` does not look like QEMU: `{output}`", program.display())]
    NotQemu {
        /// The program.
        program: PathBuf,
        /// The first line of what it said.
        output: String,
    },
    /// There is no image to boot.
    #[error("cannot read the executor image `{}`", image.display())]
    NoImage {
        /// Where it was looked for.
        image: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory for the machine's sockets could not be made or used.
    #[error("cannot set up the machine's directory `{}`", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// QEMU ended before its channels were connected.
    #[error("QEMU {end} before the machine was up{}{hint}", said(stderr))]
    Died {
        /// How it ended.
        end: crate::End,
        /// What it said on its standard error.
        stderr: String,
        /// What may help, with a leading separator; often empty.
        hint: &'static str,
    },
    /// QEMU did not connect its channels in time; it was killed.
    #[error("QEMU did not connect its `{channel}` channel within {limit:?}{}", said(stderr))]
    Silent {
        /// The channel that was waited for.
        channel: &'static str,
        /// The time it had.
        limit: Duration,
        /// What it said on its standard error.
        stderr: String,
    },
    /// The system refused something else.
    #[error("cannot {doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn said(stderr: &str) -> String {
    let stderr = stderr.trim();
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}
