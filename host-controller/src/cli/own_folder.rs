//! A private directory for the socket of a machine that is kept.
//!
//! A process that is killed leaves its directory behind, so the next one sweeps: its name says whose it was.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use graft::relay::{LONGEST_SOCKET_PATH, is_stale_socket};

/// Begins the names of these directories; the process number and a count follow.
const PREFIX: &str = "graft-";
/// The socket's name.
const SOCKET: &str = "executor";

/// A directory that only this user sees, removed in the end.
#[derive(Debug)]
pub(super) struct OwnFolder(PathBuf);

impl OwnFolder {
    /// Makes one where the user's sockets go, or else his temporary files, or else in `/tmp`, where every path is short.
    pub(super) fn create() -> anyhow::Result<Self> {
        let parent = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
        Self::below(&parent.unwrap_or_else(env::temp_dir))
    }

    fn below(parent: &Path) -> anyhow::Result<Self> {
        let longest = parent.join(name(99)).join(SOCKET).as_os_str().len();
        let parent = if longest > LONGEST_SOCKET_PATH { Path::new("/tmp") } else { parent };
        sweep(parent);
        let mut failure = None;
        for attempt in 0..100 {
            let folder = parent.join(name(attempt));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(Self(folder)),
                Err(error) => failure = Some(error),
            }
        }
        let failure = failure.map_or_else(String::new, |error| error.to_string());
        anyhow::bail!("cannot make a directory in {}: {failure}; name a place with --listen", parent.display())
    }

    /// Where the socket goes.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        // What is left is empty and private.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(attempt: u32) -> String {
    format!("{PREFIX}{}-{attempt}", std::process::id())
}

/// The process whose directory has this name.
fn owner(name: &str) -> Option<u32> {
    let (process, attempt) = name.strip_prefix(PREFIX)?.split_once('-')?;
    attempt.parse::<u32>().ok()?;
    process.parse().ok()
}

/// Whether there is no such process, or nobody has looked yet how it ended.
fn is_dead(process: u32) -> bool {
    // `pid (name) state ...`, and a name may contain anything: proc_pid_stat(5).
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or_else(
        |error| error.kind() == io::ErrorKind::NotFound,
        |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
    )
}

/// Removes what killed processes have left in `parent`. What cannot be removed is not ours, or does no harm.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let Some(true) = entry.file_name().to_str().and_then(owner).map(is_dead) else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = remove_dead(&entry.path());
        }
    }
}

/// Removes a directory with nothing in it but a socket that nobody listens at: a process of another container that
/// shares the directory with us looks dead from here.
fn remove_dead(folder: &Path) -> io::Result<()> {
    let socket = folder.join(SOCKET);
    if is_stale_socket(&socket) {
        fs::remove_file(&socket)?;
    }
    // Refused when anything is left in it.
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Above every process number of Linux.
    const NOBODY: u32 = 1 << 30;

    #[test]
    fn what_dead_processes_left_is_swept_and_nothing_else() {
        let parent = env::temp_dir().join(format!("graft-sweep-{}", std::process::id()));
        let made = |name: String| {
            let folder = parent.join(name);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        let (empty, left) = (made(format!("graft-{NOBODY}-0")), made(format!("graft-{NOBODY}-1")));
        drop(UnixListener::bind(left.join(SOCKET)).unwrap());
        let (served, used) = (made(format!("graft-{NOBODY}-2")), made(format!("graft-{NOBODY}-3")));
        let _listener = UnixListener::bind(served.join(SOCKET)).unwrap();
        fs::write(used.join("precious"), "").unwrap();
        let (living, other) = (made(format!("graft-{}-50", std::process::id())), made(format!("graft-{NOBODY}")));
        let own = OwnFolder::below(&parent).unwrap();
        for (folder, stays) in
            [(&empty, false), (&left, false), (&served, true), (&used, true), (&living, true), (&other, true)]
        {
            assert_eq!(folder.exists(), stays, "{}", folder.display());
        }
        assert!(own.socket().starts_with(&parent));
        drop(own);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn dead_processes_are_told_from_living_ones() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let began = std::time::Instant::now();
        // Not reaped before the loop is over.
        while !is_dead(child.id()) {
            assert!(began.elapsed().as_secs() < 20);
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dead(NOBODY) && !is_dead(std::process::id()));
    }

    #[test]
    fn a_socket_finds_room_where_the_usual_place_has_a_long_name() {
        let own = OwnFolder::below(&env::temp_dir().join("x".repeat(LONGEST_SOCKET_PATH))).unwrap();
        assert_eq!(own.0.parent(), Some(Path::new("/tmp")));
    }
}
