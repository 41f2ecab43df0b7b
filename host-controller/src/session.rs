//! Sessions: typed calls of wrapper functions over any byte pipe.
//!
//! A [`Session`] owns one connection. [`Caller::start`] sends a call and returns at once with a [`Pending`] answer, any
//! number of which may be in flight; [`Caller::call`] starts and waits. A thread of the session's own reads the
//! connection without pause, whoever waits for what: an executor whose line is full stands still.
//!
//! The executor calls back through handlers, registered by tag. [`Caller::on_call`] answers, each call on a thread of its
//! own, so that it may make calls itself; [`Caller::on_output`] takes messages that need no answer but an empty one, such
//! as console output, in order, on the reading thread. The reading thread itself never writes: all answers come from
//! other threads, so that neither direction of the connection can block the other.
//!
//! What the session says of itself in numbers is in [`Figures`]. It speaks no dialect: see [`Peer`] for how they are
//! told apart.

mod channel;
mod error;
mod figures;
mod incoming;
mod peer;
mod pending;
#[cfg(test)]
mod tests;
mod watched;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use graft_protocol::{Encode, ExecAddr, Message, Outcome, Wrapper, decode, encode, encoded_len};

use self::channel::{Handler, Inner, State, answer_outputs, lock, read_all};
use self::watched::Watched;

pub use error::{CallError, End, OpenError};
pub use figures::Figures;
pub(crate) use incoming::{DEFAULT_LIMIT, MessageReader, WholeMessage};
pub use peer::{Peer, PeerError};
pub use pending::{Pending, Reply};
pub use wire::Wire;

/// How long an executor may take to introduce itself.
///
/// An executor on a line that does not know connections may still be in the middle of a message of whoever was there
/// before: it then says so after its stall limit (`STALL_MILLIS` in the runtime, 10 s), drains the line for up to 2 s more
/// and only then begins afresh. This is well above both together.
pub const SETUP_PATIENCE: Duration = Duration::from_secs(20);

/// What a session may take, and whom it tells.
pub struct Options {
    /// The largest message taken from the executor, header included, in bytes.
    pub message_limit: u64,
    /// How long the executor may take to introduce itself.
    pub setup_patience: Duration,
    /// When the executor is still silent after this time, it is told that whoever was there before has left.
    ///
    /// A bare machine on a line that has no notion of connections introduces itself once per session and may have done
    /// so when nobody listened.
    pub nudge_after: Option<Duration>,
    /// How long [`Pending::wait`] waits for the answer to a call that runs no loaded code, not counting the time its bytes may
    /// take on the slowest line; and for how long the executor may take none of the bytes of a message.
    pub patience: Duration,
    /// Is told what is odd and yet no error.
    pub note: Box<dyn Fn(&str) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            message_limit: DEFAULT_LIMIT,
            setup_patience: SETUP_PATIENCE,
            nudge_after: None,
            patience: Duration::from_secs(20),
            note: Box::new(|_| {}),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Options {{ message_limit: {}, patience: {:?}, .. }}", self.message_limit, self.patience)
    }
}

/// Asks an executor that is silent for its Setup. A session that ends says how it went, this does not: so a relay can tell
/// who has not heard the Setup yet from who leaves without a call.
pub(crate) const NUDGE: Message<'static> = Message::Hangup(None);

/// How long the end of a session waits for answers that are on their way out.
const ANSWERS_LIMIT: Duration = Duration::from_millis(500);

/// One connection to an executor, from its Setup to its Hangup. Dropping it closes the connection.
#[derive(Debug)]
pub struct Session {
    caller: Caller,
}

impl Session {
    /// Begins a session: waits for the executor's Setup.
    ///
    /// # Errors
    /// When none comes, or the executor cannot be worked with.
    pub fn open(wire: Wire, options: Options) -> Result<Self, OpenError> {
        let Wire { reader, writer, shut } = wire;
        let (message_limit, patience, nudge_after) =
            (options.message_limit, options.setup_patience, options.nudge_after);
        let (answers, to_answer) = mpsc::channel();
        let inner = Arc::new(Inner {
            peer: OnceLock::new(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            writer: Mutex::new(Watched::new(writer)),
            shut,
            handlers: Mutex::new(HashMap::new()),
            answers: Mutex::new(Some(answers)),
            figures: figures::Counters::default(),
            options,
        });
        let session = Self { caller: Caller(Arc::clone(&inner)) };
        let answering = Arc::clone(&inner);
        let spawned = thread::Builder::new()
            .name(String::from("session answers"))
            .spawn(move || answer_outputs(&answering, &to_answer))
            .and_then(|_| {
                let reading = thread::Builder::new().name(String::from("session reader"));
                reading.spawn(move || read_all(&inner, MessageReader::new(reader, message_limit)))
            });
        spawned.map_err(|error| End::Broken(format!("no thread to attend it: {error}")))?;
        let inner = &session.caller.0;
        let began = Instant::now();
        if let Some(nudge) = nudge_after.filter(|nudge| *nudge < patience)
            && !inner.setup_arrives(began + nudge)
        {
            {
                let mut state = inner.lock();
                // It may have introduced itself at this very moment, and will then do so again.
                state.may_repeat_setup = true;
                state.nudged = true;
            }
            // Failing to say so shows as the end of the session.
            let _ = inner.send(&WholeMessage::new(&NUDGE));
        }
        if !inner.setup_arrives(began + patience) {
            return Err(OpenError::Silent(patience));
        }
        let state = inner.lock();
        if let Some(error) = state.unusable.clone() {
            return Err(error.into());
        }
        if inner.peer.get().is_none() {
            // What it said explains more than that it closed afterwards.
            let end = state.early_hangup.clone().or_else(|| state.end.clone());
            return Err(end.unwrap_or(End::Closed).into());
        }
        drop(state);
        Ok(session)
    }

    /// Ends the session in order: says so, closes, and returns the session's figures.
    pub fn finish(self) -> Figures {
        let inner = &self.caller.0;
        let over = {
            let mut state = inner.lock();
            state.closing = true;
            state.end.is_some()
        };
        if !over {
            // The executor must not find answers behind the Hangup, where its next session begins.
            let waiting = |state: &mut State| state.unanswered > 0 && state.end.is_none();
            drop(inner.changed.wait_timeout_while(inner.lock(), ANSWERS_LIMIT, waiting));
            // When it cannot be said, the connection is closed already.
            let _ = inner.send(&WholeMessage::new(&Message::Hangup(Some(Outcome(Ok(()))))));
        }
        self.figures()
    }

    /// A handle for handlers and other threads; it keeps nothing open.
    #[must_use]
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }
}

impl Deref for Session {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let inner = &self.caller.0;
        inner.lock().closing = true;
        (inner.shut)();
        inner.end(End::Here);
    }
}

/// Makes calls in a session.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Inner>);

impl Caller {
    /// The executor.
    ///
    /// # Panics
    /// Never: a session that has begun knows its executor.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        #[expect(clippy::expect_used, reason = "`open` returns no session without it")]
        self.0.peer.get().expect("a session that has begun knows its executor")
    }

    /// Sends a call of `W` and returns without waiting for its answer.
    ///
    /// # Errors
    /// When the executor does not offer it or does not take messages that large, or the session is over.
    pub fn start<W: Wrapper>(&self, args: &W::Args<'_>) -> Result<Pending<W>, CallError> {
        let wrapper = W::ID;
        let target = self.peer().wrapper(wrapper).ok_or(CallError::NotOffered { wrapper })?;
        let args_len = encoded_len(args);
        let size = args_len as u64 + graft_protocol::Header::SIZE as u64;
        let limit = self.peer().max_message();
        if size > limit {
            return Err(CallError::TooLarge { wrapper, size, limit });
        }
        let (seq_no, depth) = self.0.number().map_err(|end| CallError::Ended { wrapper, end })?;
        let message = WholeMessage::call(seq_no, target, args_len, |out| {
            // The buffer is as long as the encoding.
            let _ = encode::<dyn Encode>(args, out);
        });
        let pending = Pending::new(Arc::clone(&self.0), seq_no, depth, message.bytes().len());
        match self.0.send(&message) {
            Ok(()) => Ok(pending),
            Err(end) => Err(CallError::Ended { wrapper, end }),
        }
    }

    /// Calls `W` and waits for its answer.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Pending::wait`].
    pub fn call<W: Wrapper>(&self, args: &W::Args<'_>) -> Result<Reply<W>, CallError> {
        self.start::<W>(args)?.wait()
    }

    /// Answers the executor's calls of `tag` with what `handler` returns. It runs on a thread of its own and may call.
    pub fn on_call(&self, tag: ExecAddr, handler: impl Fn(&Self, &[u8]) -> Vec<u8> + Send + Sync + 'static) {
        lock(&self.0.handlers).insert(tag, Handler::Call(Arc::new(handler)));
    }

    /// Takes the executor's messages of type `W` that go to `tag`, in order. Each is answered with nothing once `handler`
    /// has returned.
    ///
    /// `handler` must not call: no answer is read while it runs.
    pub fn on_output<W: Wrapper>(&self, tag: ExecAddr, mut handler: impl FnMut(W::Args<'_>) + Send + 'static) {
        // Not the session itself, which owns its handlers.
        let inner = Arc::downgrade(&self.0);
        let output = move |args: &[u8]| match decode::<W::Args<'_>>(args) {
            Ok(args) => handler(args),
            Err(error) => {
                if let Some(inner) = inner.upgrade() {
                    (inner.options.note)(&format!("a message of {:?} makes no sense: {error}", W::ID));
                }
            }
        };
        lock(&self.0.handlers).insert(tag, Handler::Output(Arc::new(Mutex::new(output))));
    }

    /// Ends every wait for an answer, now and from now on, in [`CallError::Interrupted`]. What has arrived can be taken.
    /// May be called anywhere, also by those who take output.
    pub fn interrupt(&self) {
        self.0.lock().interrupted = true;
        self.0.changed.notify_all();
    }

    /// What the session cost so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.figures.read(self.0.lock().depth)
    }

    /// Why the session is over, or `None` while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.0.lock().end.clone()
    }

    pub(crate) fn note(&self, text: &str) {
        (self.0.options.note)(text);
    }
}
