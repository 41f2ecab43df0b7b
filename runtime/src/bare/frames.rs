//! Which frames of physical memory are free: one bit each, and a bit per word of those that says whether to look there.
//!
//! The bits lie apart from the frames, so that a free frame may hold anything. Taking and giving back touch one word of
//! each kind; finding the next free frame looks at one bit per 4096 frames in the worst case.

use graft_arch::machine::paging::Frame;

use crate::bare::memory_map::{PhysicalRange, PhysicalRanges};

const WORD_BITS: u64 = 64;

/// The free frames between the first and the last that are ours.
#[derive(Debug)]
pub(crate) struct Frames<'a> {
    /// The number of the frame that bit 0 stands for.
    first: u64,
    ranges: PhysicalRanges,
    /// One bit per frame, set while it is free.
    free_bits: &'a mut [u64],
    /// One bit per word of `free_bits`, set while that is not zero.
    summary: &'a mut [u64],
    /// No summary word before this one has a bit set.
    lowest: usize,
    free: u64,
    total: u64,
}

/// How many words [`Frames::new`] needs for `ranges`, which are in the order of addresses.
pub(crate) fn words_needed(ranges: &[PhysicalRange]) -> u64 {
    let (words, summary) = layout(ranges);
    words + summary
}

/// The numbers of bit words and of summary words.
fn layout(ranges: &[PhysicalRange]) -> (u64, u64) {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return (0, 0) };
    let frames = last.end.saturating_sub(first.start) / Frame::BYTES;
    let words = frames.div_ceil(WORD_BITS);
    (words, words.div_ceil(WORD_BITS))
}

impl<'a> Frames<'a> {
    /// All frames of `ranges`, free, with `words` to keep the bits in; `None` when they are too few.
    ///
    /// Ranges may have been shortened since [`words_needed`] was asked, not moved.
    pub(crate) fn new(words: &'a mut [u64], ranges: &[PhysicalRange]) -> Option<Self> {
        let (bit_words, summary_words) = layout(ranges);
        let (free_bits, rest) = words.split_at_mut_checked(usize::try_from(bit_words).ok()?)?;
        let summary = rest.get_mut(..usize::try_from(summary_words).ok()?)?;
        free_bits.fill(0);
        summary.fill(0);
        let first = ranges.first().map_or(0, |range| range.start / Frame::BYTES);
        let ranges = PhysicalRanges::from_slice(ranges).ok()?;
        let mut frames = Self { first, ranges, free_bits, summary, lowest: 0, free: 0, total: 0 };
        frames.free_all();
        frames.total = frames.free;
        Some(frames)
    }

    /// Sets the bits of all ranges, word by word: machines have millions of frames.
    fn free_all(&mut self) {
        for range in &self.ranges {
            let mut offset = (range.start / Frame::BYTES).saturating_sub(self.first);
            let end = (range.end / Frame::BYTES).saturating_sub(self.first);
            while offset < end {
                let bit = offset % WORD_BITS;
                let count = (WORD_BITS - bit).min(end - offset);
                let index = (offset / WORD_BITS) as usize;
                if let Some(word) = self.free_bits.get_mut(index) {
                    *word |= u64::MAX >> (WORD_BITS - count) << bit;
                }
                if let Some(word) = self.summary.get_mut(index / WORD_BITS as usize) {
                    *word |= 1 << (index as u64 % WORD_BITS);
                }
                self.free += count;
                offset += count;
            }
        }
    }

    /// How many frames are free.
    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// How many frames there are.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Takes the free frame with the lowest address.
    pub(crate) fn take(&mut self) -> Option<Frame> {
        let (offset, summary) = self.summary.iter_mut().enumerate().skip(self.lowest).find(|(_, word)| **word != 0)?;
        self.lowest = offset;
        let index = offset * WORD_BITS as usize + summary.trailing_zeros() as usize;
        let word = self.free_bits.get_mut(index)?;
        let bit = word.trailing_zeros();
        // Clears the lowest bit that is set.
        *word &= word.wrapping_sub(1);
        if *word == 0 {
            *summary &= summary.wrapping_sub(1);
        }
        self.free = self.free.saturating_sub(1);
        Frame::new((self.first + index as u64 * WORD_BITS + u64::from(bit)) * Frame::BYTES)
    }

    /// Gives `frame` back; `false` when it is free already or none of ours, which changes nothing.
    pub(crate) fn give_back(&mut self, frame: Frame) -> bool {
        let address = frame.address();
        if !self.ranges.iter().any(|range| range.start <= address && address < range.end) {
            return false;
        }
        self.set_free(address / Frame::BYTES)
    }

    /// The lowest free frame at or above `frame`, without taking it.
    pub(crate) fn next_free(&self, frame: Frame) -> Option<Frame> {
        let mut offset = (frame.address() / Frame::BYTES).saturating_sub(self.first);
        loop {
            let word = self.free_bits.get(usize::try_from(offset / WORD_BITS).ok()?)?;
            let rest = word >> (offset % WORD_BITS);
            if rest != 0 {
                return Frame::new((self.first + offset + u64::from(rest.trailing_zeros())) * Frame::BYTES);
            }
            offset = (offset / WORD_BITS + 1) * WORD_BITS;
        }
    }

    fn set_free(&mut self, number: u64) -> bool {
        let Some(offset) = number.checked_sub(self.first) else { return false };
        let index = offset / WORD_BITS;
        let (Ok(word_index), Ok(summary_index)) = (usize::try_from(index), usize::try_from(index / WORD_BITS)) else {
            return false;
        };
        let Some(word) = self.free_bits.get_mut(word_index) else { return false };
        let Some(summary) = self.summary.get_mut(summary_index) else { return false };
        let bit = 1 << (offset % WORD_BITS);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        *summary |= 1 << (index % WORD_BITS);
        self.lowest = self.lowest.min(summary_index);
        self.free += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn range(first: u64, end: u64) -> PhysicalRange {
        PhysicalRange { start: first * Frame::BYTES, end: end * Frame::BYTES }
    }

    fn frame(number: u64) -> Frame {
        Frame::new(number * Frame::BYTES).unwrap()
    }

    fn words(ranges: &[PhysicalRange]) -> Vec<u64> {
        vec![u64::MAX; words_needed(ranges) as usize]
    }

    #[test]
    fn every_frame_is_taken_once() {
        let ranges = [range(256, 300), range(1000, 1003), range(9000, 9001)];
        let mut words = words(&ranges);
        let mut frames = Frames::new(&mut words, &ranges).unwrap();
        assert_eq!((frames.free(), frames.total()), (48, 48));
        let expected = (256..300).chain(1000..1003).chain([9000]);
        for number in expected {
            assert_eq!(frames.next_free(frame(0)), Some(frame(number)));
            assert_eq!(frames.take(), Some(frame(number)));
        }
        assert_eq!((frames.take(), frames.free(), frames.total()), (None, 0, 48));
        assert!(frames.give_back(frame(1001)));
        assert!(!frames.give_back(frame(1001)), "given back twice");
        assert!([0, 500, 1 << 39].iter().all(|never_ours| !frames.give_back(frame(*never_ours))));
        assert_eq!(frames.take(), Some(frame(1001)));
    }

    #[test]
    fn too_few_words_are_refused() {
        let ranges = [range(0, 64 * 64 + 1)];
        assert_eq!(words_needed(&ranges), 65 + 2);
        assert!(Frames::new(&mut [0; 66], &ranges).is_none());
        assert!(Frames::new(&mut [0; 67], &ranges).is_some());
        assert!(Frames::new(&mut [], &[]).unwrap().take().is_none());
    }

    #[test]
    fn random_use_agrees_with_a_set() {
        let ranges = [range(100, 700), range(5000, 5010), range(9000, 9100)];
        let mut words = words(&ranges);
        let mut frames = Frames::new(&mut words, &ranges).unwrap();
        let mut free: BTreeSet<u64> = ranges.iter().flat_map(|r| r.start / 4096..r.end / 4096).collect();
        let mut taken: Vec<u64> = Vec::new();
        let mut state = 88_172_645_463_325_252u64;
        let mut random = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % limit as u64) as usize
        };
        let steps = if cfg!(miri) { 300 } else { 20_000 };
        for step in 0..steps {
            // Drift up, then down, so that both full and empty are reached.
            let take = random(100) < if step % 4000 < 2000 { 75 } else { 25 };
            if take || taken.is_empty() {
                let expected = free.pop_first();
                assert_eq!(frames.take().map(|frame| frame.address() / 4096), expected, "step {step}");
                taken.extend(expected);
            } else {
                let number = taken.swap_remove(random(taken.len()));
                assert!(frames.give_back(frame(number)));
                free.insert(number);
            }
            assert_eq!(frames.free(), free.len() as u64);
        }
    }
}
