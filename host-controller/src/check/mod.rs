//! Checks of a linked image: rules in the language of LLVM's `llvm-jitlink -check`, so that files written for it run as
//! they are.
//!
//! A rule is a line `# jitlink-check: EXPR = EXPR`, continued by a backslash at its end. Expressions know numbers, symbols,
//! `+ - & | << >>` (from left to right, none binds tighter), bits `[high:low]`, loads `*{SIZE}ADDRESS` (the address is
//! all that follows), parentheses, and `next_pc`, `decode_operand`, `stub_addr`, `got_addr` and `section_addr`.

mod expr;
mod operand;

use std::fmt;

use crate::link::{Image, printable};
use expr::Parser;

/// What a rule begins with.
const PREFIX: &str = "# jitlink-check:";

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line of its end, from 1.
    pub line: usize,
    /// The rule.
    pub rule: String,
    /// Why.
    pub reason: Reason,
}

/// Why a rule does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The sides differ.
    Unequal {
        /// The value of the left side.
        left: u64,
        /// The value of the right side.
        right: u64,
    },
    /// It has no value.
    NoValue(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: ", self.line, printable(self.rule.as_bytes()))?;
        match &self.reason {
            Reason::Unequal { left, right } => write!(f, "{left:#x} is not {right:#x}"),
            Reason::NoValue(why) => f.write_str(why),
        }
    }
}

/// What came of checking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many rules there were.
    pub rules: usize,
    /// Those that do not hold.
    pub failures: Vec<Failure>,
}

/// Checks the rules in `text`.
#[must_use]
pub fn check(image: &Image<'_>, text: &str) -> Outcome {
    let values = expr::Values::new(image);
    let mut outcome = Outcome::default();
    let mut rule = String::new();
    for (line, words) in (1..).zip(text.lines()) {
        if let Some(part) = words.trim_start().strip_prefix(PREFIX) {
            rule.push_str(part.trim_end());
        }
        if rule.is_empty() {
            continue;
        }
        if rule.ends_with('\\') {
            rule.pop();
            continue;
        }
        outcome.rules += 1;
        let whole = std::mem::take(&mut rule).trim().to_owned();
        let reason = match Parser::new(&values, &whole).rule() {
            Ok((left, right)) if left == right => continue,
            Ok((left, right)) => Reason::Unequal { left, right },
            Err(why) => Reason::NoValue(why),
        };
        outcome.failures.push(Failure { line, rule: whole, reason });
    }
    if !rule.is_empty() {
        outcome.rules += 1;
        let reason = Reason::NoValue(String::from("it goes on behind the end of the file"));
        outcome.failures.push(Failure { line: text.lines().count(), rule: rule.trim().to_owned(), reason });
    }
    outcome
}
