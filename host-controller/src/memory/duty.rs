//! The duty to give memory back.

use graft_protocol::ExecRange;

use crate::session::Caller;

/// Complains when it is dropped before it was discharged, unless the session is over: then the executor has freed all.
#[derive(Debug)]
pub(super) struct Duty {
    caller: Caller,
    range: ExecRange,
    open: bool,
}

impl Duty {
    pub(super) const fn new(caller: Caller, range: ExecRange) -> Self {
        Self { caller, range, open: true }
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
        let complaint = format!("memory of the executor was forgotten: {}", self.range);
        debug_assert!(!self.open, "{complaint}");
        eprintln!("graft: bug: {complaint}");
    }
}
