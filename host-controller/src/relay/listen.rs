//! Where clients come from.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use super::ends::Event;
use crate::session::Wire;
use crate::transport::why_too_long;

/// A place that clients connect to.
#[derive(Debug)]
pub enum Listener {
    /// A TCP address. Clients of LLVM's make come here.
    Tcp(TcpListener),
    /// A Unix socket, removed when this is dropped.
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket that this process made. It is removed with this, if it is still that one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and number of the file, which no other has meanwhile.
    made: Option<(u64, u64)>,
}

impl SocketFile {
    fn made_at(path: &Path) -> Self {
        Self { path: path.to_owned(), made: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.made.is_some() && identity(&self.path) == self.made {
            // Gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
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
        if let Some(why) = why_too_long(path) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let bound = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale_socket(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            other => other,
        };
        Ok(Self::Unix(bound?, SocketFile::made_at(path)))
    }

    /// The target that names this place.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("tcp:{address}"),
                Err(_) => String::from("tcp:?"),
            },
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
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

/// Whether `path` is a socket that nobody listens at. Connecting to an ordinary file is refused in the same words, so what
/// the file is must be looked at.
#[must_use]
pub fn is_stale_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_or_a_dead_socket_is_removed() {
        let folder = std::env::temp_dir().join(format!("graft-listen-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("clients");
        fs::write(&path, "precious").unwrap();
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let error = Listener::unix(&folder.join("x".repeat(200))).unwrap_err().to_string();
        assert!(error.contains("has at most 107"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();

        // Dropping the standard library's listener leaves the file.
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(Listener::unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse, "somebody listens");
        drop(listener);
        assert!(!path.exists());

        let listener = Listener::unix(&path).unwrap();
        fs::rename(&path, folder.join("moved")).unwrap();
        fs::write(&path, "put there meanwhile").unwrap();
        drop(listener);
        assert!(path.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
