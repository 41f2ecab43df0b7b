//! Gives every section its place, relative to a base not known yet.

mod place;
mod segment;

use std::collections::HashMap;

use graft_protocol::ExecAddr;

use super::parse::SymbolKind;
use super::resolve::{Definition, GlobalId, Provided, SectionId, Target};
use super::{External, Image, LayoutError, Program, RelocateError, relocate};

pub use segment::SegmentShape;
pub(crate) use segment::{Chunk, Piece};

/// Where everything goes, relative to a base not known yet.
///
/// Nothing here depends on the addresses of externals: slots and stubs are allotted for all that may need one, so that
/// the reservation and the look-up of externals can travel together.
#[derive(Debug)]
pub struct Layout<'p> {
    pub(crate) program: &'p Program<'p>,
    pub(crate) shapes: Vec<SegmentShape>,
    /// What has content in each segment, in parallel to `shapes`.
    pub(crate) chunks: Vec<Chunk>,
    /// The offset of every section of the program, by state index; [`NOWHERE`] for the others.
    pub(crate) sections: Vec<u64>,
    /// The offset of every common symbol of the program.
    pub(crate) commons: Vec<u64>,
    /// Start and end of the sections that symbols delimit.
    pub(crate) named: Vec<(u64, u64)>,
    /// Start and end of the arrays of functions, by role.
    pub(crate) arrays: [(u64, u64); 3],
    /// All arrays of functions, in the order of execution before the entry.
    pub(crate) array_order: Vec<SectionId>,
    /// Start and end of the block of thread-local storage; the thread pointer points at the end.
    pub(crate) thread: (u64, u64),
    pub(crate) got: u64,
    /// The offsets of the GOT's slots; [`NOWHERE`] for those that are not needed.
    pub(crate) slots: Vec<u64>,
    pub(crate) stubs: u64,
    /// The stubs of indirect functions, and the slots that these jump through.
    pub(crate) indirect: (u64, u64),
    pub(crate) unwind: UnwindPlan,
    pub(crate) unwind_index: u64,
    /// From the base to the end of the last segment.
    size: u64,
    /// What the base must be a multiple of.
    align: u64,
}

/// How long the index of unwind records is: its header, and a pair of distances for each record of a function.
pub(crate) fn unwind_index_size(program: &Program<'_>) -> u64 {
    if !program.unwind_index {
        return 0;
    }
    let records = program.unwind.iter().flat_map(|table| &table.records);
    let functions = records.filter(|record| record.live && record.shared.is_some()).count();
    u64::try_from(functions).unwrap_or(u64::MAX).saturating_mul(8).saturating_add(UNWIND_INDEX_HEADER)
}

/// Of the index of unwind records, in bytes: what forms it has, where the records are and how many.
const UNWIND_INDEX_HEADER: u64 = 12;

/// Where the records of unwind tables go.
#[derive(Debug, Default)]
pub(crate) struct UnwindPlan {
    /// Offset from the base.
    pub start: u64,
    pub size: u64,
    /// Per table and record: offset from the start. A record that is not kept has the place of the next one.
    pub records: Vec<Vec<u64>>,
    /// Which table a section is.
    pub tables: HashMap<SectionId, usize>,
}

/// The offset of what has no place.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// Of a slot of the GOT, in bytes.
pub(crate) const SLOT_SIZE: u64 = 8;

/// `jmp *slot(%rip)` and two bytes of padding.
pub(crate) const STUB_SIZE: u64 = 8;

/// `movabs $slot, %r11`, `jmp *(%r11)` and three bytes of padding: the slot is writable, so it may lie far away.
pub(crate) const INDIRECT_STUB_SIZE: u64 = 16;

/// The addresses the executor gave for [`Program::externals`].
#[derive(Clone, Debug, Default)]
pub struct Externals {
    addresses: HashMap<String, ExecAddr>,
}

impl Externals {
    /// Notes that `name` is at `addr`; the null address means that the executor does not have it.
    pub fn insert(&mut self, name: impl Into<String>, addr: ExecAddr) {
        self.addresses.insert(name.into(), addr);
    }

    pub(crate) fn address(&self, name: &[u8]) -> Option<ExecAddr> {
        let name = std::str::from_utf8(name).ok()?;
        self.addresses.get(name).copied().filter(|addr| !addr.is_null())
    }
}

impl<S: Into<String>> FromIterator<(S, ExecAddr)> for Externals {
    fn from_iter<I: IntoIterator<Item = (S, ExecAddr)>>(pairs: I) -> Self {
        Self { addresses: pairs.into_iter().map(|(name, addr)| (name.into(), addr)).collect() }
    }
}

impl<'p> Layout<'p> {
    pub(crate) fn new(program: &'p Program<'p>) -> Result<Self, LayoutError> {
        place::place(program)
    }

    /// How many bytes to reserve, at any page-aligned address, so that [`Self::link`] finds room there.
    ///
    /// More than [`Self::size`] when a section's alignment is larger than a page.
    #[must_use]
    pub fn reservation(&self) -> u64 {
        self.size.saturating_add(self.align - self.program.options.page_size)
    }

    /// How many bytes to reserve at an address that is a multiple of [`Self::align`].
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The alignment of the image: the page size, or the largest alignment of a section.
    #[must_use]
    pub fn align(&self) -> u64 {
        self.align
    }

    /// The segments, in address order.
    #[must_use]
    pub fn segments(&self) -> &[SegmentShape] {
        &self.shapes
    }

    /// The names the executor must provide, each once.
    #[must_use]
    pub fn externals(&self) -> &[External<'p>] {
        self.program.externals()
    }

    /// Applies every relocation for a reservation at `base`, a multiple of the page size.
    ///
    /// # Errors
    /// Symbols nobody defines, each with its referrers; values that do not fit their field.
    pub fn link(&self, base: ExecAddr, externals: &Externals) -> Result<Image<'_>, RelocateError> {
        relocate::link(self, base, externals)
    }

    /// The offset from the base of what a name or place stands for, or an absolute address.
    pub(crate) fn locate(&self, target: Target) -> Location {
        match target {
            Target::Section(id, value) => Location::Offset(self.section_offset(id, value)),
            Target::Indirect(id, value) => Location::Offset(self.indirect_offset(id, value)),
            Target::Absolute(address) => Location::Address(address),
            Target::Global(id) => self.locate_global(id),
        }
    }

    fn locate_global(&self, id: GlobalId) -> Location {
        match self.program.globals[id.0].definition {
            Definition::Undefined => Location::External(id),
            Definition::Section(section, value) if self.program.globals[id.0].kind == SymbolKind::Indirect => {
                Location::Offset(self.indirect_offset(section, value))
            }
            Definition::Section(section, value) => Location::Offset(self.section_offset(section, value)),
            Definition::Absolute(address) => Location::Address(address),
            Definition::Common { index, .. } => {
                Location::Offset(index.and_then(|index| self.commons.get(index)).copied().unwrap_or(NOWHERE))
            }
            Definition::Provided(provided) => Location::Offset(match provided {
                Provided::Got | Provided::DsoHandle => self.got,
                Provided::ThreadPointer => self.thread.1,
                Provided::ThreadStart => self.thread.0,
                Provided::UnwindIndex { end: false } => self.unwind_index,
                Provided::UnwindIndex { end: true } => self.unwind_index.wrapping_add(unwind_index_size(self.program)),
                Provided::Image { end: false } => 0,
                Provided::Image { end: true } => self.size,
                Provided::Indirect { end: false } => self.indirect.1,
                Provided::Indirect { end: true } => self.indirect.1.wrapping_add(self.program.indirect_size(SLOT_SIZE)),
                Provided::Named { index, end: false } => self.named[index].0,
                Provided::Named { index, end: true } => self.named[index].1,
                Provided::Array { role, end: false } => self.arrays[role as usize].0,
                Provided::Array { role, end: true } => self.arrays[role as usize].1,
            }),
        }
    }

    /// Where the stub of an indirect function is; its resolver, when nothing uses the function.
    fn indirect_offset(&self, id: SectionId, resolver: u64) -> u64 {
        match self.program.indirect.get(&(id, resolver)).and_then(|index| u64::try_from(*index).ok()) {
            Some(index) => self.indirect.0.wrapping_add(index.wrapping_mul(INDIRECT_STUB_SIZE)),
            None => self.section_offset(id, resolver),
        }
    }

    fn section_offset(&self, id: SectionId, value: u64) -> u64 {
        let offset = self.sections[self.program.state_index(id)];
        if offset == NOWHERE {
            return self.unwind_offset(id, value);
        }
        offset.wrapping_add(value)
    }

    /// Where a byte of an `.eh_frame` section went, record by record.
    fn unwind_offset(&self, id: SectionId, value: u64) -> u64 {
        let end = self.unwind.start.wrapping_add(self.unwind.size).wrapping_sub(4);
        let Some(index) = self.unwind.tables.get(&id) else { return end };
        let (table, offsets) = (&self.program.unwind[*index], &self.unwind.records[*index]);
        let at = usize::try_from(value).unwrap_or(usize::MAX);
        let record = table.records.partition_point(|record| record.bytes.end <= at);
        match (table.records.get(record), offsets.get(record)) {
            (Some(record), Some(offset)) if record.live => {
                let inside = at.saturating_sub(record.bytes.start);
                self.unwind.start.wrapping_add(*offset).wrapping_add(u64::try_from(inside).unwrap_or(0))
            }
            (Some(_), Some(offset)) => self.unwind.start.wrapping_add(*offset),
            _ => end,
        }
    }
}

/// Where a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the program, from its base.
    Offset(u64),
    /// At an address of its own.
    Address(u64),
    /// Where the executor says.
    External(GlobalId),
}
