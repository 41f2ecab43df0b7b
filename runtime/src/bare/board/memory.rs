//! The machine's frames and its page tables, behind one lock.
//!
//! The lock is never held while loaded code runs, nor while its memory is touched. The page-fault handler only tries it.
#![expect(unsafe_code, reason = "reaches physical memory through its window")]

use core::ptr;

use graft_arch::machine::bare::cpu;
use graft_arch::machine::paging::{Frame, FrameStore, NoFrames, Owner, Tables, Touch};
use graft_protocol::{ExecAddr, ExecRange, Prot};
use spin::Mutex;

use super::layout;
use crate::bare::frames::Frames;
use crate::bare::heap::{Heap, Pages};

/// Set by `start`, before anything that needs it can run.
pub(super) static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);

/// The executor's own heap.
// SAFETY: the two windows are set apart in `layout.rs` for this heap, and `commit` puts frames there.
#[global_allocator]
static HEAP: Heap<HeapPages> = unsafe { Heap::new(HeapPages, layout::SMALL_HEAP, layout::LARGE_HEAP) };

/// Frames and tables.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) store: Store,
    pub(super) tables: Tables,
}

/// Runs `act` on the memory; the result of no memory at all, which never happens after `start`, is an error like
/// running out.
pub(super) fn with<T>(act: impl FnOnce(&mut Memory) -> Result<T, NoFrames>) -> Result<T, NoFrames> {
    MEMORY.lock().as_mut().map_or(Err(NoFrames { wanted: 0, free: 0 }), act)
}

impl Memory {
    pub(super) fn demand_zero(&mut self, range: ExecRange) -> Result<(), NoFrames> {
        self.tables.demand_zero(&mut self.store, range).map(cpu::flush)
    }

    pub(super) fn commit(&mut self, range: ExecRange) -> Result<(), NoFrames> {
        self.tables.commit(&mut self.store, range).map(cpu::flush)
    }

    pub(super) fn protect(&mut self, range: ExecRange, prot: Prot) -> Result<(), NoFrames> {
        self.tables.protect(&mut self.store, range, prot).map(cpu::flush)
    }

    pub(super) fn unmap(&mut self, range: ExecRange) -> Result<(), NoFrames> {
        self.tables.unmap(&mut self.store, range, Owner::Tables).map(cpu::flush)
    }

    pub(super) fn touch(&mut self, at: ExecAddr) -> Touch {
        self.tables.touch(&mut self.store, at)
    }
}

/// The frames, reached at their physical address plus `offset`.
#[derive(Debug)]
pub(super) struct Store {
    frames: Frames<'static>,
    offset: u64,
}

impl Store {
    /// # Safety
    /// All frames must be mapped at their physical address plus `offset`, readable and writable, and nobody else's.
    pub(super) const unsafe fn new(frames: Frames<'static>, offset: u64) -> Self {
        Self { frames, offset }
    }

    /// The frames are mapped elsewhere from now on.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(super) const unsafe fn move_to(&mut self, offset: u64) {
        self.offset = offset;
    }

    pub(super) const fn frames(&self) -> &Frames<'static> {
        &self.frames
    }

    /// Fills every free frame with 0xff and returns how many there are.
    pub(super) fn poison(&mut self) -> u64 {
        let mut count = 0;
        let mut next = Frame::new(0);
        while let Some(frame) = next.and_then(|frame| self.frames.next_free(frame)) {
            self.fill(frame, 0xff);
            count += 1;
            next = Frame::new(frame.address() + Frame::BYTES);
        }
        count
    }

    /// The content of `frame`, which was taken and holds no table.
    pub(super) fn page_mut(&mut self, frame: Frame) -> &mut [u8; Frame::BYTES as usize] {
        let start = (self.offset + frame.address()) as *mut [u8; Frame::BYTES as usize];
        // SAFETY: mapped there by the promise of `new`; nobody else has a reference while this one borrows all frames.
        unsafe { &mut *start }
    }

    fn fill(&mut self, frame: Frame, byte: u8) {
        let start = (self.offset + frame.address()) as *mut u8;
        // SAFETY: a frame of ours, mapped there by the promise of `new`, and free or just taken: nobody looks at it.
        unsafe { ptr::write_bytes(start, byte, Frame::BYTES as usize) };
    }

    fn slot(&self, table: Frame, index: usize) -> *mut u64 {
        let start = (self.offset + table.address()) as *mut u64;
        // The mask keeps any index inside the frame.
        start.wrapping_add(index & 511)
    }
}

impl FrameStore for Store {
    fn take(&mut self) -> Option<Frame> {
        let frame = self.frames.take()?;
        self.fill(frame, 0);
        Some(frame)
    }

    fn give_back(&mut self, frame: Frame) {
        let was_taken = self.frames.give_back(frame);
        debug_assert!(was_taken, "{frame:?} was given back twice");
    }

    fn free_frames(&self) -> u64 {
        self.frames.free()
    }

    fn entry(&self, table: Frame, index: usize) -> u64 {
        // SAFETY: inside a frame that holds a table, mapped by the promise of `new`. Volatile: the processor writes
        // accessed and dirty bits.
        unsafe { ptr::read_volatile(self.slot(table, index)) }
    }

    fn set_entry(&mut self, table: Frame, index: usize, entry: u64) {
        // SAFETY: as in `entry`. Volatile, because the processor reads it.
        unsafe { ptr::write_volatile(self.slot(table, index), entry) };
    }
}

#[derive(Debug)]
struct HeapPages;

impl Pages for HeapPages {
    fn commit(&self, range: ExecRange) -> bool {
        with(|memory| memory.commit(range)).is_ok()
    }

    fn release(&self, range: ExecRange) {
        // Whole pages that were committed one by one: no larger page is split, so that no frame is needed.
        let released = with(|memory| memory.unmap(range));
        debug_assert!(released.is_ok());
    }
}
