//! The seam to the byte channel: whatever carries the protocol, a serial port, a socket, two pipes or a test's queue.

use core::fmt;

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
            Self::Closed | Self::Os(_) => false,
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
}
