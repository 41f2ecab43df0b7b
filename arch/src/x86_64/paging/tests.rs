//! The tables on memory that is a list of arrays: by example, and at random against a model.

extern crate std;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use super::*;

/// Physical memory of `limit` frames, each with content as if it held a table.
struct Memory {
    limit: u64,
    taken_count: u64,
    returned: Vec<Frame>,
    frames: Vec<Option<Box<[u64; TABLE_ENTRIES]>>>,
}

/// Frames start here: an address that is no index by accident.
const FIRST: u64 = 0x10_0000;

impl Memory {
    fn new(limit: u64) -> Self {
        Self { limit, taken_count: 0, returned: Vec::new(), frames: Vec::new() }
    }

    fn number(frame: Frame) -> usize {
        ((frame.0 - FIRST) / PAGE) as usize
    }
}

impl FrameStore for Memory {
    fn take(&mut self) -> Option<Frame> {
        if self.free_frames() == 0 {
            return None;
        }
        let frame = self.returned.pop().unwrap_or_else(|| {
            self.frames.push(None);
            Frame(FIRST + (self.frames.len() as u64 - 1) * PAGE)
        });
        let content = self.frames[Self::number(frame)].replace(Box::new([0; TABLE_ENTRIES]));
        assert!(content.is_none(), "{frame:?} taken twice");
        self.taken_count += 1;
        Some(frame)
    }

    fn give_back(&mut self, frame: Frame) {
        assert!(self.frames[Self::number(frame)].take().is_some(), "{frame:?} given back and not taken");
        self.taken_count -= 1;
        self.returned.push(frame);
    }

    fn free_frames(&self) -> u64 {
        self.limit - self.taken_count
    }

    fn entry(&self, table: Frame, index: usize) -> u64 {
        self.frames[Self::number(table)].as_ref().unwrap()[index]
    }

    fn set_entry(&mut self, table: Frame, index: usize, entry: u64) {
        self.frames[Self::number(table)].as_mut().unwrap()[index] = entry;
    }
}

const PAGE: u64 = Frame::BYTES;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn range(start: u64, len: u64) -> ExecRange {
    ExecRange::from_len(ExecAddr(start), len).unwrap()
}

fn set_up(limit: u64) -> (Memory, Tables) {
    let mut memory = Memory::new(limit);
    let tables = Tables::new(&mut memory).unwrap();
    (memory, tables)
}

fn mappings(memory: &Memory, tables: &Tables) -> Vec<(u64, u64, Mapping)> {
    let mut all = Vec::new();
    tables.walk(memory, |range, mapping| all.push((range.start().0, range.len(), mapping)));
    all
}

#[test]
fn a_gigabyte_reserved_costs_two_tables_at_most() {
    let (mut memory, mut tables) = set_up(16);
    tables.demand_zero(&mut memory, range(GIB, GIB)).unwrap().ignore();
    assert_eq!(memory.taken_count, 2, "the root and one table");
    assert_eq!(tables.look_up(&memory, ExecAddr(GIB + 12345)), Some(Mapping::DemandZero));
    assert_eq!(tables.look_up(&memory, ExecAddr(2 * GIB)), None);
    assert_eq!(tables.touch(&mut memory, ExecAddr(GIB + 5 * MIB + 7)), Touch::Filled);
    assert_eq!(memory.taken_count, 5, "two more tables and the page");
    assert_eq!(tables.touch(&mut memory, ExecAddr(GIB + 5 * MIB + 7)), Touch::NotDemandZero);
    assert_eq!(tables.touch(&mut memory, ExecAddr(2 * GIB)), Touch::NotDemandZero);
    tables.unmap(&mut memory, range(GIB, GIB), Owner::Tables).unwrap().ignore();
    assert_eq!(memory.taken_count, 1);
    assert_eq!(mappings(&memory, &tables), []);
}

#[test]
fn large_pages_are_split_where_a_range_ends_inside() {
    let (mut memory, mut tables) = set_up(64);
    let first = Frame(4 * GIB);
    let window = range(0xffff_8000_0000_0000, 2 * GIB);
    tables.map(&mut memory, window, first, Prot::ReadWrite, Cache::WriteBack, PageSize::OneGib).unwrap();
    assert_eq!(memory.taken_count, 2);
    let hole = range(window.start().0 + GIB + 3 * PAGE, PAGE);
    let flush = tables.unmap(&mut memory, hole, Owner::Elsewhere).unwrap();
    assert_eq!(flush.into_range(), Some(hole));
    assert_eq!(memory.taken_count, 4, "one GiB page and one 2 MiB page were split");
    assert_eq!(tables.translate(&memory, hole.start()), None);
    for offset in [0, GIB - 1, GIB, GIB + 2 * PAGE, GIB + 4 * PAGE, GIB + 2 * MIB, 2 * GIB - 1] {
        let at = ExecAddr(window.start().0 + offset);
        assert_eq!(tables.translate(&memory, at), Some(first.0 + offset));
    }
    let text = range(window.start().0 + 2 * MIB, 5 * PAGE);
    let flush = tables.protect(&mut memory, text, Prot::ReadExec).unwrap();
    assert_eq!(flush.into_range(), Some(text));
    assert_eq!(tables.look_up(&memory, text.start()), Some(Mapping::Page(Prot::ReadExec, Access::Supervisor)));
    assert_eq!(tables.look_up(&memory, text.end()), Some(Mapping::Page(Prot::ReadWrite, Access::Supervisor)));
    assert_eq!(mappings(&memory, &tables).len(), 4);
}

#[test]
fn ring_3_reaches_its_own_range_and_keeps_it_through_every_change() {
    let (mut memory, mut tables) = set_up(64);
    let at = |tables: &Tables, memory: &Memory, start| match tables.look_up(memory, ExecAddr(start)) {
        Some(Mapping::Page(prot, access)) => Some((prot, access)),
        _ => None,
    };
    tables.commit(&mut memory, range(MIB, PAGE)).unwrap().ignore();
    tables.set_user_range(range(GIB, GIB));
    tables.demand_zero(&mut memory, range(GIB, 4 * PAGE)).unwrap().ignore();
    assert_eq!(tables.touch(&mut memory, ExecAddr(GIB)), Touch::Filled);
    tables.commit(&mut memory, range(GIB + PAGE, PAGE)).unwrap().ignore();
    let first = Frame(8 * MIB);
    tables
        .map(&mut memory, range(GIB + 2 * MIB, 2 * MIB), first, Prot::Read, Cache::WriteBack, PageSize::TwoMib)
        .unwrap();
    tables.protect(&mut memory, range(GIB + 2 * MIB, PAGE), Prot::ReadExec).unwrap().ignore();
    tables.commit(&mut memory, range(2 * GIB, PAGE)).unwrap().ignore();
    for (start, prot, access) in [
        (MIB, Prot::ReadWrite, Access::Supervisor),
        (GIB, Prot::ReadWrite, Access::User),
        (GIB + PAGE, Prot::ReadWrite, Access::User),
        (GIB + 2 * MIB, Prot::ReadExec, Access::User),
        (GIB + 2 * MIB + PAGE, Prot::Read, Access::User),
        (2 * GIB, Prot::ReadWrite, Access::Supervisor),
    ] {
        assert_eq!(at(&tables, &memory, start), Some((prot, access)), "{start:#x}");
    }
    // Neighbours that differ in it are told apart.
    tables.set_user_range(ExecRange::default());
    tables.commit(&mut memory, range(GIB + 2 * PAGE, PAGE)).unwrap().ignore();
    let found = mappings(&memory, &tables);
    assert!(found.contains(&(GIB, 2 * PAGE, Mapping::Page(Prot::ReadWrite, Access::User))));
    assert!(found.contains(&(GIB + 2 * PAGE, PAGE, Mapping::Page(Prot::ReadWrite, Access::Supervisor))));
}

/// The processor may remember a table that has no present entry: its frame must not be used again before a flush.
#[test]
fn a_table_that_goes_is_flushed_though_it_held_no_page() {
    let (mut memory, mut tables) = set_up(64);
    let part = range(GIB + 3 * PAGE, 2 * PAGE);
    let flush = tables.demand_zero(&mut memory, part).unwrap();
    assert_eq!(flush.into_range(), None, "nothing was there");
    assert_eq!(memory.taken_count, 4);
    let flush = tables.unmap(&mut memory, part, Owner::Tables).unwrap();
    assert_eq!((flush.into_range(), memory.taken_count), (Some(part), 1), "three tables went");
    tables.demand_zero(&mut memory, part).unwrap().ignore();
    let around = range(GIB, GIB);
    let flush = tables.demand_zero(&mut memory, around).unwrap();
    assert_eq!((flush.into_range(), memory.taken_count), (Some(around), 2), "two tables became one mark");
    let flush = tables.unmap(&mut memory, around, Owner::Tables).unwrap();
    assert_eq!(flush.into_range(), Some(around));
}

#[test]
fn mapping_twice_is_refused() {
    let (mut memory, mut tables) = set_up(64);
    let mut map = |start, len, largest| {
        tables.map(&mut memory, range(start, len), Frame(0), Prot::Read, Cache::WriteBack, largest)
    };
    map(2 * MIB, 4 * MIB, PageSize::TwoMib).unwrap();
    assert_eq!(map(3 * MIB, PAGE, PageSize::Small), Err(MapError::Occupied(ExecAddr(3 * MIB))));
    assert_eq!(map(0, 4 * MIB, PageSize::Small), Err(MapError::Occupied(ExecAddr(2 * MIB))));
    assert_eq!(map(0, GIB, PageSize::OneGib), Err(MapError::Occupied(ExecAddr(0))));
}

#[test]
fn a_change_without_enough_frames_changes_nothing() {
    let (mut memory, mut tables) = set_up(10);
    tables.demand_zero(&mut memory, range(GIB, GIB)).unwrap().ignore();
    // Two tables and seven pages: one frame more than there is.
    assert!(
        matches!(tables.commit(&mut memory, range(GIB + 8 * PAGE, 7 * PAGE)), Err(NoFrames { wanted, free }) if wanted > free)
    );
    assert_eq!(memory.taken_count, 2);
    assert_eq!(mappings(&memory, &tables), [(GIB, GIB, Mapping::DemandZero)]);
    tables.commit(&mut memory, range(GIB + 8 * PAGE, 6 * PAGE)).unwrap().ignore();
    assert_eq!(memory.free_frames(), 0);
    // The end of the range needs a table; its middle would give frames back. All or nothing.
    assert!(
        matches!(tables.demand_zero(&mut memory, range(GIB / 2, GIB - PAGE)), Err(NoFrames { wanted, free }) if wanted > free)
    );
    assert_eq!(tables.touch(&mut memory, ExecAddr(GIB)), Touch::OutOfFrames);
    tables.demand_zero(&mut memory, range(GIB + 8 * PAGE, PAGE)).unwrap().ignore();
    assert_eq!(tables.touch(&mut memory, ExecAddr(GIB)), Touch::Filled);
    assert!(
        matches!(tables.commit(&mut memory, range(0x1000_0000_0000, 1 << 46)), Err(NoFrames { wanted, free }) if wanted > free)
    );
}

#[test]
fn committed_pages_keep_their_frames_and_become_writable() {
    let (mut memory, mut tables) = set_up(64);
    tables.demand_zero(&mut memory, range(0, 16 * PAGE)).unwrap().ignore();
    assert_eq!(tables.touch(&mut memory, ExecAddr(PAGE)), Touch::Filled);
    let before = tables.translate(&memory, ExecAddr(PAGE));
    tables.protect(&mut memory, range(0, 16 * PAGE), Prot::ReadExec).unwrap().ignore();
    assert_eq!(tables.look_up(&memory, ExecAddr(0)), Some(Mapping::DemandZero));
    let flush = tables.commit(&mut memory, range(0, 4 * PAGE)).unwrap();
    assert!(flush.into_range().is_some());
    assert_eq!(tables.translate(&memory, ExecAddr(PAGE)), before);
    assert_eq!(tables.look_up(&memory, ExecAddr(PAGE)), Some(Mapping::Page(Prot::ReadWrite, Access::Supervisor)));
    assert_eq!(tables.commit(&mut memory, range(0, 4 * PAGE)).unwrap(), Flush::NOTHING);
}

#[test]
fn ten_thousand_cycles_lose_no_frame() {
    let (mut memory, mut tables) = set_up(600);
    let everything = range(0x1000_0000, 1500 * MIB);
    for cycle in 0..10_000u64 {
        let at = 0x1000_0000 + (cycle * 7919) % 1000 * MIB;
        tables.demand_zero(&mut memory, range(at, 300 * MIB)).unwrap().ignore();
        tables.commit(&mut memory, range(at + 3 * PAGE, 2 * PAGE)).unwrap().ignore();
        tables.protect(&mut memory, range(at + 3 * PAGE, PAGE), Prot::ReadExec).unwrap().ignore();
        tables.unmap(&mut memory, everything, Owner::Tables).unwrap().ignore();
        assert_eq!(memory.taken_count, 1, "cycle {cycle}");
    }
}

#[test]
fn addresses_without_a_meaning_are_left_alone() {
    let (mut memory, mut tables) = set_up(64);
    tables.demand_zero(&mut memory, range(0x7fff_ffff_0000, 0x2_0000)).unwrap().ignore();
    tables.commit(&mut memory, range(0xffff_7fff_ffff_f000, PAGE)).unwrap().ignore();
    tables.unmap(&mut memory, range(5, 0), Owner::Tables).unwrap().ignore();
    assert_eq!(memory.taken_count, 1);
    assert_eq!(tables.look_up(&memory, ExecAddr(0x8000_0000_0000)), None);
    assert_eq!(tables.touch(&mut memory, ExecAddr(1 << 63)), Touch::NotDemandZero);
    let top = range(0xffff_ffff_ffff_e000, PAGE);
    tables.commit(&mut memory, top).unwrap().ignore();
    assert_eq!(mappings(&memory, &tables), [(top.start().0, PAGE, Mapping::Page(Prot::ReadWrite, Access::Supervisor))]);
    // Unaligned ranges reach outward.
    tables.commit(&mut memory, range(0x1fff, 2)).unwrap().ignore();
    assert!(tables.look_up(&memory, ExecAddr(0x1000)).is_some());
    assert!(tables.look_up(&memory, ExecAddr(0x2fff)).is_some());
}

/// A small generator of numbers (xorshift64*): the tests need variety, not quality.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Random changes, compared page by page with a model that is a map from page numbers to mappings.
#[test]
fn random_changes_agree_with_a_model() {
    // 2048 pages around the border of two 1 GiB entries: four 2 MiB entries, two of them whole.
    let base = GIB - 1024 * PAGE;
    let pages = 2048;
    let rounds = 1500;
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut memory, mut tables) = set_up(700);
    let mut model: BTreeMap<u64, Mapping> = BTreeMap::new();
    for round in 0..rounds {
        let start = numbers.below(pages);
        let longest = if round % 3 == 0 { pages - start } else { (pages - start).min(20) };
        let len = 1 + numbers.below(longest);
        let touched = start..start + len;
        let at = range(base + start * PAGE, len * PAGE);
        let before = mappings(&memory, &tables);
        let result = match numbers.below(5) {
            0 => tables.unmap(&mut memory, at, Owner::Tables).map(|flush| {
                flush.ignore();
                for page in touched {
                    model.remove(&page);
                }
            }),
            1 => tables.demand_zero(&mut memory, at).map(|flush| {
                flush.ignore();
                for page in touched {
                    model.insert(page, Mapping::DemandZero);
                }
            }),
            2 => {
                let (cost, taken) = (tables.cost(&memory, at), memory.taken_count);
                tables.commit(&mut memory, at).map(|flush| {
                    assert_eq!(memory.taken_count - taken, cost, "round {round}");
                    flush.ignore();
                    for page in touched {
                        model.insert(page, Mapping::Page(Prot::ReadWrite, Access::Supervisor));
                    }
                })
            }
            3 => {
                let prot = [Prot::Read, Prot::ReadWrite, Prot::ReadExec][numbers.below(3) as usize];
                tables.protect(&mut memory, at, prot).map(|flush| {
                    flush.ignore();
                    for page in touched {
                        if let Some(mapping @ Mapping::Page(..)) = model.get_mut(&page) {
                            *mapping = Mapping::Page(prot, Access::Supervisor);
                        }
                    }
                })
            }
            _ => {
                let was = model.get(&start).copied();
                match tables.touch(&mut memory, at.start()) {
                    Touch::Filled => {
                        assert_eq!(was, Some(Mapping::DemandZero));
                        model.insert(start, Mapping::Page(Prot::ReadWrite, Access::Supervisor));
                    }
                    Touch::NotDemandZero => assert_ne!(was, Some(Mapping::DemandZero)),
                    Touch::OutOfFrames => assert_eq!(was, Some(Mapping::DemandZero)),
                }
                Ok(())
            }
        };
        if result.is_err() {
            assert_eq!(mappings(&memory, &tables), before, "round {round}: a refused change changed something");
        }
        let mut expected: Vec<(u64, u64, Mapping)> = vec![];
        for (page, mapping) in &model {
            let at = base + page * PAGE;
            match expected.last_mut() {
                Some((start, len, kind)) if *start + *len == at && kind == mapping => *len += PAGE,
                _ => expected.push((at, PAGE, *mapping)),
            }
        }
        assert_eq!(mappings(&memory, &tables), expected, "round {round}");
    }
    tables.unmap(&mut memory, range(base, pages * PAGE), Owner::Tables).unwrap().ignore();
    assert_eq!(memory.taken_count, 1, "only the root is left");
}
