//! What a session's threads share, and what the reading and the answering thread do.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::iter;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use graft_protocol::{ExecAddr, Message, Outcome};

use super::watched::{Watched, WriteError};
use super::{Caller, End, MessageReader, Options, Peer, PeerError, WholeMessage, figures};

/// A handler for calls, with whom it may call.
type CallHandler = dyn Fn(&Caller, &[u8]) -> Vec<u8> + Send + Sync;

/// A handler for outputs.
type OutputHandler = dyn FnMut(&[u8]) + Send;

#[derive(Clone)]
pub(super) enum Handler {
    Call(Arc<CallHandler>),
    Output(Arc<Mutex<OutputHandler>>),
}

pub(super) struct Inner {
    pub(super) peer: OnceLock<Peer>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) writer: Mutex<Watched>,
    pub(super) shut: Box<dyn Fn() + Send + Sync>,
    pub(super) handlers: Mutex<HashMap<ExecAddr, Handler>>,
    /// Numbers of outputs to answer; none once the session is over, which ends the thread that does.
    pub(super) answers: Mutex<Option<mpsc::Sender<u64>>>,
    pub(super) figures: figures::Counters,
    pub(super) options: Options,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("peer", &self.peer).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) next: u64,
    pub(super) slots: HashMap<u64, Slot>,
    /// The longest chain of answers taken so far: see [`super::Figures::round_trips`].
    pub(super) depth: u64,
    pub(super) unusable: Option<PeerError>,
    pub(super) may_repeat_setup: bool,
    /// The executor was told that somebody is there.
    pub(super) nudged: bool,
    /// A Hangup that came before the Setup, and so may have been for whoever was there before.
    pub(super) early_hangup: Option<End>,
    /// Outputs taken and not answered yet.
    pub(super) unanswered: u64,
    pub(super) closing: bool,
    /// No answer is wanted any more.
    pub(super) interrupted: bool,
    /// The executor let a wait run out, and nothing came since.
    pub(super) silent: bool,
    pub(super) end: Option<End>,
}

#[derive(Debug)]
pub(super) enum Slot {
    Waiting,
    Arrived(WholeMessage, Instant),
    /// Nobody wants the answer any more.
    Ignored,
}

pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No state here is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A number for a new call, and its depth in the chain of round trips.
    pub(super) fn number(&self) -> Result<(u64, u64), End> {
        let mut state = self.lock();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        let number = state.next;
        state.next += 1;
        state.slots.insert(number, Slot::Waiting);
        Ok((number, state.depth + 1))
    }

    /// Writes a message, in one write.
    pub(super) fn send(&self, message: &WholeMessage) -> Result<(), End> {
        self.write(message.bytes(), 1)
    }

    /// Writes messages, in one write.
    fn send_all(&self, messages: &[WholeMessage]) -> Result<(), End> {
        let bytes: Vec<_> = messages.iter().flat_map(|message| message.bytes().iter().copied()).collect();
        self.write(&bytes, messages.len())
    }

    fn write(&self, bytes: &[u8], messages: usize) -> Result<(), End> {
        let written = {
            let mut writer = lock(&self.writer);
            writer.write(bytes, self.options.patience, &self.shut)
        };
        let error = match written {
            Ok(()) => {
                self.figures.sent(bytes.len(), messages);
                return Ok(());
            }
            Err(WriteError::Stuck(quiet)) => {
                self.end(End::Stuck(quiet));
                return Err(End::Stuck(quiet));
            }
            Err(WriteError::Failed(error)) => error,
        };
        // What the executor said before it closed explains more than the failed write; it may still be on its way.
        let state = self.lock();
        let told = Duration::from_millis(300);
        let waited = self.changed.wait_timeout_while(state, told, |state| state.end.is_none());
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let end = state.end.clone().unwrap_or_else(|| End::Broken(error.to_string()));
        drop(state);
        self.end(end.clone());
        Err(end)
    }

    /// Waits until `deadline` for a Setup, or for the end; says whether either came.
    pub(super) fn setup_arrives(&self, deadline: Instant) -> bool {
        let limit = deadline.saturating_duration_since(Instant::now());
        let waiting = |state: &mut State| state.end.is_none() && self.peer.get().is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), limit, waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The session is over; the first reason counts.
    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        let end = if state.closing { End::Here } else { end };
        state.end.get_or_insert(end);
        drop(state);
        lock(&self.answers).take();
        self.changed.notify_all();
    }
}

/// The reading thread's whole life.
pub(super) fn read_all(inner: &Arc<Inner>, mut reader: MessageReader<Box<dyn Read + Send>>) {
    let end = loop {
        match reader.next_message() {
            Ok(Some(message)) => {
                inner.figures.received(message.bytes().len());
                inner.lock().silent = false;
                if let Err(end) = receive(inner, message) {
                    break end;
                }
            }
            Ok(None) => break End::Closed,
            Err(error) => break End::Broken(error.to_string()),
        }
    };
    inner.end(end);
    // No handler is called any more, and what they hold may be this very session.
    let handlers = std::mem::take(&mut *lock(&inner.handlers));
    drop(handlers);
}

/// The answering thread's whole life: answers outputs, as many in one write as there are.
pub(super) fn answer_outputs(inner: &Inner, to_answer: &mpsc::Receiver<u64>) {
    while let Ok(first) = to_answer.recv() {
        let numbers: Vec<_> = iter::once(first).chain(to_answer.try_iter()).collect();
        let answers: Vec<_> = numbers
            .iter()
            .map(|seq_no| WholeMessage::new(&Message::Result { seq_no: *seq_no, payload: &[] }))
            .collect();
        // A failed write ends the session, which whoever waits is told.
        let _ = inner.send_all(&answers);
        inner.lock().unanswered -= numbers.len() as u64;
        inner.changed.notify_all();
    }
}

/// Deals with one message of the executor; an error ends the session.
fn receive(inner: &Arc<Inner>, whole: WholeMessage) -> Result<(), End> {
    let begun = inner.peer.get().is_some();
    match whole.message() {
        Message::Setup(_) if begun => match std::mem::take(&mut inner.lock().may_repeat_setup) {
            true => Ok(()),
            false => Err(End::Restarted),
        },
        Message::Setup(setup) => {
            let peer = Peer::new(&setup).map_err(|error| {
                inner.lock().unusable = Some(error.clone());
                End::OutOfPlace(error.to_string())
            })?;
            // Under the lock, so that whoever looked a moment ago is woken; and this thread alone ever sets it.
            let state = inner.lock();
            let _ = inner.peer.set(peer);
            drop(state);
            inner.changed.notify_all();
            Ok(())
        }
        Message::Hangup(reason) => {
            let end = match reason {
                Some(Outcome(Err(reason))) => End::HungUpBecause(reason.to_string()),
                _ => End::HungUp,
            };
            let mut state = inner.lock();
            if begun || !state.nudged {
                return Err(end);
            }
            // The executor may only now have noticed that whoever was there before has left.
            state.early_hangup = Some(end);
            Ok(())
        }
        message if !begun => Err(End::OutOfPlace(format!("{} came before the Setup", message.head().0))),
        Message::Result { seq_no, .. } => {
            let mut state = inner.lock();
            // It has seen a call of this session: a Setup from before cannot follow any more.
            state.may_repeat_setup = false;
            match state.slots.get(&seq_no) {
                Some(Slot::Waiting) => {
                    state.slots.insert(seq_no, Slot::Arrived(whole, Instant::now()));
                }
                Some(Slot::Ignored) => {
                    state.slots.remove(&seq_no);
                }
                Some(Slot::Arrived(..)) | None => {
                    return Err(End::OutOfPlace(format!("a Result for call {seq_no}, which waits for none")));
                }
            }
            drop(state);
            inner.changed.notify_all();
            Ok(())
        }
        Message::Call { seq_no, target, args } => {
            let handler = lock(&inner.handlers).get(&target).cloned();
            if let Some(Handler::Output(output)) = handler {
                // Before it is handled, so that the end of the session waits for its answer.
                inner.lock().unanswered += 1;
                (lock(&output))(args);
                if let Some(answers) = &*lock(&inner.answers) {
                    // The thread that answers lives as long as the sender.
                    let _ = answers.send(seq_no);
                }
                return Ok(());
            }
            let caller = Caller(Arc::clone(inner));
            let answer = move |whole: &WholeMessage| {
                let payload = match (&handler, whole.message()) {
                    (Some(Handler::Call(handler)), Message::Call { args, .. }) => handler(&caller, args),
                    _ => {
                        caller.note(&format!("the executor called handler {target}, which is not there"));
                        Vec::new()
                    }
                };
                // A failed write ends the session, which whoever waits is told.
                let _ = caller.0.send(&WholeMessage::new(&Message::Result { seq_no, payload: &payload }));
            };
            // Not on this thread: the answer may have to wait until the executor reads, and it may be writing.
            let answering = thread::Builder::new().name(String::from("session handler"));
            answering
                .spawn(move || answer(&whole))
                .map(drop)
                .map_err(|error| End::Broken(format!("no thread to answer a call: {error}")))
        }
    }
}
