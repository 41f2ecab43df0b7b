//! The runtime's stack and those the processor switches to for traps, each above a guard page.
//!
//! The guard pages are ordinary memory until the final page tables leave them out: see [`guards`].
#![expect(unsafe_code, reason = "memory that only the stack pointer refers to")]

use core::cell::UnsafeCell;

use graft_protocol::{ExecAddr, ExecRange};

const PAGE: usize = 4096;

/// A page that is left out, and a stack above it.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct Stack<const BYTES: usize> {
    guard: UnsafeCell<[u8; PAGE]>,
    memory: UnsafeCell<[u8; BYTES]>,
}

// SAFETY: nothing refers to the memory but the stack pointer; here only addresses are computed.
unsafe impl<const BYTES: usize> Sync for Stack<BYTES> {}

impl<const BYTES: usize> Stack<BYTES> {
    const fn new() -> Self {
        Self { guard: UnsafeCell::new([0; PAGE]), memory: UnsafeCell::new([0; BYTES]) }
    }

    /// The address behind the stack: where it starts to grow from.
    pub(super) fn top(&self) -> u64 {
        self.memory.get().addr() as u64 + BYTES as u64
    }

    fn guard(&self) -> ExecRange {
        let start = ExecAddr(self.guard.get().addr() as u64);
        ExecRange::from_len(start, PAGE as u64).unwrap_or_default()
    }
}

/// The runtime's stack. Calls from loaded code into the runtime use it too, to any depth they nest.
pub(super) static RUNTIME: Stack<RUNTIME_BYTES> = Stack::new();
const RUNTIME_BYTES: usize = 256 * 1024;
/// Where in [`RUNTIME`] its top is, for the entry.
pub(super) const RUNTIME_TOP: usize = PAGE + RUNTIME_BYTES;

pub(super) static DOUBLE_FAULT: Stack<{ 4 * PAGE }> = Stack::new();
pub(super) static NMI: Stack<{ 4 * PAGE }> = Stack::new();
pub(super) static PAGE_FAULT: Stack<{ 8 * PAGE }> = Stack::new();
pub(super) static EXCEPTION: Stack<{ 4 * PAGE }> = Stack::new();
pub(super) static INTERRUPT: Stack<{ 4 * PAGE }> = Stack::new();

/// Whether `sp` is on a stack for traps: a handler runs, or has been interrupted.
pub(super) fn is_for_traps(sp: u64) -> bool {
    // What is pushed first lies below the top.
    let inside = |top: u64, bytes: usize| sp < top && top - sp <= bytes as u64;
    inside(DOUBLE_FAULT.top(), 4 * PAGE)
        || inside(NMI.top(), 4 * PAGE)
        || inside(PAGE_FAULT.top(), 8 * PAGE)
        || inside(EXCEPTION.top(), 4 * PAGE)
        || inside(INTERRUPT.top(), 4 * PAGE)
}

/// The guard pages of all stacks.
#[must_use]
pub fn guards() -> [ExecRange; 6] {
    [RUNTIME.guard(), DOUBLE_FAULT.guard(), NMI.guard(), PAGE_FAULT.guard(), EXCEPTION.guard(), INTERRUPT.guard()]
}
