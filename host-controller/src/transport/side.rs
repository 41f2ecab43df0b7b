//! Reading the channels beside the protocol's.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Connection, Process};
use crate::session::Wire;

/// Moves what arrives on a channel to where it belongs, on a thread of its own.
#[derive(Debug)]
pub struct Pump {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Hands every piece that arrives on `stream` to `sink`.
    ///
    /// # Errors
    /// When the system gives no second handle or no thread.
    pub fn start(stream: UnixStream, mut sink: impl FnMut(&[u8]) + Send + 'static) -> io::Result<Self> {
        let mut reader = stream.try_clone()?;
        let thread = thread::Builder::new().name(String::from("side channel")).spawn(move || {
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
        Ok(Self { stream, thread: Some(thread) })
    }

    /// Waits until the other end has closed and everything has reached the sink.
    pub fn join(mut self) {
        self.wait();
    }

    /// Ends the channel. What has arrived by now still reaches the sink.
    ///
    /// A socket whose reading is shut down still gives what is in it, then its end (unix(7); tested below).
    pub fn finish(mut self) {
        let _ = self.stream.shutdown(Shutdown::Read);
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What belongs to an executor besides its wire: its other channels, attended, and its process when it is ours.
#[derive(Debug)]
pub struct SideChannels {
    console: Option<Pump>,
    log: Option<Pump>,
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
        let log_bytes = move |bytes: &[u8]| lines.push(bytes, &mut log);
        let side = Self {
            console: connection.console.map(|raw| Pump::start(raw, console)).transpose()?,
            log: connection.log.map(|raw| Pump::start(raw, log_bytes)).transpose()?,
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

    /// The signal that ended it within `limit`, when loaded code ran in the executor's process itself and a signal did.
    #[must_use]
    pub fn signal(&self, limit: Duration) -> Option<i32> {
        self.process.as_ref().and_then(|process| process.signal(limit))
    }

    /// Ends the executor when it is ours, and everything it said has reached its sink. The wire must be closed: a process
    /// ends by itself then, and has `patience` to do so.
    pub fn end(self, patience: Duration) {
        let Self { console, log, process } = self;
        let pumps = [console, log].into_iter().flatten();
        match process {
            // What it still has to say comes before its end.
            Some(Process::Child(child)) if child.wait(patience).is_some() => pumps.for_each(Pump::join),
            process => {
                drop(process);
                pumps.for_each(Pump::finish);
            }
        }
    }
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// A line without an end is cut here, so that it takes no more memory.
    const LONGEST: usize = 4096;

    /// Hands every line that is complete to `sink`, without its end.
    pub fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.rest.push(*byte);
            }
            if *byte == b'\n' || self.rest.len() == Self::LONGEST {
                sink(String::from_utf8_lossy(&self.rest).trim_end_matches('\r'));
                self.rest.clear();
            }
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
    }
}
