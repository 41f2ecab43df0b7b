//! Reading the channels beside the protocol's.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::log::LogTail;
use super::{Connection, Process};
use crate::session::Wire;

/// How long a channel may stay open after the process at its other end is gone.
const JOIN_LIMIT: Duration = Duration::from_millis(500);

/// Moves what arrives on a channel to where it belongs, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Pump {
    stream: UnixStream,
    thread: JoinHandle<()>,
    /// Disconnected once everything has reached the sink.
    ended: Receiver<()>,
}

impl Pump {
    /// Hands every piece that arrives on `stream` to `sink`.
    fn start(stream: UnixStream, mut sink: impl FnMut(&[u8]) + Send + 'static) -> io::Result<Self> {
        let mut reader = stream.try_clone()?;
        let (ending, ended) = mpsc::channel();
        let thread = thread::Builder::new().name(String::from("side channel")).spawn(move || {
            let _ending: Sender<()> = ending;
            let mut buffer = vec![0; 64 << 10];
            loop {
                match reader.read(&mut buffer) {
                    Ok(count) if count > 0 => sink(buffer.get(..count).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // What cannot be read any more has nothing to say any more.
                    _ => break,
                }
            }
        })?;
        Ok(Self { stream, thread, ended })
    }

    /// Waits until the other end has closed and everything has reached the sink, but not for ever: what loaded code has
    /// started may outlive the executor, and holds the channel open.
    fn join(self) {
        let _ = self.ended.recv_timeout(JOIN_LIMIT);
        self.finish();
    }

    /// Ends the channel. What has arrived by now still reaches the sink.
    ///
    /// A socket whose reading is shut down still gives what is in it, then its end (unix(7); tested below).
    fn finish(self) {
        let _ = self.stream.shutdown(Shutdown::Read);
        let _ = self.thread.join();
    }
}

/// What belongs to an executor besides its wire: its other channels, attended, and its process when it is ours.
#[derive(Debug)]
pub struct SideChannels {
    console: Option<Pump>,
    log: Option<Pump>,
    tail: LogTail,
    process: Option<Process>,
}

impl SideChannels {
    /// Attends the channels of `connection`: console bytes go to `console`, lines of the log to `log`. Returns the wire.
    ///
    /// # Errors
    /// When the system gives no second handle or no thread.
    pub fn attend(
        connection: Connection,
        console: impl FnMut(&[u8]) + Send + 'static,
        mut log: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<(Wire, Self)> {
        let mut lines = Lines::default();
        let tail = LogTail::default();
        let kept = tail.clone();
        let log_bytes = move |bytes: &[u8]| {
            lines.push(bytes, |line| {
                kept.push(line);
                log(line);
            });
        };
        let side = Self {
            console: connection.console.map(|raw| Pump::start(raw, console)).transpose()?,
            log: connection.log.map(|raw| Pump::start(raw, log_bytes)).transpose()?,
            tail,
            process: connection.process,
        };
        Ok((connection.wire, side))
    }

    /// How the executor's process ended, when it is ours and does so within `limit`. Its log has then been read to the
    /// end.
    pub fn how_it_ended(&mut self, limit: Duration) -> Option<String> {
        let end = self.process.as_ref().and_then(|process| process.wait(limit))?;
        self.log.take().into_iter().for_each(Pump::join);
        Some(end)
    }

    /// Why an executor that did not introduce itself did not, as far as anything but the wire tells: its boot check, or the
    /// end of its process within `limit`.
    pub fn why_not_started(&mut self, target: &str, limit: Duration) -> Option<String> {
        let how = self.how_it_ended(limit);
        match (self.tail.boot_failure(), how) {
            (Some(failure), Some(how)) => Some(format!("the executor {failure} ({target}; {how})")),
            (Some(failure), None) => Some(format!("the executor {failure} ({target})")),
            (None, Some(how)) => {
                Some(format!("{how}; the executor at {target} had not introduced itself{}", self.tail.describe()))
            }
            (None, None) => None,
        }
    }

    /// The last lines of the executor's log, to stand behind an error; empty when there are none.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.tail.describe()
    }

    /// The signal that ended it within `limit`, when loaded code ran in the executor's process itself and a signal did.
    #[must_use]
    pub fn signal(&self, limit: Duration) -> Option<i32> {
        self.process.as_ref().and_then(|process| process.signal(limit))
    }

    /// Ends the executor when it is ours, and everything it said has reached its sink. The wire must be closed: a process
    /// ends by itself then, and has `patience` to do so.
    pub fn end(self, patience: Duration) {
        let Self { console, log, process, tail: _ } = self;
        let pumps = [console, log].into_iter().flatten();
        match process {
            // What it still has to say comes before its end.
            Some(process) if process.ends_with_its_wire(patience) => pumps.for_each(Pump::join),
            process => {
                drop(process);
                pumps.for_each(Pump::finish);
            }
        }
    }
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
    /// The line that goes on was cut, and so is no empty one when it ends at once.
    cut: bool,
}

impl Lines {
    /// A line without an end is cut here, so that it takes no more memory.
    const LONGEST: usize = 4096;

    /// Hands every line that is complete to `sink`, without its end.
    fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(&str)) {
        for byte in bytes {
            let ends = *byte == b'\n';
            if !ends {
                self.rest.push(*byte);
            }
            let full = self.rest.len() == Self::LONGEST;
            if full || (ends && !(self.cut && self.rest.is_empty())) {
                sink(String::from_utf8_lossy(&self.rest).trim_end_matches('\r'));
                self.rest.clear();
            }
            self.cut = !ends && (full || self.cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn finishing_loses_nothing_that_arrived() {
        for _ in 0..50 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let (sink, sunk) = mpsc::channel();
            let pump = Pump::start(ours, move |bytes| {
                thread::sleep(Duration::from_micros(200));
                sink.send(bytes.to_vec()).unwrap();
            })
            .unwrap();
            for _ in 0..20 {
                theirs.write_all(&[7; 1000]).unwrap();
            }
            pump.finish();
            assert_eq!(sunk.iter().map(|piece| piece.len()).sum::<usize>(), 20_000);
        }
    }

    #[test]
    fn lines_are_cut_where_they_end() {
        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        for piece in ["one\r\ntw", "o\n\nthr", "ee"] {
            lines.push(piece.as_bytes(), |line| seen.push(line.to_owned()));
        }
        assert_eq!(seen, ["one", "two", ""]);
        let mut count = 0;
        lines.push(&[b'x'; 10_000], |line| count += line.len());
        assert_eq!(count, 8192);

        let (mut lines, mut seen) = (Lines::default(), Vec::new());
        lines.push(&[b'x'; Lines::LONGEST], |line| seen.push(line.len()));
        lines.push(b"\n\ny\n", |line| seen.push(line.len()));
        assert_eq!(seen, [Lines::LONGEST, 0, 1]);
    }

    #[test]
    fn a_channel_that_somebody_else_holds_open_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (sink, sunk) = mpsc::channel();
        let pump = Pump::start(ours, move |bytes| sink.send(bytes.to_vec()).unwrap()).unwrap();
        theirs.write_all(b"last words").unwrap();
        pump.join();
        assert_eq!(sunk.iter().flatten().collect::<Vec<_>>(), b"last words");
        drop(theirs);
    }
}
