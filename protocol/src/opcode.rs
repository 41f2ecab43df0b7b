//! The opcodes of SimpleRemoteEPC.

use core::fmt;

/// What a message is. Four are defined; any other value is data until a reader refuses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u64);

impl Opcode {
    /// The executor introduces itself: once, first, before anything else.
    pub const SETUP: Self = Self(0);
    /// Either side ends the session.
    pub const HANGUP: Self = Self(1);
    /// The answer to a call that travelled the other way.
    pub const RESULT: Self = Self(2);
    /// A call of a wrapper function.
    pub const CALL_WRAPPER: Self = Self(3);
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SETUP => f.write_str("Setup"),
            Self::HANGUP => f.write_str("Hangup"),
            Self::RESULT => f.write_str("Result"),
            Self::CALL_WRAPPER => f.write_str("CallWrapper"),
            Self(other) => write!(f, "opcode {other:#x}"),
        }
    }
}
