//! A child process with a keeper: a thread that owns it, ends it in time, and reaps it.
//!
//! The kernel kills the child when the keeper dies (see `child.rs`), so the keeper lives exactly as long as the child.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use crate::child;
use crate::gather::Gathered;

/// How a machine's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(i32),
    /// A signal killed it.
    Signalled(i32),
    /// Its handle was dropped or told to kill it.
    Killed,
    /// Its time was up; it was killed.
    OutOfTime,
}

impl End {
    /// The byte the guest wrote to the debug-exit port, when that is how it ended: QEMU exits with `2 * code + 1`.
    ///
    /// QEMU's own failures exit with 1, which is also what code 0 would look like.
    #[must_use]
    pub fn guest_code(self) -> Option<u8> {
        match self {
            Self::Exited(status) if status > 1 && status % 2 == 1 => u8::try_from((status - 1) / 2).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with status {status}"),
            Self::Signalled(signal) => write!(f, "was killed by signal {signal}"),
            Self::Killed => f.write_str("was killed"),
            Self::OutOfTime => f.write_str("was killed because its time was up"),
        }
    }
}

enum Order {
    Kill,
    /// The child closed its standard error, which it does only by ending.
    Gone,
}

/// A machine's process. It is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    orders: Sender<Order>,
    ended: Arc<Ended>,
    stderr: Gathered,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Ended {
    end: Mutex<Option<End>>,
    changed: Condvar,
}

impl Process {
    /// Starts `command`, whose standard error must be piped.
    pub(crate) fn spawn(mut command: Command, time_limit: Option<Duration>) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let (started_in, started) = mpsc::sync_channel(1);
        let ended = Arc::new(Ended::default());
        let deadline = time_limit.and_then(|limit| Instant::now().checked_add(limit));
        let theirs = Arc::clone(&ended);
        let watcher = orders.clone();
        let keeper = thread::Builder::new().name(String::from("qemu keeper")).spawn(move || {
            child::tie_to_this_thread(&mut command);
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => return drop(started_in.send(Err(error))),
            };
            let stderr = Gathered::start(Watched { stderr: child.stderr.take(), watcher });
            if started_in.send(Ok((child.id(), stderr))).is_ok() {
                let end = keep(&mut child, &inbox, deadline);
                *theirs.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
                theirs.changed.notify_all();
            }
        })?;
        let (pid, stderr) = started.recv().map_err(|_| io::Error::other("the keeper thread ended"))??;
        Ok(Self { pid, orders, ended, stderr, keeper: Some(keeper) })
    }

    /// The process number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, or `None` while it runs.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        *self.ended.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its end for at most `limit`; `None` when it still runs then.
    #[must_use]
    pub fn wait_exit(&self, limit: Duration) -> Option<End> {
        let end = self.ended.end.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.changed.wait_timeout_while(end, limit, |end| end.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills it, unless it has ended, and waits until it is gone.
    pub fn kill(&mut self) {
        // The keeper may be gone already, with the child.
        let _ = self.orders.send(Order::Kill);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }

    /// What it said on its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// What it said on its standard error, after its end.
    pub(crate) fn last_words(&self) -> String {
        self.stderr.finish(Duration::from_secs(1))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The keeper's whole life after the start.
fn keep(child: &mut Child, inbox: &Receiver<Order>, deadline: Option<Instant>) -> End {
    let order = match deadline {
        None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        Some(deadline) => inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())),
    };
    let reason = match order {
        Ok(Order::Gone) => return reap(child).map_or(End::Killed, how),
        Ok(Order::Kill) | Err(RecvTimeoutError::Disconnected) => End::Killed,
        Err(RecvTimeoutError::Timeout) => End::OutOfTime,
    };
    // It may have ended by itself a moment ago: then that is the answer.
    if let Ok(Some(status)) = child.try_wait() {
        return how(status);
    }
    let _ = child.kill();
    let _ = reap(child);
    reason
}

fn reap(child: &mut Child) -> Option<ExitStatus> {
    child.wait().ok()
}

fn how(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Signalled(signal),
        (None, None) => End::Killed,
    }
}

/// Standard error that tells the keeper when it closes.
struct Watched<R> {
    stderr: Option<R>,
    watcher: Sender<Order>,
}

impl<R: io::Read> io::Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stderr.as_mut().map_or(Ok(0), |stderr| stderr.read(buffer));
        if matches!(count, Ok(0)) {
            drop(mem::take(&mut self.stderr));
            let _ = self.watcher.send(Order::Gone);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn shell(script: &str, time_limit: Option<Duration>) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Process::spawn(command, time_limit).unwrap()
    }

    fn is_alive(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn the_end_and_the_last_words_are_known() {
        let process = shell("echo no such disk >&2; exit 7", None);
        assert_eq!(process.wait_exit(LONG), Some(End::Exited(7)));
        assert_eq!(process.last_words(), "no such disk\n");
        assert_eq!(process.end(), Some(End::Exited(7)));
    }

    #[test]
    fn the_process_dies_at_its_limit_and_with_its_handle() {
        let process = shell("exec sleep 100", Some(Duration::from_millis(50)));
        assert_eq!(process.wait_exit(LONG), Some(End::OutOfTime));
        let process = shell("exec sleep 100", None);
        let pid = process.pid();
        assert!(is_alive(pid) && process.end().is_none());
        drop(process);
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_missing_program_is_an_error_and_not_a_process() {
        let mut command = Command::new("/nonexistent/program");
        command.stderr(Stdio::piped());
        assert_eq!(Process::spawn(command, None).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn guest_codes_are_told_from_failures_of_qemu() {
        assert_eq!(End::Exited(0x21).guest_code(), Some(0x10));
        assert_eq!(End::Exited(1).guest_code(), None);
        assert_eq!(End::Exited(0).guest_code(), None);
        assert_eq!(End::Killed.guest_code(), None);
    }
}
