//! Address space of the process: two arenas taken at the start, pages of them mapped, protected and given back.
#![expect(unsafe_code, reason = "mmap, mprotect, and memory addressed by number")]

use std::collections::BTreeSet;
use std::io;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use graft_protocol::{ExecAddr, ExecRange, Prot};
use graft_runtime::OutOfFrames;

/// Page size of x86-64 Linux, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// Where objects of the small code model can link: below 2 GiB, above what the kernel refuses and programs use.
const LOW: (u64, u64) = (0x1000_0000, 0x7000_0000);

/// Sizes to try for the arena anywhere, in bytes; address space may be limited (`ulimit -v`).
const HIGH: [u64; 3] = [64 << 30, 8 << 30, 1 << 30];

/// The most memory reservations may take, in bytes, when the machine has more.
const MAX_BYTES: u64 = 4 << 30;

/// The arenas and what of them holds memory.
#[derive(Debug)]
pub(crate) struct Arenas {
    ranges: Vec<ExecRange>,
    total: u64,
    /// Numbers of the pages that are committed.
    committed: Mutex<BTreeSet<u64>>,
}

impl Arenas {
    /// Takes the address space; no memory yet.
    pub(crate) fn new() -> io::Result<Self> {
        let mut ranges = Vec::new();
        let (start, end) = LOW;
        if let Ok(at) = map_nothing(start, end - start, libc::MAP_FIXED_NOREPLACE) {
            ranges.extend(ExecRange::from_len(at, end - start));
        }
        let mut last = io::Error::from(io::ErrorKind::OutOfMemory);
        for size in HIGH {
            match map_nothing(0, size, 0) {
                Ok(at) => {
                    ranges.extend(ExecRange::from_len(at, size));
                    break;
                }
                Err(error) => last = error,
            }
        }
        if ranges.is_empty() {
            return Err(last);
        }
        Ok(Self { ranges, total: physical_bytes().min(MAX_BYTES), committed: Mutex::new(BTreeSet::new()) })
    }

    pub(crate) fn ranges(&self) -> &[ExecRange] {
        &self.ranges
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn free(&self) -> u64 {
        self.total.saturating_sub(self.with(|committed| committed.len() as u64 * PAGE))
    }

    pub(crate) fn demand_zero(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        self.forget(range);
        // A fresh anonymous mapping: what was there is gone, pages come when they are touched.
        map(range, libc::PROT_READ | libc::PROT_WRITE)
            .map_err(|_| OutOfFrames { wanted_bytes: range.len(), free_bytes: self.free() })
    }

    pub(crate) fn commit(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        let pages = range.start().0 / PAGE..range.end().0 / PAGE;
        let have = self.with(|committed| committed.range(pages.clone()).count() as u64);
        let wanted_bytes = range.len().saturating_sub(have * PAGE);
        let free_bytes = self.free();
        if wanted_bytes > free_bytes {
            return Err(OutOfFrames { wanted_bytes, free_bytes });
        }
        self.with(|committed| committed.extend(pages));
        self.protect(range, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub(crate) fn cost(&self, range: ExecRange) -> u64 {
        let pages = range.start().0 / PAGE..range.end().0 / PAGE;
        let have = self.with(|committed| committed.range(pages).count() as u64);
        range.len().saturating_sub(have * PAGE)
    }

    /// Sets the protection of committed pages.
    pub(crate) fn set_protection(&self, range: ExecRange, prot: Prot) -> Result<(), OutOfFrames> {
        let bits = match prot {
            Prot::Read => libc::PROT_READ,
            Prot::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Prot::ReadExec => libc::PROT_READ | libc::PROT_EXEC,
        };
        self.protect(range, bits)
    }

    fn protect(&self, range: ExecRange, bits: i32) -> Result<(), OutOfFrames> {
        let out_of_frames = || OutOfFrames { wanted_bytes: range.len(), free_bytes: self.free() };
        let len = usize::try_from(range.len()).map_err(|_| out_of_frames())?;
        // SAFETY: the range is part of an arena, and nothing of the runtime itself lies there.
        let result = unsafe { libc::mprotect(pointer(range.start()).cast(), len, bits) };
        // It fails when the kernel has no memory, or no number, for one more mapping (`vm.max_map_count`).
        if result == 0 { Ok(()) } else { Err(out_of_frames()) }
    }

    pub(crate) fn unmap(&self, range: ExecRange) {
        self.forget(range);
        // The address space stays ours.
        if map(range, libc::PROT_NONE).is_err() {
            empty(range);
        }
    }

    fn forget(&self, range: ExecRange) {
        self.with(|committed| {
            let mut rest = committed.split_off(&(range.start().0 / PAGE));
            committed.append(&mut rest.split_off(&(range.end().0 / PAGE)));
        });
    }

    fn with<R>(&self, act: impl FnOnce(&mut BTreeSet<u64>) -> R) -> R {
        act(&mut self.committed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Stores `bytes` at `at`, which is committed.
pub(crate) fn store(at: ExecAddr, bytes: &[u8]) {
    // SAFETY: the executor checked that the range is inside a reservation, and committed it readable and writable; or it
    // is on a stack of our own.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(at), bytes.len()) }
}

/// Stores `len` zeroes at `at`, which is committed.
pub(crate) fn store_zeroes(at: ExecAddr, len: u64) {
    // SAFETY: as in `store`.
    unsafe { ptr::write_bytes(pointer(at), 0, usize::try_from(len).unwrap_or(usize::MAX)) }
}

/// Loads `out.len()` bytes from `at`, which is committed.
pub(crate) fn load(at: ExecAddr, out: &mut [u8]) {
    // SAFETY: as in `store`.
    unsafe { ptr::copy_nonoverlapping(pointer(at), out.as_mut_ptr(), out.len()) }
}

/// Takes `len` bytes of address space that nobody can access; at `hint` or not at all, unless that is 0.
pub(crate) fn map_nothing(hint: u64, len: u64, flags: i32) -> io::Result<ExecAddr> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: a new mapping that replaces none: without a fixed address, or with MAP_FIXED_NOREPLACE.
    let at = unsafe { libc::mmap(pointer(ExecAddr(hint)).cast(), len, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if hint != 0 && at.addr() as u64 != hint {
        // A kernel that does not know MAP_FIXED_NOREPLACE takes the hint for what it is.
        // SAFETY: the mapping was just made, and nobody knows it yet.
        unsafe { libc::munmap(at, len) };
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(ExecAddr(at.expose_provenance() as u64))
}

/// Maps fresh zeroed pages over `range`, which is ours.
pub(crate) fn map(range: ExecRange, prot: i32) -> io::Result<()> {
    let len = usize::try_from(range.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range is part of an arena or a stack taken by this process; the executor gave up what was there.
    let at = unsafe { libc::mmap(pointer(range.start()).cast(), len, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the memory of `range` back though the kernel has no room for another mapping: what was there is gone, and reads
/// as zeroes until the range is used again.
fn empty(range: ExecRange) {
    let len = usize::try_from(range.len()).unwrap_or(usize::MAX);
    // SAFETY: private memory of an arena, which the executor has given up. It splits no mapping; were it to fail, the
    // content would only stay until the range is mapped afresh.
    unsafe { libc::madvise(pointer(range.start()).cast(), len, libc::MADV_DONTNEED) };
}

fn pointer(at: ExecAddr) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(at.0).unwrap_or(0))
}

fn physical_bytes() -> u64 {
    // SAFETY: only asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(PAGE)
}
