//! Serves an executor to clients of anybody's make, one after another.
//!
//! A [`Relay`] owns the executor's connection and passes whole messages on, each taken in and judged before it is sent: a
//! client that dies in the middle of one leaves the executor's line clean. A client that leaves, in order or not, becomes
//! a Hangup to the executor, which frees everything and introduces itself again; when it does not come back, because
//! loaded code keeps it, an executor of ours is started afresh. Whoever comes while another is served is told so after a
//! moment.

mod conversation;
mod ends;
mod listen;
#[cfg(test)]
mod tests;
mod tracker;

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use graft_protocol::{FAULT_LINE, Message, Outcome, Text};
use thiserror::Error;

use self::ends::{Endpoint, Event, Heard, Side};
use crate::session::{NUDGE, SETUP_PATIENCE, WholeMessage, Wire};
use crate::transport::{Connection, SideChannels};

pub use listen::{Listener, is_stale_socket};

pub use crate::transport::LONGEST_SOCKET_PATH;

/// How long an executor may take to clean up after a client.
const RENEW_LIMIT: Duration = Duration::from_secs(5);
/// What a client that left may have left to send, in bytes, before the executor is started afresh for it: on a serial line
/// that is sooner done.
const MOST_OWED: u64 = 256 << 10;
/// How long a client may wait while another is served.
const BUSY_AFTER: Duration = Duration::from_secs(1);
/// How long a client may stop in the middle of a message.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// How often a served client is looked at in any case.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an executor's process may take to end after its wire was closed.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(1);
/// How long the last messages to an end may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// An executor that ends by itself sooner than this, so many times in a row, is broken, not unlucky.
const TOO_SOON: Duration = Duration::from_secs(2);
const MOST_QUICK_ENDS: u32 = 3;

/// Why nothing can be served any more.
#[derive(Debug, Error)]
pub enum RelayError {
    /// The executor cannot be reached.
    #[error(transparent)]
    Connect(Failure),
    /// The relay was stopped before the executor was up.
    #[error("interrupted before the executor at {0} was up")]
    Stopped(String),
    /// The executor ended at its start, in these words.
    #[error("{0}")]
    NotStarted(String),
    /// The executor was reached and did not introduce itself.
    #[error("the executor at {target} {what}{circumstances}")]
    NoSetup {
        /// The target.
        target: String,
        /// What it did instead.
        what: String,
        /// What else is known.
        circumstances: String,
    },
    /// The one client could not be talked to.
    #[error("the client cannot be served: {0}")]
    Client(String),
    /// The system refused something a relay needs.
    #[error("cannot relay: {0}")]
    System(#[from] std::io::Error),
}

/// Why an executor could not be reached, in words of whoever tried.
pub type Failure = Box<dyn Error + Send + Sync>;

/// How a relay reaches its executor, each time it needs a fresh one.
pub struct Reach {
    /// The target as the user writes it.
    pub target: String,
    /// Whether reaching it starts an executor that nobody else uses.
    pub is_ours: bool,
    /// Connects.
    pub connect: Box<dyn FnMut() -> Result<Connection, Failure> + Send>,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reach({})", self.target)
    }
}

/// What a relay does with what it sees; called from several threads.
#[derive(Clone)]
pub struct Hooks {
    /// Takes what loaded code writes to the executor's own console.
    pub console: Arc<TakeBytes>,
    /// Takes a line of the executor's log.
    pub log: Arc<TakeText>,
    /// Takes the line of the executor's log on how a call into loaded code ended badly, when the client is not told in a form
    /// that it can report.
    pub fault: Arc<TakeText>,
    /// Takes what went wrong and was dealt with.
    pub note: Arc<TakeText>,
    /// Takes what happens in the usual course of things.
    pub detail: Arc<TakeText>,
}

/// Takes a piece of a byte stream.
pub type TakeBytes = dyn Fn(&[u8]) + Send + Sync;
/// Takes a line of text.
pub type TakeText = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// Who ends a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The client: it can.
    Client,
    /// The relay, once the client is finished: over TCP some of LLVM's clients cannot.
    Relay,
}

/// Tells a relay to stop.
#[derive(Clone, Debug)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// Ends the relay's service in order.
    pub fn stop(&self) {
        // A relay that is gone has stopped.
        let _ = self.0.send(Event::Stop);
    }
}

/// Serves one executor.
pub struct Relay {
    reach: Reach,
    hooks: Hooks,
    sender: Sender<Event>,
    events: Receiver<Event>,
    executor: Option<Executor>,
    waiting: VecDeque<(Instant, Wire)>,
    /// Numbers given to ends so far.
    ends: u64,
    /// How often in a row an executor of ours ended as soon as it was started.
    quick_ends: u32,
    /// How long a client may stop in the middle of a message.
    stall_limit: Duration,
    /// How the last client's connection broke, if it did.
    client_failure: Option<String>,
    stopping: bool,
    /// The client speaks our dialect: it is told how its calls ended, and says so itself.
    client_tells: Arc<AtomicBool>,
}

/// A connected executor.
struct Executor {
    end: Endpoint,
    side: SideChannels,
    /// Its introduction, while no client has had it.
    setup: Option<WholeMessage>,
    /// Its introduction, while the client that has had it and the executor have not said a word to each other.
    unused: Option<WholeMessage>,
    /// How long to wait before asking for one: over a line without a notion of connections, the executor may have
    /// introduced itself when nobody listened.
    nudge_after: Option<Duration>,
    since: Instant,
}

/// Why there is no introduction.
enum NoSetup {
    Silent(Duration),
    Gone(String),
    Stopped,
}

impl fmt::Display for NoSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(limit) => write!(f, "did not introduce itself within {} ms", limit.as_millis()),
            Self::Gone(how) => f.write_str(how),
            Self::Stopped => f.write_str("was not waited for"),
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relay({})", self.reach.target)
    }
}

impl Relay {
    /// A relay for an executor that is reached on demand.
    #[must_use]
    pub fn new(reach: Reach, hooks: Hooks) -> Self {
        let (sender, events) = mpsc::channel();
        Self {
            reach,
            hooks,
            sender,
            events,
            executor: None,
            waiting: VecDeque::new(),
            ends: 0,
            quick_ends: 0,
            stall_limit: STALL_LIMIT,
            client_failure: None,
            stopping: false,
            client_tells: Arc::default(),
        }
    }

    /// A handle that stops the relay.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.sender.clone())
    }

    /// Reaches the executor and waits until it has introduced itself.
    ///
    /// # Errors
    /// When it is not there, or says nothing.
    pub fn prepare(&mut self) -> Result<(), RelayError> {
        let limit = if self.executor.is_some() { RENEW_LIMIT } else { SETUP_PATIENCE };
        if self.executor.is_none() {
            self.connect()?;
        }
        let nudge_after = self.executor.as_mut().and_then(|executor| executor.nudge_after.take());
        let mut waited = self.await_setup(nudge_after.unwrap_or(limit));
        if nudge_after.is_some() && matches!(waited, Err(NoSetup::Silent(_))) {
            self.tell_executor(WholeMessage::new(&NUDGE));
            waited = self.await_setup(limit);
        }
        waited.map_err(|what| {
            let target = self.reach.target.clone();
            // The wire closes a moment before the process has ended.
            let limit = if let NoSetup::Gone(_) = &what { LAST_WORDS_LIMIT } else { Duration::ZERO };
            let side = self.executor.as_mut().map(|executor| &mut executor.side);
            let why = side.and_then(|side| side.why_not_started(&target, limit));
            let circumstances = self.drop_executor();
            match (what, why) {
                (NoSetup::Stopped, _) => RelayError::Stopped(target),
                (_, Some(why)) => RelayError::NotStarted(why),
                (what, None) => RelayError::NoSetup { target, what: what.to_string(), circumstances },
            }
        })
    }

    /// Serves the one client at the other end of `wire`, and ends.
    ///
    /// # Errors
    /// When the executor cannot be reached; the client is told why.
    pub fn serve_one(&mut self, wire: Wire, closing: Closing) -> Result<(), RelayError> {
        // Before the client is listened to: what it does meanwhile, such as to leave, must find the conversation begun.
        let prepared = self.prepare();
        let client = self.end_for(wire, Side::Client)?;
        if let Err(error) = prepared {
            client.send(hangup(&error.to_string()));
            close(client);
            return Err(error);
        }
        self.converse(&client, closing);
        // First, so that everything the program wrote is out before the client goes on.
        self.drop_executor();
        let unwritten = client.close(FLUSH_LIMIT);
        match self.client_failure.take().or(unwritten) {
            Some(why) => Err(RelayError::Client(why)),
            None => Ok(()),
        }
    }

    /// Serves the clients of `listener` until it is stopped, or only one.
    ///
    /// # Errors
    /// When the executor cannot be reached, or does not stay up.
    pub fn serve(&mut self, listener: &Listener, once: bool) -> Result<(), RelayError> {
        let closing = match listener {
            Listener::Tcp(_) => Closing::Relay,
            Listener::Unix(..) => Closing::Client,
        };
        listener.start(self.sender.clone())?;
        let served = self.serve_clients(closing, once);
        self.drop_executor();
        // A failure to come back from a client is none when nobody waits for it.
        if self.stopping { Ok(()) } else { served }
    }

    fn serve_clients(&mut self, closing: Closing, once: bool) -> Result<(), RelayError> {
        while let Some(wire) = self.next_client()? {
            let prepared = self.prepare();
            let client = self.end_for(wire, Side::Client)?;
            if let Err(error) = prepared {
                client.send(hangup(&error.to_string()));
                close(client);
                if once || self.stopping || self.reach.is_ours {
                    return Err(error);
                }
                (self.hooks.note)(&error.to_string());
                continue;
            }
            (self.hooks.detail)("a client is served");
            self.converse(&client, closing);
            close(client);
            if once || self.stopping {
                break;
            }
            self.renew()?;
        }
        Ok(())
    }

    fn end_for(&mut self, wire: Wire, side: Side) -> std::io::Result<Endpoint> {
        self.ends += 1;
        Endpoint::start(wire, side, self.ends, self.sender.clone())
    }

    fn connect(&mut self) -> Result<(), RelayError> {
        let connection = (self.reach.connect)().map_err(RelayError::Connect)?;
        let nudge_after = connection.nudge_after;
        let (console, hooks, tells) =
            (Arc::clone(&self.hooks.console), self.hooks.clone(), Arc::clone(&self.client_tells));
        let log = move |line: &str| match line.contains(FAULT_LINE) && !tells.load(Ordering::Relaxed) {
            true => (hooks.fault)(line),
            false => (hooks.log)(line),
        };
        let (wire, side) = SideChannels::attend(connection, move |bytes| console(bytes), log)?;
        let end = self.end_for(wire, Side::Executor)?;
        self.executor = Some(Executor { end, side, setup: None, unused: None, nudge_after, since: Instant::now() });
        Ok(())
    }

    /// Lets go of the executor, ending it when it is ours, and says how it ended when it did so by itself.
    fn drop_executor(&mut self) -> String {
        let Some(Executor { end, mut side, .. }) = self.executor.take() else { return String::new() };
        let how = side.how_it_ended(Duration::ZERO).map_or_else(String::new, |end| format!("; {end}"));
        close(end);
        side.end(FLUSH_LIMIT);
        how
    }

    /// Waits until the executor's introduction is there. On failure says what it did instead.
    fn await_setup(&mut self, limit: Duration) -> Result<(), NoSetup> {
        let deadline = Instant::now() + limit;
        loop {
            match &self.executor {
                None => return Err(NoSetup::Gone(String::from("is not connected"))),
                Some(executor) if executor.setup.is_some() => return Ok(()),
                Some(_) => {}
            }
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Heard { side: Side::Executor, number, heard }) if self.is_current(number) => match heard {
                    Heard::Message(message) => self.keep_setup(message),
                    Heard::Closed => {
                        return Err(NoSetup::Gone(String::from("closed the connection before it introduced itself")));
                    }
                    Heard::Broken(why) => return Err(NoSetup::Gone(format!("did not introduce itself: {why}"))),
                },
                Ok(Event::Heard { .. }) => {}
                Ok(Event::Client(wire)) => self.waiting.push_back((Instant::now(), wire)),
                Ok(Event::Stop) => {
                    self.stopping = true;
                    return Err(NoSetup::Stopped);
                }
                Err(_) => return Err(NoSetup::Silent(limit)),
            }
        }
    }

    fn is_current(&self, number: u64) -> bool {
        self.executor.as_ref().is_some_and(|executor| executor.end.number == number)
    }

    /// Keeps a Setup for the next client; anything else belongs to a session that is over.
    fn keep_setup(&mut self, message: WholeMessage) {
        if let (Some(executor), Message::Setup(_)) = (&mut self.executor, message.message()) {
            executor.setup = Some(message);
            executor.unused = None;
        }
    }

    /// Waits for a client, keeping an executor of ours up meanwhile; `None` when the relay is to stop.
    fn next_client(&mut self) -> Result<Option<Wire>, RelayError> {
        loop {
            if self.stopping {
                return Ok(None);
            }
            if let Some((_, wire)) = self.waiting.pop_front() {
                return Ok(Some(wire));
            }
            match self.events.recv() {
                Ok(Event::Client(wire)) => return Ok(Some(wire)),
                Ok(Event::Stop) | Err(_) => {
                    self.stopping = true;
                    return Ok(None);
                }
                Ok(Event::Heard { side: Side::Executor, number, heard }) if self.is_current(number) => match heard {
                    Heard::Message(message) => self.keep_setup(message),
                    Heard::Closed | Heard::Broken(_) => self.restart()?,
                },
                Ok(Event::Heard { .. }) => {}
            }
        }
    }

    /// The executor is gone while nobody used it.
    fn restart(&mut self) -> Result<(), RelayError> {
        let age = self.executor.as_ref().map_or(Duration::MAX, |executor| executor.since.elapsed());
        let how = self.lost_executor("");
        if !self.reach.is_ours {
            // It may be there again when the next client comes.
            return Ok(());
        }
        self.quick_ends = if age < TOO_SOON { self.quick_ends + 1 } else { 0 };
        if self.quick_ends >= MOST_QUICK_ENDS {
            let what = String::from("ends as soon as it is started");
            return Err(RelayError::NoSetup { target: self.reach.target.clone(), what, circumstances: how });
        }
        (self.hooks.note)(&format!("the executor ended{how}; starting it again"));
        self.prepare()
    }

    /// Waits for the executor's introduction after a client. What is still on its way to it takes its time.
    fn await_renewal(&mut self) -> Result<(), NoSetup> {
        loop {
            let silent = match self.await_setup(RENEW_LIMIT) {
                Err(silent @ NoSetup::Silent(_)) => silent,
                other => return other,
            };
            let progress = self.executor.as_ref().is_some_and(|executor| executor.end.written_within(RENEW_LIMIT));
            if !progress {
                return Err(silent);
            }
            self.turn_away("the executor is still taking what the last client sent");
        }
    }

    /// After a client: waits for the executor to clean up, or starts it afresh.
    fn renew(&mut self) -> Result<(), RelayError> {
        if let Some(executor) = &self.executor {
            let owed = executor.end.owed();
            if self.reach.is_ours && owed > MOST_OWED {
                self.drop_executor();
                (self.hooks.note)(&format!(
                    "the executor still had {owed} bytes of the last client to take; starting it again"
                ));
                return self.prepare();
            }
            match self.await_renewal() {
                Ok(()) => return Ok(()),
                Err(NoSetup::Stopped) => return Ok(()),
                Err(what @ NoSetup::Silent(_)) if self.reach.is_ours => {
                    self.drop_executor();
                    (self.hooks.note)(&format!("the executor {what}; starting it again"));
                }
                Err(_) => {
                    // One session per process or connection is the custom of many executors: the next client gets a new one.
                    self.drop_executor();
                }
            }
        }
        if self.reach.is_ours { self.prepare() } else { Ok(()) }
    }
}

/// Closes one end and forgets what could not be said to it.
fn close(end: Endpoint) {
    // It is gone, and so is whoever could be told.
    drop(end.close(FLUSH_LIMIT));
}

fn hangup(reason: &str) -> WholeMessage {
    WholeMessage::new(&Message::Hangup(Some(Outcome(Err(Text::new(reason))))))
}

fn hangup_in_order() -> WholeMessage {
    WholeMessage::new(&Message::Hangup(Some(Outcome(Ok(())))))
}
