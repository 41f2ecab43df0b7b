//! Text made for the peer or the log: as long as it must be, and never a reason to run out of memory.

use core::fmt::{self, Write as _};

use alloc::vec::Vec;

use graft_protocol::Text;

/// The longest text, in bytes: what joins a thousand failures still reaches the peer in one message.
pub(crate) const MAX_LEN: usize = 16 * 1024;

/// A text under construction. When memory or the limit ends, it is cut there.
#[derive(Debug, Default)]
pub(crate) struct TextBuf(Vec<u8>);

impl TextBuf {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The text of `value`.
    pub(crate) fn of(value: impl fmt::Display) -> Self {
        let mut text = Self::new();
        text.push(value);
        text
    }

    /// Appends the text of `value`, as far as it fits.
    pub(crate) fn push(&mut self, value: impl fmt::Display) {
        // A text that was cut is still worth sending.
        let _ = write!(self, "{value}");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_text(&self) -> Text<'_> {
        Text(&self.0)
    }
}

impl fmt::Write for TextBuf {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let bytes = s.as_bytes();
        if self.0.len().saturating_add(bytes.len()) > MAX_LEN || self.0.try_reserve(bytes.len()).is_err() {
            return Err(fmt::Error);
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl fmt::Display for TextBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_text().fmt(f)
    }
}

/// Texts of things that went wrong while the rest went on, one per line as LLVM joins its errors.
#[derive(Debug, Default)]
pub(crate) struct Failures(TextBuf);

impl Failures {
    pub(crate) const fn new() -> Self {
        Self(TextBuf::new())
    }

    /// Adds one text, on a line of its own.
    pub(crate) fn add(&mut self, failure: impl fmt::Display) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push(failure);
    }

    /// `Ok` when nothing was added.
    pub(crate) fn into_result(self) -> Result<(), TextBuf> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_lines() {
        let mut failures = Failures::new();
        failures.add("one");
        failures.add(format_args!("{}", 2));
        assert_eq!(failures.into_result().unwrap_err().as_text().0, b"one\n2");
        assert!(Failures::new().into_result().is_ok());
    }

    #[test]
    fn a_text_ends_at_its_limit() {
        let mut text = TextBuf::new();
        for _ in 0..MAX_LEN {
            text.push("abc");
        }
        assert!(text.as_text().0.len() <= MAX_LEN);
    }
}
