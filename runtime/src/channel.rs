//! Whole messages over a [`Line`]: bounded on the way in, one write each on the way out, all of it counted.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, Header, MessageError, Opcode, Traffic};
use spin::Mutex;

use crate::line::{Line, LineError, Patience, Phase};

/// A receive buffer up to this size is kept for the next message. Smaller than what the bare machine's heap gives pages
/// of its own: a block kept for ever would keep their window from starting afresh.
const KEEP: usize = 32 * 1024;

/// Why no message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// The line ended between messages.
    Closed,
    /// The line failed, or ended inside a message.
    Line {
        error: LineError,
        /// Bytes of the message that had come; 0 between messages.
        received: u64,
    },
    /// The bytes are not a message.
    Message(MessageError),
    /// There is no memory for a message of this size.
    NoMemory { size: u64 },
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the line"),
            Self::Line { error: LineError::Closed, received } => {
                write!(f, "the line ended inside a message, {received} bytes after its beginning")
            }
            Self::Line { error, received } => write!(f, "{error} ({received} bytes of it had come)"),
            Self::Message(error) => error.fmt(f),
            Self::NoMemory { size } => write!(f, "out of memory: no room for a message of {size} bytes"),
        }
    }
}

/// Messages in both directions.
#[derive(Debug)]
pub(crate) struct Channel<L> {
    line: L,
    traffic: Mutex<Traffic>,
    spare: Mutex<Vec<u8>>,
    limit: u64,
}

impl<L: Line> Channel<L> {
    /// Takes messages of at most `limit` bytes, header included.
    pub(crate) const fn new(line: L, limit: u64) -> Self {
        let traffic = Traffic { bytes_in: 0, bytes_out: 0, messages_in: 0, messages_out: 0, sessions: 0 };
        Self { line, traffic: Mutex::new(traffic), spare: Mutex::new(Vec::new()), limit }
    }

    pub(crate) const fn line(&self) -> &L {
        &self.line
    }

    /// The largest message taken, in bytes, header included.
    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn traffic(&self) -> Traffic {
        *self.traffic.lock()
    }

    pub(crate) fn count_session(&self) {
        self.traffic.lock().sessions += 1;
    }

    /// Waits for the next message.
    pub(crate) fn receive(&self, patience: Patience) -> Result<(Header, Vec<u8>), ReceiveError> {
        self.line.enter(Phase::Taking);
        let received = self.receive_whole(patience);
        self.line.enter(Phase::Between);
        received
    }

    fn receive_whole(&self, patience: Patience) -> Result<(Header, Vec<u8>), ReceiveError> {
        let mut head = [0; Header::SIZE];
        self.fill(&mut head, patience, 0)?;
        let header = Header::parse(&head, self.limit).map_err(ReceiveError::Message)?;
        let size = header.payload_len().saturating_add(Header::SIZE as u64);
        let buffer = usize::try_from(header.payload_len()).ok().and_then(|len| self.buffer(len));
        let mut payload = buffer.ok_or(ReceiveError::NoMemory { size })?;
        self.fill(&mut payload, Patience::MidMessage, Header::SIZE as u64)?;
        let mut traffic = self.traffic.lock();
        traffic.bytes_in += size;
        traffic.messages_in += 1;
        Ok((header, payload))
    }

    /// Takes a receive buffer back.
    pub(crate) fn recycle(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.lock();
        if buffer.capacity() <= KEEP && buffer.capacity() > spare.capacity() {
            core::mem::swap(&mut *spare, &mut buffer);
        }
    }

    /// Sends the bytes of one whole message.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), LineError> {
        self.line.write(message)?;
        let mut traffic = self.traffic.lock();
        traffic.bytes_out += message.len() as u64;
        traffic.messages_out += 1;
        Ok(())
    }

    /// Sends a message made of a header and `payload`.
    pub(crate) fn send_parts(
        &self,
        opcode: Opcode,
        seq_no: u64,
        tag: ExecAddr,
        payload: &[u8],
    ) -> Result<(), LineError> {
        let header = Header::bytes(opcode, seq_no, tag, payload.len());
        let mut small = [0; 1024];
        let len = header.len().saturating_add(payload.len());
        let mut large = Vec::new();
        if len > small.len() {
            // Without memory for one write there will be two, which is slower on some lines and right on all.
            if large.try_reserve_exact(len).is_err() {
                self.line.write(&header)?;
                return self.send(payload);
            }
            large.resize(len, 0);
        }
        let whole = small.get_mut(..len).unwrap_or(&mut large);
        if let Some((head, tail)) = whole.split_first_chunk_mut() {
            *head = header;
            tail.copy_from_slice(payload);
        }
        self.send(whole)
    }

    fn buffer(&self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = core::mem::take(&mut *self.spare.lock());
        buffer.clear();
        buffer.try_reserve_exact(len).ok()?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Fills `out`, of a message of which `before` bytes have come.
    fn fill(&self, out: &mut [u8], first: Patience, before: u64) -> Result<(), ReceiveError> {
        let mut at = 0;
        while let Some(rest) = out.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let received = before.saturating_add(at as u64);
            let patience = if received == 0 { first } else { Patience::MidMessage };
            match self.line.read(rest, patience) {
                Ok(count) => at = at.saturating_add(count),
                Err(LineError::Closed) if received == 0 => return Err(ReceiveError::Closed),
                Err(error) => return Err(ReceiveError::Line { error, received }),
            }
        }
        Ok(())
    }
}
