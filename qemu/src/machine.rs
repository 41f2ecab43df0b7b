//! Starting a machine: directory, sockets, process, connections.

use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::Channel;
use crate::directory::Directory;
use crate::{Accel, Machine, Process, QemuError, version};

/// How often a connection is looked for. The end of the process is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A machine that runs. It is killed, and its directory removed, when `process` is dropped.
#[derive(Debug)]
pub struct Running {
    /// COM1: the protocol and nothing else.
    pub line: UnixStream,
    /// COM2: what the loaded program writes while no controller took the console over.
    pub console: UnixStream,
    /// The debug console: the executor's own log. Whoever holds it must read it, or the guest stops.
    pub log: UnixStream,
    /// The QEMU process.
    pub process: Process,
}

impl Machine {
    /// Starts the machine and waits until its channels are connected. Its executor may not be up yet: it says so itself,
    /// on `line`.
    ///
    /// # Errors
    /// Says what is missing (QEMU, its version, the image), or what QEMU said before it ended.
    pub fn spawn(&self) -> Result<Running, QemuError> {
        if let Err(source) = File::open(&self.image) {
            return Err(QemuError::NoImage { image: self.image.clone(), source });
        }
        let directory = Directory::create()?;
        let listen = |channel| listen(channel, directory.path());
        let listeners = [listen(Channel::Line)?, listen(Channel::Console)?, listen(Channel::Log)?];
        let mut command = Command::new(&self.program);
        command.args(self.arguments(directory.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Asking for the version takes as long as starting the machine: do both at once.
        let program = self.program.clone();
        let asked = thread::spawn(move || check_version_once(&program));
        let process = Process::spawn(command, self.time_limit).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => QemuError::NotInstalled(self.program.clone()),
            _ => QemuError::CannotRun { program: self.program.clone(), source: error },
        })?;
        let connected = self.connect(&process, &listeners);
        match asked.join() {
            Ok(Ok(())) => {}
            // A program of the wrong kind explains everything else that went wrong.
            Ok(Err(error)) => return Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        let [line, console, log] = connected?;
        // The sockets are connected: their names, and with them the directory, are not needed any more.
        drop(directory);
        Ok(Running { line, console, log, process })
    }

    fn connect(&self, process: &Process, listeners: &[UnixListener; 3]) -> Result<[UnixStream; 3], QemuError> {
        let deadline = Instant::now() + self.start_limit;
        let accept = |channel: Channel, listener: &UnixListener| -> Result<UnixStream, QemuError> {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let doing = "use a connection of the machine";
                        stream.set_nonblocking(false).map_err(|source| QemuError::System { doing, source })?;
                        return Ok(stream);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(source) => return Err(QemuError::System { doing: "accept the machine's connection", source }),
                }
                if let Some(end) = process.wait_exit(LOOK_EVERY) {
                    return Err(QemuError::Died { end, stderr: process.last_words(), hint: self.hint() });
                }
                if Instant::now() >= deadline {
                    let (channel, limit) = (channel.name(), self.start_limit);
                    return Err(QemuError::Silent { channel, limit, stderr: process.stderr() });
                }
            }
        };
        let [line, console, log] = listeners;
        Ok([accept(Channel::Line, line)?, accept(Channel::Console, console)?, accept(Channel::Log, log)?])
    }

    const fn hint(&self) -> &'static str {
        match self.accel {
            Accel::Tcg => "",
            Accel::Kvm => {
                "; hardware acceleration was asked for and may be unusable here: try software emulation (tcg)"
            }
        }
    }
}

fn listen(channel: Channel, directory: &Path) -> Result<UnixListener, QemuError> {
    let bind = || {
        let listener = UnixListener::bind(directory.join(channel.name()))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|source| QemuError::Directory { directory: directory.to_owned(), source })
}

/// Checks the version of each program once per process.
fn check_version_once(program: &Path) -> Result<(), QemuError> {
    static CHECKED: Mutex<Vec<std::path::PathBuf>> = Mutex::new(Vec::new());
    let checked = || CHECKED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if checked().iter().any(|known| known == program) {
        return Ok(());
    }
    version::check(program)?;
    checked().push(program.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A program that says it is QEMU and then does as `script` says.
    fn fake(directory: &Path, script: &str) -> PathBuf {
        let program = directory.join("fake-qemu");
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 7.2.0'; exit 0; fi\n{script}\n"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        program
    }

    fn machine(directory: &Path, script: &str) -> Machine {
        let mut machine = Machine::new("/dev/null");
        machine.program = fake(directory, script);
        machine.start_limit = Duration::from_millis(200);
        machine
    }

    #[test]
    fn a_missing_image_and_a_missing_program_are_named() {
        let error = Machine::new("/nonexistent/image").spawn().unwrap_err();
        assert_eq!(error.to_string(), "cannot read the executor image `/nonexistent/image`");
        let mut machine = Machine::new("/dev/null");
        machine.program = PathBuf::from("no-such-qemu");
        let error = machine.spawn().unwrap_err();
        assert!(error.to_string().contains("apt-get install qemu-system-x86"), "{error}");
    }

    #[test]
    fn what_qemu_said_before_it_died_is_told() {
        let directory = Directory::create().unwrap();
        let machine = machine(directory.path(), "echo bad board >&2; exit 1");
        let error = machine.spawn().unwrap_err();
        assert_eq!(error.to_string(), "QEMU exited with status 1 before the machine was up: bad board");
    }

    #[test]
    fn a_program_that_never_connects_is_killed() {
        let directory = Directory::create().unwrap();
        let error = machine(directory.path(), "exec sleep 100").spawn().unwrap_err();
        assert!(matches!(error, QemuError::Silent { channel: "line", .. }), "{error}");
    }
}
