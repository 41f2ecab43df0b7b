//! The controller's reads and writes of executor memory.
//!
//! All of it must be mapped: inside one reservation, and for a write not on pages that are initialized without it. A
//! request is checked as a whole before its first element is done. LLVM's executors check nothing and do the elements in
//! order.

use core::fmt;

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange, Prot};

use crate::executor::Executor;
use crate::line::Line;
use crate::memory::Memory;
use crate::platform::{OutOfFrames, Platform};
use crate::ranges::NoRecords;

/// Why memory was not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    PastTheEnd {
        at: ExecAddr,
        len: u64,
    },
    NotMapped {
        range: ExecRange,
    },
    NotWritable {
        range: ExecRange,
        prot: Prot,
    },
    /// No NUL before the end of the mapped range, or before the limit.
    Unterminated {
        at: ExecAddr,
        len: u64,
    },
    /// The answer would not fit a message.
    AboveLimit {
        bytes: u64,
        limit: u64,
    },
    Frames(OutOfFrames),
    NoRecords(NoRecords),
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PastTheEnd { at, len } => write!(f, "{len} bytes at {at} run past the end of the address space"),
            Self::NotMapped { range } => write!(f, "{range} is not in one reservation of this session"),
            Self::NotWritable { range, prot } => write!(f, "{range} is not writable: it is initialized as {prot}"),
            Self::Unterminated { at, len } => write!(f, "no NUL in the {len} bytes at {at}"),
            Self::AboveLimit { bytes, limit } => {
                write!(f, "an answer of {bytes} bytes is above the limit of {limit} bytes")
            }
            Self::Frames(error) => error.fmt(f),
            Self::NoRecords(error) => error.fmt(f),
        }
    }
}

impl Memory {
    /// Whether all of `range` is mapped, and may be written if it is to be.
    fn check(&self, range: ExecRange, write: Write) -> Result<(), AccessError> {
        let (_, reservation) = self.holding(range).ok_or(AccessError::NotMapped { range })?;
        if write == Write::No {
            return Ok(());
        }
        let closed = reservation
            .regions_in(range)
            .flat_map(|region| &region.runs)
            .find(|run| run.pages.overlaps(range) && !run.prot.is_writable());
        closed.map_or(Ok(()), |run| Err(AccessError::NotWritable { range, prot: run.prot }))
    }

    /// Calls `visit` with the parts of `pages` that are not initialized.
    fn each_gap<E>(&self, pages: ExecRange, mut visit: impl FnMut(ExecRange) -> Result<(), E>) -> Result<(), E> {
        let mut at = pages.start();
        if let Some((_, reservation)) = self.holding(pages) {
            for run in reservation.regions_in(pages).flat_map(|region| &region.runs) {
                if let Some(gap) = ExecRange::new(at, run.pages.start().min(pages.end())).filter(|gap| !gap.is_empty())
                {
                    visit(gap)?;
                }
                at = at.max(run.pages.end());
            }
        }
        match ExecRange::new(at, pages.end()).filter(|gap| !gap.is_empty()) {
            Some(gap) => visit(gap),
            None => Ok(()),
        }
    }
}

/// Whether an access is a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Yes,
    No,
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Stores every element of a request, or none.
    pub(crate) fn write_all<B: AsRef<[u8]>>(
        &self,
        elements: impl Iterator<Item = (ExecAddr, B)> + Clone,
    ) -> Result<(), AccessError> {
        let ranges = elements.clone().map(|(at, bytes)| range_of(at, bytes.as_ref().len() as u64));
        ranges.clone().try_for_each(|range| self.judge(range?, Write::Yes))?;
        // Only now, so that a request that is refused takes no memory.
        self.commit_gaps(&mut ranges.flatten())?;
        for (at, bytes) in elements {
            if !bytes.as_ref().is_empty() {
                self.platform.store(at, bytes.as_ref());
            }
        }
        Ok(())
    }

    /// Makes sure that every element of a request can be loaded. One that is refused takes no memory.
    pub(crate) fn make_all_readable(
        &self,
        elements: impl Iterator<Item = (ExecAddr, u64)> + Clone,
    ) -> Result<(), AccessError> {
        let ranges = elements.map(|(at, len)| range_of(at, len));
        ranges.clone().try_for_each(|range| self.judge(range?, Write::No))?;
        self.commit_gaps(&mut ranges.flatten())
    }

    /// Makes sure that all of `range` can be loaded.
    pub(crate) fn make_readable(&self, range: ExecRange) -> Result<(), AccessError> {
        self.judge(range, Write::No)?;
        self.commit_gaps(&mut core::iter::once(range))
    }

    /// Loads `out.len()` bytes at `at`.
    pub(crate) fn read_into(&self, at: ExecAddr, out: &mut [u8]) -> Result<(), AccessError> {
        self.make_readable(range_of(at, out.len() as u64)?)?;
        if !out.is_empty() {
            self.platform.load(at, out);
        }
        Ok(())
    }

    /// The bytes at `at` up to the first NUL, which must come within `limit` bytes and before the mapped memory ends.
    pub(crate) fn read_string(&self, at: ExecAddr, limit: usize) -> Result<Vec<u8>, AccessError> {
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let len = bytes.len() as u64;
            let unterminated = AccessError::Unterminated { at, len };
            let next = at.checked_add(len).ok_or(unterminated)?;
            // Page by page: memory nobody touched yet is zero, so at most one page of it is ever taken.
            let step = self.left_on_page(next).min(256);
            let mut chunk = [0; 256];
            let chunk = usize::try_from(step).ok().and_then(|step| chunk.get_mut(..step)).unwrap_or(&mut []);
            match self.read_into(next, chunk) {
                Err(AccessError::NotMapped { .. }) if len > 0 => return Err(unterminated),
                other => other?,
            }
            let end = chunk.iter().position(|byte| *byte == 0);
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or(&[]);
            bytes.try_reserve(part.len()).map_err(|_| AccessError::NoRecords(NoRecords))?;
            bytes.extend_from_slice(part);
            if end.is_some() {
                return Ok(bytes);
            }
            if bytes.len() > limit {
                return Err(AccessError::Unterminated { at, len: bytes.len() as u64 });
            }
        }
    }

    fn judge(&self, range: ExecRange, write: Write) -> Result<(), AccessError> {
        if range.is_empty() { Ok(()) } else { self.memory.lock().check(range, write) }
    }

    /// Takes frames for what of `ranges` is reserved and not initialized, all or none. Its pages read as zeroes and stay
    /// writable.
    fn commit_gaps(&self, ranges: &mut dyn Iterator<Item = ExecRange>) -> Result<(), AccessError> {
        // The lock may be held here: page tables change, loaded memory is not touched.
        let memory = self.memory.lock();
        // Heap sort is slower than others and a tenth of their code.
        let mut gaps = BinaryHeap::new();
        for range in ranges.filter(|range| !range.is_empty()) {
            memory.each_gap(self.pages(range), |gap| {
                gaps.try_reserve(1).map_err(|_| AccessError::NoRecords(NoRecords))?;
                gaps.push((gap.start(), gap.end()));
                Ok(())
            })?;
        }
        // Many elements may lie on one page, which costs once, and neighbours share their tables.
        let mut gaps = gaps.into_sorted_vec();
        gaps.dedup_by(|(start, end), (_, last)| {
            let joins = *start <= *last;
            *last = if joins { *end.max(last) } else { *last };
            joins
        });
        let gap = |&(start, end): &(ExecAddr, ExecAddr)| ExecRange::new(start, end).unwrap_or_default();
        let wanted_bytes = gaps.iter().map(|ends| self.platform.cost(gap(ends))).fold(0, u64::saturating_add);
        let free_bytes = self.platform.frames().free;
        if wanted_bytes > free_bytes {
            return Err(AccessError::Frames(OutOfFrames { wanted_bytes, free_bytes }));
        }
        gaps.iter().try_for_each(|ends| self.platform.commit(gap(ends)).map_err(AccessError::Frames))
    }
}

fn range_of(at: ExecAddr, len: u64) -> Result<ExecRange, AccessError> {
    ExecRange::from_len(at, len).ok_or(AccessError::PastTheEnd { at, len })
}
