//! One child process with a time limit: started, fed nothing, read to the end, and never left behind.
//!
//! Every child leads its own process group, so that what it started itself dies with it when the limit passes.

use std::fmt;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
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
    id: u32,
    started: Instant,
    stdout: Drained,
    stderr: Drained,
    /// Says once how it ended.
    ended: Receiver<End>,
}

/// A stream that is read as it comes.
#[derive(Debug)]
struct Drained {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Hears of every piece, and hangs up at the end.
    grown: Receiver<()>,
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
    let stdout = Drained::start(child.stdout.take());
    let stderr = Drained::start(child.stderr.take());
    let id = child.id();
    let (ending, ended) = mpsc::channel();
    thread::spawn(move || {
        if let Ok(status) = child.wait() {
            // Whoever dropped it does not want to know.
            let _ = ending.send(status.into());
        }
    });
    Ok(Running { id, started, stdout, stderr, ended })
}

impl Running {
    /// Its process number.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Sends it, and it alone, the named signal.
    pub fn signal(&self, name: &str) {
        signal(name, &self.id.to_string());
    }

    /// Waits until its standard output has at least `len` bytes, at most for `limit`, and returns all there is then.
    #[must_use]
    pub fn stdout(&self, len: usize, limit: Duration) -> Vec<u8> {
        self.stdout.wait(len, Instant::now() + limit);
        self.stdout.so_far()
    }

    /// Its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Waits for a line of standard error that contains `words`.
    ///
    /// # Errors
    ///
    /// Fails with all it said when no such line comes in time or before its end.
    pub fn said(&self, words: &str, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        loop {
            let bytes = self.stderr.so_far();
            let (all, len) = (String::from_utf8_lossy(&bytes), bytes.len());
            let whole_lines = all.rsplit_once('\n').map_or("", |(lines, _)| lines);
            if let Some(line) = whole_lines.lines().find(|line| line.contains(words)) {
                return Ok(line.to_owned());
            }
            if !self.stderr.wait(len + 1, deadline) || self.stderr.so_far().len() == len {
                return Err(format!("it did not say {words:?}, but {all:?}"));
            }
        }
    }

    /// Waits for its end and that of its streams; kills it with everything it started when `limit` has passed.
    #[must_use]
    pub fn finish(self, limit: Duration) -> Outcome {
        let deadline = Instant::now() + limit;
        let in_time = [&self.stdout, &self.stderr].into_iter().all(|stream| stream.wait(usize::MAX, deadline));
        let left = deadline.saturating_duration_since(Instant::now());
        let end = if in_time { self.ended.recv_timeout(left).ok() } else { None };
        if end.is_none() {
            // The end of the group closes the pipes, and what was written until then arrives.
            kill_group(self.id);
            let a_moment = Instant::now() + Duration::from_secs(5);
            let _ = [&self.stdout, &self.stderr].into_iter().all(|stream| stream.wait(usize::MAX, a_moment));
        }
        let (stdout, stderr) = (self.stdout.so_far(), self.stderr());
        Outcome { end: end.unwrap_or(End::TimeOut), stdout, stderr, took: self.started.elapsed() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Whoever has heard of the end must not kill what may by now bear the same number.
        if matches!(self.ended.try_recv(), Err(mpsc::TryRecvError::Empty)) {
            kill_group(self.id);
            let _ = self.ended.recv_timeout(Duration::from_secs(5));
        }
    }
}

/// Kills a process.
pub fn kill(pid: u32) {
    signal("KILL", &pid.to_string());
}

/// Freezes a process: it is there and does nothing.
pub fn freeze(pid: u32) {
    signal("STOP", &pid.to_string());
}

/// The QEMU processes that the process `parent` started.
///
/// # Panics
///
/// Panics when there is no such process.
#[must_use]
pub fn machines_of(parent: u32) -> Vec<u32> {
    let tasks =
        fs::read_dir(format!("/proc/{parent}/task")).unwrap_or_else(|error| panic!("process {parent}: {error}"));
    let children = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_machine =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("qemu-system"));
    children.into_iter().filter(is_machine).collect()
}

fn kill_group(pid: u32) {
    signal("KILL", &format!("-{pid}"));
}

fn signal(name: &str, process: &str) {
    // The standard library sends no other signal than KILL and none to groups, and this crate has no unsafe code. The
    // shell's own `kill`: the program of that name is part of a package that small machines do not have.
    let mut shell = Command::new("sh");
    shell.args(["-c", "kill -s \"$0\" -- \"$1\"", name, process]).stdin(Stdio::null()).stderr(Stdio::null());
    // It may be dead already, which is all that is wanted.
    let _ = shell.status().expect("a shell");
}

impl Drained {
    fn start(stream: Option<impl Read + Send + 'static>) -> Self {
        let (growing, grown) = mpsc::channel();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        thread::spawn(move || {
            let Some(mut stream) = stream else { return };
            let mut piece = [0; 1 << 14];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..count]);
                // Nobody listens any more when the child is dropped; its pipe is emptied all the same.
                let _ = growing.send(());
            }
        });
        Self { bytes, grown }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `len` bytes are there or the stream has ended; whether that was before `deadline`.
    fn wait(&self, len: usize, deadline: Instant) -> bool {
        loop {
            if self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len() >= len {
                return true;
            }
            match self.grown.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return true,
                Err(mpsc::RecvTimeoutError::Timeout) => return false,
            }
        }
    }
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
