//! Address space: which ranges are free, which are reserved, and how much one session may have.
//!
//! Reserving takes addresses, no memory. A range comes from the first of the platform's ranges that can hold it (those
//! below 2 GiB come first, so that objects compiled for the small code model link), at the lowest free address there.
//! Freed ranges grow together with their free neighbours.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange};

use crate::ranges::{NoRecords, RangeMap};

/// Reservations one session may hold.
pub(crate) const MAX_COUNT: usize = 65_536;

/// Bytes of address space one session may hold.
pub(crate) const MAX_BYTES: u64 = 1 << 40;

/// Why no address space was reserved; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveError {
    /// The size, rounded up to pages, is no number.
    TooLarge { size: u64 },
    /// The session holds as many reservations as it may.
    TooMany,
    /// The session would hold more address space than it may.
    AboveQuota { size: u64, held: u64 },
    /// No free range is long enough.
    NoSpace { size: u64, longest: u64 },
    /// No memory for the record.
    NoRecords(NoRecords),
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { size } => write!(f, "cannot reserve {size:#x} bytes: more than the address space"),
            Self::TooMany => write!(f, "cannot reserve: this session holds {MAX_COUNT} reservations, the limit"),
            Self::AboveQuota { size, held } => write!(
                f,
                "cannot reserve {size:#x} bytes: this session holds {held:#x} bytes, the limit is {MAX_BYTES:#x}"
            ),
            Self::NoSpace { size, longest } => {
                write!(f, "cannot reserve {size:#x} bytes: the longest free range has {longest:#x} bytes")
            }
            Self::NoRecords(error) => error.fmt(f),
        }
    }
}

#[derive(Debug)]
struct Arena {
    whole: ExecRange,
    free: RangeMap<()>,
}

/// The free and the reserved address space, each reservation with a value of type `V`.
#[derive(Debug)]
pub(crate) struct Reservations<V> {
    arenas: Vec<Arena>,
    taken: RangeMap<V>,
    page_size: u64,
    held: u64,
}

impl<V> Reservations<V> {
    /// All of `ranges` free, to be used in their order, in pages of `page_size` bytes.
    pub(crate) fn new(ranges: &[ExecRange], page_size: u64) -> Self {
        let mut arenas = Vec::new();
        for whole in ranges.iter().filter(|range| !range.is_empty()) {
            let mut free = RangeMap::new();
            // This runs once, before any session; a machine without memory for it has other worries, and then the
            // range simply is not there.
            if arenas.try_reserve(1).is_ok() && free.insert(*whole, ()).is_ok() {
                arenas.push(Arena { whole: *whole, free });
            }
        }
        Self { arenas, taken: RangeMap::new(), page_size, held: 0 }
    }

    /// Bytes reserved.
    #[cfg(test)]
    const fn held(&self) -> u64 {
        self.held
    }

    /// Reserves `size` bytes, rounded up to whole pages; `size` is not 0.
    pub(crate) fn take(&mut self, size: u64, value: V) -> Result<ExecRange, ReserveError> {
        let rounded = ExecAddr(size).align_up(self.page_size).ok_or(ReserveError::TooLarge { size })?.0;
        if self.taken.len() >= MAX_COUNT {
            return Err(ReserveError::TooMany);
        }
        if self.held.checked_add(rounded).is_none_or(|held| held > MAX_BYTES) {
            return Err(ReserveError::AboveQuota { size, held: self.held });
        }
        let total = self.taken.len().saturating_add(1);
        self.taken.reserve(total).map_err(ReserveError::NoRecords)?;
        let found = self.arenas.iter_mut().find_map(|arena| arena.free.first_fit(rounded).map(|range| (arena, range)));
        let Some((arena, free)) = found else {
            return Err(ReserveError::NoSpace { size, longest: self.longest() });
        };
        // There is at most one free range more than taken ones: with this, giving back never needs memory.
        arena.free.reserve(total.saturating_add(1)).map_err(ReserveError::NoRecords)?;
        let range = ExecRange::from_len(free.start(), rounded).ok_or(ReserveError::TooLarge { size })?;
        let rest = ExecRange::new(range.end(), free.end()).ok_or(ReserveError::TooLarge { size })?;
        arena.free.remove(free.start());
        if !rest.is_empty() {
            arena.free.insert(rest, ()).map_err(|()| ReserveError::NoRecords(NoRecords))?;
        }
        self.taken.insert(range, value).map_err(|_| ReserveError::NoRecords(NoRecords))?;
        self.held = self.held.saturating_add(rounded);
        Ok(range)
    }

    /// Gives the reservation that begins at `base` back.
    pub(crate) fn give_back(&mut self, base: ExecAddr) -> Option<(ExecRange, V)> {
        let (range, value) = self.taken.remove(base)?;
        self.held = self.held.saturating_sub(range.len());
        if let Some(arena) = self.arenas.iter_mut().find(|arena| arena.whole.encloses(range)) {
            // `take` made room for this record.
            arena.free.insert_joined(range);
        }
        Some((range, value))
    }

    /// The reservation that holds the byte at `addr`.
    pub(crate) fn covering(&self, addr: ExecAddr) -> Option<(ExecRange, &V)> {
        self.taken.covering(addr)
    }

    /// As [`Self::covering`], to change the value.
    pub(crate) fn covering_mut(&mut self, addr: ExecAddr) -> Option<(ExecRange, &mut V)> {
        self.taken.covering_mut(addr)
    }

    /// All reservations, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExecRange, &V)> {
        let mut next = Some(ExecAddr::NULL);
        core::iter::from_fn(move || {
            let (range, value) = self.taken.at_or_above(next?)?;
            next = range.start().checked_add(1);
            Some((range, value))
        })
    }

    fn longest(&self) -> u64 {
        self.arenas.iter().map(|arena| arena.free.longest_len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const PAGE: u64 = 4096;

    fn pages(start: u64, count: u64) -> ExecRange {
        ExecRange::from_len(ExecAddr(start * PAGE), count * PAGE).unwrap()
    }

    /// Two arenas as bitmaps: what the real thing must agree with, one page at a time.
    struct Model {
        arenas: Vec<(u64, Vec<bool>)>,
    }

    impl Model {
        fn take(&mut self, count: u64) -> Option<u64> {
            let count = usize::try_from(count).unwrap();
            for (start, map) in &mut self.arenas {
                if let Some(at) = (0..map.len())
                    .find(|at| map.get(*at..*at + count).is_some_and(|run| run.iter().all(|taken| !taken)))
                {
                    map[at..at + count].fill(true);
                    return Some(*start + at as u64);
                }
            }
            None
        }

        fn longest(&self) -> u64 {
            self.arenas.iter().flat_map(|(_, map)| map.split(|taken| *taken)).map(|run| run.len() as u64).max().unwrap()
        }

        fn give_back(&mut self, page: u64, count: u64) {
            let (start, map) = self.arenas.iter_mut().find(|(s, m)| (*s..*s + m.len() as u64).contains(&page)).unwrap();
            let at = usize::try_from(page - *start).unwrap();
            map[at..at + usize::try_from(count).unwrap()].fill(false);
        }
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut space = Reservations::new(&[pages(16, 100), pages(1000, 60)], PAGE);
        let mut model = Model { arenas: vec![(16, vec![false; 100]), (1000, vec![false; 60])] };
        let mut live: Vec<ExecRange> = Vec::new();
        let mut state = 99_u64;
        for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let dice = state >> 33;
            if dice % 5 < 3 {
                let count = 1 + (dice >> 8) % 12;
                let size = count * PAGE - (dice >> 16) % PAGE;
                match (space.take(size, size), model.take(count)) {
                    (Ok(range), Some(page)) => {
                        assert_eq!(range, pages(page, count));
                        live.push(range);
                    }
                    (Err(ReserveError::NoSpace { longest, .. }), None) => assert_eq!(longest, model.longest() * PAGE),
                    (real, model) => panic!("{real:?}, expected {model:?}"),
                }
            } else if !live.is_empty() {
                let range = live.swap_remove(usize::try_from(dice >> 8).unwrap() % live.len());
                assert_eq!(space.give_back(range.start()).unwrap().0, range);
                model.give_back(range.start().0 / PAGE, range.len() / PAGE);
            }
            assert_eq!(space.held(), live.iter().map(|range| range.len()).sum::<u64>());
            assert_eq!(space.iter().count(), live.len());
        }
        live.iter().for_each(|range| assert!(space.give_back(range.start()).is_some()));
        // Everything grew together again.
        assert_eq!(space.take(100 * PAGE, 0), Ok(pages(16, 100)));
        assert_eq!(space.take(60 * PAGE, 0), Ok(pages(1000, 60)));
    }

    #[test]
    fn refusals_name_their_numbers() {
        let mut space =
            Reservations::new(&[pages(16, 4), ExecRange::from_len(ExecAddr(1 << 40), 1 << 41).unwrap()], PAGE);
        assert_eq!(space.take(u64::MAX, ()), Err(ReserveError::TooLarge { size: u64::MAX }));
        assert_eq!(space.take(MAX_BYTES + 1, ()), Err(ReserveError::AboveQuota { size: MAX_BYTES + 1, held: 0 }));
        assert_eq!(space.take(5 * PAGE, ()).unwrap().start(), ExecAddr(1 << 40));
        let held = 5 * PAGE;
        assert_eq!(space.take(MAX_BYTES, ()), Err(ReserveError::AboveQuota { size: MAX_BYTES, held }));
        assert_eq!(space.give_back(ExecAddr(3)), None);
        let text = std::format!("{}", ReserveError::NoSpace { size: 0x5000, longest: 0x4000 });
        assert_eq!(text, "cannot reserve 0x5000 bytes: the longest free range has 0x4000 bytes");
    }

    #[test]
    fn the_number_of_reservations_is_limited() {
        if cfg!(miri) {
            return;
        }
        let mut space = Reservations::new(&[pages(16, 1 << 20)], PAGE);
        for _ in 0..MAX_COUNT {
            space.take(1, ()).unwrap();
        }
        assert_eq!(space.take(1, ()), Err(ReserveError::TooMany));
    }
}
