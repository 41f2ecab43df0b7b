//! The executor's own memory on bare metal: a global allocator over two windows of address space.
//!
//! Small allocations come from a linked list of holes in the first window, which grows by frames as needed and never
//! shrinks. An allocation of [`LARGE_BYTES`] or more (a message, a segment in flight) gets pages of its own in the second
//! window, so that its frames are gone from the machine only while it lives. When frames run out an allocation fails and
//! nothing else happens: `try_reserve` reports it.
#![expect(unsafe_code, reason = "a global allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{self, NonNull};

use graft_protocol::{ExecAddr, ExecRange};
use spin::Mutex;

/// The smallest allocation that gets pages of its own.
const LARGE_BYTES: usize = 64 * 1024;
/// How far the window of small allocations grows at once, when there is that much.
const GROWTH_BYTES: u64 = 64 * 1024;
const PAGE_BYTES: u64 = 4096;

/// Where the pages come from. Ranges are whole pages.
pub(crate) trait Pages {
    /// Makes `range` readable and writable; `false`, and nothing changed, when frames run out.
    fn commit(&self, range: ExecRange) -> bool;

    /// Gives the frames of `range` back.
    fn release(&self, range: ExecRange);
}

/// The allocator. Only one may exist per window.
pub(crate) struct Heap<P> {
    pages: P,
    state: Mutex<State>,
}

struct State {
    small: Small,
    large: Large,
}

impl<P: Pages> Heap<P> {
    /// An allocator over two windows (whole pages) that have nothing mapped yet.
    ///
    /// # Safety
    /// Nobody else may use the windows, and pages committed there must be memory.
    pub(crate) const unsafe fn new(pages: P, small: ExecRange, large: ExecRange) -> Self {
        let small = Small { holes: linked_list_allocator::Heap::empty(), end: small.start(), window: small };
        let large = Large { next: large.start(), window: large, live: 0 };
        Self { pages, state: Mutex::new(State { small, large }) }
    }

    fn allocate_large(&self, layout: Layout) -> *mut u8 {
        let Some(range) = self.state.lock().large.take(layout) else { return ptr::null_mut() };
        if self.pages.commit(range) {
            return range.start().0 as *mut u8;
        }
        self.state.lock().large.give_back(range);
        ptr::null_mut()
    }

    /// Makes `old` into `new`, which starts at the same place; `false`, and nothing changed, when it must move.
    fn resize_large(&self, old: ExecRange, new: ExecRange) -> bool {
        if let Some(surplus) = ExecRange::new(new.end(), old.end()) {
            self.pages.release(surplus);
            // Whether or not it is the last: then the space behind it is free again.
            self.state.lock().large.stretch(old, new);
            return true;
        }
        let Some(added) = ExecRange::new(old.end(), new.end()) else { return false };
        if !self.state.lock().large.stretch(old, new) {
            return false;
        }
        let committed = self.pages.commit(added);
        if !committed {
            self.state.lock().large.stretch(new, old);
        }
        committed
    }
}

impl<P> fmt::Debug for Heap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").finish_non_exhaustive()
    }
}

// SAFETY: a block comes either from the list of holes, which owns committed pages of the first window, or is a range
// of the second window that nobody else has until it is given back. `Large` and `Small` align as the layout says.
unsafe impl<P: Pages> GlobalAlloc for Heap<P> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE_BYTES {
            return self.allocate_large(layout);
        }
        self.state.lock().small.allocate(&self.pages, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let block = unsafe { self.alloc(layout) };
        // Fresh pages are zeroed already.
        if !block.is_null() && layout.size() < LARGE_BYTES {
            // SAFETY: the block was just allocated with this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LARGE_BYTES {
            let Some(range) = large_range(block, layout.size()) else { return };
            self.pages.release(range);
            self.state.lock().large.give_back(range);
        } else if let Some(block) = NonNull::new(block) {
            // SAFETY: the caller got the block from `alloc` with this layout, so the list of holes knows it.
            unsafe { self.state.lock().small.holes.deallocate(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.size() >= LARGE_BYTES
            && new_size >= LARGE_BYTES
            && let Some(old) = large_range(block, layout.size())
            && let Some(new) = large_range(block, new_size)
            && self.resize_large(old, new)
        {
            return block;
        }
        let Ok(new_layout) = Layout::from_size_align(new_size, layout.align()) else { return ptr::null_mut() };
        // SAFETY: the size is not zero, by the caller's promise.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: both blocks have at least this many bytes, and a fresh block overlaps none.
            unsafe { ptr::copy_nonoverlapping(block, new, layout.size().min(new_size)) };
            // SAFETY: the caller got the block with this layout and gives it up.
            unsafe { self.dealloc(block, layout) };
        }
        new
    }
}

/// The pages of a large block.
fn large_range(block: *mut u8, size: usize) -> Option<ExecRange> {
    ExecRange::from_len(ExecAddr(block.addr() as u64), (size as u64).checked_next_multiple_of(PAGE_BYTES)?)
}

/// The window of small allocations: committed from its start up to `end`.
struct Small {
    holes: linked_list_allocator::Heap,
    end: ExecAddr,
    window: ExecRange,
}

impl Small {
    fn allocate(&mut self, pages: &impl Pages, layout: Layout) -> *mut u8 {
        if let Ok(block) = self.holes.allocate_first_fit(layout) {
            return block.as_ptr();
        }
        // The hole's own bookkeeping and the way to the alignment; below 128 KiB and a page, so it cannot overflow.
        let needed = (layout.size() + layout.align() + 64) as u64;
        let enough = needed.next_multiple_of(PAGE_BYTES);
        if !self.grow(pages, enough.max(GROWTH_BYTES)) && !self.grow(pages, enough) {
            return ptr::null_mut();
        }
        self.holes.allocate_first_fit(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    fn grow(&mut self, pages: &impl Pages, bytes: u64) -> bool {
        let Some(range) = ExecRange::from_len(self.end, bytes) else { return false };
        if !self.window.encloses(range) || !pages.commit(range) {
            return false;
        }
        if self.end == self.window.start() {
            let start = range.start().0 as *mut u8;
            // SAFETY: just committed, nobody else's (the promise of `Heap::new`), and the first call.
            unsafe { self.holes.init(start, bytes as usize) };
        } else {
            // SAFETY: the bytes behind the heap's end were just committed and are nobody else's.
            unsafe { self.holes.extend(bytes as usize) };
        }
        self.end = range.end();
        true
    }
}

/// The window of large allocations. Address space is plenty, so that it is only taken again from the end, or
/// when nothing lives any more.
struct Large {
    next: ExecAddr,
    window: ExecRange,
    live: usize,
}

impl Large {
    fn take(&mut self, layout: Layout) -> Option<ExecRange> {
        let start = self.next.align_up((layout.align() as u64).max(PAGE_BYTES))?;
        let range = ExecRange::from_len(start, (layout.size() as u64).checked_next_multiple_of(PAGE_BYTES)?)?;
        if !self.window.encloses(range) {
            return None;
        }
        // A page that is never mapped between any two.
        self.next = range.end().checked_add(PAGE_BYTES)?;
        self.live += 1;
        Some(range)
    }

    fn give_back(&mut self, range: ExecRange) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 {
            self.next = self.window.start();
        } else if self.next.checked_offset_from(range.end()) == Some(PAGE_BYTES) {
            self.next = range.start();
        }
    }

    /// Makes room for `old` to become `new` in place, if it is the last.
    fn stretch(&mut self, old: ExecRange, new: ExecRange) -> bool {
        let is_last = self.next.checked_offset_from(old.end()) == Some(PAGE_BYTES);
        let Some(next) = new.end().checked_add(PAGE_BYTES) else { return false };
        if !is_last || !self.window.encloses(new) {
            return false;
        }
        self.next = next;
        true
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::alloc::System;
    use std::vec::Vec;

    use super::*;

    /// A budget of pages, over memory that is there all the time.
    struct Budget(Mutex<u64>);

    impl Pages for Budget {
        fn commit(&self, range: ExecRange) -> bool {
            let mut left = self.0.lock();
            let pages = range.len() / PAGE_BYTES;
            let enough = pages <= *left;
            if enough {
                *left -= pages;
                // SAFETY: the test's own memory; fresh pages are zeroed.
                unsafe { (range.start().0 as *mut u8).write_bytes(0, range.len() as usize) };
            }
            enough
        }

        fn release(&self, range: ExecRange) {
            *self.0.lock() += range.len() / PAGE_BYTES;
        }
    }

    const WINDOW: Layout = match Layout::from_size_align(4 << 20, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("no such layout"),
    };

    /// A heap, and the memory of its windows.
    struct Rig {
        heap: Heap<Budget>,
        windows: [*mut u8; 2],
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            for window in self.windows {
                // SAFETY: allocated so in `heap`, and nothing of it is used any more.
                unsafe { System.dealloc(window, WINDOW) };
            }
        }
    }

    impl core::ops::Deref for Rig {
        type Target = Heap<Budget>;

        fn deref(&self) -> &Self::Target {
            &self.heap
        }
    }

    /// A heap of `pages` pages.
    fn heap(pages: u64) -> Rig {
        // SAFETY: the size is not zero.
        let windows = [(); 2].map(|()| unsafe { System.alloc(WINDOW) });
        let range = |start: *mut u8| {
            let start = ExecAddr(start.expose_provenance() as u64);
            ExecRange::from_len(start, WINDOW.size() as u64).unwrap()
        };
        let [small, large] = windows.map(range);
        // SAFETY: the windows are this heap's alone.
        let heap = unsafe { Heap::new(Budget(Mutex::new(pages)), small, large) };
        Rig { heap, windows }
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 16).unwrap()
    }

    fn alloc(heap: &Heap<Budget>, size: usize) -> *mut u8 {
        // SAFETY: no size in these tests is zero.
        unsafe { heap.alloc(layout(size)) }
    }

    fn free(heap: &Heap<Budget>, block: *mut u8, size: usize) {
        // SAFETY: every block in these tests is freed once, with its size.
        unsafe { heap.dealloc(block, layout(size)) };
    }

    fn left(heap: &Heap<Budget>) -> u64 {
        *heap.pages.0.lock()
    }

    #[test]
    fn large_blocks_hold_frames_only_while_they_live() {
        let heap = heap(100);
        let (a, b) = (alloc(&heap, 100_000), alloc(&heap, 65_536));
        assert_eq!(left(&heap), 100 - 25 - 16);
        assert!(alloc(&heap, 300_000).is_null(), "more than is left");
        free(&heap, a, 100_000);
        free(&heap, b, 65_536);
        assert_eq!(left(&heap), 100);
        assert_eq!(alloc(&heap, 100_000), a, "the window starts again");
    }

    #[test]
    fn small_blocks_are_reused_and_grow_by_what_is_there() {
        let heap = heap(20);
        let blocks: Vec<*mut u8> = (0..250).map(|_| alloc(&heap, 256)).collect();
        assert!(blocks.iter().all(|block| !block.is_null()));
        assert_eq!(left(&heap), 4);
        // Fewer pages are left than it likes to take at once.
        assert!(!alloc(&heap, 10_000).is_null());
        assert!(alloc(&heap, 30_000).is_null());
        for block in blocks {
            free(&heap, block, 256);
        }
        assert!(!alloc(&heap, 30_000).is_null());
    }

    #[test]
    fn the_last_large_block_grows_in_place() {
        let heap = heap(200);
        let block = alloc(&heap, 70_000);
        // SAFETY: the block has that many bytes.
        unsafe { block.write_bytes(7, 70_000) };
        // SAFETY: the block is of this layout, and given up for the new one.
        let same = unsafe { heap.realloc(block, layout(70_000), 200_000) };
        assert_eq!(same, block);
        let other = alloc(&heap, 70_000);
        // SAFETY: as above.
        let moved = unsafe { heap.realloc(block, layout(200_000), 300_000) };
        assert_ne!(moved, block);
        // SAFETY: the first byte of a block.
        assert_eq!(unsafe { moved.read() }, 7);
        // SAFETY: as above: too much for what is left, so the block stays as it is.
        assert!(unsafe { heap.realloc(moved, layout(300_000), 3_000_000) }.is_null());
        // SAFETY: as above.
        assert_eq!(unsafe { heap.realloc(moved, layout(300_000), 80_000) }, moved);
        assert_eq!(left(&heap), 200 - 18 - 20);
        free(&heap, moved, 80_000);
        free(&heap, other, 70_000);
        assert_eq!(left(&heap), 200);
    }

    #[test]
    fn a_block_that_shrank_is_still_the_last() {
        let heap = heap(400);
        let first = alloc(&heap, 100_000);
        let block = alloc(&heap, 300_000);
        let resize = |old, new| {
            // SAFETY: the block has the old size, and the new one is not zero.
            unsafe { heap.realloc(block, layout(old), new) }
        };
        assert_eq!(resize(300_000, 100_000), block);
        assert_eq!(resize(100_000, 400_000), block, "grown in place, as the last may");
        assert_eq!(resize(400_000, 70_000), block);
        free(&heap, block, 70_000);
        let again = alloc(&heap, 70_000);
        assert_eq!(again, block, "its place was the end of the window");
        free(&heap, again, 70_000);
        free(&heap, first, 100_000);
    }

    #[test]
    fn zeroed_means_zeroed() {
        let heap = heap(200);
        for size in [100, 100_000] {
            let dirty = alloc(&heap, size);
            // SAFETY: the block has that many bytes.
            unsafe { dirty.write_bytes(0xff, size) };
            free(&heap, dirty, size);
            // SAFETY: no size is zero.
            let block = unsafe { heap.alloc_zeroed(layout(size)) };
            assert_eq!(block, dirty);
            // SAFETY: the block has that many bytes.
            let bytes = unsafe { core::slice::from_raw_parts(block, size) };
            assert!(bytes == std::vec![0; size]);
        }
    }
}
