//! The time limit of loaded code: a timer of the process, whose signal ends the call as a fault would.
//!
//! Loaded code may be inside the C library, which holds locks that nobody would give back. So the signal ends a call only
//! where it finds the program's own instructions, or the runtime about to return to them; else the timer looks again a
//! millisecond later, for as long as it takes. The signal also cuts waits of the C library short (signal(7)): a program that
//! returns after that did not end in time either.
#![expect(unsafe_code, reason = "sets the timer of the process")]

use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use graft_arch::machine::checkpoint;
use graft_protocol::{ExecAddr, Fault, FaultKind};

/// The signal of the timer.
pub(super) const SIGNAL: i32 = libc::SIGALRM;

/// How often to look again.
const AGAIN: Duration = Duration::from_millis(1);

/// Nanoseconds since [`epoch`] when the innermost call must be over.
static DEADLINE: AtomicU64 = AtomicU64::new(NEVER);
/// How many calls there were around it.
static LEVEL: AtomicUsize = AtomicUsize::new(0);
/// Where the C library was at work when the innermost call should have ended, and its stack pointer; 0 when it was not.
static MISSED_IP: AtomicU64 = AtomicU64::new(0);
static MISSED_SP: AtomicU64 = AtomicU64::new(0);

const NEVER: u64 = u64::MAX;

/// The state to go back to after a limited call.
#[derive(Debug)]
#[must_use = "the limit stays in force until `end`"]
pub(super) struct Outer {
    deadline: u64,
    level: usize,
}

/// Limits what comes next to `limit_ns` nanoseconds, and to what is left of the limit around it. `None` adds no limit.
pub(super) fn begin(epoch: Instant, limit_ns: Option<u64>) -> Outer {
    let outer = Outer { deadline: DEADLINE.load(Ordering::Relaxed), level: LEVEL.load(Ordering::Relaxed) };
    if let Some(limit) = limit_ns {
        let now = now(epoch);
        let deadline = now.saturating_add(limit).min(outer.deadline);
        LEVEL.store(checkpoint::depth(), Ordering::Relaxed);
        DEADLINE.store(deadline, Ordering::Relaxed);
        set_timer(Some(Duration::from_nanos(deadline.saturating_sub(now))));
    }
    outer
}

/// Goes back to the limit before. Returns the fault of a call that went on past its limit, however it ended then.
pub(super) fn end(epoch: Instant, outer: Outer) -> Option<Fault> {
    // The deadline first: with the outer level the inner one would look like the outer call's.
    let limited = DEADLINE.swap(outer.deadline, Ordering::Relaxed) != NEVER;
    LEVEL.store(outer.level, Ordering::Relaxed);
    if !limited {
        return None;
    }
    match outer.deadline {
        NEVER => set_timer(None),
        deadline => set_timer(Some(Duration::from_nanos(deadline.saturating_sub(now(epoch))))),
    }
    let (ip, sp) = (MISSED_IP.swap(0, Ordering::Relaxed), MISSED_SP.load(Ordering::Relaxed));
    (ip != 0).then(|| timed_out(ExecAddr(ip), ExecAddr(sp)))
}

/// Notes that the call could not be ended where it was.
pub(super) fn miss(ip: ExecAddr, sp: ExecAddr) {
    MISSED_IP.store(ip.0, Ordering::Relaxed);
    MISSED_SP.store(sp.0, Ordering::Relaxed);
}

pub(super) const fn timed_out(ip: ExecAddr, sp: ExecAddr) -> Fault {
    Fault { kind: FaultKind::TIMED_OUT, ip, sp, address: ExecAddr::NULL, code: 0 }
}

/// Whether a signal of the timer means that the innermost call is to end.
pub(super) fn is_over() -> bool {
    DEADLINE.load(Ordering::Relaxed) != NEVER && checkpoint::depth() > LEVEL.load(Ordering::Relaxed)
}

fn now(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(NEVER - 1)
}

/// Lets the signal come after `first`, at once for zero, and then again and again; never for none.
fn set_timer(first: Option<Duration>) {
    let value = |time: Duration| libc::timeval {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_usec: i64::from(time.subsec_micros()),
    };
    let (first, again) = match first {
        None => (Duration::ZERO, Duration::ZERO),
        // To the system, zero is no timer at all.
        Some(first) => (first.max(Duration::from_micros(1)), AGAIN),
    };
    let timer = libc::itimerval { it_interval: value(again), it_value: value(first) };
    // SAFETY: a valid value, and the old one is not asked for.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    debug_assert_eq!(set, 0);
}
