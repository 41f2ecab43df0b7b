//! The ends of memory: deinitializing regions, releasing reservations, and freeing all of it when a session ends.
//!
//! Dealloc actions run last to first while the memory they may live in is still there; what a failing one says is kept
//! and the rest goes on. The memory is freed regardless, so that nothing is ever lost to an error.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{AddrsArgs, ExecAddr, ExecRange, Instance, ReserveArgs};

use crate::executor::Executor;
use crate::line::Line;
use crate::memory::Owner;
use crate::platform::Platform;
use crate::ranges::NoRecords;
use crate::region::{Phase, Region};
use crate::reservations::ReserveError;
use crate::text::{Failures, TextBuf};
use crate::token;

/// Whose words a refusal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// LLVM 19's deallocate.
    Deallocate,
    /// LLVM 22's and 23's release.
    Release,
}

/// Why an address names nothing that could be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseError {
    NotABase { words: Words, base: ExecAddr },
    NotReserved { key: ExecAddr },
    NotAKey { key: ExecAddr },
    Busy { hull: ExecRange },
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABase { words: Words::Deallocate, base } => write!(f, "No allocation entry found for {base}"),
            Self::NotABase { words: Words::Release, base } => {
                write!(f, "In release, {base} is not part of any reserved address range")
            }
            Self::NotReserved { key } => {
                write!(f, "In deinitialize, {key} is not part of any reserved address range")
            }
            Self::NotAKey { key } => {
                write!(f, "In deinitialize, address {key} does not correspond to the start of any initialized region")
            }
            Self::Busy { hull } => {
                write!(f, "region {} -- {} is busy: its own actions are running", hull.start(), hull.end())
            }
        }
    }
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveRefusal {
    WrongInstance { found: ExecAddr },
    Reserve(ReserveError),
    Tables { wanted: u64, free: u64 },
}

impl fmt::Display for ReserveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongInstance { found } => write!(f, "{found} is not the memory manager's instance"),
            Self::Reserve(error) => error.fmt(f),
            Self::Tables { wanted, free } => {
                write!(f, "Cannot allocate memory for page tables: {wanted} bytes wanted, {free} bytes free")
            }
        }
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Reserves address space, readable and writable as zeroes until it is initialized.
    ///
    /// Nothing at all is reserved for 0 bytes, at address 0, as LLVM's executors answer: LLVM's `lli` asks for it before
    /// it closes, and takes a refusal for a failure of the program it ran.
    pub(crate) fn reserve(&self, args: &ReserveArgs) -> Result<ExecAddr, ReserveRefusal> {
        if args.instance != token::of_instance(Instance::MemoryManager) {
            return Err(ReserveRefusal::WrongInstance { found: args.instance });
        }
        if args.size == 0 {
            return Ok(ExecAddr::NULL);
        }
        self.reserve_for(args.size, Owner::Controller).map(ExecRange::start)
    }

    /// Reserves address space for `owner`.
    pub(crate) fn reserve_for(&self, size: u64, owner: Owner) -> Result<ExecRange, ReserveRefusal> {
        let range = self.memory.lock().reserve(size, owner).map_err(ReserveRefusal::Reserve)?;
        self.platform.demand_zero(range).map_err(|error| {
            self.platform.unmap(range);
            self.memory.lock().give_back(range.start());
            ReserveRefusal::Tables { wanted: error.wanted_bytes, free: error.free_bytes }
        })?;
        Ok(range)
    }

    /// Runs the dealloc actions of regions and makes their pages zeroes again; the reservations stay.
    pub(crate) fn deinitialize(&self, args: &AddrsArgs<'_>) -> Result<(), TextBuf> {
        check_instance(args.instance)?;
        let mut failures = Failures::new();
        for key in reversed(args)? {
            match self.begin_deinitialize(key) {
                Ok(None) => {}
                Ok(Some(base)) => {
                    self.run_dealloc_actions(base, key, &mut failures);
                    self.remove_region(base, key);
                    self.retire(base, key);
                }
                Err(error) => failures.add(error),
            }
        }
        failures.into_result()
    }

    /// Marks a region as going; `None` when it went before.
    fn begin_deinitialize(&self, key: ExecAddr) -> Result<Option<ExecAddr>, ReleaseError> {
        let mut memory = self.memory.lock();
        let (reserved, reservation) =
            memory.reservation_mut(key, Owner::Controller).ok_or(ReleaseError::NotReserved { key })?;
        if reservation.is_retired(key) {
            return Ok(None);
        }
        let region = reservation.region_mut(key).ok_or(ReleaseError::NotAKey { key })?;
        if region.phase == Phase::Busy {
            return Err(ReleaseError::Busy { hull: region.hull });
        }
        region.phase = Phase::Busy;
        Ok(Some(reserved.start()))
    }

    /// Runs what dealloc actions are left in reservations and frees them.
    pub(crate) fn release(&self, words: Words, args: &AddrsArgs<'_>) -> Result<(), TextBuf> {
        check_instance(args.instance)?;
        let mut failures = Failures::new();
        for base in reversed(args)? {
            let busy = {
                let memory = self.memory.lock();
                match memory.reservation(base, Owner::Controller).filter(|(range, _)| range.start() == base) {
                    None => Some(ReleaseError::NotABase { words, base }),
                    Some((_, reservation)) => reservation.busy().map(|region| ReleaseError::Busy { hull: region.hull }),
                }
            };
            match busy {
                Some(error) => failures.add(error),
                None => self.dissolve(base, &mut failures),
            }
        }
        failures.into_result()
    }

    /// Removes all regions of a reservation, the newest first, and then the reservation.
    fn dissolve(&self, base: ExecAddr, failures: &mut Failures) {
        loop {
            let newest = {
                let mut memory = self.memory.lock();
                let Some((_, reservation)) = memory.reservation_mut(base, Owner::Controller) else { break };
                let Some(key) = reservation.newest().map(|region| region.key) else { break };
                if let Some(region) = reservation.region_mut(key) {
                    region.phase = Phase::Busy;
                }
                key
            };
            self.run_dealloc_actions(base, newest, failures);
            self.remove_region(base, newest);
        }
        self.free_reservation(base);
    }

    /// Runs the dealloc actions of a region, last to first. Each is forgotten before it runs, so none runs twice.
    pub(crate) fn run_dealloc_actions(&self, base: ExecAddr, key: ExecAddr, failures: &mut Failures) {
        loop {
            let action = {
                let mut memory = self.memory.lock();
                let region = memory.reservation_mut(base, Owner::Controller).and_then(|(_, r)| r.region_mut(key));
                region.and_then(|region| region.deallocs.pop())
            };
            match action {
                None => return,
                Some(action) if action.function.is_null() => {}
                Some(action) => {
                    if let Err(text) = self.run_action(action.function, &action.args) {
                        failures.add(text);
                    }
                }
            }
        }
    }

    /// Forgets a region; its pages stay as they are.
    pub(crate) fn forget_region(&self, base: ExecAddr, key: ExecAddr) -> Option<Region> {
        let mut memory = self.memory.lock();
        memory.reservation_mut(base, Owner::Controller).and_then(|(_, reservation)| reservation.remove(key))
    }

    /// Remembers that a region named `key` was deinitialized.
    fn retire(&self, base: ExecAddr, key: ExecAddr) {
        if let Some((_, reservation)) = self.memory.lock().reservation_mut(base, Owner::Controller) {
            reservation.retire(key);
        }
    }

    /// Forgets a region and makes its pages zeroes that nobody can execute.
    pub(crate) fn remove_region(&self, base: ExecAddr, key: ExecAddr) {
        let region = self.forget_region(base, key);
        for run in region.iter().flat_map(|region| &region.runs) {
            self.make_demand_zero(run.pages);
        }
    }

    /// Forgets a reservation and takes its memory away.
    pub(crate) fn free_reservation(&self, base: ExecAddr) {
        let range = self.memory.lock().give_back(base);
        if let Some(range) = range {
            self.platform.unmap(range);
        }
    }

    /// Gives the frames of reserved pages back; they read as zeroes again.
    pub(crate) fn make_demand_zero(&self, pages: ExecRange) {
        if let Err(error) = self.platform.demand_zero(pages) {
            // Such pages are mapped, so their tables exist. Were there none all the same, no access beats a stale one.
            self.log(format_args!("{pages}: {error}"));
            self.platform.unmap(pages);
        }
    }

    /// Frees all that the session held; nothing of it is running any more.
    pub(crate) fn release_everything(&self) {
        let mut failures = Failures::new();
        loop {
            let base = self.memory.lock().any(Owner::Controller);
            match base {
                Some(base) => self.dissolve(base, &mut failures),
                None => break,
            }
        }
        if let Err(text) = failures.into_result() {
            self.log(format_args!("while freeing what the session held: {text}"));
        }
        self.heap.lock().clear();
        loop {
            let base = self.memory.lock().any(Owner::Heap);
            match base {
                Some(base) => self.free_reservation(base),
                None => break,
            }
        }
        self.memory.lock().begin_session();
    }
}

fn check_instance(found: ExecAddr) -> Result<(), TextBuf> {
    if found == token::of_instance(Instance::MemoryManager) {
        return Ok(());
    }
    Err(TextBuf::of(format_args!("{found} is not the memory manager's instance")))
}

/// The addresses of a request, last first.
fn reversed(args: &AddrsArgs<'_>) -> Result<Vec<ExecAddr>, TextBuf> {
    let mut addrs = Vec::new();
    let len = usize::try_from(args.addrs.len()).unwrap_or(usize::MAX);
    addrs.try_reserve_exact(len).map_err(|_| TextBuf::of(NoRecords))?;
    addrs.extend(args.addrs.iter());
    addrs.reverse();
    Ok(addrs)
}
