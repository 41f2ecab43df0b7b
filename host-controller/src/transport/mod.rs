//! Where executors are and how to reach them.
//!
//! A [`Target`] names an executor, as the user writes it; [`Target::connect`] gives a [`Connection`]: the wire a session
//! runs over, the executor's other channels where they come to us, and the process when it is ours.

pub mod fds;
mod hosted;
mod log;
mod parse;
mod qemu;
mod serial;
mod side;
mod tcp;
mod unix;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::session::{Options, Wire};

pub use parse::{FORMS, QEMU_KEYS, TargetError};
pub use qemu::QemuTarget;
pub use side::SideChannels;
pub use unix::LONGEST_SOCKET_PATH;
pub(crate) use unix::why_too_long;

/// An executor one can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Graft's runtime as a process of this machine.
    Hosted,
    /// Another executor program, started with `filedescs=`, such as LLVM's.
    Exec(PathBuf),
    /// Graft's runtime on a machine that QEMU boots for us.
    Qemu(QemuTarget),
    /// Whoever listens at a TCP address.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// Whoever listens at a Unix socket.
    Unix(PathBuf),
    /// A machine at a serial line.
    Serial {
        /// The device file.
        device: String,
        /// Bits per second.
        baud: u32,
    },
}

/// A form of Graft's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The program that runs as a process of this machine.
    Program,
    /// The image that boots.
    Image,
}

/// An executor that is reached.
#[derive(Debug)]
pub struct Connection {
    /// The protocol's channel.
    pub wire: Wire,
    /// What the loaded program writes while no controller took its console over. It must be read, or the executor stops.
    pub console: Option<std::os::unix::net::UnixStream>,
    /// The executor's own log, lines of text. It must be read, or the executor stops.
    pub log: Option<std::os::unix::net::UnixStream>,
    /// The executor's process, when it is ours; it ends when this is dropped.
    pub process: Option<Process>,
    /// How long the executor may stay silent before it is told that somebody is there.
    pub nudge_after: Option<Duration>,
}

impl Connection {
    fn remote(wire: Wire, nudge_after: Duration) -> Self {
        Self { wire, console: None, log: None, process: None, nudge_after: Some(nudge_after) }
    }

    /// The session options that suit this connection.
    #[must_use]
    pub fn options(&self) -> Options {
        Options { nudge_after: self.nudge_after, ..Options::default() }
    }
}

/// The process of an executor that is ours.
#[derive(Debug)]
pub struct Process {
    process: graft_qemu::Process,
    kind: ProcessKind,
}

/// Where loaded code runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProcessKind {
    /// In a machine that QEMU plays, booted from this image.
    Machine(PathBuf),
    /// In the process itself.
    Itself,
}

impl Process {
    /// Waits for its end for at most `limit` and says it in words, such as "QEMU exited with status 1".
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<String> {
        let end = self.process.wait_exit(limit)?;
        let stderr = self.process.last_words();
        let said = if stderr.trim().is_empty() { "" } else { ": " };
        let (who, of) = match &self.kind {
            // A reset ends the machine, and QEMU with it (`-no-reboot`). When it is told to end, it says so.
            ProcessKind::Machine(_) if end == graft_qemu::End::Exited(0) && said.is_empty() => {
                ("the machine was reset or switched off from inside, as by a triple fault: QEMU", String::new())
            }
            // Its own failure, and not its guest's: very often it is about the image.
            ProcessKind::Machine(image) if matches!(end, graft_qemu::End::Exited(1)) => {
                ("QEMU", format!(" (image `{}`)", image.display()))
            }
            ProcessKind::Machine(_) => ("QEMU", String::new()),
            ProcessKind::Itself => ("the executor's process", String::new()),
        };
        Some(format!("{who} {end}{of}{said}{}", stderr.trim()))
    }

    /// The signal that ended it, when loaded code ran in the process itself and a signal did.
    #[must_use]
    pub fn signal(&self, limit: Duration) -> Option<i32> {
        match (&self.kind, self.process.wait_exit(limit)) {
            (ProcessKind::Itself, Some(graft_qemu::End::Signalled(signal))) => Some(signal),
            _ => None,
        }
    }

    /// Whether it ends by itself when its wire is closed, and has done so within `limit`.
    fn ends_with_its_wire(&self, limit: Duration) -> bool {
        self.kind == ProcessKind::Itself && self.process.wait_exit(limit).is_some()
    }
}

/// Why no executor was reached.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody answers there.
    #[error("no target at {target}: {reason}; {advice}")]
    NobodyThere {
        /// The target as the user writes it.
        target: String,
        /// What the system said.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// The target needs the runtime, and nobody said where it is.
    #[error("{target} needs the runtime, whose place is not known")]
    NoRuntime {
        /// The target as the user writes it.
        target: String,
    },
    /// The program cannot be started.
    #[error("cannot start `{program}`: {reason}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// QEMU failed at the start, very often because of the image.
    #[error("{reason} (image `{}`)", .image.display())]
    Image {
        /// The image it was to boot.
        image: PathBuf,
        /// What it said.
        reason: graft_qemu::QemuError,
    },
    /// The machine cannot be started.
    #[error(transparent)]
    Qemu(#[from] graft_qemu::QemuError),
    /// The system refused something a connection needs.
    #[error("cannot set up the connection: {0}")]
    System(#[from] std::io::Error),
}

impl Target {
    /// The form of Graft's runtime that is needed to start the executor and that the target does not name.
    #[must_use]
    pub const fn runtime(&self) -> Option<Runtime> {
        match self {
            Self::Hosted => Some(Runtime::Program),
            Self::Qemu(QemuTarget { image: None, .. }) => Some(Runtime::Image),
            _ => None,
        }
    }

    /// Reaches the executor, starting it when it is ours to start. It need not have introduced itself yet. `runtime` is
    /// where that is which [`Self::runtime`] says is needed.
    ///
    /// # Errors
    /// When it is not there or cannot be started, with what to do.
    pub fn connect(&self, runtime: Option<&Path>) -> Result<Connection, ConnectError> {
        let runtime = || runtime.ok_or_else(|| ConnectError::NoRuntime { target: self.to_string() });
        match self {
            Self::Hosted => hosted::connect(runtime()?),
            Self::Exec(program) => hosted::connect(program),
            Self::Qemu(machine) => match &machine.image {
                Some(image) => machine.connect(image),
                None => machine.connect(runtime()?),
            },
            Self::Tcp { host, port } => tcp::connect(host, *port),
            Self::Unix(path) => unix::connect(path),
            Self::Serial { device, baud } => serial::connect(device, *baud),
        }
    }

    /// Whether connecting starts an executor that nobody else uses.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::Hosted | Self::Exec(_) | Self::Qemu(_))
    }
}
