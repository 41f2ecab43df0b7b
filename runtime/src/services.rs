//! What loaded code may ask of the executor, with the executor's types erased: the functions behind [`crate::exports`].

use graft_protocol::ExecAddr;

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::{Platform, ReturnPair};

/// The services of a running executor for the loaded code it called.
///
/// All of them run on the runtime's own stack. What is passed as a slice is the caller's own; loaded memory is named by
/// its address, because what is served meanwhile may change it or take it away.
pub trait Services: Sync {
    /// Takes console output.
    fn write_console(&self, bytes: &[u8]);

    /// A block of `size` bytes at a multiple of `align`, a power of two; `None` when memory runs out.
    fn allocate(&self, size: u64, align: u64) -> Option<ExecAddr>;

    /// The size asked for of the block at `at`, if it is one.
    fn block_size(&self, at: ExecAddr) -> Option<u64>;

    /// Takes a block back; anything else is refused and logged.
    fn free(&self, at: ExecAddr);

    /// Calls the controller's handler `tag` with the `len` bytes at `args`, which were readable just before; the answer is in
    /// the C type of wrapper function results.
    fn call_controller(&self, tag: ExecAddr, args: ExecAddr, len: u64) -> ReturnPair;

    /// Notes that the innermost call is about to end by `exit`.
    fn note_exit(&self);

    /// Nanoseconds since the executor started.
    fn uptime_ns(&self) -> u64;
}

impl<P: Platform + Sync, L: Line + Sync> Services for Executor<P, L> {
    fn write_console(&self, bytes: &[u8]) {
        Self::write_console(self, bytes);
    }

    fn allocate(&self, size: u64, align: u64) -> Option<ExecAddr> {
        Self::allocate(self, size, align)
    }

    fn block_size(&self, at: ExecAddr) -> Option<u64> {
        Self::block_size(self, at)
    }

    fn free(&self, at: ExecAddr) {
        Self::free(self, at);
    }

    fn call_controller(&self, tag: ExecAddr, args: ExecAddr, len: u64) -> ReturnPair {
        Self::call_controller(self, tag, args, len)
    }

    fn note_exit(&self) {
        self.calls.lock().set_exited();
    }

    fn uptime_ns(&self) -> u64 {
        self.platform.uptime_ns()
    }
}
