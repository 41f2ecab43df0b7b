//! The executors of the matrix, started and reachable: a program to start, or a machine that is up.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::child::{self, Running};
use crate::interop::Executor;
use crate::{place, tools};

/// An executor that can be used, and what keeps it up.
#[derive(Debug)]
pub enum Target {
    /// A stock executor, started anew for each session.
    Stock {
        /// `llvm-jitlink-executor`.
        executor: PathBuf,
        /// `lli-child-target`.
        lli_child: PathBuf,
    },
    /// One of ours.
    Ours {
        /// The word that `graft -t` takes.
        name: String,
        /// The `graft boot` that keeps the machine up, where it stays for all sessions.
        machine: Option<Running>,
    },
}

/// How long a machine may take to come up on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

impl Target {
    /// Starts `executor`, or finds the program that is started for each session.
    ///
    /// # Errors
    ///
    /// Fails when a tool is missing or the machine does not come up.
    pub fn start(executor: Executor) -> Result<Self, String> {
        let stock = |executor: Result<PathBuf, tools::Missing>, child: Result<PathBuf, tools::Missing>| {
            let words = |missing: tools::Missing| missing.to_string();
            Ok(Self::Stock { executor: executor.map_err(words)?, lli_child: child.map_err(words)? })
        };
        match executor {
            Executor::Stock19 => stock(tools::llvm19("llvm-jitlink-executor"), tools::llvm19("lli-child-target")),
            Executor::Stock22 => stock(tools::llvm22("llvm-jitlink-executor"), tools::llvm22("lli-child-target")),
            Executor::Hosted => place::graft().map(|_| Self::Ours { name: "hosted".to_owned(), machine: None }),
            // Booted once and kept by `graft boot`, for all sessions one after another.
            Executor::Microvm => {
                let mut command = Command::new(&place::graft()?.command);
                command.args(["boot", "--machine", "microvm"]).env("GRAFT_RUNTIME_IMAGE", place::image()?);
                let machine = child::spawn(&mut command)?;
                let said = machine.stdout(1, BOOT_LIMIT);
                let name = String::from_utf8_lossy(&said).trim_end().to_owned();
                if name.is_empty() {
                    return Err(format!("the machine did not come up: {}", machine.stderr()));
                }
                Ok(Self::Ours { name, machine: Some(machine) })
            }
            // A machine of its own for each session.
            Executor::Q35 => {
                let image = place::image()?.display();
                Ok(Self::Ours { name: format!("qemu:machine=q35,image={image}"), machine: None })
            }
        }
    }

    /// What keeps the machine up, where it stays.
    #[must_use]
    pub const fn machine(&self) -> Option<&Running> {
        match self {
            Self::Ours { machine, .. } => machine.as_ref(),
            Self::Stock { .. } => None,
        }
    }
}

/// A port of the loopback interface that nobody uses now.
///
/// # Panics
///
/// Panics when the loopback interface does not work.
#[must_use]
pub fn free_port() -> u16 {
    let probe = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    probe.expect("the loopback interface gives out ports").port()
}
