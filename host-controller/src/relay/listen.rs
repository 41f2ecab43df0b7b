//! Where clients come from.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use super::ends::Event;
use crate::session::Wire;

/// A place that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A TCP address. Clients of LLVM's make come here.
    Tcp(TcpListener),
    /// A Unix socket, removed when this is dropped.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at a TCP address.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn tcp(host: &str, port: u16) -> io::Result<Self> {
        TcpListener::bind((host, port)).map(Self::Tcp)
    }

    /// Listens at a Unix socket; one that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// When the system refuses, or somebody listens there.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        Ok(Self::Unix(bound?, path.to_owned()))
    }

    /// The target that names this place.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("tcp:{address}"),
                Err(_) => String::from("tcp:?"),
            },
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Accepts clients on a thread of its own, for as long as the process lives.
    pub(super) fn start(&self, events: Sender<Event>) -> io::Result<()> {
        type Accept = Box<dyn FnMut() -> io::Result<Wire> + Send>;
        let mut accept: Accept = match self {
            Self::Tcp(listener) => {
                let listener = listener.try_clone()?;
                Box::new(move || listener.accept().and_then(|(stream, _)| Wire::tcp(stream)))
            }
            Self::Unix(listener, _) => {
                let listener = listener.try_clone()?;
                Box::new(move || listener.accept().and_then(|(stream, _)| Wire::unix(stream)))
            }
        };
        thread::Builder::new().name(String::from("listener")).spawn(move || {
            loop {
                match accept() {
                    Ok(wire) => {
                        if events.send(Event::Client(wire)).is_err() {
                            break;
                        }
                    }
                    // A client that left already, or too many of them: neither is the listener's end.
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            }
        })?;
        Ok(())
    }
}

fn is_stale(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Gone already is as good.
            let _ = fs::remove_file(path);
        }
    }
}
