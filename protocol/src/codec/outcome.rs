//! Results: success or failure, as wrapper functions return them.

use super::{BufferTooSmall, Decode, DecodeError, Encode, Reader, Text, Writer};

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
