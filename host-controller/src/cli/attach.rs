//! A session with a target, its side channels attended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use graft::session::{CallError, End, Figures, OpenError, Session};
use graft::transport::{Process, Pump, Target};

use super::console::Console;
use super::report::Report;

/// How long an executor of ours may take to end after the session.
const END_LIMIT: Duration = Duration::from_secs(2);
/// How many of the log's last lines are kept for an error report.
const KEPT_LINES: usize = 8;

/// A session and what belongs to it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) session: Session,
    /// From connecting to the executor's Setup.
    pub(crate) connect_time: Duration,
    side: Side,
}

/// What belongs to an executor besides the session.
#[derive(Debug)]
struct Side {
    console: Option<Pump>,
    log: Option<Pump>,
    last_lines: Arc<Mutex<VecDeque<String>>>,
    process: Option<Process>,
}

impl Attached {
    /// Reaches `target` and waits for its Setup.
    pub(crate) fn new(target: &Target, console: &Console, report: Report) -> anyhow::Result<Self> {
        let began = Instant::now();
        let connection = target.connect()?;
        let mut options = connection.options();
        options.note = Box::new(move |text| report.note(text));
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&last_lines);
        let mut lines = Lines::default();
        let log = connection.log.map(|log| {
            Pump::start(log, move |bytes| {
                lines.push(bytes, |line| {
                    report.log(line);
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    if kept.len() == KEPT_LINES {
                        kept.pop_front();
                    }
                    kept.push_back(line.to_owned());
                });
            })
        });
        let console = connection.console.map(|raw| Pump::start(raw, console.sink()));
        let mut side =
            Side { console: console.transpose()?, log: log.transpose()?, last_lines, process: connection.process };
        match Session::open(connection.wire, options) {
            Ok(session) => {
                let connect_time = began.elapsed();
                let (triple, dialects) = (session.peer().triple(), session.peer().dialects());
                report.detail(&format!("{target}: {triple}, {dialects:?}"));
                Ok(Self { session, connect_time, side })
            }
            Err(error) => {
                let gone = matches!(error, OpenError::Ended(End::Closed | End::Broken(_)));
                let circumstances = side.circumstances(gone);
                Err(anyhow::anyhow!("{error} ({target}){circumstances}"))
            }
        }
    }

    /// What else is known when a call failed: how the executor's process ended, and what it logged last.
    pub(crate) fn circumstances(&mut self, error: &CallError) -> String {
        let gone = matches!(error.end(), Some(End::Closed | End::Broken(_)));
        let restarted = matches!(error.end(), Some(End::HungUp | End::HungUpBecause(_)));
        if gone || restarted { self.side.circumstances(gone) } else { String::new() }
    }

    /// The signal that ended an executor in whose process the loaded code ran.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.side.process.as_ref().and_then(|process| process.signal(END_LIMIT))
    }

    /// Ends the session in order, and the executor when it is ours.
    pub(crate) fn detach(self) -> Figures {
        let figures = self.session.finish();
        self.side.end(END_LIMIT);
        figures
    }

    /// Leaves an executor that may be stuck in loaded code: it is told, and killed when it is ours.
    pub(crate) fn give_up(self) -> Figures {
        let figures = self.session.finish();
        self.side.end(Duration::ZERO);
        figures
    }
}

impl Side {
    fn circumstances(&mut self, gone: bool) -> String {
        let mut text = String::new();
        if gone && let Some(end) = self.process.as_ref().and_then(|process| process.wait(END_LIMIT)) {
            text.push_str(&format!("; {end}"));
            if let Some(log) = self.log.take() {
                log.join();
            }
        }
        let lines = self.last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if !lines.is_empty() {
            text.push_str("; the executor's log ends with:");
            lines.iter().for_each(|line| text.push_str(&format!("\n  {line}")));
        }
        text
    }

    fn end(self, patience: Duration) {
        let Self { console, log, process, .. } = self;
        let pumps = [console, log].into_iter().flatten();
        match process {
            // It ends by itself once the session is over, and what it still has to say comes before its end.
            Some(Process::Child(child)) if child.wait(patience).is_some() => pumps.for_each(Pump::join),
            process => {
                pumps.for_each(Pump::finish);
                drop(process);
            }
        }
    }
}

/// Cuts bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// A line without an end is cut here, so that it takes no more memory.
    const LONGEST: usize = 4096;

    /// Hands every line that is complete to `sink`, without its end.
    pub(crate) fn push(&mut self, bytes: &[u8], mut sink: impl FnMut(&str)) {
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
    use super::*;

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
