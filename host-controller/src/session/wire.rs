//! The connection a session runs over.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::TcpStreamExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// How long the other end of a silent TCP connection may not even acknowledge.
const VANISHED_AFTER: Duration = Duration::from_secs(30);

/// The two directions of a connection, and how to end it.
pub struct Wire {
    /// What the executor sends.
    pub reader: Box<dyn Read + Send>,
    /// What is sent to the executor; each message is one write.
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions at once, so that a read that waits comes back.
    pub shut: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    /// A Unix socket, used both ways.
    ///
    /// # Errors
    /// When the system does not give a second handle.
    pub fn unix(stream: UnixStream) -> io::Result<Self> {
        let (reader, writer) = (stream.try_clone()?, stream.try_clone()?);
        let shut = move || drop(stream.shutdown(Shutdown::Both));
        Ok(Self { reader: Box::new(reader), writer: Box::new(writer), shut: Box::new(shut) })
    }

    /// A TCP socket, used both ways, without the delays that cost some 40 ms per message: Nagle's on our side, and on the
    /// other side, where LLVM writes a message in two pieces, the wait for our acknowledgement of the first. A peer that
    /// is gone without a word (its host lost power, its network) is found out within half a minute.
    ///
    /// # Errors
    /// When the system does not give a second handle.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let probes =
            TcpKeepalive::new().with_time(VANISHED_AFTER / 2).with_interval(VANISHED_AFTER / 6).with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&probes)?;
        let (reader, writer) = (stream.try_clone()?, stream.try_clone()?);
        let shut = move || drop(stream.shutdown(Shutdown::Both));
        Ok(Self { reader: Box::new(Acknowledging(reader)), writer: Box::new(writer), shut: Box::new(shut) })
    }
}

/// A socket whose received bytes are acknowledged at once. The system forgets the wish, so it is renewed at every read.
struct Acknowledging(TcpStream);

impl Read for Acknowledging {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // Where the wish is not granted, things are only slower.
        let _ = self.0.set_quickack(true);
        let count = self.0.read(out)?;
        let _ = self.0.set_quickack(true);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn tcp_peers_are_asked_whether_they_are_still_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let same = stream.try_clone().unwrap();
        let _wire = Wire::tcp(stream).unwrap();
        let socket = SockRef::from(&same);
        assert!(socket.keepalive().unwrap() && same.nodelay().unwrap());
    }
}
