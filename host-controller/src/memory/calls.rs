//! The memory calls in both dialects, started without waiting: LLVM 19's finalize and deallocate, or initialize,
//! deinitialize and release.

use std::time::Instant;

use graft_protocol::call::{Deallocate, Deinitialize, Finalize, Initialize, Release, Reserve};
use graft_protocol::{AddrsArgs, AllocGroup, Blob, Lifetime, Outcome, Prot, Text};
use graft_protocol::{ExecAddr, FinalizeArgs, Instance, ReserveArgs, Segment, Seq, WrapperId};

use super::MemoryError;
use crate::session::{CallError, Caller, Pending};

/// Which calls the executor's memory manager is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// LLVM 19: a reservation is finalized once, as a whole.
    Whole,
    /// LLVM 22 and later: a reservation holds regions.
    Regions,
}

#[derive(Debug)]
pub(super) struct Calls {
    pub(super) caller: Caller,
    pub(super) form: Form,
    instance: ExecAddr,
}

#[derive(Debug)]
pub(super) enum PendingInitialize {
    Whole(Pending<Finalize>, ExecAddr),
    Region(Pending<Initialize>),
}

#[derive(Debug)]
pub(super) enum PendingFree {
    Deallocate(Pending<Deallocate>),
    Deinitialize(Pending<Deinitialize>),
    Release(Pending<Release>),
}

impl Calls {
    pub(super) fn new(caller: Caller) -> Result<Self, MemoryError> {
        let peer = caller.peer();
        let form = match (peer.wrapper(WrapperId::Initialize), peer.wrapper(WrapperId::Finalize)) {
            (Some(_), _) => Form::Regions,
            (None, Some(_)) => Form::Whole,
            (None, None) => return Err(CallError::NotOffered { wrapper: WrapperId::Initialize }.into()),
        };
        let instance = peer.instance(Instance::MemoryManager).ok_or(MemoryError::NoManager)?;
        Ok(Self { caller, form, instance })
    }

    pub(super) fn reserve(&self, size: u64) -> Result<Pending<Reserve>, CallError> {
        self.caller.start::<Reserve>(&ReserveArgs { instance: self.instance, size })
    }

    /// `base` is the reservation's; the segments are those of one region.
    pub(super) fn initialize(&self, base: ExecAddr, segments: &[Segment<'_>]) -> Result<PendingInitialize, CallError> {
        let args = FinalizeArgs { instance: self.instance, segments: Seq::new(segments), actions: Seq::default() };
        match self.form {
            Form::Whole => Ok(PendingInitialize::Whole(self.caller.start::<Finalize>(&args)?, base)),
            Form::Regions => Ok(PendingInitialize::Region(self.caller.start::<Initialize>(&args)?)),
        }
    }

    pub(super) fn deinitialize(&self, keys: &[ExecAddr]) -> Result<PendingFree, CallError> {
        let args = AddrsArgs { instance: self.instance, addrs: Seq::new(keys) };
        Ok(PendingFree::Deinitialize(self.caller.start::<Deinitialize>(&args)?))
    }

    pub(super) fn release(&self, bases: &[ExecAddr]) -> Result<PendingFree, CallError> {
        let args = AddrsArgs { instance: self.instance, addrs: Seq::new(bases) };
        match self.form {
            Form::Whole => Ok(PendingFree::Deallocate(self.caller.start::<Deallocate>(&args)?)),
            Form::Regions => Ok(PendingFree::Release(self.caller.start::<Release>(&args)?)),
        }
    }
}

/// LLVM 19 knows a reservation by the lowest segment of the request: an image that begins further up, for its alignment,
/// gets an empty segment in front.
pub(super) fn begin_at_base(segments: &mut Vec<Segment<'_>>, base: ExecAddr) {
    if let Some(first) = segments.first().copied()
        && let Some(size) = first.addr.checked_offset_from(base).filter(|size| *size > 0)
    {
        let group = AllocGroup { prot: Prot::Read, lifetime: Lifetime::Standard };
        segments.insert(0, Segment { group, addr: base, size, content: Blob(&[]) });
    }
}

impl PendingInitialize {
    /// Waits for the region's key, and says when it arrived.
    pub(super) fn wait(self) -> Result<(ExecAddr, Instant), MemoryError> {
        let refused = |text: Text<'_>| MemoryError::Initialize(text.to_string());
        match self {
            Self::Whole(pending, base) => {
                let reply = pending.wait()?;
                reply.read()?.0.map_err(refused)?;
                Ok((base, reply.arrived()))
            }
            Self::Region(pending) => {
                let reply = pending.wait()?;
                Ok((reply.read()?.0.map_err(refused)?, reply.arrived()))
            }
        }
    }
}

impl PendingFree {
    pub(super) fn wait(self) -> Result<(), MemoryError> {
        let read = |outcome: Outcome<'_>| outcome.0.map_err(|text| MemoryError::Free(text.to_string()));
        match self {
            Self::Deallocate(pending) => read(pending.wait()?.read()?),
            Self::Deinitialize(pending) => read(pending.wait()?.read()?),
            Self::Release(pending) => read(pending.wait()?.read()?),
        }
    }
}
