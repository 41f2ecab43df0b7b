//! A child process that dies with us, however that happens.
#![expect(unsafe_code, reason = "ties the child's life to ours between fork and exec")]

use std::fmt;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often the end of the child is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End(ExitStatus);

impl End {
    /// The signal that ended it.
    #[must_use]
    pub fn signal(self) -> Option<i32> {
        self.0.signal()
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "exited with status {code}"),
            (None, Some(signal)) => write!(f, "was killed by signal {signal}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

#[derive(Debug, Default)]
struct Ended {
    end: Mutex<Option<End>>,
    changed: Condvar,
}

/// A child process. It is killed and reaped when this is dropped.
///
/// A thread of its own starts and keeps it: the kernel kills the child when the thread that started it ends.
#[derive(Debug)]
pub struct Child {
    ended: Arc<Ended>,
    kill: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Child {
    pub(super) fn spawn(mut command: Command) -> io::Result<Self> {
        let (started_in, started) = mpsc::sync_channel(1);
        let (kill, killed) = mpsc::channel::<()>();
        let ended = Arc::new(Ended::default());
        let theirs = Arc::clone(&ended);
        let keeper = thread::Builder::new().name(String::from("executor keeper")).spawn(move || {
            tie_to_this_thread(&mut command);
            let spawned = command.spawn();
            // Our copies of the descriptors it was given: the channels must close when the child closes them.
            drop(command);
            let mut child = match spawned {
                Ok(child) => child,
                Err(error) => return drop(started_in.send(Err(error))),
            };
            drop(started_in.send(Ok(())));
            let status = loop {
                match child.try_wait() {
                    Ok(Some(status)) => break status,
                    Ok(None) => {}
                    Err(_) => return,
                }
                if killed.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                    let _ = child.kill();
                    match child.wait() {
                        Ok(status) => break status,
                        Err(_) => return,
                    }
                }
            };
            *theirs.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(End(status));
            theirs.changed.notify_all();
        })?;
        started.recv().map_err(|_| io::Error::other("the keeper thread ended"))??;
        Ok(Self { ended, kill: Some(kill), keeper: Some(keeper) })
    }

    /// Waits for its end for at most `limit`; `None` when it still runs then.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<End> {
        let end = self.ended.end.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.changed.wait_timeout_while(end, limit, |end| end.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Kills it, unless it has ended, and waits until it is gone.
    pub fn kill(&mut self) {
        drop(self.kill.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tie_to_this_thread(command: &mut Command) {
    // SAFETY: the closure runs in the child of a process that may have threads: it only makes a system call, and neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(die_with_parent) };
}

fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Child::spawn(command).unwrap()
    }

    #[test]
    fn the_end_is_told() {
        let limit = Duration::from_secs(10);
        assert_eq!(shell("exit 3").wait(limit).unwrap().to_string(), "exited with status 3");
        let killed = shell("kill -SEGV $$").wait(limit).unwrap();
        assert_eq!((killed.signal(), killed.to_string().as_str()), (Some(11), "was killed by signal 11"));
        assert!(Child::spawn(Command::new("/nonexistent")).is_err());
    }

    #[test]
    fn dropping_kills() {
        let began = Instant::now();
        let child = shell("exec sleep 100");
        assert_eq!(child.wait(Duration::from_millis(20)), None);
        drop(child);
        assert!(began.elapsed() < Duration::from_secs(50));
    }
}
