//! A machine that QEMU boots for us.

use std::fmt;
use std::path::{Path, PathBuf};

use graft_qemu::{Accel, End, Machine, MachineKind, QemuError};

use super::{ConnectError, Connection, Process, ProcessKind};
use crate::session::Wire;

/// Which machine to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuTarget {
    /// The board.
    pub machine: MachineKind,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// QEMU's name of the processor; `None` for the usual one.
    pub cpu: Option<String>,
    /// Who executes the guest's instructions.
    pub accel: Accel,
    /// The runtime's image; `None` for the one that is at hand.
    pub image: Option<PathBuf>,
}

const DEFAULT_MEMORY_MIB: u32 = 128;

impl Default for QemuTarget {
    fn default() -> Self {
        Self {
            machine: MachineKind::default(),
            memory_mib: DEFAULT_MEMORY_MIB,
            cpu: None,
            accel: Accel::default(),
            image: None,
        }
    }
}

impl QemuTarget {
    pub(super) fn connect(&self, image: &Path) -> Result<Connection, ConnectError> {
        let mut machine = Machine::new(image);
        machine.kind = self.machine;
        machine.memory_mib = self.memory_mib;
        machine.accel = self.accel;
        if let Some(cpu) = &self.cpu {
            machine.cpu.clone_from(cpu);
        }
        let running = machine.spawn().map_err(|reason| match reason {
            QemuError::Died { end: End::Exited(1), .. } => ConnectError::Image { image: image.to_owned(), reason },
            reason => ConnectError::Qemu(reason),
        })?;
        Ok(Connection {
            wire: Wire::unix(running.line)?,
            console: Some(running.console),
            log: Some(running.log),
            process: Some(Process { process: running.process, kind: ProcessKind::Machine(image.to_owned()) }),
            nudge_after: None,
        })
    }
}

impl fmt::Display for QemuTarget {
    /// Names what differs from the default machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let mut settings = Vec::new();
        if self.machine != usual.machine {
            settings.push(format!("machine={}", self.machine));
        }
        if self.memory_mib != usual.memory_mib {
            settings.push(format!("mem={}", self.memory_mib));
        }
        if let Some(cpu) = &self.cpu {
            settings.push(format!("cpu={cpu}"));
        }
        if self.accel != usual.accel {
            settings.push(format!("accel={}", self.accel.name()));
        }
        if let Some(image) = &self.image {
            settings.push(format!("image={}", image.display()));
        }
        f.write_str("qemu")?;
        if settings.is_empty() { Ok(()) } else { write!(f, ":{}", settings.join(",")) }
    }
}
