//! The QEMU machines Graft boots, defined once.
//!
//! [`Machine::spawn`] starts one and returns [`Running`]: the machine's three byte channels (`line` for the protocol,
//! `console` for the loaded program, `log` for the executor) and its [`Process`]. Each machine has a fresh directory
//! for its sockets; directory and process end with the handle, with their time limit, and with this process, however
//! that dies.
//!
//! QEMU connects to us and not the other way round: a machine that listens drops what the guest says until somebody
//! connects. The channels are lossless, so whoever holds one must read it: a full socket stops the guest.
//! [`Gathered`] reads a channel nobody else wants.
//!
//! A [`Process`] is whatever program one likes; the machines are only its first users.
//!
//! Software emulation is the default everywhere; see [`Accel`].

mod child;
mod command;
mod directory;
mod error;
mod gather;
mod machine;
mod process;
mod version;

pub use command::{Accel, Machine, MachineKind, SerialPorts};
pub use error::QemuError;
pub use gather::Gathered;
pub use machine::Running;
pub use process::{End, Process};
