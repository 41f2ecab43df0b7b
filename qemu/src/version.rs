//! Which QEMU is installed.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::QemuError;

/// The oldest major version whose microvm and options are the ones used here.
const OLDEST: u32 = 7;

/// Asks `program` for its version and refuses what is too old or not QEMU.
pub(crate) fn check(program: &Path) -> Result<(), QemuError> {
    let mut command = Command::new(program);
    // An interrupt at the terminal is ours, as for the machine itself: cut short, the answer would look like none.
    command.arg("--version").stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => QemuError::NotInstalled(program.to_owned()),
        _ => QemuError::CannotRun { program: program.to_owned(), source: error },
    })?;
    judge(program, &String::from_utf8_lossy(&output.stdout))
}

fn judge(program: &Path, output: &str) -> Result<(), QemuError> {
    let first = output.lines().next().unwrap_or_default();
    let version = first.strip_prefix("QEMU emulator version ").and_then(|rest| rest.split_whitespace().next());
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (version, major) {
        (Some(_), Some(major)) if major >= OLDEST => Ok(()),
        (Some(version), Some(_)) => {
            Err(QemuError::TooOld { program: program.to_owned(), found: version.to_owned(), needed: OLDEST })
        }
        _ => Err(QemuError::NotQemu { program: program.to_owned(), output: first.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_foreign_programs_are_refused() {
        let judge = |output| judge(Path::new("q"), output);
        assert!(judge("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright").is_ok());
        assert!(judge("QEMU emulator version 10.0.0\n").is_ok());
        let old = judge("QEMU emulator version 6.2.0\n").unwrap_err();
        assert_eq!(old.to_string(), "`q` is version 6.2.0, at least 7 is needed; install a newer `qemu-system-x86`");
        assert!(matches!(judge("hello"), Err(QemuError::NotQemu { .. })));
        assert!(matches!(judge(""), Err(QemuError::NotQemu { .. })));
    }

    #[test]
    fn a_missing_program_names_the_package() {
        let error = check(Path::new("/nonexistent/qemu-system-x86_64")).unwrap_err();
        assert!(error.to_string().contains("apt-get install qemu-system-x86"), "{error}");
    }
}
