//! A fresh private directory that is removed with its handle.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::QemuError;

/// Socket paths have at most 107 bytes (`sockaddr_un`); the longest name in the directory takes these.
const LONGEST_DIRECTORY: usize = 107 - "/console".len();

#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Makes a directory only this user may enter, below the system's directory for temporary files, or below `/tmp`
    /// where that path is too long for a socket.
    pub(crate) fn create() -> Result<Self, QemuError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!("graft-qemu-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let mut directory = std::env::temp_dir().join(&name);
            if directory.as_os_str().len() > LONGEST_DIRECTORY {
                directory = Path::new("/tmp").join(&name);
            }
            match DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => return Ok(Self(directory)),
                // Left by a process that was killed and had our number: take the next.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(QemuError::Directory { directory, source }),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nobody is left to tell, and a stale directory in a directory for temporary files does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_fresh_and_go_with_their_handle() {
        let one = Directory::create().unwrap();
        let two = Directory::create().unwrap();
        assert_ne!(one.path(), two.path());
        let path = one.path().to_owned();
        fs::write(path.join("line"), "x").unwrap();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
