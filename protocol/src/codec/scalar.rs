//! The values of fixed size, and what is put together from other values without anything in between.

use super::{BufferTooSmall, Decode, DecodeError, Encode, Reader, Writer};
use crate::addr::{ExecAddr, ExecRange};
use crate::prot::AllocGroup;

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
