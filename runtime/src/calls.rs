//! What is under way between the two sides: how deep loaded code is nested, what the controller still has to answer, and
//! whether the session is over.
//!
//! Calls to the controller are numbered from 0, as LLVM's executor does. Console output uses numbers of its own, with
//! the top bit set: nobody waits for those answers, so they are only counted.

use alloc::vec::Vec;

use crate::run::Way;
use crate::session::SessionEnd;

/// Set in the numbers of console calls.
const CONSOLE: u64 = 1 << 63;

/// A call to the controller that loaded code waits for.
#[derive(Debug)]
struct Pending {
    seq_no: u64,
    answer: Option<Vec<u8>>,
}

/// What becomes of a Result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Taken,
    /// Nobody made that call, or it was answered before.
    Unknown,
    /// The answer is lost: there is no memory for it.
    NoMemory,
}

/// State of the calls of one session.
#[derive(Debug)]
pub(crate) struct Calls {
    next: u64,
    pending: Vec<Pending>,
    /// Numbers of the controller's calls that are being served: one, and one more per nested call.
    serving: Vec<u64>,
    console_next: u64,
    console_unanswered: u64,
    depth: usize,
    end: Option<SessionEnd>,
    main_done: bool,
    newer_dialect: bool,
    exited: bool,
}

impl Calls {
    pub(crate) const fn new() -> Self {
        Self {
            next: 0,
            pending: Vec::new(),
            serving: Vec::new(),
            console_next: 0,
            console_unanswered: 0,
            depth: 0,
            end: None,
            main_done: false,
            newer_dialect: false,
            exited: false,
        }
    }

    /// Why the session is over, if it is.
    pub(crate) const fn end(&self) -> Option<SessionEnd> {
        self.end
    }

    /// Ends the session; the first reason stands. Returns whether this was the first.
    pub(crate) const fn set_end(&mut self, end: SessionEnd) -> bool {
        let first = self.end.is_none();
        if first {
            self.end = Some(end);
        }
        first
    }

    /// Notes that `run_as_main` was done.
    pub(crate) const fn set_main_done(&mut self) {
        self.main_done = true;
    }

    /// Notes that the controller asked for something that LLVM 19's and 22's tools do not know.
    pub(crate) const fn set_newer_dialect(&mut self) {
        self.newer_dialect = true;
    }

    /// Whether `run_as_main` was done, by a tool of LLVM 19 or 22 for all we know.
    pub(crate) const fn is_main_done(&self) -> bool {
        self.main_done && !self.newer_dialect
    }

    /// Whether the controller may be a tool of LLVM 19 or 22.
    pub(crate) const fn may_be_llvm_tool(&self) -> bool {
        !self.newer_dialect
    }

    /// Notes that loaded code called `exit`, which ends the innermost call.
    pub(crate) const fn set_exited(&mut self) {
        self.exited = true;
    }

    /// One more, unless there are `limit` already.
    pub(crate) const fn enter(&mut self, limit: usize) -> bool {
        let allowed = self.depth < limit;
        if allowed {
            self.depth += 1;
        }
        allowed
    }

    /// One less; says how the innermost was left.
    pub(crate) const fn leave(&mut self) -> Way {
        self.depth = self.depth.saturating_sub(1);
        if core::mem::replace(&mut self.exited, false) { Way::Exited } else { Way::Returned }
    }

    /// Notes that the controller's call `seq_no` is being served; `false` when one of that number is already.
    pub(crate) fn begin_serving(&mut self, seq_no: u64) -> bool {
        if self.serving.contains(&seq_no) {
            return false;
        }
        // Without memory for the record a duplicate would go unnoticed, no more.
        if self.serving.try_reserve(1).is_ok() {
            self.serving.push(seq_no);
        }
        true
    }

    /// Notes that the controller's call `seq_no` is done.
    pub(crate) fn end_serving(&mut self, seq_no: u64) {
        self.serving.retain(|number| *number != seq_no);
    }

    /// The number of a new call that will be waited for; `None` without memory for its record.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        self.pending.try_reserve(1).ok()?;
        let seq_no = self.next;
        self.next = (self.next + 1) & !CONSOLE;
        self.pending.push(Pending { seq_no, answer: None });
        Some(seq_no)
    }

    /// The answer of call `seq_no`, once it is there.
    pub(crate) fn take_answer(&mut self, seq_no: u64) -> Option<Vec<u8>> {
        let index = self.pending.iter().position(|call| call.seq_no == seq_no && call.answer.is_some())?;
        self.pending.swap_remove(index).answer
    }

    /// Forgets call `seq_no`.
    pub(crate) fn abandon(&mut self, seq_no: u64) {
        self.pending.retain(|call| call.seq_no != seq_no);
    }

    /// The number of a new console call.
    pub(crate) const fn begin_console(&mut self) -> u64 {
        let seq_no = CONSOLE | self.console_next;
        self.console_next = (self.console_next + 1) & !CONSOLE;
        self.console_unanswered += 1;
        seq_no
    }

    /// Console calls the controller has not answered yet.
    pub(crate) const fn console_unanswered(&self) -> u64 {
        self.console_unanswered
    }

    /// Takes the Result of call `seq_no`.
    pub(crate) fn deliver(&mut self, seq_no: u64, answer: &[u8]) -> Delivery {
        if seq_no & CONSOLE != 0 {
            // Which of them it answers does not matter: none carries anything.
            if seq_no & !CONSOLE >= self.console_next || self.console_unanswered == 0 {
                return Delivery::Unknown;
            }
            self.console_unanswered -= 1;
            return Delivery::Taken;
        }
        let Some(call) = self.pending.iter_mut().find(|call| call.seq_no == seq_no && call.answer.is_none()) else {
            return Delivery::Unknown;
        };
        match crate::reply::copied(answer) {
            Some(answer) => {
                call.answer = Some(answer);
                Delivery::Taken
            }
            None => Delivery::NoMemory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_calls_in_any_order() {
        let mut calls = Calls::new();
        let (a, b) = (calls.begin().unwrap(), calls.begin().unwrap());
        assert_eq!((a, b), (0, 1));
        assert_eq!(calls.take_answer(a), None);
        assert_eq!(calls.deliver(b, b"b"), Delivery::Taken);
        assert_eq!(calls.deliver(b, b"b"), Delivery::Unknown);
        assert_eq!(calls.deliver(7, b""), Delivery::Unknown);
        assert_eq!(calls.deliver(a, b""), Delivery::Taken);
        assert_eq!(calls.take_answer(a).unwrap(), b"");
        assert_eq!(calls.take_answer(b).unwrap(), b"b");
        assert_eq!(calls.take_answer(b), None);
    }

    #[test]
    fn console_answers_are_counted() {
        let mut calls = Calls::new();
        let first = calls.begin_console();
        calls.begin_console();
        assert_eq!(calls.deliver(first, b""), Delivery::Taken);
        assert_eq!(calls.deliver(first + 2, b""), Delivery::Unknown);
        assert_eq!(calls.deliver(first + 1, b""), Delivery::Taken);
        assert_eq!(calls.deliver(first + 1, b""), Delivery::Unknown);
    }

    #[test]
    fn nesting_has_a_limit() {
        let mut calls = Calls::new();
        assert!(calls.enter(2) && calls.enter(2) && !calls.enter(2));
        calls.leave();
        assert!(calls.enter(2));
    }
}
