//! One child process with a time limit: started, fed nothing, read to the end, and never left behind.
//!
//! Every child leads its own process group, so that what it started itself dies with it when the limit passes.

use std::fmt;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// It, or a process that held its streams, was still there at the time limit and was killed.
    TimeOut,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::TimeOut => f.write_str("killed at its time limit"),
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::TimeOut,
        }
    }
}

/// What a child left behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Its standard output, byte for byte.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
}

impl Outcome {
    /// Whether it exited with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.end == End::Exit(0)
    }
}

/// A child that runs. Dropping it kills it with everything it started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    started: Instant,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

/// Runs `command` to its end, at most for `limit`.
///
/// # Errors
///
/// Fails when the process cannot be started; the text names the program.
pub fn run(command: &mut Command, limit: Duration) -> Result<Outcome, String> {
    Ok(spawn(command)?.finish(limit))
}

/// Starts `command` with nothing to read, and reads what it writes.
///
/// # Errors
///
/// Fails when the process cannot be started; the text names the program.
pub fn spawn(command: &mut Command) -> Result<Running, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot start `{}`: {error}", command.get_program().to_string_lossy()))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    Ok(Running { child, started, stdout, stderr })
}

impl Running {
    /// Its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it, and it alone, the named signal.
    pub fn signal(&self, name: &str) {
        signal(name, &self.child.id().to_string());
    }

    /// Waits for its end and that of its streams; kills it with everything it started when `limit` has passed.
    #[must_use]
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        let mut late = false;
        let mut collect = |stream: &Receiver<Vec<u8>>| {
            stream.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_else(|_| {
                late = true;
                // The end of the group closes the pipe, and what was read until then arrives.
                kill_group(self.child.id());
                stream.recv_timeout(Duration::from_secs(5)).unwrap_or_default()
            })
        };
        let stdout = collect(&self.stdout);
        let stderr = collect(&self.stderr);
        let end = match self.wait_until(deadline) {
            Some(end) if !late => end,
            _ => End::TimeOut,
        };
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Outcome { end, stdout, stderr, took: self.started.elapsed() }
    }

    fn wait_until(&mut self, deadline: Instant) -> Option<End> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status.into());
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process number is free for reuse only after the wait: an unwaited child's group is still its own.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_group(self.child.id());
            let _ = self.child.wait();
        }
    }
}

fn kill_group(pid: u32) {
    signal("KILL", &format!("-{pid}"));
}

fn signal(name: &str, process: &str) {
    // The standard library sends no other signal than KILL and none to groups, and this crate has no unsafe code.
    let _ = Command::new("kill").args(["-s", name, "--", process]).stderr(Stdio::null()).status();
}

fn drain(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (done, read) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = done.send(bytes);
    });
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_status_arrive() {
        let outcome = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 7"]), Duration::from_secs(10));
        let outcome = outcome.unwrap();
        assert_eq!(outcome.end, End::Exit(7));
        assert_eq!(outcome.stdout, b"out\n");
        assert_eq!(outcome.stderr, "err\n");
    }

    #[test]
    fn a_grandchild_does_not_survive_the_limit() {
        let outcome = run(Command::new("sh").args(["-c", "echo $$; sleep 30 & exit 0"]), Duration::from_millis(200));
        let outcome = outcome.unwrap();
        assert_eq!(outcome.end, End::TimeOut);
        assert!(outcome.took < Duration::from_secs(10), "took {:?}", outcome.took);
        assert!(!outcome.stdout.is_empty());
    }
}
