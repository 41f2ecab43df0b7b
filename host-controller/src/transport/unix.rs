//! Whoever listens at a Unix socket.

use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{ConnectError, Connection, Target, tcp};
use crate::session::Wire;

pub(super) fn connect(path: &Path) -> Result<Connection, ConnectError> {
    let stream = UnixStream::connect(path).map_err(|error| ConnectError::NobodyThere {
        target: Target::Unix(path.to_owned()).to_string(),
        reason: error.to_string(),
        advice: "start one with `graft boot`, which prints the target to use",
    })?;
    Ok(Connection::remote(Wire::unix(stream)?, tcp::NUDGE_AFTER))
}
