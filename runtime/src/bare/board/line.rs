//! The protocol's channel: the first serial port.

use core::sync::atomic::{AtomicU8, Ordering};

use graft_arch::machine::bare::clock::Clock;
use graft_arch::machine::bare::uart::{self, Damage};

use crate::line::{Line, LineError, Patience, Phase, has_hangup};

/// How long the peer may be silent inside a message. The next controller waits that long, and the time to drain, for its
/// Setup when the last one died in the middle of a message: its patience must be longer than both together.
const STALL_MILLIS: u64 = 10_000;
/// How long the line must be quiet to count as drained, and how long draining takes at most.
const QUIET_MILLIS: u64 = 100;
const DRAIN_MILLIS: u64 = 2_000;

/// The first serial port. Made by [`super::start`], which has set the port up.
#[derive(Clone, Copy, Debug)]
pub struct SerialLine {
    clock: Clock,
}

impl SerialLine {
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock }
    }

    fn deadline(&self, millis: u64) -> u64 {
        self.clock.uptime_ns().saturating_add(millis.saturating_mul(1_000_000))
    }

    fn read_or_stall(&self, out: &mut [u8], millis: u64) -> Result<usize, LineError> {
        match self.read_within(out, millis)? {
            0 => Err(LineError::Stalled { millis }),
            count => Ok(count),
        }
    }

    /// Reads what comes within `millis`; 0 when nothing does.
    fn read_within(&self, out: &mut [u8], millis: u64) -> Result<usize, LineError> {
        let deadline = self.deadline(millis);
        loop {
            let count = uart::LINE.receive(out).map_err(named)?;
            if count > 0 || self.clock.uptime_ns() >= deadline {
                return Ok(count);
            }
            // A clock that was not measured means a board without the timer: nothing would end the sleep of a silent line.
            if self.clock.is_measured() {
                uart::LINE.sleep_or_tick(out.len());
            }
        }
    }
}

const fn named(damage: Damage) -> LineError {
    match damage {
        Damage::Overrun => LineError::Overrun,
        Damage::Garbled => LineError::Garbled,
        Damage::Break => LineError::Break,
    }
}

/// A [`Phase`].
static PHASE: AtomicU8 = AtomicU8::new(Phase::Taking as u8);

/// Whether loaded code is to end, for whoever interrupted it. While the runtime worked for it (`in_runtime`) the port may be
/// in use, and only what was set aside is looked at.
pub(super) fn is_left(in_runtime: bool) -> bool {
    let phase = PHASE.load(Ordering::Relaxed);
    if phase != Phase::Between as u8 {
        return phase == Phase::Over as u8;
    }
    if !in_runtime {
        uart::LINE.take_in();
    }
    has_hangup(|ahead| uart::LINE.peek(ahead))
}

impl Line for SerialLine {
    fn read(&self, out: &mut [u8], patience: Patience) -> Result<usize, LineError> {
        match patience {
            Patience::Idle => loop {
                let count = uart::LINE.receive(out).map_err(named)?;
                if count > 0 {
                    return Ok(count);
                }
                uart::LINE.sleep_until_data();
            },
            Patience::UpTo { millis } => self.read_or_stall(out, millis),
            Patience::MidMessage => self.read_or_stall(out, STALL_MILLIS),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), LineError> {
        uart::LINE.send(bytes);
        Ok(())
    }

    fn enter(&self, phase: Phase) {
        PHASE.store(phase as u8, Ordering::Relaxed);
    }

    fn drain(&self) {
        let mut dropped = [0; 64];
        let deadline = self.deadline(DRAIN_MILLIS);
        while self.clock.uptime_ns() < deadline && self.read_within(&mut dropped, QUIET_MILLIS) != Ok(0) {}
    }
}
