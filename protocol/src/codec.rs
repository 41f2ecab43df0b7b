//! SPS, LLVM's "Simple Packed Serialization": [`Reader`], [`Writer`] and the types both sides put into messages.
//!
//! No tags, no padding, little-endian. Decoding borrows: a [`Text`], a [`Blob`] or a [`Seq`] points into the message and
//! nothing is ever allocated for a count the peer chose. A sequence is walked once when it is decoded, so that walking
//! it later cannot fail. What is read must be read to the end: [`decode`] refuses trailing bytes.
//!
//! The encoding follows section 3 of the wire specification in the crate documentation.

use core::fmt;
use core::marker::PhantomData;

use crate::addr::{ExecAddr, ExecRange};
use crate::prot::{AllocGroup, AllocGroupError};

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

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Decode<'_> for $int {
            const MIN_SIZE: u64 = size_of::<Self>() as u64;

            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self::from_le_bytes(reader.array()?))
            }
        }

        impl Encode for $int {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
                writer.bytes(&self.to_le_bytes())
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);

impl Decode<'_> for bool {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.value::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::BadBool(other)),
        }
    }
}

impl Encode for bool {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&u8::from(*self))
    }
}

impl Decode<'_> for ExecAddr {
    const MIN_SIZE: u64 = 8;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.value().map(Self)
    }
}

impl Encode for ExecAddr {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&self.0)
    }
}

impl Decode<'_> for ExecRange {
    const MIN_SIZE: u64 = 16;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (start, end) = reader.value()?;
        Self::new(start, end).ok_or(DecodeError::BackwardRange { start, end })
    }
}

impl Encode for ExecRange {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&(self.start(), self.end()))
    }
}

impl Decode<'_> for AllocGroup {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_bits(reader.value()?).map_err(DecodeError::AllocGroup)
    }
}

impl Encode for AllocGroup {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&self.bits())
    }
}

macro_rules! tuples {
    ($(($($part:ident $index:tt),+))*) => {$(
        impl<'a, $($part: Decode<'a>),+> Decode<'a> for ($($part,)+) {
            const MIN_SIZE: u64 = 0 $(+ $part::MIN_SIZE)+;

            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                Ok(($(reader.value::<$part>()?,)+))
            }
        }

        impl<$($part: Encode),+> Encode for ($($part,)+) {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
                $(writer.value(&self.$index)?;)+
                Ok(())
            }
        }
    )*};
}
tuples! { (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) }

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.value::<u8>()? {
            0 => Ok(None),
            1 => reader.value().map(Some),
            other => Err(DecodeError::BadTag(other)),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&u8::from(self.is_some()))?;
        self.as_ref().map_or(Ok(()), |value| writer.value(value))
    }
}

/// Bytes with a length in front (`Sequence<char>`): segment contents, argument blobs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Blob<'a>(pub &'a [u8]);

impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl<'a> Decode<'a> for Blob<'a> {
    const MIN_SIZE: u64 = 8;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len: u64 = reader.value()?;
        let limit = reader.limits.string;
        if len > limit {
            return Err(DecodeError::StringAboveLimit { len, limit });
        }
        reader.bytes(len).map(Self)
    }
}

impl Encode for Blob<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&(self.0.len() as u64))?;
        writer.bytes(self.0)
    }
}

/// A string: bytes with a length in front, meant to be read by people, of any byte values.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Text<'a>(pub &'a [u8]);

impl<'a> Text<'a> {
    /// The text of a `str`.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

impl fmt::Display for Text<'_> {
    /// Shows the text with bytes that are not UTF-8, and control characters other than newline and tab, escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() && c != '\n' && c != '\t' {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<'a> Decode<'a> for Text<'a> {
    const MIN_SIZE: u64 = 8;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        reader.value::<Blob<'a>>().map(|blob| Self(blob.0))
    }
}

impl Encode for Text<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        Blob(self.0).encode(writer)
    }
}

/// A sequence (`Sequence<T>`): elements in a slice when it is to be sent, or already checked bytes when it was received.
#[derive(Clone, Copy)]
pub struct Seq<'a, T>(Elements<'a, T>);

#[derive(Clone, Copy)]
enum Elements<'a, T> {
    Slice(&'a [T]),
    Wire { count: u64, reader: Reader<'a>, of: PhantomData<T> },
}

impl<'a, T: Copy> Seq<'a, T> {
    /// The sequence of the elements of `slice`.
    #[must_use]
    pub const fn new(slice: &'a [T]) -> Self {
        Self(Elements::Slice(slice))
    }

    /// The number of elements.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match &self.0 {
            Elements::Slice(slice) => slice.len() as u64,
            Elements::Wire { count, .. } => *count,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, in order.
    #[must_use]
    pub const fn iter(&self) -> SeqIter<'a, T> {
        SeqIter(self.0)
    }
}

impl<T> Default for Seq<'_, T> {
    fn default() -> Self {
        Self(Elements::Slice(&[]))
    }
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for Seq<'a, T> {
    const MIN_SIZE: u64 = 8;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count: u64 = reader.value()?;
        let limit = reader.limits.count;
        if count > limit {
            return Err(DecodeError::CountAboveLimit { count, limit });
        }
        let left = reader.left.len() as u64;
        let needed = count.saturating_mul(T::MIN_SIZE);
        if needed > left {
            return Err(DecodeError::Underflow { needed, left });
        }
        let elements = *reader;
        for _ in 0..count {
            reader.value::<T>()?;
        }
        Ok(Self(Elements::Wire { count, reader: elements, of: PhantomData }))
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for Seq<'a, T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&self.len())?;
        self.iter().try_for_each(|element| writer.value(&element))
    }
}

impl<'a, T: Decode<'a> + Copy + fmt::Debug> fmt::Debug for Seq<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Decode<'a> + Copy + PartialEq> PartialEq for Seq<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Copy + Eq> Eq for Seq<'a, T> {}

impl<'a, T: Decode<'a> + Copy> IntoIterator for Seq<'a, T> {
    type Item = T;
    type IntoIter = SeqIter<'a, T>;

    fn into_iter(self) -> SeqIter<'a, T> {
        self.iter()
    }
}

/// Iterates over the elements of a [`Seq`].
#[derive(Clone)]
pub struct SeqIter<'a, T>(Elements<'a, T>);

impl<T> fmt::Debug for SeqIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeqIter")
    }
}

impl<'a, T: Decode<'a> + Copy> Iterator for SeqIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Elements::Slice(slice) => {
                let (first, rest) = slice.split_first()?;
                *slice = rest;
                Some(*first)
            }
            Elements::Wire { count, reader, .. } => {
                *count = count.checked_sub(1)?;
                // The bytes decoded once already, when the sequence was made.
                reader.value().ok()
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = match &self.0 {
            Elements::Slice(slice) => slice.len(),
            Elements::Wire { count, .. } => usize::try_from(*count).unwrap_or(usize::MAX),
        };
        (len, Some(len))
    }
}

/// The SPS type `Error`: 0 for success, else 1 and a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<'a>(pub Result<(), Text<'a>>);

impl<'a> Decode<'a> for Outcome<'a> {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.value::<u8>()? {
            0 => Ok(Self(Ok(()))),
            1 => Ok(Self(Err(reader.value()?))),
            other => Err(DecodeError::BadTag(other)),
        }
    }
}

impl Encode for Outcome<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        match &self.0 {
            Ok(()) => writer.value(&0_u8),
            Err(text) => writer.value(&(1_u8, *text)),
        }
    }
}

/// The SPS type `Expected<T>`: 1 and the value, else 0 and a text; the opposite of [`Outcome`]'s polarity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<'a, T>(pub Result<T, Text<'a>>);

impl<'a, T: Decode<'a>> Decode<'a> for Expected<'a, T> {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.value::<u8>()? {
            1 => Ok(Self(Ok(reader.value()?))),
            0 => Ok(Self(Err(reader.value()?))),
            other => Err(DecodeError::BadTag(other)),
        }
    }
}

impl<T: Encode> Encode for Expected<'_, T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        match &self.0 {
            Ok(value) => {
                writer.value(&1_u8)?;
                writer.value(value)
            }
            Err(text) => writer.value(&(0_u8, *text)),
        }
    }
}

/// The result of a wrapper function that returns nothing: zero bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Void;

impl Decode<'_> for Void {
    // Only ever a whole result, never an element, so the bound of sequences does not meet it.
    const MIN_SIZE: u64 = 1;

    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

impl Encode for Void {
    fn encode(&self, _: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        Ok(())
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
