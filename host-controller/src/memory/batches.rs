//! Cuts an image into requests that fit the executor's messages.

use graft_protocol::{Blob, Header, Segment, encoded_len};

use crate::link;

/// What a request takes besides its segments: the header, the instance, two counts.
const REQUEST_BYTES: u64 = Header::SIZE as u64 + 24;

/// The segments in as many requests as it takes for none to be above `limit` bytes.
///
/// A segment with more content than fits is cut at page boundaries, which changes neither bytes nor protections. When
/// not even a page fits, it is sent whole and the call says so.
pub(super) fn batches(segments: &[link::Segment], page_size: u64, limit: u64) -> Vec<Vec<Segment<'_>>> {
    let room = limit.saturating_sub(REQUEST_BYTES);
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut left = room;
    for piece in segments.iter().flat_map(|segment| pieces(segment, page_size, room)) {
        let size = encoded_len(&piece) as u64;
        if size > left && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            left = room;
        }
        left = left.saturating_sub(size);
        batch.push(piece);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

fn pieces(segment: &link::Segment, page_size: u64, room: u64) -> Vec<Segment<'_>> {
    let empty = Segment { group: segment.group, addr: segment.addr, size: segment.size, content: Blob(&[]) };
    let most = room.saturating_sub(encoded_len(&empty) as u64);
    let whole = vec![Segment { content: Blob(&segment.content), ..empty }];
    let most = most - most % page_size;
    let Some(most) = usize::try_from(most).ok().filter(|most| *most > 0 && *most < segment.content.len()) else {
        return whole;
    };
    let mut pieces = Vec::new();
    let mut rest = segment.content.as_slice();
    let mut at = empty;
    while let Some((head, tail)) = rest.split_at_checked(most).filter(|(_, tail)| !tail.is_empty()) {
        let (Some(addr), Some(size)) = (at.addr.checked_add(most as u64), at.size.checked_sub(most as u64)) else {
            // A segment never has more content than size, nor does it leave the address space.
            return whole;
        };
        pieces.push(Segment { size: most as u64, content: Blob(head), ..at });
        at = Segment { addr, size, ..at };
        rest = tail;
    }
    pieces.push(Segment { content: Blob(rest), ..at });
    pieces
}

#[cfg(test)]
mod tests {
    use graft_protocol::{AllocGroup, ExecAddr, FinalizeArgs, Lifetime, Prot, Seq};

    use super::*;

    fn segment(addr: u64, size: u64, content: usize) -> link::Segment {
        let group = AllocGroup { prot: Prot::ReadWrite, lifetime: Lifetime::Standard };
        let content = (0..content).map(|index| (index / 256) as u8).collect();
        link::Segment { group, addr: ExecAddr(addr), size, content }
    }

    fn message_len(batch: &[Segment<'_>]) -> u64 {
        let args = FinalizeArgs { instance: ExecAddr(1), segments: Seq::new(batch), actions: Seq::default() };
        (Header::SIZE + encoded_len(&args)) as u64
    }

    #[test]
    fn requests_fit_and_lose_nothing() {
        let segments =
            [segment(0x10000, 0x3000, 0x2345), segment(0x20000, 0x1_0000, 0x8001), segment(0x40000, 0x10_0000, 0)];
        assert_eq!(batches(&segments, 0x1000, u64::MAX).len(), 1);
        for limit in [0x1100, 0x2000, 0x2039, 0x4000, 0x9000, 0x1_0000] {
            let batches = batches(&segments, 0x1000, limit);
            let mut memory = Vec::new();
            let mut end = 0;
            for batch in &batches {
                assert!(message_len(batch) <= limit, "{limit:#x}: {:#x}", message_len(batch));
                for piece in batch {
                    assert!(piece.addr.0 >= end && piece.addr.is_aligned(0x1000));
                    end = piece.addr.0 + piece.size;
                    memory.push((piece.addr.0, piece.content.0, piece.size));
                }
            }
            for segment in &segments {
                let inside = |addr: u64| addr >= segment.addr.0 && addr < segment.addr.0 + segment.size;
                let parts: Vec<_> = memory.iter().filter(|(addr, ..)| inside(*addr)).collect();
                assert_eq!(parts.iter().map(|(.., size)| size).sum::<u64>(), segment.size);
                let content: Vec<u8> = parts.iter().flat_map(|(_, content, _)| content.iter().copied()).collect();
                assert_eq!(content, segment.content);
            }
        }
    }

    #[test]
    fn a_limit_below_a_page_changes_nothing() {
        let segments = [segment(0x10000, 0x3000, 0x2345)];
        assert_eq!(batches(&segments, 0x1000, 0x800).len(), 1);
    }
}
