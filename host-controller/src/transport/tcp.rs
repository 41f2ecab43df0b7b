//! Whoever listens at a TCP address.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::{ConnectError, Connection, Target};
use crate::session::Wire;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// An executor that knows connections introduces itself at once; a bare line behind a socket server may not.
pub(super) const NUDGE_AFTER: Duration = Duration::from_secs(2);

pub(super) fn connect(host: &str, port: u16) -> Result<Connection, ConnectError> {
    let stream = any(host, port).map_err(|error| ConnectError::NobodyThere {
        target: Target::Tcp { host: host.to_owned(), port }.to_string(),
        reason: error.to_string(),
        advice: "start one with `graft boot --listen tcp:HOST:PORT` or an executor with `listen=HOST:PORT`",
    })?;
    Ok(Connection::remote(Wire::tcp(stream)?, NUDGE_AFTER))
}

/// Connects to the first of the host's addresses that answers; the last one's failure is the reason when none does.
fn any(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nobody_there_is_said_with_advice() {
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = connect("127.0.0.1", port).unwrap_err().to_string();
        assert!(error.starts_with(&format!("no target at tcp:127.0.0.1:{port}: Connection refused")), "{error}");
        assert!(error.contains("graft boot"), "{error}");
    }
}
