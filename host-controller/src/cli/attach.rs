//! A session with a target, its side channels attended.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use graft::session::{CallError, End, Figures, OpenError, Session};
use graft::transport::{SideChannels, Target};

use super::console::Console;
use super::report::Report;
use super::{artifact, info};

/// How long an executor of ours may take to end after the session.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A session and what belongs to it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) session: Session,
    /// From connecting to the executor's Setup.
    pub(crate) connect_time: Duration,
    side: SideChannels,
    target: String,
    /// It is busy with the program, or silent: there is nothing to wait for.
    is_lost: Cell<bool>,
}

impl Attached {
    /// Reaches `target` and waits for its Setup. It then has `patience` for each answer, or the usual one.
    pub(crate) fn new(
        target: &Target,
        console: &Console,
        patience: Option<Duration>,
        report: Report,
    ) -> anyhow::Result<Self> {
        let began = Instant::now();
        let connection = artifact::connect(target, report)?;
        let mut options = connection.options();
        options.note = Box::new(move |text| report.note(text));
        options.patience = patience.unwrap_or(options.patience);
        let gate = Gate::new(console);
        let (wire, mut side) = SideChannels::attend(connection, gate.sink(), move |line| report.log(line))?;
        match Session::open(wire, options) {
            Ok(session) => {
                let connect_time = began.elapsed();
                gate.open();
                let (triple, dialects) = (session.peer().triple(), info::dialects(session.peer()));
                report.detail(&format!("{target}: {triple}, speaks {dialects}"));
                Ok(Self { session, connect_time, side, target: target.to_string(), is_lost: Cell::new(false) })
            }
            Err(error) => {
                let gone = matches!(error, OpenError::Ended(End::Closed | End::Broken(_)));
                let why = side.why_not_started(&target.to_string(), if gone { END_LIMIT } else { Duration::ZERO });
                let why = match why {
                    // What it said is why its end came, or why we left it.
                    Some(how) if matches!(error, OpenError::Ended(End::Broken(_) | End::OutOfPlace(_))) => {
                        format!("{error} ({target}); {how}")
                    }
                    Some(how) => how,
                    None => format!("{error} ({target}){}", side.log_tail()),
                };
                side.end(Duration::ZERO);
                Err(anyhow::Error::msg(why))
            }
        }
    }

    /// A failed call with what else is known: how the executor's process ended, and what it logged last.
    pub(crate) fn explain(&mut self, error: &CallError) -> anyhow::Error {
        if error.is_silence() {
            self.is_lost.set(true);
            return anyhow::anyhow!("{} does not answer: {error}{}", self.target, self.side.log_tail());
        }
        let CallError::Ended { wrapper, end } = error else { return anyhow::Error::new(error.clone()) };
        let gone = matches!(end, End::Closed | End::Broken(_));
        let how = if gone { self.side.how_it_ended(END_LIMIT) } else { None };
        let log = self.side.log_tail();
        match how {
            Some(how) => anyhow::anyhow!("{how} while a call of {wrapper:?} was unanswered{log}"),
            None => anyhow::anyhow!("{error}{log}"),
        }
    }

    /// Notes that nothing more comes of the executor.
    pub(crate) fn note_lost(&self) {
        self.is_lost.set(true);
    }

    /// What it is attached to, as the user writes it.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// The signal that ended an executor in whose process the loaded code ran.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.side.signal(END_LIMIT)
    }

    /// Ends the session in order, and the executor when it is ours.
    pub(crate) fn detach(self) -> Figures {
        if self.is_lost.get() {
            return self.give_up();
        }
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

/// Keeps what comes over a machine's console until its executor is up: what a failed start writes there is in its error, and
/// standard output is the program's.
struct Gate {
    console: Console,
    /// The first of it; `None` once the gate is open.
    kept: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Gate {
    /// The most that is kept, in bytes.
    const MOST: usize = 64 << 10;

    fn new(console: &Console) -> Self {
        Self { console: console.clone(), kept: Arc::new(Mutex::new(Some(Vec::new()))) }
    }

    fn sink(&self) -> impl FnMut(&[u8]) + Send + 'static {
        let (mut console, kept) = (self.console.sink(), Arc::clone(&self.kept));
        move |bytes| match &mut *kept.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(kept) => {
                let room = Self::MOST - kept.len();
                kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
            }
            None => console(bytes),
        }
    }

    /// From now on what comes is the program's. What came before, such as a loader's banner, is shown, too.
    fn open(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.console.sink()(&kept.take().unwrap_or_default());
    }
}
