//! Time since start: the time-stamp counter, measured once against the board's timer (8254, channel 0).
//!
//! Every wait here is bounded: a board without that timer gets a guess, and [`Clock::is_measured`] says so.

use super::cpu;
use super::port::Port;

pub(super) const TIMER_DATA: Port = Port(0x40);
pub(super) const TIMER_COMMAND: Port = Port(0x43);
/// Ticks of the timer per second.
pub(super) const TIMER_HZ: u64 = 1_193_182;
/// One millisecond in ticks.
const MEASURED_TICKS: u64 = TIMER_HZ / 1000;
/// Looks at the timer in one measurement. Each takes a microsecond or more: a hundred milliseconds at least.
const MOST_LOOKS: usize = 100_000;

/// Two measurements in a row that differ by less than one part in this many are believed. The timer wraps every 55 ms: a
/// host that stops the machine for longer inside a measurement spoils it, and not the same way twice.
const AGREEMENT: u64 = 10;
/// Measurements in all: a host so busy that none agree leaves the last.
const MOST_MEASUREMENTS: usize = 8;

/// Counts nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: u64,
    /// Nanoseconds per count, in units of 2^-32: the line is polled between two looks at the clock, and a division of 128
    /// bits would slow it down.
    scale: u64,
    measured: bool,
}

impl Clock {
    /// Starts the clock and measures the counter's speed, for some milliseconds.
    #[must_use]
    pub fn start() -> Self {
        let started = cpu::timestamp();
        // Channel 0, both bytes, mode 2 (rate generator), binary; the reload value 0 stands for 65536.
        TIMER_COMMAND.write(0x34);
        TIMER_DATA.write(0);
        TIMER_DATA.write(0);
        let mut before: Option<u64> = None;
        for _ in 0..MOST_MEASUREMENTS {
            let Some(scale) = measure() else { break };
            let agrees = before.is_some_and(|before| before.abs_diff(scale) < scale / AGREEMENT);
            before = Some(scale);
            if agrees {
                break;
            }
        }
        Self { started, scale: before.unwrap_or(1 << 32), measured: before.is_some() }
    }

    /// Nanoseconds per count of the time-stamp counter, in units of 2^-32.
    pub(super) const fn scale(&self) -> u64 {
        self.scale
    }

    /// Whether the speed was measured, and is not a guess of one count per nanosecond.
    #[must_use]
    pub const fn is_measured(&self) -> bool {
        self.measured
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn uptime_ns(&self) -> u64 {
        let counts = cpu::timestamp().saturating_sub(self.started);
        let ns = (u128::from(counts) * u128::from(self.scale)) >> 32;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// One measurement of [`Clock::scale`]; `None` when the timer does not count.
fn measure() -> Option<u64> {
    let (first_ticks, first) = sample();
    for _ in 0..MOST_LOOKS {
        let (ticks, now) = sample();
        // It counts down, and wraps.
        let passed = u64::from(first_ticks.wrapping_sub(ticks));
        if passed >= MEASURED_TICKS {
            let counts = now.saturating_sub(first).max(1);
            // At most 65536 ticks, less than 2^26 nanoseconds.
            let nanoseconds = passed * 1_000_000_000 / TIMER_HZ;
            return Some((nanoseconds << 32) / counts);
        }
    }
    None
}

/// The timer's count and the time-stamp counter at the same moment: the best of a few tries, because the machine may be
/// interrupted by its host between the two.
fn sample() -> (u16, u64) {
    let mut best = (0, 0, u64::MAX);
    for _ in 0..3 {
        let before = cpu::timestamp();
        // Latch channel 0, so that both bytes are of one moment.
        TIMER_COMMAND.write(0);
        let ticks = u16::from_le_bytes([TIMER_DATA.read(), TIMER_DATA.read()]);
        let took = cpu::timestamp().saturating_sub(before);
        if took < best.2 {
            best = (ticks, before, took);
        }
    }
    (best.0, best.1)
}
