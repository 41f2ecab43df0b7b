//! Sequences: a 64-bit count and the elements, walked once when they are decoded.

use core::fmt;
use core::marker::PhantomData;

use super::{BufferTooSmall, Decode, DecodeError, Encode, Reader, Writer};

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
