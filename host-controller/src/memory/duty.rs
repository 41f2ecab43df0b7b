//! The duty to give memory back.

use std::fmt;

use graft_protocol::ExecRange;

use crate::session::Caller;

/// What there is a duty to give back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Held {
    /// So many bytes, on their way.
    Asked(u64),
    /// Memory at a known place.
    Range(ExecRange),
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(size) => write!(f, "{size} bytes that were asked for"),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// Complains when it is dropped before it was discharged, unless the session is over: then the executor has freed all.
#[derive(Debug)]
pub(super) struct Duty {
    caller: Caller,
    held: Held,
    open: bool,
}

impl Duty {
    pub(super) const fn new(caller: Caller, held: Held) -> Self {
        Self { caller, held, open: true }
    }

    pub(super) fn discharge(mut self) {
        self.open = false;
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.open || self.caller.end().is_some() || std::thread::panicking() {
            return;
        }
        let complaint = format!("bug: memory of the executor was forgotten: {}", self.held);
        self.caller.note(&complaint);
        debug_assert!(!self.open, "{complaint}");
    }
}
