//! Four-level page tables (SDM 3A §4.5) as a value that works on any memory: bare metal gives it real frames, the tests a
//! map of arrays.
//!
//! [`Tables`] maps, unmaps and protects ranges of 4 KiB pages, splitting 2 MiB and 1 GiB pages where a range needs it.
//! A page can be *demand-zero*: not present, and marked so that the page-fault handler fills it with [`Tables::touch`];
//! the mark may stand at any level, so that a reservation of gigabytes costs a handful of entries. A change is made
//! as a whole or, when frames are short, not at all, and tables that become empty are given back.
//!
//! No page here is writable and executable, because [`Prot`] has no such value. Whoever changes a translation
//! gets a [`Flush`] and owes the processor as much.

mod edit;
mod entry;
// There is no unsafe code here for Miri to judge, and it takes minutes.
#[cfg(test)]
#[cfg(not(miri))]
mod tests;

use core::fmt;

use graft_protocol::{ExecAddr, ExecRange, Prot};

use self::edit::{Edit, Span};
use self::entry::{Entry, Kind, Level};

const TABLE_ENTRIES: usize = 512;

/// A 4 KiB frame of physical memory, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(u64);

impl Frame {
    /// The size in bytes.
    pub const BYTES: u64 = 4096;

    /// The frame at the physical `address`, or `None` when no frame starts there.
    #[must_use]
    pub const fn new(address: u64) -> Option<Self> {
        if address.is_multiple_of(Self::BYTES) && address < 1 << 52 { Some(Self(address)) } else { None }
    }

    /// The physical address.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0
    }
}

/// Physical memory, as the tables see it: a supply of frames, and access to those that hold tables.
pub trait FrameStore {
    /// Takes a frame filled with zeroes, or `None` when none is left.
    fn take(&mut self) -> Option<Frame>;

    /// Gives back a frame taken before.
    fn give_back(&mut self, frame: Frame);

    /// How many frames could be taken.
    fn free_frames(&self) -> u64;

    /// Reads the entry at `index` (below 512) of the table in `table`.
    fn entry(&self, table: Frame, index: usize) -> u64;

    /// Writes the entry at `index` (below 512) of the table in `table`.
    fn set_entry(&mut self, table: Frame, index: usize, entry: u64);
}

/// How the processor caches a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Memory.
    WriteBack,
    /// Device registers: every access goes out, in order.
    Device,
}

/// The rings whose code may access a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Ring 0 alone.
    Supervisor,
    /// Ring 3; ring 0 as well, where SMEP and SMAP do not forbid it.
    User,
}

/// Page sizes, small to large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    TwoMib,
    /// 1 GiB; not every processor has it (CPUID 8000_0001, EDX bit 26).
    OneGib,
}

impl PageSize {
    const fn level(self) -> Level {
        match self {
            Self::Small => Level::LOWEST,
            Self::TwoMib => Level::TWO_MIB,
            Self::OneGib => Level::ONE_GIB,
        }
    }
}

/// Whose the frames of mapped pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The tables took them from the store and give them back.
    Tables,
    /// Somebody else's: they are only mapped here.
    Elsewhere,
}

/// The store has too few frames for the change; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFrames {
    /// Frames the change takes.
    pub wanted: u64,
    /// Frames there are.
    pub free: u64,
}

impl fmt::Display for NoFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames wanted, {} free", self.wanted, self.free)
    }
}

impl core::error::Error for NoFrames {}

/// Why [`Tables::map`] stopped; what it had mapped stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No frame was left for a table.
    NoFrames(NoFrames),
    /// Something is mapped, or demand-zero, at this address already.
    Occupied(ExecAddr),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrames(short) => short.fmt(f),
            Self::Occupied(at) => write!(f, "{at} is mapped already"),
        }
    }
}

impl core::error::Error for MapError {}

impl From<NoFrames> for MapError {
    fn from(short: NoFrames) -> Self {
        Self::NoFrames(short)
    }
}

/// The duty to drop the processor's cached translations of a range before anybody relies on the change.
#[must_use = "stale translations: flush them, or say why they do not matter with `ignore`"]
#[derive(Debug, PartialEq, Eq)]
pub struct Flush(Option<ExecRange>);

impl Flush {
    const NOTHING: Self = Self(None);

    /// Takes over the duty: the range whose translations must go, or `None` when none is stale.
    #[must_use]
    pub const fn into_range(self) -> Option<ExecRange> {
        self.0
    }

    /// Drops the duty, for tables that no processor uses (yet).
    pub const fn ignore(self) {}
}

/// What is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// A page with this protection, for code in these rings.
    Page(Prot, Access),
    /// Reads as zero, becomes a read-write page when touched.
    DemandZero,
}

/// What [`Tables::touch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page was demand-zero and is now mapped: the access can be repeated.
    Filled,
    /// The page was not demand-zero: the access was wrong.
    NotDemandZero,
    /// The page is demand-zero and no frame is left for it.
    OutOfFrames,
}

/// A tree of page tables.
#[derive(Debug)]
pub struct Tables {
    root: Frame,
    user: ExecRange,
}

impl Tables {
    /// An empty tree, or `None` when the store has no frame for its root.
    pub fn new(store: &mut impl FrameStore) -> Option<Self> {
        Some(Self { root: store.take()?, user: ExecRange::default() })
    }

    /// Gives ring 3 access to the pages that are mapped in `range` from now on, and to no others. Pages that are there keep
    /// what they have.
    pub const fn set_user_range(&mut self, range: ExecRange) {
        self.user = range;
    }

    fn access(&self, at: ExecAddr) -> Access {
        if self.user.contains(at) { Access::User } else { Access::Supervisor }
    }

    /// The frame of the root table, for CR3.
    #[must_use]
    pub const fn root(&self) -> Frame {
        self.root
    }

    /// Maps `range` to the physical memory from `first` on, with the largest pages that fit and are allowed.
    ///
    /// # Errors
    /// When something is there already, or no frame is left for a table. What was mapped by then stays.
    pub fn map(
        &mut self,
        store: &mut impl FrameStore,
        range: ExecRange,
        first: Frame,
        prot: Prot,
        cache: Cache,
        largest: PageSize,
    ) -> Result<(), MapError> {
        let mut done = 0;
        while done < range.len() {
            let at = range.start().0 + done;
            let frame = Frame(first.0 + done);
            let fits = |size: &PageSize| {
                let bytes = size.level().entry_bytes();
                *size <= largest && (at | frame.0).is_multiple_of(bytes) && range.len() - done >= bytes
            };
            let sizes = [PageSize::OneGib, PageSize::TwoMib];
            let level = sizes.into_iter().find(fits).unwrap_or(PageSize::Small).level();
            let page = Entry::page(frame, level, prot, cache).for_access(self.access(ExecAddr(at)));
            self.map_page(store, at, level, page)?;
            done += level.entry_bytes();
        }
        Ok(())
    }

    fn map_page(&mut self, store: &mut impl FrameStore, at: u64, target: Level, entry: Entry) -> Result<(), MapError> {
        let (mut table, mut level) = (self.root, Level::ROOT);
        loop {
            let index = level.index(at);
            let kind = Entry(store.entry(table, index)).kind(level);
            match kind {
                Kind::Absent if level == target => {
                    store.set_entry(table, index, entry.0);
                    return Ok(());
                }
                Kind::Absent | Kind::Table(_) if level > target => {
                    table = edit::child_table(store, table, index, level)?.0;
                    level = level.below();
                }
                _ => return Err(MapError::Occupied(ExecAddr(at))),
            }
        }
    }

    /// Makes `range` inaccessible and gives back its frames, if they are the tables' own.
    ///
    /// # Errors
    /// When a larger page (or demand-zero mark) must be split and there is no frame for the table.
    pub fn unmap(&mut self, store: &mut impl FrameStore, range: ExecRange, owner: Owner) -> Result<Flush, NoFrames> {
        self.edit(store, range, Edit::Unmap(owner))
    }

    /// Makes `range` demand-zero. Frames it holds are given back.
    ///
    /// # Errors
    /// When there are too few frames for tables.
    pub fn demand_zero(&mut self, store: &mut impl FrameStore, range: ExecRange) -> Result<Flush, NoFrames> {
        self.edit(store, range, Edit::DemandZero)
    }

    /// Makes `range` readable and writable; pages without a frame get a zeroed one.
    ///
    /// # Errors
    /// When there are too few frames.
    pub fn commit(&mut self, store: &mut impl FrameStore, range: ExecRange) -> Result<Flush, NoFrames> {
        self.edit(store, range, Edit::Commit(self.access(range.start())))
    }

    /// How many frames [`Self::commit`] would take for `range`, tables included.
    pub fn cost(&self, store: &impl FrameStore, range: ExecRange) -> u64 {
        let edit = Edit::Commit(Access::Supervisor);
        pages_of(range).map_or(0, |span| edit::count(store, self.root, Level::ROOT, span, edit))
    }

    /// Sets the protection of the pages mapped in `range`. Demand-zero pages stay what they are.
    ///
    /// # Errors
    /// When a larger page must be split and there is no frame for the table.
    pub fn protect(&mut self, store: &mut impl FrameStore, range: ExecRange, prot: Prot) -> Result<Flush, NoFrames> {
        self.edit(store, range, Edit::Protect(prot))
    }

    /// Fills the page of `at` if it is demand-zero, for the page-fault handler. No translation becomes stale: the
    /// processor does not cache what is not present (SDM 3A §4.10.2.3).
    pub fn touch(&mut self, store: &mut impl FrameStore, at: ExecAddr) -> Touch {
        if self.look_up(store, at) != Some(Mapping::DemandZero) {
            return Touch::NotDemandZero;
        }
        let first = at.align_down(Frame::BYTES);
        let Some(page) = ExecRange::from_len(first, Frame::BYTES) else { return Touch::NotDemandZero };
        match self.commit(store, page) {
            Ok(flush) => {
                flush.ignore();
                Touch::Filled
            }
            Err(NoFrames { .. }) => Touch::OutOfFrames,
        }
    }

    /// What is at `at`, or `None` when nothing is.
    pub fn look_up(&self, store: &impl FrameStore, at: ExecAddr) -> Option<Mapping> {
        self.descend(store, at).map(|(mapping, _)| mapping)
    }

    /// The physical address behind `at`, or `None` when no page is mapped there.
    pub fn translate(&self, store: &impl FrameStore, at: ExecAddr) -> Option<u64> {
        self.descend(store, at)?.1
    }

    fn descend(&self, store: &impl FrameStore, at: ExecAddr) -> Option<(Mapping, Option<u64>)> {
        if !is_canonical(at.0) {
            return None;
        }
        let (mut table, mut level) = (self.root, Level::ROOT);
        loop {
            let entry = Entry(store.entry(table, level.index(at.0)));
            match entry.kind(level) {
                Kind::Absent => return None,
                Kind::DemandZero => return Some((Mapping::DemandZero, None)),
                Kind::Page(first) => {
                    let physical = first.0 + at.0 % level.entry_bytes();
                    return Some((Mapping::Page(entry.prot(), entry.access()), Some(physical)));
                }
                Kind::Table(child) => {
                    table = child;
                    level = level.below();
                }
            }
        }
    }

    /// Shows `visit` everything that is mapped or demand-zero, in the order of addresses, neighbours of one kind together.
    pub fn walk(&self, store: &impl FrameStore, mut visit: impl FnMut(ExecRange, Mapping)) {
        let mut run: Option<(ExecRange, Mapping)> = None;
        walk_table(store, self.root, Level::ROOT, 0, &mut |range: ExecRange, mapping| {
            run = match run {
                Some((before, kind)) if kind == mapping && before.end() == range.start() => {
                    ExecRange::new(before.start(), range.end()).map(|joined| (joined, kind))
                }
                Some((before, kind)) => {
                    visit(before, kind);
                    Some((range, mapping))
                }
                None => Some((range, mapping)),
            };
        });
        if let Some((range, mapping)) = run {
            visit(range, mapping);
        }
    }

    fn edit(&mut self, store: &mut impl FrameStore, range: ExecRange, edit: Edit) -> Result<Flush, NoFrames> {
        let Some(span) = pages_of(range) else { return Ok(Flush::NOTHING) };
        let (wanted, free) = (edit::count(store, self.root, Level::ROOT, span, edit), store.free_frames());
        if wanted > free {
            return Err(NoFrames { wanted, free });
        }
        let stale = edit::apply(store, self.root, Level::ROOT, span, edit)?;
        Ok(if stale { Flush(Some(range)) } else { Flush::NOTHING })
    }
}

/// The pages that a range touches. None when it is empty, or leaves the canonical addresses in the middle: there is
/// nothing to change there, and the tables cannot express it.
fn pages_of(range: ExecRange) -> Option<Span> {
    if range.is_empty() {
        return None;
    }
    let first = range.start().align_down(Frame::BYTES).0;
    let last = (range.end().0 - 1) | (Frame::BYTES - 1);
    let one_half = is_canonical(first) && is_canonical(last) && first >> 47 == last >> 47;
    one_half.then_some(Span { first, last })
}

/// Whether bits 47 to 63 are all the same (SDM 1 §3.3.7.1).
const fn is_canonical(address: u64) -> bool {
    matches!(address >> 47, 0 | 0x1_ffff)
}

fn walk_table(
    store: &impl FrameStore,
    table: Frame,
    level: Level,
    base: u64,
    visit: &mut dyn FnMut(ExecRange, Mapping),
) {
    for index in 0..TABLE_ENTRIES {
        let entry = Entry(store.entry(table, index));
        let mut at = base + index as u64 * level.entry_bytes();
        if level == Level::ROOT && index >= TABLE_ENTRIES / 2 {
            at |= 0xffff << 48;
        }
        let mapping = match entry.kind(level) {
            Kind::Absent => continue,
            Kind::Table(child) => {
                walk_table(store, child, level.below(), at, visit);
                continue;
            }
            Kind::DemandZero => Mapping::DemandZero,
            Kind::Page(_) => Mapping::Page(entry.prot(), entry.access()),
        };
        // The very last page of the address space has no end to name; nothing is ever mapped there.
        if let Some(range) = ExecRange::from_len(ExecAddr(at), level.entry_bytes()) {
            visit(range, mapping);
        }
    }
}
