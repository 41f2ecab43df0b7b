//! The last lines of an executor's log, for whoever has to say why it failed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many lines are kept.
const KEPT_LINES: usize = 8;
/// How an executor's boot check begins when it ends the start.
const BOOT_FAILURE: &str = "cannot start: ";

/// The last lines of the executor's log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogTail(Arc<Mutex<VecDeque<String>>>);

impl LogTail {
    pub(super) fn push(&self, line: &str) {
        let mut lines = self.lines();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    /// The lines, to stand behind an error; empty when there are none.
    pub(super) fn describe(&self) -> String {
        let shown: String = self.lines().iter().map(|line| format!("\n  {line}")).collect();
        if shown.is_empty() { shown } else { format!("; the executor's log ends with:{shown}") }
    }

    /// Why the executor could not start, when its boot check says so.
    pub(super) fn boot_failure(&self) -> Option<String> {
        let lines = self.lines();
        let text = lines.iter().rev().find_map(|line| line.find(BOOT_FAILURE).map(|at| line.split_at(at).1));
        text.map(str::to_owned)
    }

    fn lines(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_a_boot_failure_is_found() {
        let tail = LogTail::default();
        assert_eq!((tail.describe(), tail.boot_failure()), (String::new(), None));
        for number in 0..20 {
            tail.push(&format!("line {number}"));
        }
        assert!(tail.describe().starts_with("; the executor's log ends with:\n  line 12\n"), "{}", tail.describe());
        tail.push("graft: cannot start: too little memory");
        tail.push("more");
        assert_eq!(tail.boot_failure().as_deref(), Some("cannot start: too little memory"));
    }
}
