//! Initializing: from a request to a region whose code may run (LLVM 19 says finalize).
//!
//! Everything that can be wrong with a request is found before its first byte is stored, and a refused request leaves
//! everything as it was. What LLVM's executors do not check is checked here: that the segments lie in one reservation
//! of this session, that no page of them is initialized already, that none is writable and executable, that every
//! action is something that may be called, that there is memory for all of it.
//!
//! After that only an action can fail, or a kernel below us that has no room for one more protection: then the pages are
//! zeroes again and the region is gone. When an action fails, the dealloc actions of those that succeeded run, last first, and the
//! region is gone; LLVM 19's finalize takes the reservation with it, as LLVM 19 does.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{ActionPair, ExecAddr, ExecRange, FinalizeArgs, Instance, Lifetime, Segment, Seq, WrapperCall};

use crate::executor::Executor;
use crate::line::Line;
use crate::memory::{Memory, Owner};
use crate::platform::{OutOfFrames, Platform};
use crate::ranges::NoRecords;
use crate::region::{Action, Phase, Plan, PlanError, Region, extent, plan};
use crate::reply::copied;
use crate::text::{Failures, TextBuf};
use crate::{actions, token};

/// Whose rules apply where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// LLVM 19's finalize: once per reservation, from its base on.
    Finalize,
    /// LLVM 22's and 23's initialize: any part of a reservation.
    Initialize,
}

/// Which side of an existing region a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Previous,
    Following,
}

/// Why a request was refused, or which failure undid it.
#[derive(Debug)]
pub(crate) enum InitializeError {
    WrongInstance {
        found: ExecAddr,
    },
    /// No segments, no actions (LLVM 22 and 23).
    Empty,
    /// No segments to attach the actions to.
    ActionsOnly,
    /// LLVM 19: the lowest address is not the base of a reservation.
    Unrecognized {
        addr: ExecAddr,
    },
    /// LLVM 22 and 23: some byte is in no reservation.
    NotReserved {
        range: ExecRange,
    },
    /// LLVM 19: a second time.
    AlreadyFinalized {
        base: ExecAddr,
    },
    Overlaps {
        range: ExecRange,
        other: ExecRange,
        side: Side,
    },
    Plan(PlanError),
    /// An action that is neither null, nor a wrapper function fit for it, nor executable memory.
    BadAction {
        index: u64,
        role: &'static str,
        function: ExecAddr,
    },
    Frames {
        wanted: u64,
        free: u64,
    },
    NoRecords(NoRecords),
    /// Actions failed; everything is undone.
    Actions(TextBuf),
}

impl fmt::Display for InitializeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongInstance { found } => write!(f, "{found} is not the memory manager's instance"),
            Self::Empty => f.write_str("Finalization request is empty"),
            Self::ActionsOnly => f.write_str("Finalization actions attached to empty finalization request"),
            Self::Unrecognized { addr } => write!(f, "Attempt to finalize unrecognized allocation {addr}"),
            Self::NotReserved { range } => write!(
                f,
                "In initialize, range {} -- {} is not part of any reserved address range",
                range.start(),
                range.end()
            ),
            Self::AlreadyFinalized { base } => write!(f, "Attempt to finalize allocation {base} a second time"),
            Self::Overlaps { range, other, side } => write!(
                f,
                "In initialize, region {} -- {} overlaps {} region {} -- {}",
                range.start(),
                range.end(),
                match side {
                    Side::Previous => "previous",
                    Side::Following => "following",
                },
                other.start(),
                other.end()
            ),
            Self::Plan(error) => error.fmt(f),
            Self::BadAction { index, role, function } => write!(
                f,
                "{role} action {index} at {function} is neither a wrapper function of this executor that can be an \
                 action nor in executable memory"
            ),
            Self::Frames { wanted, free } => {
                write!(f, "Cannot allocate memory: {wanted} bytes wanted, {free} bytes free")
            }
            Self::NoRecords(error) => error.fmt(f),
            Self::Actions(text) => text.fmt(f),
        }
    }
}

impl From<OutOfFrames> for InitializeError {
    fn from(OutOfFrames { wanted_bytes, free_bytes }: OutOfFrames) -> Self {
        Self::Frames { wanted: wanted_bytes, free: free_bytes }
    }
}

impl From<NoRecords> for InitializeError {
    fn from(error: NoRecords) -> Self {
        Self::NoRecords(error)
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Turns segments into a region, runs its finalize actions and returns its key; null of an empty finalize.
    pub(crate) fn initialize(&self, rules: Rules, args: &FinalizeArgs<'_>) -> Result<ExecAddr, InitializeError> {
        if args.instance != token::of_instance(Instance::MemoryManager) {
            return Err(InitializeError::WrongInstance { found: args.instance });
        }
        let Some(extent) = extent(&args.segments) else {
            return match rules {
                // LLVM 19 answers success and does nothing; it sends no actions either.
                Rules::Finalize if args.actions.is_empty() => Ok(ExecAddr::NULL),
                Rules::Initialize if args.actions.is_empty() => Err(InitializeError::Empty),
                Rules::Finalize | Rules::Initialize => Err(InitializeError::ActionsOnly),
            };
        };
        let (base, key) = self.admit(rules, args, extent)?;
        if let Err(error) = self.take_frames(base, key) {
            // `admit` saw enough of them: only a platform that has less than it says gets here.
            self.forget_region(base, key);
            return Err(error);
        }
        if let Err(error) = self.store(base, key, &args.segments) {
            self.remove_region(base, key);
            return Err(error);
        }
        match self.run_finalize_actions(base, key, &args.actions) {
            Ok(()) => {
                self.settle(base, key);
                Ok(key)
            }
            Err(text) => {
                self.remove_region(base, key);
                if rules == Rules::Finalize {
                    self.free_reservation(base);
                }
                Err(InitializeError::Actions(text))
            }
        }
    }

    /// Makes every check, and enters the region in the records as busy.
    fn admit(
        &self,
        rules: Rules,
        args: &FinalizeArgs<'_>,
        extent: ExecRange,
    ) -> Result<(ExecAddr, ExecAddr), InitializeError> {
        let page_size = self.platform.page_size();
        let mut memory = self.memory.lock();
        let (reserved, _) = match rules {
            Rules::Finalize => memory
                .reservation(extent.start(), Owner::Controller)
                .filter(|(reserved, _)| reserved.start() == extent.start())
                .ok_or(InitializeError::Unrecognized { addr: extent.start() })?,
            Rules::Initialize => memory
                .reservation(extent.start(), Owner::Controller)
                .ok_or(InitializeError::NotReserved { range: extent })?,
        };
        let plan = plan(&args.segments, reserved, page_size).map_err(|error| match error {
            PlanError::Outside { .. } if rules == Rules::Initialize => InitializeError::NotReserved { range: extent },
            error => InitializeError::Plan(error),
        })?;
        self.check_neighbours(rules, &memory, reserved.start(), &plan)?;
        check_actions(&memory, &plan, &args.actions)?;
        let mut deallocs = Vec::new();
        let most = usize::try_from(args.actions.len()).map_err(|_| NoRecords)?;
        deallocs.try_reserve_exact(most).map_err(|_| NoRecords)?;
        for pair in args.actions {
            let args = copied(pair.dealloc.args.0).ok_or(NoRecords)?;
            deallocs.push(Action { function: pair.dealloc.function, args });
        }
        let Plan { key, hull, runs } = plan;
        let region = Region { key, hull, runs, deallocs, phase: Phase::Busy, order: 0 };
        let Some((reserved, reservation)) = memory.reservation_mut(reserved.start(), Owner::Controller) else {
            return Err(InitializeError::NotReserved { range: extent });
        };
        reservation.insert(region)?;
        let Some(region) = reservation.region_mut(key) else { return Err(NoRecords.into()) };
        // Last: the records came out of the same frames. Nothing takes any between here and `take_frames`.
        let wanted = region.runs.iter().map(|run| self.platform.cost(run.pages)).fold(0, u64::saturating_add);
        let free = self.platform.frames().free;
        if wanted > free {
            reservation.remove(key);
            return Err(InitializeError::Frames { wanted, free });
        }
        Ok((reserved.start(), key))
    }

    fn check_neighbours(
        &self,
        rules: Rules,
        memory: &Memory,
        base: ExecAddr,
        plan: &Plan,
    ) -> Result<(), InitializeError> {
        let Some((_, reservation)) = memory.reservation(base, Owner::Controller) else { return Ok(()) };
        if rules == Rules::Finalize && !reservation.regions().is_empty() {
            return Err(InitializeError::AlreadyFinalized { base });
        }
        match reservation.overlapping(plan.hull) {
            None => Ok(()),
            Some(other) => {
                let side = if other.key <= plan.key { Side::Previous } else { Side::Following };
                Err(InitializeError::Overlaps { range: plan.hull, other: other.hull, side })
            }
        }
    }

    fn take_frames(&self, base: ExecAddr, key: ExecAddr) -> Result<(), InitializeError> {
        self.each_run(base, key, |run| self.platform.commit(run.pages).map_err(InitializeError::from))
    }

    /// Stores the content and sets the protections.
    fn store(&self, base: ExecAddr, key: ExecAddr, segments: &Seq<'_, Segment<'_>>) -> Result<(), InitializeError> {
        for segment in segments.iter() {
            let content = segment.content.0;
            self.platform.store(segment.addr, content);
            let stored = content.len() as u64;
            if let Some(rest) = segment.addr.checked_add(stored) {
                self.platform.store_zeroes(rest, segment.size.saturating_sub(stored));
            }
        }
        self.each_run(base, key, |run| self.platform.protect(run.pages, run.prot).map_err(InitializeError::from))
    }

    /// Calls `act` with each run of a region, without holding the lock meanwhile.
    fn each_run(
        &self,
        base: ExecAddr,
        key: ExecAddr,
        mut act: impl FnMut(crate::region::Run) -> Result<(), InitializeError>,
    ) -> Result<(), InitializeError> {
        let mut index = 0;
        loop {
            let run = {
                let memory = self.memory.lock();
                let region = memory.reservation(base, Owner::Controller).and_then(|(_, r)| r.region_at(key));
                region.and_then(|region| region.runs.get(index).copied())
            };
            match run {
                Some(run) => act(run)?,
                None => return Ok(()),
            }
            index += 1;
        }
    }

    /// Runs the finalize actions; when one fails, what the ones before it need undone is undone.
    fn run_finalize_actions(
        &self,
        base: ExecAddr,
        key: ExecAddr,
        pairs: &Seq<'_, ActionPair<'_>>,
    ) -> Result<(), TextBuf> {
        for (index, pair) in pairs.iter().enumerate() {
            let WrapperCall { function, args } = pair.finalize;
            if function.is_null() {
                continue;
            }
            if let Err(text) = self.run_action(function, args.0) {
                let mut failures = Failures::new();
                failures.add(text);
                self.truncate_deallocs(base, key, index);
                self.run_dealloc_actions(base, key, &mut failures);
                return failures.into_result();
            }
        }
        Ok(())
    }

    /// Forgets the dealloc actions whose finalize actions did not succeed.
    fn truncate_deallocs(&self, base: ExecAddr, key: ExecAddr, succeeded: usize) {
        let mut memory = self.memory.lock();
        if let Some((_, reservation)) = memory.reservation_mut(base, Owner::Controller)
            && let Some(region) = reservation.region_mut(key)
        {
            region.deallocs.truncate(succeeded);
        }
    }

    /// Frees what only the finalize actions needed, and makes the region an ordinary one.
    fn settle(&self, base: ExecAddr, key: ExecAddr) {
        loop {
            let spent = {
                let mut memory = self.memory.lock();
                let Some((_, reservation)) = memory.reservation_mut(base, Owner::Controller) else { return };
                let Some(region) = reservation.region_mut(key) else { return };
                region.deallocs.retain(|action| !action.function.is_null());
                match region.runs.iter().position(|run| run.lifetime == Lifetime::Finalize) {
                    Some(index) => region.runs.remove(index).pages,
                    None => {
                        region.phase = Phase::Ready;
                        let hull = region.hull;
                        reservation.forget_retired(hull);
                        return;
                    }
                }
            };
            self.make_demand_zero(spent);
        }
    }
}

fn check_actions(memory: &Memory, plan: &Plan, pairs: &Seq<'_, ActionPair<'_>>) -> Result<(), InitializeError> {
    let callable = |function: ExecAddr, needed: Lifetime| {
        function.is_null()
            || token::to_wrapper(function).is_some_and(actions::can_be_action)
            || plan.is_executable(function, needed)
            || memory.is_executable(function)
    };
    for (index, pair) in pairs.iter().enumerate() {
        let roles = [("finalize", pair.finalize, Lifetime::Finalize), ("dealloc", pair.dealloc, Lifetime::Standard)];
        for (role, call, needed) in roles {
            if !callable(call.function, needed) {
                return Err(InitializeError::BadAction { index: index as u64, role, function: call.function });
            }
        }
    }
    Ok(())
}
