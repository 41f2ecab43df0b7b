//! Changes to a range of the tree: one decision per entry, one walk that carries them out, one that counts the cost.
//!
//! The cost in frames is counted first, so that a change happens as a whole or not at all. Counting and carrying out
//! ask the same [`Edit::step`].

use graft_protocol::Prot;

use super::entry::{Entry, Kind, Level};
use super::{Access, Cache, Frame, FrameStore, NoFrames, Owner, TABLE_ENTRIES};

/// Addresses from `first` to `last`, both inside: the last page of the address space has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// The parts of this span that belong to one entry each, in a table of `level`, with those entries' own spans.
    fn entries(self, level: Level) -> impl Iterator<Item = (usize, Self, Self)> {
        let bytes = level.entry_bytes();
        let base = self.first & !(bytes - 1);
        let count = level.index(self.last).saturating_sub(level.index(self.first)) as u64;
        (0..=count).map(move |number| {
            let first = base + number * bytes;
            let whole = Self { first, last: first + (bytes - 1) };
            let part = Self { first: self.first.max(whole.first), last: self.last.min(whole.last) };
            (level.index(first), whole, part)
        })
    }
}

/// A change to all pages of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Edit {
    Unmap(Owner),
    DemandZero,
    Commit(Access),
    Protect(Prot),
}

/// What an edit does with one entry.
enum Step {
    Keep,
    /// Drop what the entry holds and leave this one.
    Clear(Entry),
    /// Map a fresh frame.
    Fill(Access),
    /// The same page, other bits.
    Set(Entry),
    /// The table below, which is made first where there is none.
    Descend,
}

impl Edit {
    fn step(self, entry: Entry, level: Level, covered: bool) -> Step {
        match (self, entry.kind(level)) {
            (Self::Unmap(_), Kind::Absent)
            | (Self::Protect(_), Kind::Absent | Kind::DemandZero)
            | (Self::DemandZero, Kind::DemandZero) => Step::Keep,
            (Self::Unmap(_), _) if covered => Step::Clear(Entry::ABSENT),
            (Self::DemandZero, _) if covered => Step::Clear(Entry::DEMAND_ZERO),
            (Self::Protect(prot), Kind::Page(_)) if covered => Step::Set(entry.with_prot(prot)),
            (Self::Commit(_), Kind::Page(_)) if covered => Step::Set(entry.with_prot(Prot::ReadWrite)),
            (Self::Commit(access), Kind::Absent | Kind::DemandZero) if level == Level::LOWEST => Step::Fill(access),
            _ => Step::Descend,
        }
    }

    const fn owner(self) -> Owner {
        match self {
            Self::Unmap(owner) => owner,
            _ => Owner::Tables,
        }
    }
}

/// How many frames `edit` needs for the part `span` of `table`.
pub(super) fn count(store: &impl FrameStore, table: Frame, level: Level, span: Span, edit: Edit) -> u64 {
    span.entries(level)
        .map(|(index, whole, part)| {
            count_entry(store, Entry(store.entry(table, index)), level, part == whole, part, edit)
        })
        .sum()
}

fn count_entry(store: &impl FrameStore, entry: Entry, level: Level, covered: bool, part: Span, edit: Edit) -> u64 {
    match edit.step(entry, level, covered) {
        Step::Keep | Step::Clear(_) | Step::Set(_) => 0,
        Step::Fill(_) => 1,
        Step::Descend => {
            let below = level.below();
            match (edit, entry.kind(level)) {
                (_, Kind::Table(child)) => count(store, child, below, part, edit),
                // Terabytes may be asked for: not page by page.
                (Edit::Commit(_), Kind::Absent | Kind::DemandZero) => count_fresh(level, part),
                // The table that would be made here, and those below it.
                _ => {
                    let below = part.entries(below).map(|(index, whole, part)| {
                        count_entry(store, entry.split(level, index), below, part == whole, part, edit)
                    });
                    1 + below.sum::<u64>()
                }
            }
        }
    }
}

/// The frames it takes to commit all of `part`, which is inside an entry of `level` with nothing below it: its pages, and
/// the tables of each level in between.
fn count_fresh(level: Level, part: Span) -> u64 {
    let (mut level, mut total) = (level, 0);
    loop {
        let bytes = level.entry_bytes();
        total += part.last / bytes - part.first / bytes + 1;
        if level == Level::LOWEST {
            return total;
        }
        level = level.below();
    }
}

/// Carries out `edit` for the part `span` of `table`; says whether a translation may have become stale.
pub(super) fn apply(
    store: &mut impl FrameStore,
    table: Frame,
    level: Level,
    span: Span,
    edit: Edit,
) -> Result<bool, NoFrames> {
    let mut stale = false;
    for (index, whole, part) in span.entries(level) {
        let entry = Entry(store.entry(table, index));
        match edit.step(entry, level, part == whole) {
            Step::Keep => {}
            Step::Clear(new) => {
                store.set_entry(table, index, new.0);
                stale |= release(store, entry, level, edit.owner());
            }
            Step::Fill(access) => {
                let frame = store.take().ok_or(NoFrames { wanted: 1, free: 0 })?;
                let page = Entry::page(frame, level, Prot::ReadWrite, Cache::WriteBack);
                store.set_entry(table, index, page.for_access(access).0);
            }
            Step::Set(new) => {
                store.set_entry(table, index, new.0);
                stale |= new != entry;
            }
            Step::Descend => {
                let (child, split) = child_table(store, table, index, level)?;
                stale |= split;
                stale |= apply(store, child, level.below(), part, edit)?;
                if matches!(edit, Edit::Unmap(_)) && is_empty(store, child) {
                    store.set_entry(table, index, Entry::ABSENT.0);
                    store.give_back(child);
                    stale = true;
                }
            }
        }
    }
    Ok(stale)
}

/// The table at `index`, made when there is none, and whether a page was split for it.
pub(super) fn child_table(
    store: &mut impl FrameStore,
    table: Frame,
    index: usize,
    level: Level,
) -> Result<(Frame, bool), NoFrames> {
    let entry = Entry(store.entry(table, index));
    let kind = entry.kind(level);
    if let Kind::Table(child) = kind {
        return Ok((child, false));
    }
    let child = store.take().ok_or(NoFrames { wanted: 1, free: 0 })?;
    if kind != Kind::Absent {
        for below in 0..TABLE_ENTRIES {
            store.set_entry(child, below, entry.split(level, below).0);
        }
    }
    store.set_entry(table, index, Entry::table(child).0);
    Ok((child, matches!(kind, Kind::Page(_))))
}

/// Gives back the frames below an entry that is no longer in the tree; says whether the processor may know one of them. It
/// may also remember where a table was that held no page (SDM 3A §4.10.3), and would read whatever is there next.
fn release(store: &mut impl FrameStore, entry: Entry, level: Level, owner: Owner) -> bool {
    match entry.kind(level) {
        Kind::Absent | Kind::DemandZero => false,
        Kind::Page(first) => {
            if owner == Owner::Tables {
                for page in 0..level.entry_bytes() / Frame::BYTES {
                    store.give_back(Frame(first.0 + page * Frame::BYTES));
                }
            }
            true
        }
        Kind::Table(table) => {
            for index in 0..TABLE_ENTRIES {
                release(store, Entry(store.entry(table, index)), level.below(), owner);
            }
            store.give_back(table);
            true
        }
    }
}

fn is_empty(store: &impl FrameStore, table: Frame) -> bool {
    (0..TABLE_ENTRIES).all(|index| store.entry(table, index) == Entry::ABSENT.0)
}
