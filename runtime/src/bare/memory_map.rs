//! From the firmware's memory map to the ranges of frames that are ours: pure.
//!
//! Firmware maps are unsorted and overlap; what any entry reserves is reserved. Below 1 MiB lies what firmware still
//! uses after it handed over, and nothing there is worth the risk.

use graft_arch::machine::boot_info::MemoryRegion;
use graft_arch::machine::paging::Frame;
use heapless::Vec;

/// More ranges than any board has; the smallest are left out where there are more.
const MOST_RANGES: usize = 64;

/// The end of the memory that firmware keeps using.
const LOW_MEMORY_END: u64 = 1 << 20;

/// Physical memory from `start` up to `end`, both multiples of the frame size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhysicalRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl PhysicalRange {
    pub(crate) const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Ranges in the order of addresses, without overlap.
pub(crate) type PhysicalRanges = Vec<PhysicalRange, MOST_RANGES>;

/// The memory that is usable, whole frames of it, without low memory and without `image`.
pub(crate) fn usable(map: &[MemoryRegion], image: PhysicalRange) -> PhysicalRanges {
    let mut ranges = PhysicalRanges::new();
    for region in map.iter().filter(|region| region.usable) {
        let start = region.start.max(LOW_MEMORY_END).checked_next_multiple_of(Frame::BYTES);
        let Some(start) = start else { continue };
        let whole = PhysicalRange { start, end: region.end & !(Frame::BYTES - 1) };
        // Where usable entries overlap, the first has it.
        let mut pieces = PhysicalRanges::new();
        add(&mut pieces, whole);
        for taken in &ranges {
            cut(&mut pieces, *taken);
        }
        for piece in pieces {
            add(&mut ranges, piece);
        }
    }
    for reserved in map.iter().filter(|region| !region.usable) {
        let end = reserved.end.checked_next_multiple_of(Frame::BYTES).unwrap_or(u64::MAX);
        cut(&mut ranges, PhysicalRange { start: reserved.start & !(Frame::BYTES - 1), end });
    }
    cut(&mut ranges, image);
    sort(&mut ranges);
    ranges
}

/// By insertion: the library's sorting is for more than a few dozen elements, and is much code for an image.
fn sort(ranges: &mut PhysicalRanges) {
    for end in 1..=ranges.len() {
        let mut sorted = ranges.get_mut(..end).unwrap_or_default();
        while let [.., before, last] = sorted
            && *last < *before
        {
            core::mem::swap(before, last);
            sorted = sorted.split_last_mut().map_or(&mut [], |(_, rest)| rest);
        }
    }
}

/// Takes `len` bytes (whole frames) off the start of the first range that has them and ends at `limit` or below.
pub(crate) fn take(ranges: &mut PhysicalRanges, len: u64, limit: u64) -> Option<PhysicalRange> {
    let range = ranges.iter_mut().find(|range| range.len() >= len && range.start.saturating_add(len) <= limit)?;
    let taken = PhysicalRange { start: range.start, end: range.start + len };
    range.start = taken.end;
    Some(taken)
}

/// Adds `range`, in place of the smallest when there is no room.
fn add(ranges: &mut PhysicalRanges, range: PhysicalRange) {
    if range.len() == 0 {
        return;
    }
    let Err(range) = ranges.push(range) else { return };
    if let Some(smallest) = ranges.iter_mut().min_by_key(|range| range.len())
        && smallest.len() < range.len()
    {
        *smallest = range;
    }
}

fn cut(ranges: &mut PhysicalRanges, hole: PhysicalRange) {
    let mut rest = PhysicalRanges::new();
    for range in ranges.iter() {
        add(&mut rest, PhysicalRange { start: range.start, end: range.end.min(hole.start) });
        add(&mut rest, PhysicalRange { start: range.start.max(hole.end), end: range.end });
        // A hole that lies outside leaves the range on one side, whole.
    }
    *ranges = rest;
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec as StdVec;

    use super::*;

    fn region(start: u64, end: u64, usable: bool) -> MemoryRegion {
        MemoryRegion { start, end, usable }
    }

    fn image(start: u64, end: u64) -> PhysicalRange {
        PhysicalRange { start, end }
    }

    fn found(map: &[MemoryRegion], image: PhysicalRange) -> StdVec<(u64, u64)> {
        usable(map, image).iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn low_memory_and_the_image_are_left_out() {
        let map = [region(0, 0x9_fc00, true), region(0x10_0000, 0x800_0000, true), region(0xf_0000, 0x10_0000, false)];
        assert_eq!(found(&map, image(0x10_0000, 0x15_0000)), [(0x15_0000, 0x800_0000)]);
        assert_eq!(found(&map, image(0x20_0000, 0x25_0000)), [(0x10_0000, 0x20_0000), (0x25_0000, 0x800_0000)]);
    }

    #[test]
    fn reservations_win_over_usable_entries_and_reach_outward() {
        let map = [
            region(0x30_1001, 0x30_1002, false),
            region(0x20_0800, 0x40_0fff, true),
            region(0x3f_0000, 0x50_0000, true),
            region(0x10_0000, u64::MAX, false),
        ];
        assert_eq!(
            found(&map[..3], image(0, 0)),
            [(0x20_1000, 0x30_1000), (0x30_2000, 0x40_0000), (0x40_0000, 0x50_0000)]
        );
        assert_eq!(found(&map, image(0, 0)), []);
    }

    #[test]
    fn more_ranges_than_fit_lose_the_smallest() {
        let map: StdVec<MemoryRegion> =
            (1..=70).map(|number| region(number << 24, (number << 24) + number * Frame::BYTES, true)).collect();
        let ranges = usable(&map, image(0, 0));
        assert_eq!(ranges.len(), MOST_RANGES);
        assert!(ranges.iter().all(|range| range.len() > 6 * Frame::BYTES));
    }

    #[test]
    fn memory_is_taken_from_the_first_range_with_room() {
        let map = [region(0x10_0000, 0x10_2000, true), region(0x20_0000, 0x30_0000, true)];
        let mut ranges = usable(&map, image(0, 0));
        assert_eq!(take(&mut ranges, 0x3000, 0x20_2000), None);
        assert_eq!(take(&mut ranges, 0x3000, u64::MAX), Some(PhysicalRange { start: 0x20_0000, end: 0x20_3000 }));
        assert_eq!(ranges[1].start, 0x20_3000);
    }
}
