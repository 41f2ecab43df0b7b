//! The seam to the byte channel: whatever carries the protocol, a serial port, a socket, two pipes or a test's queue.

use core::fmt;

use graft_protocol::{Header, Opcode};

/// How long a read may wait for its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Between messages: for ever, costing the host nothing.
    Idle,
    /// Between messages, but no longer than this: then the read is [`LineError::Stalled`].
    UpTo {
        /// The limit.
        millis: u64,
    },
    /// Inside a message: the peer is expected to go on; a long silence is [`LineError::Stalled`].
    MidMessage,
}

/// Why no byte came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// The peer closed its end.
    Closed,
    /// The peer stopped in the middle of a message for this many milliseconds.
    Stalled {
        /// The limit that ran out.
        millis: u64,
    },
    /// The peer sends and does not read: for this many milliseconds there was no room for an answer, nor for more requests.
    NotReading {
        /// The limit that ran out.
        millis: u64,
    },
    /// Bytes were lost on their way.
    Overrun,
    /// Bytes came garbled.
    Garbled,
    /// The line broke: the peer went away, or wants attention.
    Break,
    /// The channel failed; the operating system's error number.
    Os(i32),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the line"),
            Self::Stalled { millis } => write!(f, "the peer fell silent inside a message for {millis} ms"),
            Self::NotReading { millis } => {
                write!(f, "the peer sends requests and reads no answers: nothing could be sent for {millis} ms")
            }
            Self::Overrun => f.write_str("bytes were lost on the line: they came faster than they were read"),
            Self::Garbled => f.write_str("bytes came garbled over the line: noise, or another speed"),
            Self::Break => f.write_str("the line broke (a break condition)"),
            Self::Os(number) => write!(f, "the line failed (system error {number})"),
        }
    }
}

impl LineError {
    /// Whether the peer may still be there, so that it can be told, and another session can follow on the same line.
    pub(crate) const fn leaves_the_line(self) -> bool {
        match self {
            Self::Stalled { .. } | Self::Overrun | Self::Garbled | Self::Break => true,
            Self::Closed | Self::NotReading { .. } | Self::Os(_) => false,
        }
    }
}

impl core::error::Error for LineError {}

/// A reliable byte channel in both directions. Methods take `&self`: reads and writes interleave across nested calls.
pub trait Line {
    /// Reads at least one byte into `out` (which is not empty) and returns how many.
    ///
    /// # Errors
    /// When the peer is gone, or silent for too long inside a message, or bytes were damaged on their way.
    fn read(&self, out: &mut [u8], patience: Patience) -> Result<usize, LineError>;

    /// Writes all of `bytes`; when it returns they are on their way.
    ///
    /// # Errors
    /// When the peer is gone.
    fn write(&self, bytes: &[u8]) -> Result<(), LineError>;

    /// Discards what arrives until the line has been quiet for a while, after the message boundaries were lost; gives up
    /// after some seconds on a line that is never quiet.
    fn drain(&self);

    /// Tells what the session does with the line, for lines that watch it while loaded code runs.
    fn enter(&self, _phase: Phase) {}
}

/// What a session does with its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It takes a message: the bytes still to be read do not begin with one.
    Taking,
    /// It works. What comes next begins with a message, and when a Hangup is among what has come ([`has_hangup`]), or the
    /// peer is gone, loaded code that runs is to end.
    Between,
    /// It is over. Loaded code that runs in it is to end.
    Over,
}

/// Whether there is a Hangup among the messages that have arrived and were not read, of which `byte` gives the bytes.
#[must_use]
pub fn has_hangup(byte: impl Fn(usize) -> Option<u8>) -> bool {
    let word = |at: usize| -> Option<u64> {
        let mut word = [0; 8];
        for (offset, slot) in word.iter_mut().enumerate() {
            *slot = byte(at.checked_add(offset)?)?;
        }
        Some(u64::from_le_bytes(word))
    };
    let mut at = 0_usize;
    loop {
        // A header begins with the size of the message and the opcode (protocol specification, section 1).
        let (Some(size), Some(opcode)) = (word(at), word(at.saturating_add(8))) else { return false };
        if opcode == Opcode::HANGUP.0 {
            return true;
        }
        match usize::try_from(size).ok().and_then(|size| at.checked_add(size)) {
            Some(next) if size >= Header::SIZE as u64 => at = next,
            // What comes is no message, and ends the session when it is read.
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use graft_protocol::{ExecAddr, Opcode};

    use super::*;

    fn message(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        [&Header::bytes(opcode, 0, ExecAddr::NULL, payload.len())[..], payload].concat()
    }

    fn found(bytes: &[u8]) -> bool {
        has_hangup(|at| bytes.get(at).copied())
    }

    #[test]
    fn a_hangup_is_found_behind_whole_messages_and_nowhere_else() {
        // A payload that looks like a Hangup is none.
        let call = message(Opcode::CALL_WRAPPER, &message(Opcode::HANGUP, b"\0"));
        let hangup = message(Opcode::HANGUP, b"\0");
        assert!(!found(b"") && !found(&call) && !found(&call[..40]) && found(&hangup));
        let all = [&call[..], &call, &hangup].concat();
        // The size and the opcode suffice.
        let known = 2 * call.len() + 16;
        assert!((0..known).all(|end| !found(&all[..end])) && (known..all.len()).all(|end| found(&all[..end])));
        for size in [0, 31, u64::MAX, u64::MAX - 40] {
            let mut wild = all.clone();
            wild[..8].copy_from_slice(&size.to_le_bytes());
            assert!(!found(&wild), "{size}");
        }
    }
}
