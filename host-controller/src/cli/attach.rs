//! A session with a target, its side channels attended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use graft::session::{CallError, End, Figures, OpenError, Session};
use graft::transport::{SideChannels, Target};

use super::console::Console;
use super::report::Report;
use super::{artifact, info};

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
    side: SideChannels,
    log: LogTail,
}

/// The last lines of the executor's log.
#[derive(Clone, Debug, Default)]
struct LogTail(Arc<Mutex<VecDeque<String>>>);

impl LogTail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The lines, behind an error.
    fn describe(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        if shown.is_empty() { shown } else { format!("; the executor's log ends with:{shown}") }
    }

    /// Why the executor could not start, when its boot check says so.
    fn boot_failure(&self) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = lines.iter().rev().find_map(|line| line.find("cannot start: ").map(|at| line.split_at(at).1));
        text.map(str::to_owned)
    }
}

impl Attached {
    /// Reaches `target` and waits for its Setup.
    pub(crate) fn new(target: &Target, console: &Console, report: Report) -> anyhow::Result<Self> {
        let began = Instant::now();
        let connection = artifact::connect(target, report)?;
        let mut options = connection.options();
        options.note = Box::new(move |text| report.note(text));
        let log = LogTail::default();
        let tail = log.clone();
        let take = move |line: &str| {
            report.log(line);
            tail.push(line);
        };
        let (wire, mut side) = SideChannels::attend(connection, console.sink(), take)?;
        match Session::open(wire, options) {
            Ok(session) => {
                let connect_time = began.elapsed();
                let (triple, dialects) = (session.peer().triple(), info::dialects(session.peer()));
                report.detail(&format!("{target}: {triple}, speaks {dialects}"));
                Ok(Self { session, connect_time, side, log })
            }
            Err(error) => {
                let gone = matches!(error, OpenError::Ended(End::Closed | End::Broken(_)));
                let how = if gone { side.how_it_ended(END_LIMIT) } else { None };
                side.end(Duration::ZERO);
                Err(match (log.boot_failure(), how) {
                    (Some(failure), how) => {
                        let how = how.map_or_else(String::new, |how| format!("; {how}"));
                        anyhow::anyhow!("the executor {failure} ({target}{how})")
                    }
                    (None, Some(how)) => {
                        anyhow::anyhow!("{how} before the executor introduced itself ({target}){}", log.describe())
                    }
                    (None, None) => anyhow::anyhow!("{error} ({target}){}", log.describe()),
                })
            }
        }
    }

    /// A failed call with what else is known: how the executor's process ended, and what it logged last.
    pub(crate) fn explain(&mut self, error: &CallError) -> anyhow::Error {
        let CallError::Ended { wrapper, end } = error else { return anyhow::Error::new(error.clone()) };
        let gone = matches!(end, End::Closed | End::Broken(_));
        let how = if gone { self.side.how_it_ended(END_LIMIT) } else { None };
        let log = self.log.describe();
        match how {
            Some(how) => anyhow::anyhow!("{how} while a call of {wrapper:?} was unanswered{log}"),
            None => anyhow::anyhow!("{error}{log}"),
        }
    }

    /// The signal that ended an executor in whose process the loaded code ran.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.side.signal(END_LIMIT)
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
