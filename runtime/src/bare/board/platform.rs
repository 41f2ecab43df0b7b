//! The platform: page tables, calls, console, log.
#![expect(unsafe_code, reason = "touches memory the executor has checked, and calls code it has loaded")]

use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use graft_arch::machine::bare::clock::Clock;
use graft_arch::machine::bare::cpu::{self, Features};
use graft_arch::machine::bare::{deadline, debug, uart};
use graft_arch::machine::boot_info::BootInfo;
use graft_arch::machine::checkpoint::{self, Ring, user};
use graft_arch::machine::paging::{Frame, Mapping, NoFrames};
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind, Prot};

use super::exit::CONSOLE_EXISTS;
use super::layout::{self, CallSlot, MOST_CALLS};
use super::memory::{self, MEMORY};
use super::ring;
use crate::platform::{Entry, FrameCount, OutOfFrames, Platform, ReturnPair};

/// More than there are: the image has three parts and a few guards, and each range of memory is one.
const MOST_MAPPINGS: usize = 96;

/// How long a call into loaded code may take, in nanoseconds; 0 for ever.
static LIMIT_NS: AtomicU64 = AtomicU64::new(0);

/// The bare machine as the executor sees it.
#[derive(Clone, Debug)]
pub struct BarePlatform {
    features: Features,
    clock: Clock,
    boot: BootInfo,
}

impl BarePlatform {
    pub(super) const fn new(features: Features, clock: Clock, boot: BootInfo) -> Self {
        Self { features, clock, boot }
    }

    /// What the loader told, among it the command line.
    #[must_use]
    pub const fn boot(&self) -> &BootInfo {
        &self.boot
    }

    /// Puts `argv`, with its strings, at the start of the slot's room for arguments.
    fn place_arguments(&self, slot: CallSlot, args: &[&[u8]]) -> Result<u64, Fault> {
        let room = slot.arguments();
        let pointer_bytes = (args.len() as u64 + 1) * 8;
        let string_bytes: u64 = args.iter().map(|arg| arg.len() as u64 + 1).sum();
        self.take_room(room, pointer_bytes + string_bytes)?;
        let mut string = room.start().0 + pointer_bytes;
        for (slot, arg) in (room.start().0..).step_by(8).zip(args) {
            self.store(ExecAddr(slot), &string.to_le_bytes());
            // The page was zeroed: the NUL behind each string, and the null pointer behind the last, are there.
            self.store(ExecAddr(string), arg);
            string += arg.len() as u64 + 1;
        }
        Ok(room.start().0)
    }

    /// Puts the argument blob of a wrapper function at the start of the slot's room for arguments.
    fn place_blob(&self, slot: CallSlot, blob: &[u8]) -> Result<u64, Fault> {
        let room = slot.arguments();
        self.take_room(room, blob.len() as u64)?;
        self.store(room.start(), blob);
        Ok(room.start().0)
    }

    fn take_room(&self, room: ExecRange, len: u64) -> Result<(), Fault> {
        let needed = ExecRange::from_len(room.start(), len);
        let needed = needed.and_then(|range| range.to_pages(Frame::BYTES)).filter(|range| room.encloses(*range));
        let no_memory = Fault { kind: FaultKind::OUT_OF_MEMORY, ..checkpoint::aborted(0, 0) };
        self.commit(needed.ok_or(no_memory)?).map_err(|_| no_memory)
    }
}

impl Platform for BarePlatform {
    fn triple(&self) -> &'static str {
        "x86_64-unknown-none-elf"
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "bare-metal x86-64, {}", self.features.brand())
    }

    fn page_size(&self) -> u64 {
        Frame::BYTES
    }

    fn reservable(&self) -> &[ExecRange] {
        &layout::RESERVABLE
    }

    fn frames(&self) -> FrameCount {
        let memory = MEMORY.lock();
        let count = |frames: u64| frames * Frame::BYTES;
        memory.as_ref().map_or(FrameCount { total: 0, free: 0 }, |memory| {
            let frames = memory.store.frames();
            FrameCount { total: count(frames.total()), free: count(frames.free()) }
        })
    }

    fn demand_zero(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        // Only tables can be missing: a few frames at the ends of the range.
        memory::with(|memory| memory.demand_zero(range)).map_err(out_of_frames)
    }

    fn commit(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        memory::with(|memory| memory.commit(range)).map_err(out_of_frames)
    }

    fn cost(&self, range: ExecRange) -> u64 {
        MEMORY.lock().as_ref().map_or(0, |memory| memory.tables.cost(&memory.store, range) * Frame::BYTES)
    }

    fn protect(&self, range: ExecRange, prot: Prot) -> Result<(), OutOfFrames> {
        // Committed pages are small ones: none must be split, so that no frame is needed.
        memory::with(|memory| memory.protect(range, prot)).map_err(out_of_frames)
    }

    fn unmap(&self, range: ExecRange) {
        // A mark that covers more than the range must be split, and then a frame is needed. Without one the range stays
        // as it is: not lost, for the next use of these addresses starts with `demand_zero`.
        let _ = memory::with(|memory| memory.unmap(range));
    }

    fn store(&self, at: ExecAddr, bytes: &[u8]) {
        // SAFETY: committed and writable, by the seam's contract; `bytes` is the executor's own memory, elsewhere.
        let copy = || unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at.0 as *mut u8, bytes.len()) };
        cpu::with_user_pages(copy);
    }

    fn store_zeroes(&self, at: ExecAddr, len: u64) {
        // SAFETY: committed and writable, by the seam's contract.
        cpu::with_user_pages(|| unsafe { ptr::write_bytes(at.0 as *mut u8, 0, len as usize) });
    }

    fn load(&self, at: ExecAddr, out: &mut [u8]) {
        // SAFETY: committed, by the seam's contract; `out` is the executor's own memory, elsewhere.
        let copy = || unsafe { ptr::copy_nonoverlapping(at.0 as *const u8, out.as_mut_ptr(), out.len()) };
        cpu::with_user_pages(copy);
    }

    fn call(&self, at: ExecAddr, entry: Entry<'_>) -> Result<ReturnPair, Fault> {
        let too_deep = Fault { kind: FaultKind::STACK_OVERFLOW, ip: at, ..checkpoint::aborted(0, 0) };
        let slot = CallSlot::at(checkpoint::depth()).ok_or(too_deep)?;
        let args = match entry {
            Entry::Main { args } => [args.len() as u64, self.place_arguments(slot, args)?, 0, 0],
            Entry::Void => [0; 4],
            // The upper half of the register is not part of an `int` (psABI §3.2.3).
            Entry::Int(value) => [u64::from(value.cast_unsigned()), 0, 0, 0],
            Entry::Wrapper { args } => [self.place_blob(slot, args)?, args.len() as u64, 0, 0],
        };
        let limit = LIMIT_NS.load(Ordering::Relaxed);
        let outer = deadline::begin((limit != 0).then_some(limit));
        // The executor checked that `at` is initialized code; the slot's stack is demand-zero, above a guard, and used by no
        // other call that is still there. One processor, one thread.
        let outcome = match ring::current() {
            // SAFETY: as above; what ring 3 has access to is mapped for it.
            Ring::User => unsafe { user::call(slot.stack().end().0, at.0, args) },
            // SAFETY: as above.
            Ring::Kernel => unsafe { checkpoint::call(slot.stack().end().0, at.0, args) },
        };
        deadline::end(outer);
        cpu::clear_breakpoints();
        if outcome.is_err() {
            // An overflow leaves it full.
            release_stack(slot);
        }
        if matches!(entry, Entry::Main { .. } | Entry::Wrapper { .. }) {
            self.unmap(slot.arguments());
        }
        outcome
    }

    fn max_depth(&self) -> usize {
        MOST_CALLS
    }

    fn limit_time(&self, limit_ns: Option<u64>) -> Option<u64> {
        let limit = limit_ns.filter(|_| deadline::is_available());
        LIMIT_NS.store(limit.unwrap_or(0), Ordering::Relaxed);
        limit
    }

    fn use_ring(&self, ring: Option<Ring>) -> Ring {
        if let (Some(ring), Some(memory)) = (ring, MEMORY.lock().as_mut()) {
            ring::change(memory, ring);
            cpu::set_thread_pointer(ExecAddr::NULL);
        }
        ring::current()
    }

    fn trim(&self) {
        (0..MOST_CALLS).filter_map(CallSlot::at).for_each(release_stack);
    }

    fn memory_map(&self, visit: &mut dyn FnMut(ExecRange, &str)) {
        for region in self.boot.regions() {
            let range = ExecRange::new(ExecAddr(region.start), ExecAddr(region.end)).unwrap_or_default();
            visit(range, if region.usable { "memory" } else { "reserved by the firmware" });
        }
    }

    fn mappings(&self, visit: &mut dyn FnMut(ExecRange, Prot, &str)) {
        // Collected first: what visits them may allocate, and that needs the tables.
        let mut found: heapless::Vec<(ExecRange, Prot), MOST_MAPPINGS> = heapless::Vec::new();
        if let Some(memory) = MEMORY.lock().as_ref() {
            memory.tables.walk(&memory.store, |range, mapping| {
                if let (Mapping::Page(prot, _), Some(_)) = (mapping, layout::purpose(range.start())) {
                    // The list is long enough for what `start` maps, and the heap is one or two ranges.
                    let _ = found.push((range, prot));
                }
            });
        }
        for (range, prot) in found {
            visit(range, prot, layout::purpose(range.start()).unwrap_or_default());
        }
    }

    fn protections(&self, visit: &mut dyn FnMut(&str)) {
        self.features
            .protections()
            .chain(["write protection in ring 0", "ring 3", "W^X", "stack guards"])
            .for_each(visit);
    }

    fn export(&self, name: &[u8]) -> Option<ExecAddr> {
        ring::export(name)
    }

    fn console(&self, bytes: &[u8]) {
        if CONSOLE_EXISTS.load(Ordering::Relaxed) {
            uart::CONSOLE.send(bytes);
        } else {
            debug::Console.write(bytes);
        }
    }

    fn log(&self, line: &str) {
        debug::Console.write(line.as_bytes());
        debug::Console.write(b"\n");
    }

    fn uptime_ns(&self) -> u64 {
        self.clock.uptime_ns()
    }
}

const fn out_of_frames(short: NoFrames) -> OutOfFrames {
    OutOfFrames { wanted_bytes: short.wanted * Frame::BYTES, free_bytes: short.free * Frame::BYTES }
}

fn release_stack(slot: CallSlot) {
    // The range is whole entries of a page directory: no table is needed, so that this cannot fail.
    let released = memory::with(|memory| memory.demand_zero(slot.stack()));
    debug_assert!(released.is_ok());
}
