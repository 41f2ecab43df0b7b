//! The watch over loaded code: a timer that interrupts whatever runs, also with interrupts off, to end what is over its
//! time limit and to look whether the controller is still there.
//!
//! Channel 0 of the board's timer (8254) counts once and raises input 2 of the I/O APIC, which delivers it to this
//! processor as a non-maskable interrupt (Intel 82093AA §3.2.4; SDM 3A §6.7). While loaded code runs it does so every
//! 50 ms at least; a longer limit takes several of them. It costs a call nothing as long as it still counts for the
//! one before. When no loaded code is found running the timer becomes what [`super::clock`] left: a tick that ends sleeps.
//!
//! What the interrupt finds running decides: loaded code is ended; what the runtime does for it comes to its end first; a
//! trap handler is let go on and looked at again a millisecond later. One processor, one thread: the atomics only make the
//! state static.
#![expect(unsafe_code, reason = "writes the I/O interrupt controller's registers")]

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::clock::{Clock, TIMER_COMMAND, TIMER_DATA, TIMER_HZ};
use super::cpu;
use crate::x86_64::checkpoint;

/// Where boards have the first I/O APIC (Intel 82093AA §3.0).
pub const IO_APIC: u64 = 0xfec0_0000;

/// The input that boards route the timer to.
const INPUT: u32 = 2;
/// Indices of its redirection entry.
const ENTRY_LOW: u32 = 0x10 + 2 * INPUT;
const ENTRY_HIGH: u32 = ENTRY_LOW + 1;
const VERSION: u32 = 1;
/// A redirection entry: delivery as NMI, edge, physical destination; or masked.
const AS_NMI: u32 = 4 << 8;
const MASKED: u32 = 1 << 16;

/// How often loaded code is interrupted for a look.
const WATCH_NS: u64 = 50_000_000;
/// The longest count, in ticks.
const MOST_TICKS: u64 = 0xffff;
/// When to look again at what may not be interrupted now.
const AGAIN_NS: u64 = 1_000_000;

const NEVER: u64 = u64::MAX;

/// The virtual address of the I/O APIC's registers; 0 where there is none that works.
static REGISTERS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per count, as in [`Clock`].
static SCALE: AtomicU64 = AtomicU64::new(0);
/// When the innermost call must be over, in counts of the time-stamp counter.
static DEADLINE: AtomicU64 = AtomicU64::new(NEVER);
/// How many calls there were around it.
static LEVEL: AtomicUsize = AtomicUsize::new(0);
/// Calls that are watched: those on the stack, and one that begins or ends right now.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
/// The timer is being told to count, and an interrupt came between.
static ARMING: AtomicBool = AtomicBool::new(false);
static MISSED: AtomicBool = AtomicBool::new(false);
/// The timer counts down to an interrupt.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// An interrupt may still be on its way though nothing is watched any more.
static LATE: AtomicBool = AtomicBool::new(false);

/// What a non-maskable interrupt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nmi {
    /// Not the timer's.
    Foreign,
    /// The timer's, and nothing is to be done.
    Early,
    /// The timer's, and there is time left: time for a look.
    Tick,
    /// The limit is reached.
    Expired,
}

/// Uses the I/O APIC at `registers` for the local APIC `destination`, if it is one.
///
/// # Safety
/// `registers` must be the virtual address where the page at [`IO_APIC`] is mapped, uncached and writable.
pub unsafe fn set_up(registers: u64, destination: u8, clock: &Clock) {
    SCALE.store(clock.scale(), Ordering::Relaxed);
    REGISTERS.store(registers, Ordering::Relaxed);
    // An empty bus reads as all ones, and one input more than ours is the least.
    let inputs = read(VERSION) >> 16 & 0xff;
    if !clock.is_measured() || read(VERSION) == u32::MAX || inputs < INPUT {
        REGISTERS.store(0, Ordering::Relaxed);
        return;
    }
    write(ENTRY_LOW, MASKED);
    write(ENTRY_HIGH, u32::from(destination) << 24);
}

/// Whether there is a timer for it.
#[must_use]
pub fn is_available() -> bool {
    REGISTERS.load(Ordering::Relaxed) != 0
}

/// The state to go back to after a limited call.
#[derive(Debug)]
#[must_use = "the limit stays in force until `end`"]
pub struct Outer {
    deadline: u64,
    level: usize,
}

/// Watches the call that comes next. It is limited to `limit_ns` nanoseconds, and to what is left of the limit around it;
/// `None` adds no limit.
pub fn begin(limit_ns: Option<u64>) -> Outer {
    // First: from now on no interrupt takes the watch off.
    WATCHED.fetch_add(1, Ordering::Relaxed);
    let outer = Outer { deadline: DEADLINE.load(Ordering::Relaxed), level: LEVEL.load(Ordering::Relaxed) };
    if let Some(limit) = limit_ns.filter(|_| is_available()) {
        let own = cpu::timestamp().saturating_add(counts(limit));
        LEVEL.store(checkpoint::depth(), Ordering::Relaxed);
        DEADLINE.store(own.min(outer.deadline), Ordering::Relaxed);
        arm();
    } else if !COUNTS.load(Ordering::Relaxed) && is_available() {
        arm();
    }
    outer
}

/// Goes back to the limit before.
pub fn end(outer: Outer) {
    let Outer { deadline, level } = outer;
    // The deadline first: with the outer level the inner one would look like the outer call's.
    let limited = DEADLINE.swap(deadline, Ordering::Relaxed) != NEVER;
    LEVEL.store(level, Ordering::Relaxed);
    if limited {
        arm();
    }
    WATCHED.fetch_sub(1, Ordering::Relaxed);
}

/// What the interrupt that just came is. While calls are watched the timer counts again after [`Nmi::Early`] and
/// [`Nmi::Tick`].
#[must_use]
pub fn on_nmi() -> Nmi {
    if ARMING.load(Ordering::Relaxed) {
        // The timer would take what is written here for the rest of what it is being told.
        MISSED.store(true, Ordering::Relaxed);
        return Nmi::Early;
    }
    if !COUNTS.swap(false, Ordering::Relaxed) {
        return if LATE.swap(false, Ordering::Relaxed) { Nmi::Early } else { Nmi::Foreign };
    }
    let depth = checkpoint::depth();
    let is_over = cpu::timestamp() >= DEADLINE.load(Ordering::Relaxed);
    if is_over && depth > LEVEL.load(Ordering::Relaxed) {
        return Nmi::Expired;
    }
    if is_over {
        // Between two calls: the limited one is about to begin, or over. Those around it have limits of their own.
        again();
        Nmi::Early
    } else if WATCHED.load(Ordering::Relaxed) == 0 {
        rest();
        Nmi::Early
    } else {
        arm();
        if depth == 0 { Nmi::Early } else { Nmi::Tick }
    }
}

/// Looks again soon: what was interrupted must not be ended now.
pub fn again() {
    interrupt_in(AGAIN_NS);
}

fn arm() {
    let left = DEADLINE.load(Ordering::Relaxed).saturating_sub(cpu::timestamp());
    let left_ns = (u128::from(left) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32;
    interrupt_in(u64::try_from(left_ns).unwrap_or(u64::MAX).min(WATCH_NS));
}

fn interrupt_in(ns: u64) {
    let mut ns = ns;
    loop {
        ARMING.store(true, Ordering::Relaxed);
        COUNTS.store(true, Ordering::Relaxed);
        write(ENTRY_LOW, AS_NMI);
        count_ns(ns);
        ARMING.store(false, Ordering::Relaxed);
        if !MISSED.swap(false, Ordering::Relaxed) {
            return;
        }
        ns = AGAIN_NS;
    }
}

/// Nothing is watched any more.
fn rest() {
    COUNTS.store(false, Ordering::Relaxed);
    write(ENTRY_LOW, MASKED);
    LATE.store(true, Ordering::Relaxed);
    // Mode 2, as the clock set it: the tick that ends sleeps.
    count(0x34, 0);
}

/// Nanoseconds as counts of the time-stamp counter.
fn counts(ns: u64) -> u64 {
    let scale = SCALE.load(Ordering::Relaxed).max(1);
    u64::try_from((u128::from(ns) << 32) / u128::from(scale)).unwrap_or(u64::MAX)
}

/// Counts down once (mode 0), for `ns` or the most there is; one tick at least.
fn count_ns(ns: u64) {
    let ticks = (u128::from(ns) * u128::from(TIMER_HZ)).div_ceil(1_000_000_000);
    let ticks = u64::try_from(ticks).unwrap_or(MOST_TICKS).clamp(1, MOST_TICKS);
    count(0x30, ticks as u16);
}

fn count(mode: u8, ticks: u16) {
    TIMER_COMMAND.write(mode);
    let [low, high] = ticks.to_le_bytes();
    TIMER_DATA.write(low);
    TIMER_DATA.write(high);
}

fn read(index: u32) -> u32 {
    let Some(window) = select(index) else { return u32::MAX };
    // SAFETY: a register of the I/O APIC, by the promise to `set_up`; reading it changes nothing.
    unsafe { ptr::read_volatile(window) }
}

fn write(index: u32, value: u32) {
    let Some(window) = select(index) else { return };
    // SAFETY: a register of the I/O APIC, by the promise to `set_up`; an entry of it touches no memory.
    unsafe { ptr::write_volatile(window, value) };
}

/// Selects a register; where its window is.
fn select(index: u32) -> Option<*mut u32> {
    const WINDOW: u64 = 0x10;
    let registers = REGISTERS.load(Ordering::Relaxed);
    if registers == 0 {
        return None;
    }
    // SAFETY: the index register of the I/O APIC, by the promise to `set_up`.
    unsafe { ptr::write_volatile(registers as *mut u32, index) };
    Some((registers + WINDOW) as *mut u32)
}
