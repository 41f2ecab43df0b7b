//! The result of a wrapper function on its way to the peer: one allocation, which becomes the message.

use alloc::vec::Vec;

use graft_protocol::{Encode, Expected, Header, Opcode, Outcome, encode, encoded_len};

use crate::text::TextBuf;

/// Encoded bytes with room for a message header in front.
#[derive(Debug)]
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// No bytes: the result of a function that returns nothing, and all that can be said where a result type has no
    /// way to carry a text.
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// The encoding of `value`. Out of memory it is [`Self::EMPTY`], which no reader takes for a value.
    pub(crate) fn of<T: Encode + ?Sized>(value: &T) -> Self {
        let Some(mut bytes) = zeroed(Header::SIZE.saturating_add(encoded_len(value))) else {
            return Self::EMPTY;
        };
        match bytes.get_mut(Header::SIZE..).map(|out| encode(value, out).is_ok()) {
            Some(true) => Self(bytes),
            _ => Self::EMPTY,
        }
    }

    /// A reply of `len` bytes, for the caller to fill in.
    pub(crate) fn with_len(len: usize) -> Option<Self> {
        zeroed(Header::SIZE.checked_add(len)?).map(Self)
    }

    /// `bytes` as they are.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut reply = Self::with_len(bytes.len()).unwrap_or(Self::EMPTY);
        if let Some(out) = reply.payload_mut().get_mut(..bytes.len()) {
            out.copy_from_slice(bytes);
        }
        reply
    }

    /// An SPS `Expected`.
    pub(crate) fn expected<T: Encode>(result: Result<T, TextBuf>) -> Self {
        Self::of(&Expected(result.as_ref().map_err(TextBuf::as_text)))
    }

    /// An SPS `Error`.
    pub(crate) fn outcome(result: Result<(), TextBuf>) -> Self {
        Self::of(&Outcome(result.as_ref().copied().map_err(TextBuf::as_text)))
    }

    /// The encoded bytes.
    pub(crate) fn payload(&self) -> &[u8] {
        self.0.get(Header::SIZE..).unwrap_or(&[])
    }

    /// As [`Self::payload`], to fill in.
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        self.0.get_mut(Header::SIZE..).unwrap_or(&mut [])
    }

    /// Calls `send` with the whole Result message, in one piece.
    pub(crate) fn send<R>(mut self, seq_no: u64, send: impl FnOnce(&[u8]) -> R) -> R {
        let header = Header::bytes(Opcode::RESULT, seq_no, graft_protocol::ExecAddr::NULL, self.payload().len());
        match self.0.first_chunk_mut() {
            Some(front) => {
                *front = header;
                send(&self.0)
            }
            None => send(&header),
        }
    }
}

/// `len` zero bytes, or `None` when memory runs out.
pub(crate) fn zeroed(len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

/// A copy of `bytes`, or `None` when memory runs out.
pub(crate) fn copied(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}
