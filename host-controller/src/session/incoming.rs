//! Takes whole messages off a byte stream.

use std::io::{self, BufReader, Read};

use graft_protocol::{ExecAddr, Header, Message, MessageError, Opcode, encode, encoded_len};
use thiserror::Error;

/// The largest message taken unless a session is told otherwise, header included, in bytes.
pub(crate) const DEFAULT_LIMIT: u64 = 256 << 20;

/// Why no message came off a stream.
#[derive(Debug, Error)]
pub(crate) enum ReceiveError {
    /// The bytes are not a message.
    #[error("{error}{}", preview(.head))]
    Malformed {
        /// What is wrong.
        error: MessageError,
        /// The message's first bytes.
        head: [u8; Header::SIZE],
    },
    /// The stream ended inside a message.
    #[error("the stream ended inside a message, {got} bytes after its start, of {wanted}")]
    Truncated {
        /// Bytes of the message that came.
        got: u64,
        /// Bytes it should have had (those of its header while that is incomplete).
        wanted: u64,
    },
    /// The stream failed.
    #[error("the stream failed: {0}")]
    Io(#[from] io::Error),
}

/// What a stream that does not speak the protocol seems to be saying.
fn preview(head: &[u8; Header::SIZE]) -> String {
    let len = head.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let head = head.get(..len).unwrap_or(head);
    if head.is_empty() || !is_text(head) {
        return String::new();
    }
    format!(" (this is text, not the protocol: \"{}\")", head.escape_ascii())
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

/// A whole message in the bytes it travels in, checked by the protocol's reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeMessage {
    header: Header,
    bytes: Vec<u8>,
}

impl WholeMessage {
    /// The bytes of `message`.
    pub(crate) fn new(message: &Message<'_>) -> Self {
        let mut bytes = vec![0; encoded_len(message)];
        // The buffer is as long as the encoding.
        let _ = encode(message, &mut bytes);
        Self::ours(bytes)
    }

    /// All bytes, header included.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What follows the header.
    pub(crate) fn payload(&self) -> &[u8] {
        self.bytes.get(Header::SIZE..).unwrap_or_default()
    }

    /// The message.
    ///
    /// # Panics
    /// Never: what came was checked when it came, and what is made here is made by the protocol's writer.
    pub(crate) fn message(&self) -> Message<'_> {
        #[expect(clippy::expect_used, reason = "every way to make a value leaves bytes that parse")]
        Message::parse(&self.header, self.payload()).expect("a whole message parses")
    }

    /// Bytes that this program wrote.
    fn ours(bytes: Vec<u8>) -> Self {
        let header = bytes.first_chunk().and_then(|head| Header::parse(head, u64::MAX).ok());
        #[expect(clippy::expect_used, reason = "the protocol's writer begins every message with a header")]
        Self { header: header.expect("a message begins with a header"), bytes }
    }

    /// The bytes of a call of `target` with number `seq_no`, its arguments written by `fill`.
    pub(crate) fn call(seq_no: u64, target: ExecAddr, args_len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = Vec::with_capacity(Header::SIZE.saturating_add(args_len));
        bytes.extend_from_slice(&Header::bytes(Opcode::CALL_WRAPPER, seq_no, target, args_len));
        bytes.resize(Header::SIZE.saturating_add(args_len), 0);
        fill(bytes.get_mut(Header::SIZE..).unwrap_or_default());
        Self::ours(bytes)
    }
}

/// Reads a byte stream message by message.
#[derive(Debug)]
pub(crate) struct MessageReader<R> {
    stream: BufReader<R>,
    limit: u64,
}

impl<R: Read> MessageReader<R> {
    /// A reader of `stream` that refuses messages above `limit` bytes.
    pub(crate) fn new(stream: R, limit: u64) -> Self {
        Self { stream: BufReader::with_capacity(64 << 10, stream), limit }
    }

    /// The next message, or `None` when the stream ended between messages.
    ///
    /// # Errors
    /// When the bytes are not a message within the limit, or the stream fails or ends inside one.
    pub(crate) fn next_message(&mut self) -> Result<Option<WholeMessage>, ReceiveError> {
        let mut head = [0; Header::SIZE];
        let (size, rest) = head.split_at_mut(8);
        let mut got = self.fill(size)?;
        let (is_text, size) = (is_text(size), size.first_chunk().map_or(0, |size| u64::from_le_bytes(*size)));
        if got == 8 && is_text && size > self.limit {
            // Whoever speaks another protocol may not send as much as a header, and wait: what is there tells.
            let there = self.stream.buffer();
            rest.iter_mut().zip(there).for_each(|(slot, byte)| *slot = *byte);
            return Err(ReceiveError::Malformed { error: MessageError::TooLarge { size, limit: self.limit }, head });
        }
        if got == 8 {
            got += self.fill(rest)?;
        }
        match got {
            0 => return Ok(None),
            Header::SIZE => {}
            got => return Err(ReceiveError::Truncated { got: got as u64, wanted: Header::SIZE as u64 }),
        }
        let malformed = |error| ReceiveError::Malformed { error, head };
        let header = Header::parse(&head, self.limit).map_err(malformed)?;
        let wanted = header.payload_len().saturating_add(Header::SIZE as u64);
        let mut bytes = head.to_vec();
        // Grows with what arrives: an announced size alone makes no room.
        (&mut self.stream).take(header.payload_len()).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != wanted {
            return Err(ReceiveError::Truncated { got: bytes.len() as u64, wanted });
        }
        let whole = WholeMessage { header, bytes };
        Message::parse(&header, whole.payload()).map_err(malformed)?;
        Ok(Some(whole))
    }

    /// Whether everything that came off the stream was part of messages already taken.
    pub(crate) fn is_between_reads(&self) -> bool {
        self.stream.buffer().is_empty()
    }

    /// Reads until `out` is full or the stream ends; says how many bytes came.
    fn fill(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while let Some(rest) = out.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_off_a_stream_one_by_one() {
        let first = WholeMessage::new(&Message::Result { seq_no: 7, payload: b"abc" });
        let second = WholeMessage::call(9, ExecAddr(0x1010), 2, |args| args.copy_from_slice(b"xy"));
        let stream = [first.bytes(), second.bytes()].concat();
        let mut reader = MessageReader::new(&stream[..], 4096);
        assert_eq!(reader.next_message().unwrap(), Some(first));
        let read = reader.next_message().unwrap().unwrap();
        assert_eq!(read.message(), Message::Call { seq_no: 9, target: ExecAddr(0x1010), args: b"xy" });
        assert_eq!(reader.next_message().unwrap(), None);
    }

    #[test]
    fn broken_streams_have_names() {
        let whole = WholeMessage::new(&Message::Result { seq_no: 7, payload: b"abc" });
        let error = MessageReader::new(&whole.bytes()[..10], 4096).next_message().unwrap_err();
        assert_eq!(error.to_string(), "the stream ended inside a message, 10 bytes after its start, of 32");
        let error = MessageReader::new(&whole.bytes()[..34], 4096).next_message().unwrap_err();
        assert_eq!(error.to_string(), "the stream ended inside a message, 34 bytes after its start, of 35");
        let error = MessageReader::new(whole.bytes(), 34).next_message().unwrap_err();
        assert_eq!(error.to_string(), "message size 35 is above the limit of 34 bytes");
        let http = b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n";
        let error = MessageReader::new(&http[..], 4096).next_message().unwrap_err();
        assert!(error.to_string().contains("this is text, not the protocol: \"HTTP/1.1 400"), "{error}");
    }
}
