//! What is reserved and what is initialized: the records of the memory service, and the questions about addresses.
//!
//! The life cycle itself is in `initialize.rs` and `release.rs`; here is only state. A reservation belongs to the
//! controller or to the heap of loaded code; each holds regions that never share a page.

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange};

use crate::ranges::NoRecords;
use crate::region::{Phase, Region, Run};
use crate::reservations::{Reservations, ReserveError};

/// Who asked for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Controller,
    /// The heap of loaded code: the controller can read and write it, not release it.
    Heap,
}

/// What is in a reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) owner: Owner,
    /// Regions in address order.
    regions: Vec<Region>,
    /// Keys of regions that are gone, ascending: deinitializing them again succeeds.
    retired: Vec<ExecAddr>,
    next_order: u64,
}

/// All reservations of the session.
#[derive(Debug)]
pub(crate) struct Memory {
    space: Reservations<Reservation>,
    /// Whether the controller reserved anything in this session.
    used: bool,
}

impl Memory {
    pub(crate) fn new(ranges: &[ExecRange], page_size: u64) -> Self {
        Self { space: Reservations::new(ranges, page_size), used: false }
    }

    /// Reserves `size` bytes, which are not 0.
    pub(crate) fn reserve(&mut self, size: u64, owner: Owner) -> Result<ExecRange, ReserveError> {
        let reservation = Reservation { owner, regions: Vec::new(), retired: Vec::new(), next_order: 0 };
        let range = self.space.take(size, reservation)?;
        self.used |= owner == Owner::Controller;
        Ok(range)
    }

    /// Forgets the reservation at `base`.
    pub(crate) fn give_back(&mut self, base: ExecAddr) -> Option<ExecRange> {
        self.space.give_back(base).map(|(range, _)| range)
    }

    /// Starts afresh; nothing is reserved any more.
    pub(crate) const fn begin_session(&mut self) {
        self.used = false;
    }

    /// The reservation of `owner` around `addr`.
    pub(crate) fn reservation(&self, addr: ExecAddr, owner: Owner) -> Option<(ExecRange, &Reservation)> {
        self.space.covering(addr).filter(|(_, reservation)| reservation.owner == owner)
    }

    /// As [`Self::reservation`], to change it.
    pub(crate) fn reservation_mut(&mut self, addr: ExecAddr, owner: Owner) -> Option<(ExecRange, &mut Reservation)> {
        self.space.covering_mut(addr).filter(|(_, reservation)| reservation.owner == owner)
    }

    /// The reservation that holds all of `range`, whoever owns it.
    pub(crate) fn holding(&self, range: ExecRange) -> Option<(ExecRange, &Reservation)> {
        self.space.covering(range.start()).filter(|(reserved, _)| reserved.encloses(range))
    }

    /// All reservations, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExecRange, &Reservation)> {
        self.space.iter()
    }

    /// The base of some reservation of `owner`.
    pub(crate) fn any(&self, owner: Owner) -> Option<ExecAddr> {
        self.space.iter().find(|(_, reservation)| reservation.owner == owner).map(|(range, _)| range.start())
    }

    /// Whether no region is initialized.
    pub(crate) fn is_idle(&self) -> bool {
        self.space.iter().all(|(_, reservation)| reservation.regions.is_empty())
    }

    /// Whether nothing was ever reserved in this session.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.used && self.space.iter().next().is_none()
    }

    /// Whether the controller reserved something and nothing of it is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.used && self.any(Owner::Controller).is_none()
    }

    /// The pages around `addr` that have been initialized.
    pub(crate) fn run_at(&self, addr: ExecAddr) -> Option<&Run> {
        self.space.covering(addr).and_then(|(_, reservation)| reservation.region_at(addr)?.run_at(addr))
    }

    /// Whether loaded code may be entered at `addr`.
    pub(crate) fn is_executable(&self, addr: ExecAddr) -> bool {
        self.run_at(addr).is_some_and(|run| run.prot.is_executable())
    }
}

impl Reservation {
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region whose pages hold `addr`.
    pub(crate) fn region_at(&self, addr: ExecAddr) -> Option<&Region> {
        self.regions.get(self.first_ending_after(addr)).filter(|region| region.hull.contains(addr))
    }

    /// The region named `key`.
    pub(crate) fn region_mut(&mut self, key: ExecAddr) -> Option<&mut Region> {
        let index = self.first_ending_after(key);
        self.regions.get_mut(index).filter(|region| region.key == key)
    }

    /// The region that shares a page with `pages`, if any; the lowest of several.
    pub(crate) fn overlapping(&self, pages: ExecRange) -> Option<&Region> {
        self.regions.get(self.first_ending_after(pages.start())).filter(|region| region.hull.overlaps(pages))
    }

    /// The regions that may share a byte with `range`, ascending.
    pub(crate) fn regions_in(&self, range: ExecRange) -> impl Iterator<Item = &Region> {
        let first = self.first_ending_after(range.start());
        self.regions.iter().skip(first).take_while(move |region| region.hull.start() < range.end())
    }

    /// Adds a region that overlaps no other.
    pub(crate) fn insert(&mut self, mut region: Region) -> Result<(), NoRecords> {
        self.regions.try_reserve(1).map_err(|_| NoRecords)?;
        let hull = region.hull;
        region.order = self.next_order;
        self.next_order += 1;
        let index = self.first_ending_after(hull.start());
        self.regions.insert(index, region);
        Ok(())
    }

    /// Forgets what was deinitialized in `hull`, which a region covers again: there are never more keys than pages. Not
    /// before that region is in place, for a request that is refused changes nothing.
    pub(crate) fn forget_retired(&mut self, hull: ExecRange) {
        self.retired.retain(|key| !hull.contains(*key));
    }

    /// Takes the region named `key` out.
    pub(crate) fn remove(&mut self, key: ExecAddr) -> Option<Region> {
        let index = self.first_ending_after(key);
        self.regions.get(index).filter(|region| region.key == key)?;
        Some(self.regions.remove(index))
    }

    /// Remembers that a region named `key` was deinitialized.
    pub(crate) fn retire(&mut self, key: ExecAddr) {
        // Without memory for the record, doing it again is refused instead of passed over.
        if let Err(at) = self.retired.binary_search(&key)
            && self.retired.try_reserve(1).is_ok()
        {
            self.retired.insert(at, key);
        }
    }

    /// Whether a region named `key` was deinitialized here.
    pub(crate) fn is_retired(&self, key: ExecAddr) -> bool {
        self.retired.binary_search(&key).is_ok()
    }

    /// The region initialized last.
    pub(crate) fn newest(&self) -> Option<&Region> {
        self.regions.iter().max_by_key(|region| region.order)
    }

    /// A region whose actions are running.
    pub(crate) fn busy(&self) -> Option<&Region> {
        self.regions.iter().find(|region| region.phase == Phase::Busy)
    }

    fn first_ending_after(&self, addr: ExecAddr) -> usize {
        self.regions.partition_point(|region| region.hull.end() <= addr)
    }
}
