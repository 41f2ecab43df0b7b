//! The book of slabs: which parts of large reservations are taken. Values only, no I/O.

use std::collections::BTreeMap;

use graft_protocol::{ExecAddr, ExecRange};
use thiserror::Error;

/// Why a range cannot be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SlabError {
    /// It lies in no slab.
    #[error("{0} lies in no slab")]
    Foreign(ExecRange),
    /// Part of it is free.
    #[error("{0} is not taken, or not all of it")]
    NotTaken(ExecRange),
}

/// Slabs and their free parts.
#[derive(Debug)]
pub(super) struct Slabs {
    granularity: u64,
    slab_size: u64,
    slabs: Vec<Slab>,
}

#[derive(Debug)]
struct Slab {
    range: ExecRange,
    /// Free parts by start, with their lengths; no two touch.
    free: BTreeMap<u64, u64>,
}

impl Slabs {
    /// A book without slabs, that hands out multiples of `granularity` (a power of two) from slabs of at least
    /// `slab_size` bytes.
    pub(super) const fn new(granularity: u64, slab_size: u64) -> Self {
        Self { granularity, slab_size, slabs: Vec::new() }
    }

    /// How large a new slab must be for `size` bytes. Beyond the address space, the size that was wanted is an error.
    pub(super) fn fresh_size(&self, size: u64) -> Result<u64, u64> {
        let wanted = size.max(self.slab_size);
        self.rounded(wanted).ok_or(wanted)
    }

    /// Adds a slab.
    pub(super) fn add(&mut self, range: ExecRange) {
        let free = BTreeMap::from([(range.start().0, range.len())]);
        self.slabs.push(Slab { range, free });
    }

    /// Takes the first free range of at least `size` bytes, rounded up to the granularity.
    pub(super) fn take(&mut self, size: u64) -> Option<ExecRange> {
        let size = self.rounded(size.max(1))?;
        self.slabs.iter_mut().find_map(|slab| slab.take(size))
    }

    /// Gives a taken range back.
    ///
    /// # Errors
    /// When it is not a taken range; the book is unchanged.
    pub(super) fn give_back(&mut self, range: ExecRange) -> Result<(), SlabError> {
        let slab = self.slabs.iter_mut().find(|slab| slab.range.encloses(range)).ok_or(SlabError::Foreign(range))?;
        if slab.give_back(range) { Ok(()) } else { Err(SlabError::NotTaken(range)) }
    }

    /// Forgets all slabs and returns where they are.
    pub(super) fn drain(&mut self) -> Vec<ExecAddr> {
        self.slabs.drain(..).map(|slab| slab.range.start()).collect()
    }

    /// `size` as a multiple of the granularity.
    pub(super) fn rounded(&self, size: u64) -> Option<u64> {
        ExecAddr(size).align_up(self.granularity).map(|end| end.0)
    }
}

impl Slab {
    fn take(&mut self, size: u64) -> Option<ExecRange> {
        let (start, len) = self.free.iter().find(|(_, len)| **len >= size).map(|(start, len)| (*start, *len))?;
        self.free.remove(&start);
        if len > size {
            self.free.insert(start + size, len - size);
        }
        ExecRange::from_len(ExecAddr(start), size)
    }

    fn give_back(&mut self, range: ExecRange) -> bool {
        let (mut start, mut end) = (range.start().0, range.end().0);
        let before = self.free.range(..end).next_back().map(|(start, len)| (*start, start + len));
        if before.is_some_and(|(_, free_end)| free_end > start) {
            return false;
        }
        if let Some((free_start, free_end)) = before
            && free_end == start
        {
            start = free_start;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(start, end - start);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, len: u64) -> ExecRange {
        ExecRange::from_len(ExecAddr(start), len).unwrap()
    }

    #[test]
    fn the_first_fit_is_taken_and_neighbours_join() {
        let mut slabs = Slabs::new(0x1000, 0x4000);
        assert_eq!(slabs.take(1), None);
        assert_eq!(slabs.fresh_size(1), Ok(0x4000));
        assert_eq!(slabs.fresh_size(0x4001), Ok(0x5000));
        assert_eq!(slabs.fresh_size(u64::MAX), Err(u64::MAX));
        slabs.add(range(0x10000, 0x4000));
        let (a, b) = (slabs.take(1).unwrap(), slabs.take(0x1001).unwrap());
        assert_eq!((a, b), (range(0x10000, 0x1000), range(0x11000, 0x2000)));
        assert_eq!(slabs.take(0x1001), None);
        assert_eq!(slabs.give_back(range(0x20000, 0x1000)), Err(SlabError::Foreign(range(0x20000, 0x1000))));
        slabs.give_back(a).unwrap();
        assert_eq!(slabs.give_back(a), Err(SlabError::NotTaken(a)));
        slabs.give_back(b).unwrap();
        assert_eq!(slabs.take(0x4000), Some(range(0x10000, 0x4000)));
        assert_eq!(slabs.drain(), [ExecAddr(0x10000)]);
        assert_eq!(slabs.take(1), None);
    }

    /// The model: one flag per page.
    #[test]
    fn the_book_agrees_with_a_map_of_pages() {
        const PAGE: u64 = 0x1000;
        const PAGES: u64 = 64;
        let bases = [0x4000_0000, 0x1000_0000, 0x8000_0000_u64];
        for seed in 1..=200_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = move |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut slabs = Slabs::new(PAGE, PAGES * PAGE);
            let mut model = Vec::new();
            let mut taken: Vec<ExecRange> = Vec::new();
            for _ in 0..300 {
                match next(10) {
                    0 if model.len() < bases.len() => {
                        let base = bases[model.len()];
                        slabs.add(range(base, PAGES * PAGE));
                        model.push((base, [false; PAGES as usize]));
                    }
                    0..=5 => {
                        let size = 1 + next(12 * PAGE);
                        let pages = size.div_ceil(PAGE) as usize;
                        let expected = model.iter().enumerate().find_map(|(slab, (_, used))| {
                            used.windows(pages).position(|window| !window.contains(&true)).map(|page| (slab, page))
                        });
                        let expected = expected.map(|(slab, page)| {
                            model[slab].1[page..page + pages].fill(true);
                            range(model[slab].0 + page as u64 * PAGE, pages as u64 * PAGE)
                        });
                        assert_eq!(slabs.take(size), expected, "seed {seed}");
                        taken.extend(expected);
                    }
                    _ if taken.is_empty() => {}
                    _ => {
                        let given = taken.swap_remove(next(taken.len() as u64) as usize);
                        slabs.give_back(given).unwrap();
                        assert_eq!(slabs.give_back(given), Err(SlabError::NotTaken(given)), "seed {seed}");
                        let (base, used) = model
                            .iter_mut()
                            .find(|(base, _)| range(*base, PAGES * PAGE).encloses(given))
                            .expect("the slab");
                        let page = ((given.start().0 - *base) / PAGE) as usize;
                        used[page..page + (given.len() / PAGE) as usize].fill(false);
                    }
                }
            }
        }
    }
}
