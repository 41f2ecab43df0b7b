//! Answers: those on their way, and those that came.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use graft_protocol::{Wrapper, decode};

use super::channel::{Inner, Slot};
use super::watched::time_on_the_slowest_line;
use super::{CallError, WholeMessage};

/// The answer to a call that was sent. Dropped, it is discarded when it comes.
#[must_use = "a call's failure shows only in its answer"]
pub struct Pending<W> {
    inner: Arc<Inner>,
    seq_no: u64,
    depth: u64,
    /// How long its message was.
    len: usize,
    of: PhantomData<fn() -> W>,
}

impl<W> Pending<W> {
    pub(super) fn new(inner: Arc<Inner>, seq_no: u64, depth: u64, len: usize) -> Self {
        Self { inner, seq_no, depth, len, of: PhantomData }
    }
}

impl<W: Wrapper> Pending<W> {
    /// Waits for the answer, for as long as the session's patience lasts: from the moment the call has arrived, which a relay
    /// or a buffer may put off for as long as its bytes take. After one wait in vain the next ones end at once, until the
    /// executor says something.
    ///
    /// # Errors
    /// When the session ends first or is interrupted, or the executor takes too long.
    pub fn wait(self) -> Result<Reply<W>, CallError> {
        let now = Instant::now();
        let patience = if self.inner.lock().silent { Duration::ZERO } else { self.inner.options.patience };
        let deadline = now.checked_add(patience.saturating_add(time_on_the_slowest_line(self.len)));
        let inner = Arc::clone(&self.inner);
        let outcome = self.wait_until(deadline);
        if let Err(CallError::TimedOut { .. }) = &outcome {
            inner.lock().silent = true;
        }
        outcome
    }

    /// Waits for the answer until `deadline`, or for ever: the form for calls that run loaded code.
    ///
    /// # Errors
    /// When the session ends first or is interrupted, or the deadline passes.
    pub fn wait_until(self, deadline: Option<Instant>) -> Result<Reply<W>, CallError> {
        let wrapper = W::ID;
        let began = Instant::now();
        let mut state = self.inner.lock();
        loop {
            if let Some(Slot::Arrived(..)) = state.slots.get(&self.seq_no)
                && let Some(Slot::Arrived(message, arrived)) = state.slots.remove(&self.seq_no)
            {
                state.depth = state.depth.max(self.depth);
                return Ok(Reply { message, arrived, of: PhantomData });
            }
            if let Some(end) = &state.end {
                return Err(CallError::Ended { wrapper, end: end.clone() });
            }
            if state.interrupted {
                return Err(CallError::Interrupted { wrapper });
            }
            let Some(deadline) = deadline else {
                state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(CallError::TimedOut { wrapper, waited: now - began });
            }
            let waited = self.inner.changed.wait_timeout(state, deadline - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<W> Drop for Pending<W> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        match state.slots.remove(&self.seq_no) {
            Some(Slot::Waiting) if state.end.is_none() => {
                state.slots.insert(self.seq_no, Slot::Ignored);
            }
            _ => {}
        }
    }
}

impl<W> fmt::Debug for Pending<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(call {})", self.seq_no)
    }
}

/// The answer to a call, in the bytes it came in.
pub struct Reply<W> {
    message: WholeMessage,
    arrived: Instant,
    of: PhantomData<fn() -> W>,
}

impl<W: Wrapper> Reply<W> {
    /// The result.
    ///
    /// # Errors
    /// When the bytes are not a result of `W`.
    pub fn read(&self) -> Result<W::Reply<'_>, CallError> {
        let payload = self.message.payload();
        decode(payload).map_err(|error| match payload {
            [] => CallError::Empty { wrapper: W::ID },
            _ => CallError::BadReply { wrapper: W::ID, error },
        })
    }

    /// When it arrived.
    #[must_use]
    pub const fn arrived(&self) -> Instant {
        self.arrived
    }
}

impl<W: Wrapper> fmt::Debug for Reply<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reply({:?}, {} bytes)", W::ID, self.message.payload().len())
    }
}
