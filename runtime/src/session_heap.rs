//! The heap of loaded code: `malloc` and its family, gone with the session.
//!
//! Its records lie in the executor, not between the blocks: loaded code that writes past its block, or frees what it
//! never had, harms itself and not the executor, which refuses by looking the address up. The blocks lie in
//! reservations like any other, so what the controller may read and write, and what a fault means, is the same there.

use graft_protocol::{ExecAddr, ExecRange};

use crate::executor::Executor;
use crate::line::Line;
use crate::memory::Owner;
use crate::platform::Platform;
use crate::ranges::RangeMap;

/// Every block begins at a multiple of this and takes one: what `malloc` must promise on x86-64 (psABI §3.1.2).
const GRAIN: u64 = 16;

/// Address space taken at once, in bytes. It costs nothing until it is used.
const ARENA: u64 = 16 << 20;

/// A freed block at least this long gives its memory back at once.
const LARGE: u64 = 64 * 1024;

/// What is free and what is taken.
#[derive(Debug)]
pub(crate) struct SessionHeap {
    free: RangeMap<()>,
    /// Blocks in use, each with the size asked for.
    taken: RangeMap<u64>,
}

impl SessionHeap {
    pub(crate) const fn new() -> Self {
        Self { free: RangeMap::new(), taken: RangeMap::new() }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// The size asked for of the block at `at`.
    pub(crate) fn size_of(&self, at: ExecAddr) -> Option<u64> {
        self.taken.covering(at).filter(|(block, _)| block.start() == at).map(|(_, size)| *size)
    }

    /// Takes a block from free space.
    fn take(&mut self, size: u64, align: u64) -> Option<ExecRange> {
        let len = size.max(1).checked_next_multiple_of(GRAIN)?;
        // Free space begins at any multiple of the grain, so this much always holds an aligned block.
        let space = self.free.first_fit(len.checked_add(align.saturating_sub(GRAIN))?)?;
        let block = ExecRange::from_len(space.start().align_up(align)?, len)?;
        let before = ExecRange::new(space.start(), block.start())?;
        let after = ExecRange::new(block.end(), space.end())?;
        // At most one free range more than blocks and arenas together; with room for two more nothing below can fail.
        self.free.reserve(self.free.len().checked_add(2)?).ok()?;
        self.taken.reserve(self.taken.len().checked_add(1)?).ok()?;
        self.free.remove(space.start())?;
        for rest in [before, after].into_iter().filter(|rest| !rest.is_empty()) {
            self.free.insert(rest, ()).ok()?;
        }
        self.taken.insert(block, size).ok()?;
        Some(block)
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// A block of `size` bytes at a multiple of `align`, a power of two; `None` when memory runs out.
    pub(crate) fn allocate(&self, size: u64, align: u64) -> Option<ExecAddr> {
        let align = align.max(GRAIN);
        let taken = self.heap.lock().take(size, align);
        let block = match taken {
            Some(block) => block,
            None => {
                let wanted = size.checked_add(align)?.checked_add(GRAIN)?.max(ARENA);
                let arena = self.reserve_for(wanted, Owner::Heap).ok()?;
                let mut heap = self.heap.lock();
                heap.free.insert_joined(arena);
                heap.take(size, align)?
            }
        };
        if self.platform.commit(self.pages(block)).is_ok() {
            return Some(block.start());
        }
        // What was committed of it before memory ran out must not be lost to others.
        self.give_whole_pages_back(block);
        let mut heap = self.heap.lock();
        heap.taken.remove(block.start());
        heap.free.insert_joined(block);
        None
    }

    /// Takes a block back. An address that is no block is refused and logged.
    pub(crate) fn free(&self, at: ExecAddr) {
        let freed = {
            let mut heap = self.heap.lock();
            let block = heap.taken.remove(at);
            block.inspect(|(block, _)| heap.free.insert_joined(*block))
        };
        match freed {
            None => self.log(format_args!("free of {at}, which is not a block of the heap: ignored")),
            Some((block, _)) if block.len() >= LARGE => self.give_whole_pages_back(block),
            Some(_) => {}
        }
    }

    /// The size asked for of the block at `at`, if it is one.
    pub(crate) fn block_size(&self, at: ExecAddr) -> Option<u64> {
        self.heap.lock().size_of(at)
    }

    fn give_whole_pages_back(&self, block: ExecRange) {
        let page_size = self.platform.page_size();
        let whole = block
            .start()
            .align_up(page_size)
            .and_then(|start| ExecRange::new(start, block.end().align_down(page_size)));
        if let Some(whole) = whole.filter(|whole| !whole.is_empty()) {
            self.make_demand_zero(whole);
        }
    }
}
