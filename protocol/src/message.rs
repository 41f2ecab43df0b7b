//! SimpleRemoteEPC messages: a header of 32 bytes and a payload whose form the opcode says.
//!
//! [`Header::parse`] judges the header alone, so that a reader can refuse a message before it makes room for it;
//! [`Message::parse`] takes the payload apart. [`Message::split`] does both over a buffer that may still be growing.

use core::fmt;

use crate::addr::ExecAddr;
use crate::codec::{Blob, BufferTooSmall, DecodeError, Encode, Limits, Outcome, Reader, Seq, Text, Writer};
use crate::codec::{encode, encoded_len, record};
use crate::opcode::Opcode;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// The announced size does not even cover the header.
    TooSmall {
        /// The size announced, header included.
        size: u64,
    },
    /// The announced size is above the reader's limit.
    TooLarge {
        /// The size announced, header included.
        size: u64,
        /// The reader's limit.
        limit: u64,
    },
    /// An opcode that is not defined, in all 64 bits.
    UnknownOpcode(u64),
    /// The sequence number of a message that has none is not zero.
    NonZeroSeqNo {
        /// The message's opcode.
        opcode: Opcode,
        /// The number found.
        seq_no: u64,
    },
    /// The tag address of a message that has none is not zero.
    NonZeroTag {
        /// The message's opcode.
        opcode: Opcode,
        /// The tag found.
        tag: ExecAddr,
    },
    /// The payload of a Setup or Hangup is not what it should be.
    Payload {
        /// The message's opcode.
        opcode: Opcode,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// A Setup names a symbol or a map key twice.
    DuplicateName {
        /// The index of the second entry of that name.
        index: u64,
    },
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { size } => {
                write!(f, "message size {size} is smaller than its header of {} bytes", Header::SIZE)
            }
            Self::TooLarge { size, limit } => write!(f, "message size {size} is above the limit of {limit} bytes"),
            Self::UnknownOpcode(value) => write!(f, "unknown opcode {value:#x}"),
            Self::NonZeroSeqNo { opcode, seq_no } => write!(f, "{opcode} with sequence number {seq_no:#x}, must be 0"),
            Self::NonZeroTag { opcode, tag } => write!(f, "{opcode} with tag address {tag}, must be 0"),
            Self::Payload { opcode, error } => write!(f, "payload of {opcode}: {error}"),
            Self::DuplicateName { index } => write!(f, "Setup names entry {index} a second time"),
        }
    }
}

impl core::error::Error for MessageError {}

/// The first 32 bytes of a message, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    payload_len: u64,
    opcode: Opcode,
    seq_no: u64,
    tag: ExecAddr,
}

impl Header {
    /// The length of a header, in bytes.
    pub const SIZE: usize = 32;

    /// Reads a header; messages of more than `limit` bytes, header included, are refused.
    ///
    /// # Errors
    /// A size below the header's or above the limit, an undefined opcode, or a number where the opcode has none.
    pub fn parse(bytes: &[u8; Self::SIZE], limit: u64) -> Result<Self, MessageError> {
        // 32 bytes are exactly four integers, so the reader cannot run out.
        let (size, opcode, seq_no, tag) = Reader::new(bytes)
            .value::<(u64, u64, u64, ExecAddr)>()
            .map_err(|error| MessageError::Payload { opcode: Opcode::SETUP, error })?;
        let opcode = Opcode(opcode);
        let Some(payload_len) = size.checked_sub(Self::SIZE as u64) else {
            return Err(MessageError::TooSmall { size });
        };
        if !matches!(opcode, Opcode::SETUP | Opcode::HANGUP | Opcode::RESULT | Opcode::CALL_WRAPPER) {
            return Err(MessageError::UnknownOpcode(opcode.0));
        }
        if size > limit {
            return Err(MessageError::TooLarge { size, limit });
        }
        if matches!(opcode, Opcode::SETUP | Opcode::HANGUP) && seq_no != 0 {
            return Err(MessageError::NonZeroSeqNo { opcode, seq_no });
        }
        if opcode != Opcode::CALL_WRAPPER && !tag.is_null() {
            return Err(MessageError::NonZeroTag { opcode, tag });
        }
        Ok(Self { payload_len, opcode, seq_no, tag })
    }

    /// The length of the payload that follows, in bytes.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        self.payload_len
    }

    /// What the message is.
    #[must_use]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The bytes of a header in front of `payload_len` bytes.
    #[must_use]
    pub fn bytes(opcode: Opcode, seq_no: u64, tag: ExecAddr, payload_len: usize) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let size = (payload_len as u64).saturating_add(Self::SIZE as u64);
        // The buffer is exactly as long as four integers.
        let _ = encode(&(size, opcode.0, seq_no, tag), &mut out);
        out
    }
}

record! {
    /// What an executor says of itself, in its first message.
    #[derive(Default)]
    Setup<'a> {
        /// The target triple.
        triple: Text<'a>,
        /// The page size in bytes.
        page_size: u64,
        /// Values for the controller, each an SPS blob, by key.
        map: Seq<'a, (Text<'a>, Blob<'a>)>,
        /// Addresses of wrapper functions and instances, by name.
        symbols: Seq<'a, (Text<'a>, ExecAddr)>,
    }
}

impl<'a> Setup<'a> {
    /// The most symbols, and the most map entries, a Setup may have.
    pub const MAX_ENTRIES: u64 = 1024;

    /// The address published under `name`.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<ExecAddr> {
        self.symbols.iter().find(|(key, _)| key.0 == name.as_bytes()).map(|(_, addr)| addr)
    }

    /// The map's blob for `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        self.map.iter().find(|(name, _)| name.0 == key.as_bytes()).map(|(_, blob)| blob.0)
    }

    fn parse(payload: &'a [u8]) -> Result<Self, MessageError> {
        let limits = Limits { count: Self::MAX_ENTRIES, string: u64::MAX };
        let setup: Self = crate::codec::decode_with(payload, limits)
            .map_err(|error| MessageError::Payload { opcode: Opcode::SETUP, error })?;
        refuse_duplicates(setup.symbols.iter().map(|(name, _)| name))?;
        refuse_duplicates(setup.map.iter().map(|(name, _)| name))?;
        Ok(setup)
    }
}

/// Compares every name with those before it: no table to allocate, and [`Setup::MAX_ENTRIES`] bounds the work.
fn refuse_duplicates<'a>(names: impl Iterator<Item = Text<'a>> + Clone) -> Result<(), MessageError> {
    for (index, name) in names.clone().enumerate() {
        if names.clone().take(index).any(|earlier| earlier == name) {
            return Err(MessageError::DuplicateName { index: index as u64 });
        }
    }
    Ok(())
}

/// A message, its payload borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The executor introduces itself.
    Setup(Setup<'a>),
    /// The sender ends the session; executors also take it without a reason.
    Hangup(Option<Outcome<'a>>),
    /// The answer to call `seq_no` of the other direction.
    Result {
        /// The number of the call answered.
        seq_no: u64,
        /// The wrapper function's result.
        payload: &'a [u8],
    },
    /// A call; controller to executor `target` is an address, the other way a handler's tag.
    Call {
        /// The number the Result will carry.
        seq_no: u64,
        /// What to call.
        target: ExecAddr,
        /// The argument blob.
        args: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// The message of a checked header and the payload that followed it.
    ///
    /// # Errors
    /// When the payload of a Setup or Hangup is malformed.
    pub fn parse(header: &Header, payload: &'a [u8]) -> Result<Self, MessageError> {
        Ok(match header.opcode {
            Opcode::SETUP => Self::Setup(Setup::parse(payload)?),
            Opcode::HANGUP if payload.is_empty() => Self::Hangup(None),
            Opcode::HANGUP => Self::Hangup(Some(
                crate::codec::decode(payload)
                    .map_err(|error| MessageError::Payload { opcode: Opcode::HANGUP, error })?,
            )),
            Opcode::RESULT => Self::Result { seq_no: header.seq_no, payload },
            _ => Self::Call { seq_no: header.seq_no, target: header.tag, args: payload },
        })
    }

    /// The first message of `bytes` and how many bytes it takes, or `None` while it is still incomplete.
    ///
    /// # Errors
    /// As [`Header::parse`] and [`Message::parse`]; a bad header is an error as soon as it is complete.
    pub fn split(bytes: &'a [u8], limit: u64) -> Result<Option<(Self, usize)>, MessageError> {
        let Some((head, rest)) = bytes.split_first_chunk::<{ Header::SIZE }>() else {
            return Ok(None);
        };
        let header = Header::parse(head, limit)?;
        let Some(payload) = usize::try_from(header.payload_len).ok().and_then(|len| rest.get(..len)) else {
            return Ok(None);
        };
        Self::parse(&header, payload).map(|message| Some((message, Header::SIZE.saturating_add(payload.len()))))
    }

    /// The opcode, sequence number and tag of the header.
    #[must_use]
    pub const fn head(&self) -> (Opcode, u64, ExecAddr) {
        match *self {
            Self::Setup(_) => (Opcode::SETUP, 0, ExecAddr::NULL),
            Self::Hangup(_) => (Opcode::HANGUP, 0, ExecAddr::NULL),
            Self::Result { seq_no, .. } => (Opcode::RESULT, seq_no, ExecAddr::NULL),
            Self::Call { seq_no, target, .. } => (Opcode::CALL_WRAPPER, seq_no, target),
        }
    }
}

/// The payload alone.
struct Payload<'m, 'a>(&'m Message<'a>);

impl Encode for Payload<'_, '_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        match self.0 {
            Message::Setup(setup) => writer.value(setup),
            Message::Hangup(None) => Ok(()),
            Message::Hangup(Some(reason)) => writer.value(reason),
            Message::Result { payload, .. } => writer.bytes(payload),
            Message::Call { args, .. } => writer.bytes(args),
        }
    }
}

impl Encode for Message<'_> {
    /// Writes the message, header included.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        let (opcode, seq_no, tag) = self.head();
        writer.bytes(&Header::bytes(opcode, seq_no, tag, encoded_len(&Payload(self))))?;
        writer.value(&Payload(self))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn bytes_of(message: &Message<'_>) -> Vec<u8> {
        let mut out = vec![0; encoded_len(message)];
        encode(message, &mut out).unwrap();
        out
    }

    fn head(size: u64, opcode: u64, seq_no: u64, tag: u64) -> [u8; 32] {
        let mut out = [0; 32];
        encode(&(size, opcode, seq_no, tag), &mut out).unwrap();
        out
    }

    #[test]
    fn header_faults_have_names() {
        let cases = [
            (head(31, 3, 0, 0), MessageError::TooSmall { size: 31 }),
            (head(LIMIT + 1, 3, 0, 0), MessageError::TooLarge { size: LIMIT + 1, limit: LIMIT }),
            (head(32, 4, 0, 0), MessageError::UnknownOpcode(4)),
            (head(32, 0x103, 0, 0), MessageError::UnknownOpcode(0x103)),
            (head(32, 0, 1, 0), MessageError::NonZeroSeqNo { opcode: Opcode::SETUP, seq_no: 1 }),
            (head(32, 1, 0, 2), MessageError::NonZeroTag { opcode: Opcode::HANGUP, tag: ExecAddr(2) }),
            (head(32, 2, 7, 1), MessageError::NonZeroTag { opcode: Opcode::RESULT, tag: ExecAddr(1) }),
        ];
        for (bytes, error) in cases {
            assert_eq!(Header::parse(&bytes, LIMIT), Err(error));
            assert_eq!(Message::split(&bytes, LIMIT), Err(error));
        }
    }

    #[test]
    fn messages_split_off_a_growing_buffer() {
        let call = Message::Call { seq_no: 9, target: ExecAddr(0x0044_3cc0), args: b"abc" };
        let mut stream = bytes_of(&call);
        let first = stream.len();
        stream.extend(bytes_of(&Message::Hangup(None)));
        for cut in 0..first {
            assert_eq!(Message::split(&stream[..cut], LIMIT), Ok(None), "{cut}");
        }
        assert_eq!(Message::split(&stream, LIMIT), Ok(Some((call, first))));
        assert_eq!(Message::split(&stream[first..], LIMIT), Ok(Some((Message::Hangup(None), 32))));
    }

    #[test]
    fn setup_round_trips_and_refuses_duplicates() {
        let map = [(Text::new("k"), Blob(b"v"))];
        let symbols = [(Text::new("a"), ExecAddr(1)), (Text::new("b"), ExecAddr(2))];
        let setup = Setup { triple: Text::new("t"), page_size: 4096, map: Seq::new(&map), symbols: Seq::new(&symbols) };
        let wire = bytes_of(&Message::Setup(setup));
        let (read, len) = Message::split(&wire, LIMIT).unwrap().unwrap();
        assert_eq!((read, len), (Message::Setup(setup), wire.len()));
        assert_eq!(setup.symbol("b"), Some(ExecAddr(2)));
        assert_eq!(setup.value("k"), Some(&b"v"[..]));
        assert_eq!(setup.value("a"), None);

        let twice = [symbols[0], symbols[1], symbols[0]];
        let bad = bytes_of(&Message::Setup(Setup { symbols: Seq::new(&twice), ..setup }));
        assert_eq!(Message::split(&bad, LIMIT), Err(MessageError::DuplicateName { index: 2 }));
        let keys = [map[0], map[0]];
        let bad = bytes_of(&Message::Setup(Setup { map: Seq::new(&keys), ..setup }));
        assert_eq!(Message::split(&bad, LIMIT), Err(MessageError::DuplicateName { index: 1 }));
    }

    #[test]
    fn payload_faults_have_names() {
        let mut wire = bytes_of(&Message::Hangup(Some(Outcome(Err(Text::new("why"))))));
        wire[32] = 9;
        assert_eq!(
            Message::split(&wire, LIMIT),
            Err(MessageError::Payload { opcode: Opcode::HANGUP, error: DecodeError::BadTag(9) })
        );
        let mut out = [0; 64];
        let setup = encode(&Setup::default(), &mut out).unwrap().to_vec();
        let mut wire = head(32 + setup.len() as u64 + 1, 0, 0, 0).to_vec();
        wire.extend(&setup);
        wire.push(0);
        assert_eq!(
            Message::split(&wire, LIMIT),
            Err(MessageError::Payload { opcode: Opcode::SETUP, error: DecodeError::Trailing { left: 1 } })
        );
    }
}
