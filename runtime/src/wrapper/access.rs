//! The wrapper functions that read and write memory.

use alloc::vec::Vec;

use graft_protocol::{Blob, Decode, ExecAddr, ExecRange, Seq, Text, WrapperId};

use super::parse;
use crate::access::AccessError;
use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::ranges::NoRecords;
use crate::reply::{Reply, zeroed};
use crate::text::TextBuf;

/// Room that every element of an answer takes besides its bytes.
const COUNT_SIZE: u64 = 8;

impl<P: Platform, L: Line> Executor<P, L> {
    pub(super) fn call_access(&self, row: WrapperId, args: &[u8]) -> Reply {
        let reply = match row {
            WrapperId::WriteUint8s => self.write_ints(args, |value: u8| [value]),
            WrapperId::WriteUint16s => self.write_ints(args, u16::to_le_bytes),
            WrapperId::WriteUint32s => self.write_ints(args, u32::to_le_bytes),
            WrapperId::WriteUint64s => self.write_ints(args, u64::to_le_bytes),
            WrapperId::WritePointers => self.write_ints(args, |value: ExecAddr| value.0.to_le_bytes()),
            WrapperId::WriteBuffers => parse::<Seq<'_, (ExecAddr, Blob<'_>)>>(args).and_then(|elements| {
                self.write_all(elements.iter().map(|(at, blob)| (at, blob.0))).map_err(TextBuf::of)?;
                Ok(Reply::EMPTY)
            }),
            WrapperId::ReadUint8s => self.read_ints::<1>(args),
            WrapperId::ReadUint16s => self.read_ints::<2>(args),
            WrapperId::ReadUint32s => self.read_ints::<4>(args),
            WrapperId::ReadUint64s | WrapperId::ReadPointers => self.read_ints::<8>(args),
            WrapperId::ReadBuffers => self.read_buffers(args),
            _ => self.read_strings(args),
        };
        reply.unwrap_or_else(|text| self.no_result(format_args!("{row:?}: {text}")))
    }

    fn write_ints<T: for<'a> Decode<'a> + Copy + 'static, const N: usize>(
        &self,
        args: &[u8],
        bytes: impl Fn(T) -> [u8; N] + Clone,
    ) -> Result<Reply, TextBuf> {
        let elements = parse::<Seq<'_, (ExecAddr, T)>>(args)?;
        self.write_all(elements.iter().map(|(at, value)| (at, bytes(value)))).map_err(TextBuf::of)?;
        Ok(Reply::EMPTY)
    }

    /// Integers and pointers are on the wire as they are in memory, so the answer is made of bytes.
    fn read_ints<const N: usize>(&self, args: &[u8]) -> Result<Reply, TextBuf> {
        let addrs = parse::<Seq<'_, ExecAddr>>(args)?;
        self.check_answer(addrs.len().saturating_mul(N as u64))?;
        self.make_all_readable(addrs.iter().map(|addr| (addr, N as u64))).map_err(TextBuf::of)?;
        let elements = usize::try_from(addrs.len()).ok().and_then(|count| count.checked_mul(N));
        let reply = elements.and_then(|len| Reply::with_len(len.checked_add(8)?));
        let mut reply = reply.ok_or_else(|| TextBuf::of(NoRecords))?;
        if let Some((count, elements)) = reply.payload_mut().split_first_chunk_mut() {
            *count = addrs.len().to_le_bytes();
            for (addr, element) in addrs.iter().zip(elements.chunks_exact_mut(N)) {
                self.read_into(addr, element).map_err(TextBuf::of)?;
            }
        }
        Ok(reply)
    }

    fn read_buffers(&self, args: &[u8]) -> Result<Reply, TextBuf> {
        let ranges = parse::<Seq<'_, ExecRange>>(args)?;
        let bytes = ranges.iter().map(|range| range.len().saturating_add(COUNT_SIZE)).fold(0, u64::saturating_add);
        self.check_answer(bytes)?;
        self.make_all_readable(ranges.iter().map(|range| (range.start(), range.len()))).map_err(TextBuf::of)?;
        let mut buffers = Vec::new();
        make_room(&mut buffers, ranges.len())?;
        for range in ranges {
            let buffer = usize::try_from(range.len()).ok().and_then(zeroed);
            let mut buffer = buffer.ok_or_else(|| TextBuf::of(NoRecords))?;
            self.read_into(range.start(), &mut buffer).map_err(TextBuf::of)?;
            buffers.push(buffer);
        }
        let mut blobs = Vec::new();
        make_room(&mut blobs, ranges.len())?;
        blobs.extend(buffers.iter().map(|buffer| Blob(buffer)));
        Ok(Reply::of(&Seq::new(&blobs)))
    }

    fn read_strings(&self, args: &[u8]) -> Result<Reply, TextBuf> {
        let addrs = parse::<Seq<'_, ExecAddr>>(args)?;
        // How long they are shows when they are read; that each begins somewhere can be said before.
        self.make_all_readable(addrs.iter().map(|addr| (addr, 1))).map_err(TextBuf::of)?;
        let mut strings = Vec::new();
        make_room(&mut strings, addrs.len())?;
        let mut left = self.channel.limit();
        for addr in addrs {
            let limit = usize::try_from(left).unwrap_or(usize::MAX);
            let string = self.read_string(addr, limit).map_err(TextBuf::of)?;
            left = left.saturating_sub((string.len() as u64).saturating_add(COUNT_SIZE));
            strings.push(string);
        }
        let mut texts = Vec::new();
        make_room(&mut texts, addrs.len())?;
        texts.extend(strings.iter().map(|string| Text(string)));
        Ok(Reply::of(&Seq::new(&texts)))
    }

    /// What the peer asks for must fit the largest message, in the other direction too.
    fn check_answer(&self, bytes: u64) -> Result<(), TextBuf> {
        let limit = self.channel.limit();
        if bytes > limit {
            return Err(TextBuf::of(AccessError::AboveLimit { bytes, limit }));
        }
        Ok(())
    }
}

/// Makes room for `count` elements.
fn make_room<T>(out: &mut Vec<T>, count: u64) -> Result<(), TextBuf> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    out.try_reserve_exact(count).map_err(|_| TextBuf::of(NoRecords))
}
