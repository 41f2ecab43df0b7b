//! SPS, LLVM's "Simple Packed Serialization": [`Reader`], [`Writer`] and the types both sides put into messages.
//!
//! No tags, no padding, little-endian. Decoding borrows: a [`Text`], a [`Blob`] or a [`Seq`] points into the message and
//! nothing is ever allocated for a count the peer chose. A sequence is walked once when it is decoded, so that walking
//! it later cannot fail. What is read must be read to the end: [`decode`] refuses trailing bytes.
//!
//! The encoding follows section 3 of the wire specification in the crate documentation.

use core::fmt;

use crate::addr::ExecAddr;
use crate::prot::AllocGroupError;

mod outcome;
mod scalar;
mod seq;
mod text;

pub use outcome::{Expected, Outcome, Void};
pub use seq::{Seq, SeqIter};
pub use text::{Blob, Text};

/// Why bytes are not the SPS encoding they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A value needs more bytes than are left.
    Underflow {
        /// Bytes the value takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// Bytes follow the last value.
    Trailing {
        /// How many.
        left: u64,
    },
    /// A sequence announces more elements than the reader accepts.
    CountAboveLimit {
        /// The count announced.
        count: u64,
        /// The reader's limit.
        limit: u64,
    },
    /// A string announces more bytes than the reader accepts.
    StringAboveLimit {
        /// The length announced, in bytes.
        len: u64,
        /// The reader's limit, in bytes.
        limit: u64,
    },
    /// A bool that is neither 0 nor 1.
    BadBool(u8),
    /// The leading byte of an Error, Expected, Optional or variant is none of those defined.
    BadTag(u8),
    /// An address range that ends before it starts.
    BackwardRange {
        /// The start announced.
        start: ExecAddr,
        /// The end announced.
        end: ExecAddr,
    },
    /// A protection the wire can spell and nobody may ask for.
    AllocGroup(AllocGroupError),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Underflow { needed, left } => write!(f, "{needed} bytes needed, {left} left"),
            Self::Trailing { left } => write!(f, "{left} bytes behind the last value"),
            Self::CountAboveLimit { count, limit } => write!(f, "a sequence of {count} elements, limit {limit}"),
            Self::StringAboveLimit { len, limit } => write!(f, "a string of {len} bytes, limit {limit}"),
            Self::BadBool(byte) => write!(f, "bool {byte:#04x} is neither 0 nor 1"),
            Self::BadTag(byte) => write!(f, "leading byte {byte:#04x} is not defined here"),
            Self::BackwardRange { start, end } => write!(f, "address range {start}..{end} ends before it starts"),
            Self::AllocGroup(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The most a [`Reader`] takes for one sequence and one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Elements of one sequence.
    pub count: u64,
    /// Bytes of one string or blob.
    pub string: u64,
}

impl Limits {
    /// No limit but the message itself.
    pub const MESSAGE: Self = Self { count: u64::MAX, string: u64::MAX };
}

/// Reads SPS values from borrowed bytes, each byte once.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    left: &'a [u8],
    limits: Limits,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes` with no limit but their end.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::with_limits(bytes, Limits::MESSAGE)
    }

    /// A reader of `bytes` that refuses sequences and strings above `limits`.
    #[must_use]
    pub const fn with_limits(bytes: &'a [u8], limits: Limits) -> Self {
        Self { left: bytes, limits }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn bytes(&mut self, len: u64) -> Result<&'a [u8], DecodeError> {
        let underflow = DecodeError::Underflow { needed: len, left: self.left.len() as u64 };
        let len = usize::try_from(len).map_err(|_| underflow)?;
        let (head, tail) = self.left.split_at_checked(len).ok_or(underflow)?;
        self.left = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let underflow = DecodeError::Underflow { needed: N as u64, left: self.left.len() as u64 };
        let (head, tail) = self.left.split_first_chunk::<N>().ok_or(underflow)?;
        self.left = tail;
        Ok(*head)
    }

    /// The next value.
    ///
    /// # Errors
    /// When the bytes are not an encoding of `T`.
    pub fn value<T: Decode<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(self)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.left.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: self.left.len() as u64 }) }
    }
}

/// A value with an SPS encoding that can be read.
pub trait Decode<'a>: Sized {
    /// The fewest bytes any value of the type takes: never 0, which bounds every sequence by its bytes.
    const MIN_SIZE: u64;

    /// Reads one value.
    ///
    /// # Errors
    /// When the bytes are not an encoding of the type.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A value with an SPS encoding that can be written.
pub trait Encode {
    /// Writes the value.
    ///
    /// # Errors
    /// When the buffer is too small.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall>;
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        (**self).encode(writer)
    }
}

/// Reads one value that takes all of `bytes`.
///
/// # Errors
/// When the bytes are not exactly one encoding of `T`.
pub fn decode<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    decode_with(bytes, Limits::MESSAGE)
}

/// Reads one value that takes all of `bytes`, within `limits`.
///
/// # Errors
/// When the bytes are not exactly one encoding of `T`, or a count or string in them is above the limits.
pub fn decode_with<'a, T: Decode<'a>>(bytes: &'a [u8], limits: Limits) -> Result<T, DecodeError> {
    let mut reader = Reader::with_limits(bytes, limits);
    let value = reader.value()?;
    reader.finish()?;
    Ok(value)
}

/// The length in bytes of `value`'s encoding.
pub fn encoded_len<T: Encode + ?Sized>(value: &T) -> usize {
    let mut writer = Writer { out: None, at: 0 };
    // Counting never fails: there is no buffer to run out of.
    let _ = value.encode(&mut writer);
    writer.at
}

/// Writes `value` to the front of `out` and returns the bytes it took.
///
/// # Errors
/// When `out` is shorter than [`encoded_len`].
pub fn encode<'b, T: Encode + ?Sized>(value: &T, out: &'b mut [u8]) -> Result<&'b [u8], BufferTooSmall> {
    let mut writer = Writer { out: Some(out), at: 0 };
    value.encode(&mut writer)?;
    let Writer { out, at } = writer;
    out.and_then(|out| out.get(..at)).ok_or(BufferTooSmall { needed: at })
}

/// The buffer given for an encoding is shorter than the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// Bytes needed so far.
    pub needed: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the encoding needs at least {} bytes", self.needed)
    }
}

impl core::error::Error for BufferTooSmall {}

/// Writes SPS values into a borrowed buffer, or only counts their bytes.
#[derive(Debug)]
pub struct Writer<'b> {
    out: Option<&'b mut [u8]>,
    at: usize,
}

impl Writer<'_> {
    /// Writes raw bytes.
    ///
    /// # Errors
    /// When the buffer is too small.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), BufferTooSmall> {
        let end = self.at.saturating_add(bytes.len());
        if let Some(out) = &mut self.out {
            let slot = out.get_mut(self.at..end).ok_or(BufferTooSmall { needed: end })?;
            slot.copy_from_slice(bytes);
        }
        self.at = end;
        Ok(())
    }

    /// Writes one value.
    ///
    /// # Errors
    /// When the buffer is too small.
    pub fn value<T: Encode + ?Sized>(&mut self, value: &T) -> Result<(), BufferTooSmall> {
        value.encode(self)
    }
}

/// Declares a record of the wire: a struct whose encoding is its fields back to back.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$field_doc:meta])* $field:ident: $type:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $type,)+
        }

        impl<'de $(: $life, $life: 'de)?> $crate::codec::Decode<'de> for $name $(<$life>)? {
            const MIN_SIZE: u64 = 0 $(+ <$type as $crate::codec::Decode<'de>>::MIN_SIZE)+;

            fn decode(reader: &mut $crate::codec::Reader<'de>) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: reader.value()?,)+ })
            }
        }

        impl $(<$life>)? $crate::codec::Encode for $name $(<$life>)? {
            fn encode(
                &self,
                writer: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::BufferTooSmall> {
                $(writer.value(&self.$field)?;)+
                Ok(())
            }
        }
    };
}
pub(crate) use record;

#[cfg(test)]
mod tests;
