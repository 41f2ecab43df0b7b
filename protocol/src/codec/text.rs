//! Strings and blobs: bytes with a 64-bit length in front.

use core::fmt;

use super::{BufferTooSmall, Decode, DecodeError, Encode, Reader, Writer};

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
