//! An executor that is a process of this machine.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{ConnectError, Connection, Process, ProcessKind};
use crate::session::Wire;

/// Starts `program` with its standard input as the protocol's channel, both ways: the one descriptor besides its console
/// and its log that a child gets without ado.
pub(super) fn connect(program: &Path) -> Result<Connection, ConnectError> {
    let (line, their_line) = UnixStream::pair()?;
    let (console, their_console) = UnixStream::pair()?;
    let (log, their_log) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.arg("filedescs=0,0");
    command.stdin(Stdio::from(OwnedFd::from(their_line)));
    command.stdout(Stdio::from(OwnedFd::from(their_console)));
    command.stderr(Stdio::from(OwnedFd::from(their_log)));
    let process = graft_qemu::Process::spawn(command, None)
        .map_err(|reason| ConnectError::Start { program: program.display().to_string(), reason })?;
    Ok(Connection {
        wire: Wire::unix(line)?,
        console: Some(console),
        log: Some(log),
        process: Some(Process { process, kind: ProcessKind::Itself }),
        nudge_after: None,
    })
}
