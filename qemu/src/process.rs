//! A child process with a keeper: a thread that owns it, ends it in time, and reaps it.
//!
//! The kernel kills the child when the keeper dies (see `child.rs`), so the keeper lives exactly as long as the child.

use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::child;
use crate::gather::Gathered;

/// How a process ended.
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

/// A child process. It is killed and reaped when this is dropped, and by the kernel when this process dies.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    shared: Arc<Shared>,
    stderr: Option<Gathered>,
    keeper: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Why it was killed, when we did it.
    killed: Option<End>,
    end: Option<End>,
}

impl Process {
    /// Starts `command` in a process group of its own, so that an interrupt at the terminal is ours to pass on, without
    /// any descriptor of ours but the three standard ones. Standard error is gathered when it is piped. After
    /// `time_limit` it is killed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(mut command: Command, time_limit: Option<Duration>) -> io::Result<Self> {
        let (started_in, started) = mpsc::sync_channel(1);
        command.process_group(0);
        let keeper = thread::Builder::new().name(String::from("process keeper")).spawn(move || {
            let (shared, pid) = match start(command) {
                Ok((shared, pid, stderr)) => {
                    // Nobody there to take it: it is dropped, and with it the child must go.
                    if started_in.send(Ok((Arc::clone(&shared), pid, stderr))).is_err() {
                        shared.kill(End::Killed);
                    }
                    (shared, pid)
                }
                Err(error) => return drop(started_in.send(Err(error))),
            };
            child::wait_for_end(pid);
            shared.reap();
        })?;
        let (shared, pid, stderr) = started.recv().map_err(|_| io::Error::other("the keeper thread ended"))??;
        let process = Self { pid, shared, stderr, keeper: Some(keeper) };
        if let Some(limit) = time_limit {
            let shared = Arc::clone(&process.shared);
            let timer = thread::Builder::new().name(String::from("process time limit"));
            timer.spawn(move || {
                if shared.wait(limit).is_none() {
                    shared.kill(End::OutOfTime);
                }
            })?;
        }
        Ok(process)
    }

    /// The process number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, or `None` while it runs.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.shared.lock().end
    }

    /// Waits for its end for at most `limit`; `None` when it still runs then.
    #[must_use]
    pub fn wait_exit(&self, limit: Duration) -> Option<End> {
        self.shared.wait(limit)
    }

    /// Kills it, unless it has ended, and waits until it is gone.
    pub fn kill(&mut self) {
        self.shared.kill(End::Killed);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }

    /// What it said on its standard error so far, if that was piped.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.as_ref().map_or_else(String::new, Gathered::text)
    }

    /// What it said on its standard error, if that was piped, after its end.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.stderr.as_ref().map_or_else(String::new, |stderr| stderr.finish(Duration::from_secs(1)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the child, on the thread whose end would kill it.
fn start(mut command: Command) -> io::Result<(Arc<Shared>, u32, Option<Gathered>)> {
    child::tie_to_this_thread(&mut command);
    let mut child = command.spawn()?;
    // Our copies of the descriptors it was given: its channels must close when it closes them.
    drop(command);
    let pid = child.id();
    let stderr = child.stderr.take();
    let state = State { child, killed: None, end: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    Ok((shared, pid, stderr.map(Gathered::start)))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, limit: Duration) -> Option<End> {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |state| state.end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.end
    }

    /// Kills the child, unless it has ended: it is reaped under this lock only, so its number is still its own.
    fn kill(&self, reason: End) {
        let mut state = self.lock();
        if state.end.is_none() && state.killed.is_none() && matches!(state.child.try_wait(), Ok(None)) {
            let _ = state.child.kill();
            state.killed = Some(reason);
        }
    }

    fn reap(&self) {
        let mut state = self.lock();
        let status = state.child.wait();
        let end = match (status, state.killed) {
            // It may have ended by itself at the last moment: then that is the answer.
            (Ok(status), Some(reason)) if status.signal() == Some(libc::SIGKILL) => reason,
            (Ok(status), _) => how(status),
            (Err(_), reason) => reason.unwrap_or(End::Killed),
        };
        state.end = Some(end);
        drop(state);
        self.changed.notify_all();
    }
}

fn how(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Signalled(signal),
        (None, None) => End::Killed,
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
    fn an_end_is_noticed_while_a_grandchild_holds_standard_error() {
        let mut process = shell("sleep 3 & exit 3", None);
        assert_eq!(process.wait_exit(Duration::from_secs(2)), Some(End::Exited(3)));
        let mut deaf = shell("exec 2>&-; exec sleep 100", None);
        deaf.kill();
        assert_eq!(deaf.end(), Some(End::Killed));
        process.kill();
        assert_eq!(process.end(), Some(End::Exited(3)));
    }

    #[test]
    fn a_signal_is_an_end_of_its_own_and_standard_error_may_go_elsewhere() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "kill -SEGV $$"]).stderr(Stdio::null());
        let process = Process::spawn(command, None).unwrap();
        assert_eq!(process.wait_exit(LONG), Some(End::Signalled(11)));
        assert_eq!(process.stderr(), "");
    }

    #[test]
    fn the_process_has_a_group_of_its_own() {
        let process = shell("cut -d' ' -f5 /proc/$$/stat >&2", None);
        assert_eq!(process.wait_exit(LONG), Some(End::Exited(0)));
        assert_eq!(process.last_words().trim(), process.pid().to_string());
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
