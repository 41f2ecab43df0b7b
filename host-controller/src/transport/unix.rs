//! Whoever listens at a Unix socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{ConnectError, Connection, Target, tcp};
use crate::session::Wire;

/// The most bytes in the path of a Unix socket (`sockaddr_un` in unix(7), less the closing zero).
pub const LONGEST_SOCKET_PATH: usize = 107;

/// What is wrong with `path` as that of a socket, when it is too long, and what to do.
pub(crate) fn why_too_long(path: &Path) -> Option<String> {
    let len = path.as_os_str().len();
    (len > LONGEST_SOCKET_PATH).then(|| {
        format!(
            "the path has {len} bytes, and that of a socket has at most {LONGEST_SOCKET_PATH}: choose a shorter one"
        )
    })
}

pub(super) fn connect(path: &Path) -> Result<Connection, ConnectError> {
    let stream = why_too_long(path).map_or_else(|| UnixStream::connect(path), |why| Err(io::Error::other(why)));
    let stream = stream.map_err(|error| ConnectError::NobodyThere {
        target: Target::Unix(path.to_owned()).to_string(),
        reason: error.to_string(),
        advice: "start one with `graft boot`, which prints the target to use",
    })?;
    Ok(Connection::remote(Wire::unix(stream)?, tcp::NUDGE_AFTER))
}
