//! Where executors are and how to reach them.
//!
//! A [`Target`] names an executor, as the user writes it; [`Target::connect`] gives a [`Connection`]: the wire a session
//! runs over, the executor's other channels where they come to us, and the process when it is ours.

mod artifact;
mod child;
pub mod fds;
mod hosted;
mod parse;
mod qemu;
mod serial;
mod side;
mod tcp;
mod unix;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::session::{Options, Wire};

pub use artifact::ArtifactError;
pub use child::{Child, End as ChildEnd};
pub use parse::{FORMS, TargetError};
pub use qemu::QemuTarget;
pub use side::{Lines, Pump, SideChannels};

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
pub enum Process {
    /// QEMU.
    Machine(graft_qemu::Process),
    /// An executor that is a process itself.
    Child(Child),
}

impl Process {
    /// Waits for its end for at most `limit` and says it in words, such as "exited with status 1".
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<String> {
        match self {
            Self::Machine(process) => process.wait_exit(limit).map(|end| {
                let stderr = process.stderr();
                let said = if stderr.trim().is_empty() { "" } else { ": " };
                format!("QEMU {end}{said}{}", stderr.trim())
            }),
            Self::Child(child) => child.wait(limit).map(|end| format!("the executor's process {end}")),
        }
    }

    /// The signal that ended it, when loaded code ran in the process itself and a signal did.
    #[must_use]
    pub fn signal(&self, limit: Duration) -> Option<i32> {
        match self {
            Self::Machine(_) => None,
            Self::Child(child) => child.wait(limit).and_then(ChildEnd::signal),
        }
    }

    /// Kills it, unless it has ended, and waits until it is gone.
    pub fn kill(&mut self) {
        match self {
            Self::Machine(process) => process.kill(),
            Self::Child(child) => child.kill(),
        }
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
    /// The program or image to start is missing.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The program cannot be started.
    #[error("cannot start `{program}`: {reason}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The machine cannot be started.
    #[error(transparent)]
    Qemu(#[from] graft_qemu::QemuError),
    /// The system refused something a connection needs.
    #[error("cannot set up the connection: {0}")]
    System(#[from] std::io::Error),
}

impl Target {
    /// Reaches the executor, starting it when it is ours to start. It need not have introduced itself yet.
    ///
    /// # Errors
    /// When it is not there or cannot be started, with what to do.
    pub fn connect(&self) -> Result<Connection, ConnectError> {
        match self {
            Self::Hosted => hosted::connect(&artifact::hosted()?),
            Self::Exec(program) => hosted::connect(program),
            Self::Qemu(machine) => machine.connect(),
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
