//! The seam to what lies below the executor: pages, calls, and the few words it says on its own channels.
//!
//! Two real implementations exist, bare metal and a Linux process, and a fake one in the tests. The executor decides,
//! a platform only does: every range it is given is page aligned, inside [`Platform::reservable`], and was checked.
//!
//! Nothing here takes `&mut self`: a call into loaded code may come back into the executor (dispatch) while the first
//! call is still on the stack, so a platform guards its own state and never holds a lock while loaded code runs.

use core::fmt;

pub use graft_arch::machine::checkpoint::Ring;
use graft_protocol::{ExecAddr, ExecRange, Fault, Prot};

/// The machine has no frame left for what was asked; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfFrames {
    /// Bytes asked for, in whole pages.
    pub wanted_bytes: u64,
    /// Bytes still free.
    pub free_bytes: u64,
}

impl fmt::Display for OutOfFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} bytes wanted, {} bytes free", self.wanted_bytes, self.free_bytes)
    }
}

impl core::error::Error for OutOfFrames {}

/// A C function of loaded code, by its signature.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// `int main(int argc, char **argv)`: the strings are copied into memory loaded code may write, each with a NUL.
    Main {
        /// The arguments exactly as sent; none is a program name.
        args: &'a [&'a [u8]],
    },
    /// `int32_t f(void)`.
    Void,
    /// `int32_t f(int32_t)`.
    Int(i32),
    /// A wrapper function, `CWrapperFunctionResult f(const char *args, size_t nargs)`: returned in RAX and RDX.
    Wrapper {
        /// The argument blob.
        args: &'a [u8],
    },
}

/// What a call left in the two return registers (RAX, RDX on x86-64).
pub type ReturnPair = [u64; 2];

/// How much physical memory there is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCount {
    /// Usable by reservations and the executor itself, when nothing is taken.
    pub total: u64,
    /// Not taken now.
    pub free: u64,
}

/// What the executor needs of the machine below it.
pub trait Platform {
    /// The target triple of Setup.
    fn triple(&self) -> &'static str;

    /// One line about the machine for `graft info`, such as "bare-metal x86-64, QEMU TCG CPU".
    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result;

    /// The page size in bytes, a power of two.
    fn page_size(&self) -> u64;

    /// The address ranges that reservations may use, in order of preference (below 2 GiB first).
    fn reservable(&self) -> &[ExecRange];

    /// How much memory there is and how much is free.
    fn frames(&self) -> FrameCount;

    /// Makes `range` readable and writable as zeroed memory whose frames are taken when a page is first touched.
    ///
    /// Frames the range already holds are given back first, so that whatever it held is gone.
    ///
    /// # Errors
    /// When not even the bookkeeping (page tables) fits.
    fn demand_zero(&self, range: ExecRange) -> Result<(), OutOfFrames>;

    /// Takes frames for all pages of `range` that have none yet and makes the whole range readable and writable.
    ///
    /// Content is kept; pages that had no frame read as zero. Afterwards the executor may touch the range without fear.
    ///
    /// # Errors
    /// When frames run out. Pages committed by then may stay so; [`Self::cost`] tells beforehand.
    fn commit(&self, range: ExecRange) -> Result<(), OutOfFrames>;

    /// The most memory that committing `range` takes now, in bytes; what has a frame already costs nothing.
    fn cost(&self, range: ExecRange) -> u64;

    /// Sets the protection of `range`, all of whose pages are committed, and drops stale translations.
    ///
    /// # Errors
    /// When there is no memory for the record of it; then the protection is as it was, in parts of the range.
    fn protect(&self, range: ExecRange, prot: Prot) -> Result<(), OutOfFrames>;

    /// Makes `range` inaccessible and gives its frames back.
    fn unmap(&self, range: ExecRange);

    /// Stores `bytes` at `at`, in committed and writable pages.
    fn store(&self, at: ExecAddr, bytes: &[u8]);

    /// Stores `len` zero bytes at `at`, in committed and writable pages.
    fn store_zeroes(&self, at: ExecAddr, len: u64);

    /// Loads `out.len()` bytes from `at`: in committed pages, or where loaded code read just before.
    fn load(&self, at: ExecAddr, out: &mut [u8]);

    /// Calls `entry` in loaded code and comes back, with its result or with the fault that ended it.
    ///
    /// The executor has checked that `entry` lies in initialized executable memory. Calls nest to [`Self::max_depth`].
    fn call(&self, at: ExecAddr, entry: Entry<'_>) -> Result<ReturnPair, Fault>;

    /// How many calls into loaded code may be on the stack at once.
    fn max_depth(&self) -> usize;

    /// Ends each later call into loaded code that takes longer than `limit_ns` nanoseconds, with the fault
    /// [`graft_protocol::FaultKind::TIMED_OUT`]; `None` for no limit. Returns the limit in force.
    fn limit_time(&self, limit_ns: Option<u64>) -> Option<u64> {
        let _ = limit_ns;
        None
    }

    /// Makes `ring` the one that calls into loaded code run in: nothing is reserved yet, or any more. Returns the ring in
    /// force, which `None` leaves as it is; most platforms have only one.
    fn use_ring(&self, ring: Option<Ring>) -> Ring {
        let _ = ring;
        Ring::User
    }

    /// Gives back what calls into loaded code left behind, such as the frames of their stacks; no call is active.
    fn trim(&self) {}

    /// Shows the physical memory map to `visit`, range by range, each with what it is in words.
    fn memory_map(&self, visit: &mut dyn FnMut(ExecRange, &str)) {
        let _ = visit;
    }

    /// Shows what is mapped besides reservations (the executor's image, its stacks) to `visit`.
    fn mappings(&self, visit: &mut dyn FnMut(ExecRange, Prot, &str)) {
        let _ = visit;
    }

    /// Names the protections that are switched on to `visit`, such as "NX".
    fn protections(&self, visit: &mut dyn FnMut(&str)) {
        let _ = visit;
    }

    /// The addresses of functions that code loaded here may call, by name.
    fn export(&self, name: &[u8]) -> Option<ExecAddr>;

    /// Bytes for the console of the loaded program when no controller took the console over.
    fn console(&self, bytes: &[u8]);

    /// One line for the executor's own log channel, which is never the protocol's; without a newline at its end.
    fn log(&self, line: &str);

    /// Nanoseconds since the executor started.
    fn uptime_ns(&self) -> u64;
}
