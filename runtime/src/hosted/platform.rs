//! A Linux process as a platform.
#![expect(unsafe_code, reason = "calls code by address, on stacks made by hand")]

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use graft_arch::machine::checkpoint;
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind, Prot};
use graft_runtime::{Entry, FrameCount, OutOfFrames, Platform, ReturnPair, exports};

use super::memory::{Arenas, PAGE, map, map_nothing};
use super::{deadline, faults, libc_bridge, memory, watch};

/// Calls into loaded code on the stack at once. Each has a stack of its own.
const MAX_DEPTH: usize = 16;

/// Bytes of a stack for loaded code; functions of the C library run there too.
const STACK: u64 = 1 << 20;

/// Bytes below it that nobody can access: more than the frame of any ordinary function.
const GUARD: u64 = 64 * 1024;

/// What the stack pointer must be a multiple of before a call (psABI §3.2.2).
const STACK_ALIGN: u64 = 16;

/// The process.
#[derive(Debug)]
pub(crate) struct HostedPlatform {
    arenas: Arenas,
    /// The whole range of each stack, guard included, made when first needed.
    stacks: Mutex<Vec<ExecRange>>,
    start: Instant,
    /// How long a call into loaded code may take, in nanoseconds; 0 for ever.
    limit_ns: AtomicU64,
}

impl HostedPlatform {
    /// Takes address space and signals.
    pub(crate) fn new() -> io::Result<Self> {
        faults::install()?;
        watch::install()?;
        let arenas = Arenas::new()?;
        faults::set_reservable(arenas.ranges());
        Ok(Self { arenas, stacks: Mutex::new(Vec::new()), start: Instant::now(), limit_ns: AtomicU64::new(0) })
    }

    /// The stack for a call with `depth` calls below it.
    fn stack(&self, depth: usize) -> io::Result<ExecRange> {
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        while stacks.len() <= depth {
            let base = map_nothing(0, GUARD + STACK, 0)?;
            let whole = ExecRange::from_len(base, GUARD + STACK).unwrap_or_default();
            map(usable(whole), libc::PROT_READ | libc::PROT_WRITE)?;
            stacks.push(whole);
        }
        Ok(stacks.get(depth).copied().unwrap_or_default())
    }
}

/// A stack without its guard.
fn usable(whole: ExecRange) -> ExecRange {
    ExecRange::new(ExecAddr(whole.start().0 + GUARD), whole.end()).unwrap_or_default()
}

/// A stack's guard.
fn guard(whole: ExecRange) -> ExecRange {
    ExecRange::new(whole.start(), usable(whole).start()).unwrap_or_default()
}

/// Puts `argv` and its strings below `top`, and returns its address, which is the new top.
///
/// The executor limits what they take to a fraction of a stack.
fn push_argv(top: u64, args: &[&[u8]]) -> u64 {
    let mut at = top;
    let mut pointers = Vec::new();
    for arg in args {
        at -= arg.len() as u64 + 1;
        memory::store(ExecAddr(at), arg);
        memory::store(ExecAddr(at + arg.len() as u64), &[0]);
        pointers.push(at);
    }
    pointers.push(0);
    at = (at - 8 * pointers.len() as u64) & !(STACK_ALIGN - 1);
    let bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    memory::store(ExecAddr(at), &bytes);
    at
}

impl Platform for HostedPlatform {
    fn triple(&self) -> &'static str {
        "x86_64-unknown-linux-gnu"
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "Linux process {}", std::process::id())
    }

    fn page_size(&self) -> u64 {
        PAGE
    }

    fn reservable(&self) -> &[ExecRange] {
        self.arenas.ranges()
    }

    fn frames(&self) -> FrameCount {
        FrameCount { total: self.arenas.total(), free: self.arenas.free() }
    }

    fn demand_zero(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        self.arenas.demand_zero(range)
    }

    fn commit(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        self.arenas.commit(range)
    }

    fn cost(&self, range: ExecRange) -> u64 {
        self.arenas.cost(range)
    }

    fn protect(&self, range: ExecRange, prot: Prot) -> Result<(), OutOfFrames> {
        self.arenas.set_protection(range, prot)
    }

    fn unmap(&self, range: ExecRange) {
        self.arenas.unmap(range);
    }

    fn store(&self, at: ExecAddr, bytes: &[u8]) {
        memory::store(at, bytes);
    }

    fn store_zeroes(&self, at: ExecAddr, len: u64) {
        memory::store_zeroes(at, len);
    }

    fn load(&self, at: ExecAddr, out: &mut [u8]) {
        memory::load(at, out);
    }

    fn call(&self, at: ExecAddr, entry: Entry<'_>) -> Result<ReturnPair, Fault> {
        let null = ExecAddr::NULL;
        let no_stack = Fault { kind: FaultKind::OUT_OF_MEMORY, ip: at, sp: null, address: null, code: 0 };
        let whole = self.stack(checkpoint::depth()).map_err(|_| no_stack)?;
        let mut top = whole.end().0;
        let args = match entry {
            Entry::Main { args } => {
                top = push_argv(top, args);
                [args.len() as u64, top, 0, 0]
            }
            Entry::Void => [0; 4],
            Entry::Int(arg) => [u64::from(arg.cast_unsigned()), 0, 0, 0],
            Entry::Wrapper { args } => [args.as_ptr().expose_provenance() as u64, args.len() as u64, 0, 0],
        };
        let before = faults::set_guard(guard(whole));
        let limit = self.limit_ns.load(Ordering::Relaxed);
        let outer = deadline::begin(self.start, (limit != 0).then_some(limit));
        watch::begin_call();
        // SAFETY: the executor checked that `at` is executable memory it initialized; if it is not a C function, its
        // faults become values. The stack was made for this depth, is aligned, and ends in a guard. One thread calls.
        let result = unsafe { checkpoint::call(top, at.0, args) };
        watch::end_call();
        let late = deadline::end(self.start, outer);
        faults::set_guard(before);
        // A fault of its own says more.
        result.and_then(|pair| late.map_or(Ok(pair), Err))
    }

    fn max_depth(&self) -> usize {
        MAX_DEPTH
    }

    fn limit_time(&self, limit_ns: Option<u64>) -> Option<u64> {
        self.limit_ns.store(limit_ns.unwrap_or(0), Ordering::Relaxed);
        limit_ns
    }

    fn trim(&self) {
        let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        for whole in stacks.iter() {
            // What fails here only keeps memory that the next call uses again.
            let _ = map(usable(*whole), libc::PROT_READ | libc::PROT_WRITE);
        }
    }

    fn protections(&self, visit: &mut dyn FnMut(&str)) {
        ["NX", "W^X", "stack guards"].into_iter().for_each(visit);
    }

    fn export(&self, name: &[u8]) -> Option<ExecAddr> {
        libc_bridge::find_override(name).or_else(|| exports::find(name)).or_else(|| libc_bridge::find(name))
    }

    fn console(&self, bytes: &[u8]) {
        let mut out = io::stdout().lock();
        // Nobody may be reading; loaded code goes on all the same.
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }

    fn log(&self, line: &str) {
        // As above.
        let _ = writeln!(io::stderr(), "graft-runtime: {line}");
    }

    fn uptime_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
