//! Regions: initialized parts of reservations, and the check that turns a request into one.
//!
//! [`plan`] judges the segments of a request before anything is touched: their numbers, their order, and what each page
//! would be. Protections go outward to whole pages, because slab managers send segments whose sizes are none.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange, Lifetime, Prot, Segment, Seq};

use crate::ranges::NoRecords;

/// Whole pages of one protection and lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) pages: ExecRange,
    pub(crate) prot: Prot,
    pub(crate) lifetime: Lifetime,
}

/// A call to make later, with its arguments.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) function: ExecAddr,
    pub(crate) args: Vec<u8>,
}

/// What a region is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its actions are running, or about to: it can neither go nor be entered a second time.
    Busy,
    /// It is initialized.
    Ready,
}

/// An initialized part of a reservation.
#[derive(Debug)]
pub(crate) struct Region {
    /// The lowest segment address: the region's name on the wire.
    pub(crate) key: ExecAddr,
    /// Whole pages from the first to the last segment.
    pub(crate) hull: ExecRange,
    /// Its pages by protection, ascending.
    pub(crate) runs: Vec<Run>,
    /// What to call when it goes, first to last; they are called last to first.
    pub(crate) deallocs: Vec<Action>,
    pub(crate) phase: Phase,
    /// Grows with every region of its reservation: which of two was initialized later.
    pub(crate) order: u64,
}

impl Region {
    /// The run that holds the byte at `addr`.
    pub(crate) fn run_at(&self, addr: ExecAddr) -> Option<&Run> {
        run_at(&self.runs, addr)
    }
}

/// The one of ascending runs that holds the byte at `addr`.
fn run_at(runs: &[Run], addr: ExecAddr) -> Option<&Run> {
    let index = runs.partition_point(|run| run.pages.end() <= addr);
    runs.get(index).filter(|run| run.pages.contains(addr))
}

/// What a request makes of its pages.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) key: ExecAddr,
    pub(crate) hull: ExecRange,
    pub(crate) runs: Vec<Run>,
}

impl Plan {
    /// Bytes of memory the request's pages take.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.pages.len()).fold(0, u64::saturating_add)
    }

    /// Whether `addr` will be executable for at least `lifetime`.
    pub(crate) fn is_executable(&self, addr: ExecAddr, lifetime: Lifetime) -> bool {
        let lasts = |run: &Run| lifetime == Lifetime::Finalize || run.lifetime == Lifetime::Standard;
        run_at(&self.runs, addr).is_some_and(|run| run.prot.is_executable() && lasts(run))
    }
}

/// Why the segments of a request cannot be what they ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanError {
    ContentExceeds { addr: ExecAddr, content: u64, size: u64 },
    PastTheEnd { addr: ExecAddr, size: u64 },
    OutOfOrder { addr: ExecAddr, previous: ExecRange },
    Outside { segment: ExecRange, reserved: ExecRange },
    SharedPage { page: ExecAddr, first: Prot, second: Prot },
    NoRecords(NoRecords),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContentExceeds { addr, content, size } => {
                write!(f, "Segment {addr} content size ({content:#x} bytes) exceeds segment size ({size:#x} bytes)")
            }
            Self::PastTheEnd { addr, size } => {
                write!(f, "Segment {addr} of {size:#x} bytes runs past the end of the address space")
            }
            Self::OutOfOrder { addr, previous } => write!(
                f,
                "Segment {addr} begins before the end of the one in front of it, {} -- {}",
                previous.start(),
                previous.end()
            ),
            Self::Outside { segment, reserved } => write!(
                f,
                "Segment {} -- {} crosses boundary of allocation {} -- {}",
                segment.start(),
                segment.end(),
                reserved.start(),
                reserved.end()
            ),
            Self::SharedPage { page, first, second } => {
                write!(f, "Page {page} would have to be {first} and {second}: two segments share it")
            }
            Self::NoRecords(error) => error.fmt(f),
        }
    }
}

/// The lowest address of a segment and the highest end, or `None` of no segments.
///
/// An end past the address space counts as its last byte: [`plan`] refuses it by name.
pub(crate) fn extent(segments: &Seq<'_, Segment<'_>>) -> Option<ExecRange> {
    let low = segments.iter().map(|segment| segment.addr).min()?;
    let high = segments.iter().map(|segment| ExecAddr(segment.addr.0.saturating_add(segment.size))).max()?;
    ExecRange::new(low, high)
}

/// Checks the segments of a request against each other and the reservation they must lie in.
pub(crate) fn plan(segments: &Seq<'_, Segment<'_>>, reserved: ExecRange, page_size: u64) -> Result<Plan, PlanError> {
    let no_records = PlanError::NoRecords(NoRecords);
    let mut runs = Vec::new();
    let most = usize::try_from(segments.len()).map_err(|_| no_records)?;
    runs.try_reserve_exact(most).map_err(|_| no_records)?;
    let mut previous: Option<ExecRange> = None;
    for segment in segments.iter() {
        let (addr, size) = (segment.addr, segment.size);
        let content = segment.content.0.len() as u64;
        if content > size {
            return Err(PlanError::ContentExceeds { addr, content, size });
        }
        let range = ExecRange::from_len(addr, size).ok_or(PlanError::PastTheEnd { addr, size })?;
        if let Some(previous) = previous.filter(|previous| addr < previous.end()) {
            return Err(PlanError::OutOfOrder { addr, previous });
        }
        if !reserved.encloses(range) {
            return Err(PlanError::Outside { segment: range, reserved });
        }
        previous = Some(range);
        if !range.is_empty() {
            let pages = range.to_pages(page_size).ok_or(PlanError::PastTheEnd { addr, size })?;
            add_run(&mut runs, Run { pages, prot: segment.group.prot, lifetime: segment.group.lifetime })?;
        }
    }
    // Segments ascend, so the first is the lowest. A request of empty segments still names one page.
    let key = segments.iter().next().map_or(reserved.start(), |segment| segment.addr);
    let end = previous.map_or(key, ExecRange::end).max(ExecAddr(key.0.saturating_add(1)));
    let hull = ExecRange::new(key, end).and_then(|range| range.to_pages(page_size)).unwrap_or(reserved);
    Ok(Plan { key, hull, runs })
}

/// Adds the pages of one more segment; `runs` has room for it.
fn add_run(runs: &mut Vec<Run>, mut run: Run) -> Result<(), PlanError> {
    if let Some(last) = runs.last_mut()
        && run.pages.start() < last.pages.end()
    {
        if last.prot != run.prot {
            return Err(PlanError::SharedPage { page: run.pages.start(), first: last.prot, second: run.prot });
        }
        // A page that somebody needs for longer stays for longer.
        match (last.lifetime, run.lifetime) {
            (Lifetime::Standard, Lifetime::Finalize) => {
                let start = last.pages.end();
                run.pages = ExecRange::new(start, run.pages.end().max(start)).unwrap_or(run.pages);
            }
            (Lifetime::Finalize, Lifetime::Standard) => {
                last.pages = ExecRange::new(last.pages.start(), run.pages.start()).unwrap_or(last.pages);
                if last.pages.is_empty() {
                    runs.pop();
                }
            }
            (Lifetime::Standard, Lifetime::Standard) | (Lifetime::Finalize, Lifetime::Finalize) => {
                let end = last.pages.end().max(run.pages.end());
                last.pages = ExecRange::new(last.pages.start(), end).unwrap_or(last.pages);
                return Ok(());
            }
        }
    }
    if !run.pages.is_empty() {
        runs.push(run);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    use graft_protocol::{AllocGroup, Blob};

    use super::*;

    const PAGE: u64 = 4096;

    fn range(start: u64, end: u64) -> ExecRange {
        ExecRange::new(ExecAddr(start), ExecAddr(end)).unwrap()
    }

    fn segment(bits: u8, addr: u64, size: u64, content: &[u8]) -> Segment<'_> {
        Segment { group: AllocGroup::from_bits(bits).unwrap(), addr: ExecAddr(addr), size, content: Blob(content) }
    }

    fn planned(segments: &[Segment<'_>]) -> Result<Plan, PlanError> {
        plan(&Seq::new(segments), range(0x10000, 0x20000), PAGE)
    }

    fn runs(segments: &[Segment<'_>]) -> Vec<(u64, u64, u8)> {
        let bits = |run: &Run| AllocGroup { prot: run.prot, lifetime: run.lifetime }.bits();
        planned(segments).unwrap().runs.iter().map(|r| (r.pages.start().0, r.pages.end().0, bits(r))).collect()
    }

    #[test]
    fn protections_go_outward_to_pages() {
        let plan = planned(&[segment(1, 0x11000, 104, b""), segment(3, 0x12000, 432, b"x")]).unwrap();
        assert_eq!((plan.key, plan.hull), (ExecAddr(0x11000), range(0x11000, 0x13000)));
        assert_eq!(plan.bytes(), 2 * PAGE);
        assert!(!plan.is_executable(ExecAddr(0x11000), Lifetime::Finalize));
        assert_eq!(runs(&[segment(1, 0x11010, 8, b""), segment(1, 0x11020, 0x1000, b"")]), [(0x11000, 0x13000, 1)]);
    }

    #[test]
    fn what_goes_after_the_actions_is_executable_no_longer() {
        let plan = planned(&[segment(13, 0x11000, 8, b""), segment(5, 0x12000, 8, b"")]).unwrap();
        let executable = |at, lifetime| plan.is_executable(ExecAddr(at), lifetime);
        assert!(executable(0x11000, Lifetime::Finalize) && !executable(0x11000, Lifetime::Standard));
        assert!(executable(0x12000, Lifetime::Finalize) && executable(0x12000, Lifetime::Standard));
    }

    #[test]
    fn a_page_has_one_protection() {
        let error = planned(&[segment(1, 0x11000, 8, b""), segment(3, 0x11800, 8, b"")]).unwrap_err();
        assert_eq!(error.to_string(), "Page 0x11000 would have to be R-- and RW-: two segments share it");
    }

    #[test]
    fn a_page_lives_as_long_as_its_longest_segment() {
        assert_eq!(runs(&[segment(1, 0x11000, 8, b""), segment(9, 0x11800, 8, b"")]), [(0x11000, 0x12000, 1)]);
        assert_eq!(runs(&[segment(9, 0x11000, 8, b""), segment(1, 0x11800, 8, b"")]), [(0x11000, 0x12000, 1)]);
        assert_eq!(
            runs(&[
                segment(9, 0x11000, 0x1008, b""),
                segment(1, 0x12800, 0x900, b""),
                segment(9, 0x13800, 0x1000, b"")
            ]),
            [(0x11000, 0x12000, 9), (0x12000, 0x14000, 1), (0x14000, 0x15000, 9)]
        );
    }

    #[test]
    fn numbers_are_judged_first() {
        let cases = vec![
            (
                vec![segment(1, 0x11000, 1, b"ab")],
                "Segment 0x11000 content size (0x2 bytes) exceeds segment size (0x1 bytes)",
            ),
            (
                vec![segment(1, 0x11000, u64::MAX, b"")],
                "Segment 0x11000 of 0xffffffffffffffff bytes runs past the end of the address space",
            ),
            (
                vec![segment(1, 0x12000, 8, b""), segment(1, 0x12007, 8, b"")],
                "Segment 0x12007 begins before the end of the one in front of it, 0x12000 -- 0x12008",
            ),
            (
                vec![segment(1, 0x12000, 8, b""), segment(1, 0x11000, 8, b"")],
                "Segment 0x11000 begins before the end of the one in front of it, 0x12000 -- 0x12008",
            ),
            (
                vec![segment(1, 0x1fff8, 9, b"")],
                "Segment 0x1fff8 -- 0x20001 crosses boundary of allocation 0x10000 -- 0x20000",
            ),
            (
                vec![segment(1, 0xf000, 9, b"")],
                "Segment 0xf000 -- 0xf009 crosses boundary of allocation 0x10000 -- 0x20000",
            ),
        ];
        for (segments, text) in cases {
            assert_eq!(planned(&segments).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn empty_segments_take_no_page() {
        let plan =
            planned(&[segment(5, 0x11000, 0, b""), segment(3, 0x11000, 8, b""), segment(1, 0x12000, 0, b"")]).unwrap();
        assert_eq!((plan.runs.len(), plan.hull), (1, range(0x11000, 0x12000)));
        let plan = planned(&[segment(5, 0x11000, 0, b"")]).unwrap();
        assert_eq!((plan.runs.len(), plan.hull), (0, range(0x11000, 0x12000)));
    }
}
