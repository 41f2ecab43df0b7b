//! The 16550 UART, read in bursts while busy and asleep while idle.
//!
//! The receive trigger decides everything: at 14 bytes QEMU (and a real line's interrupt load) moves whole bursts, but
//! the last few bytes wait for a time-out; at 1 byte the first one wakes us at once. So [`Uart::sleep_until_data`] sets 1
//! and halts the processor, [`Uart::receive`] takes what is there with 14, and [`Uart::sleep_or_tick`] waits for what is
//! still to come of a message.
//!
//! While a message goes out, what comes in meanwhile is set aside, so that both sides may talk at once. A byte that was
//! lost or garbled all the same is a [`Damage`], told once, by the next [`Uart::receive`].
//!
//! What arrived before [`Uart::set_up`] is lost: enabling the FIFO clears it. The peer stays silent until it hears us.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use super::port::Port;
use super::{cpu, interrupts};

/// The first serial port: the protocol.
pub static LINE: Uart = Uart::at(0x3f8, Interrupt::Connected, &LINE_ASIDE);
/// The second serial port: the console.
pub static CONSOLE: Uart = Uart::at(0x2f8, Interrupt::Masked, &CONSOLE_ASIDE);

// Apart from the ports, so that zeroes take no room in the image.
static LINE_ASIDE: Aside = Aside::new();
static CONSOLE_ASIDE: Aside = Aside::new();

/// What the transmitter takes when it says it is empty.
const FIFO_BYTES: usize = 16;

/// FIFO control: on; trigger at 1 or at 14 bytes; clear both directions.
const FIFO_TRIGGER_1: u8 = 0x01;
const FIFO_TRIGGER_14: u8 = 0xc1;
const FIFO_CLEAR: u8 = 0x06;
/// The higher of the two triggers.
const TRIGGER_BYTES: usize = 14;

/// Line status: a byte has arrived; the transmitter's FIFO is empty.
const DATA_READY: u8 = 0x01;
const TRANSMITTER_EMPTY: u8 = 0x20;
/// Line status, cleared by reading it: a byte came while the FIFO was full; a wrong parity or stop bit; a break.
const OVERRUN: u8 = 0x02;
const GARBLED: u8 = 0x04 | 0x08;
const BREAK: u8 = 0x10;
const ANY_DAMAGE: u8 = OVERRUN | GARBLED | BREAK;

/// Bytes that may arrive while one message is sent, a power of two: a third of a second of them.
const ASIDE_BYTES: usize = 4096;

/// What happened to bytes on their way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// They came faster than they were read.
    Overrun,
    /// A stop bit was missing: noise, or another speed.
    Garbled,
    /// The line was held low for longer than a byte: the peer went away, or means a break.
    Break,
}

/// Interrupt enable: when a byte has arrived; when the transmitter's FIFO is empty.
const ON_DATA: u8 = 0x01;
const ON_EMPTY: u8 = 0x02;

/// How often to look at the transmitter before sleeping until it is empty: some tens of microseconds.
const MOST_LOOKS: usize = 200;

/// Whether a port's interrupt can end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    Connected,
    Masked,
}

/// A 16550 at its base port.
#[derive(Debug)]
pub struct Uart {
    base: u16,
    interrupt: Interrupt,
    /// Whether the trigger is at 14.
    busy: AtomicBool,
    /// The bits of [`ANY_DAMAGE`] seen and not told yet.
    damage: AtomicU8,
    aside: &'static Aside,
}

/// Bytes that arrived while others were sent. One thread uses it; the atomics only make it shareable.
#[derive(Debug)]
struct Aside {
    bytes: [AtomicU8; ASIDE_BYTES],
    /// How many were ever taken, and ever put in.
    taken: AtomicUsize,
    put: AtomicUsize,
}

impl Aside {
    const fn new() -> Self {
        let bytes = [const { AtomicU8::new(0) }; ASIDE_BYTES];
        Self { bytes, taken: AtomicUsize::new(0), put: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.put.load(Ordering::Relaxed).wrapping_sub(self.taken.load(Ordering::Relaxed))
    }

    fn has_room(&self) -> bool {
        self.len() < ASIDE_BYTES
    }

    fn slot(&self, number: usize) -> Option<&AtomicU8> {
        self.bytes.get(number % ASIDE_BYTES)
    }

    fn put(&self, byte: u8) {
        let number = self.put.load(Ordering::Relaxed);
        if let Some(slot) = self.slot(number) {
            slot.store(byte, Ordering::Relaxed);
        }
        self.put.store(number.wrapping_add(1), Ordering::Relaxed);
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        let number = self.taken.load(Ordering::Relaxed).wrapping_add(ahead);
        self.slot(number).filter(|_| ahead < self.len()).map(|slot| slot.load(Ordering::Relaxed))
    }

    fn take(&self) -> Option<u8> {
        let number = self.taken.load(Ordering::Relaxed);
        if self.len() == 0 {
            return None;
        }
        self.taken.store(number.wrapping_add(1), Ordering::Relaxed);
        self.slot(number).map(|slot| slot.load(Ordering::Relaxed))
    }
}

impl Uart {
    const fn at(base: u16, interrupt: Interrupt, aside: &'static Aside) -> Self {
        Self { base, interrupt, busy: AtomicBool::new(true), damage: AtomicU8::new(0), aside }
    }

    const fn data(&self) -> Port {
        Port(self.base)
    }

    const fn interrupt_enable(&self) -> Port {
        Port(self.base + 1)
    }

    const fn fifo_control(&self) -> Port {
        Port(self.base + 2)
    }

    const fn line_control(&self) -> Port {
        Port(self.base + 3)
    }

    const fn modem_control(&self) -> Port {
        Port(self.base + 4)
    }

    fn status(&self) -> u8 {
        let status = Port(self.base + 5).read();
        if status & ANY_DAMAGE != 0 {
            self.damage.fetch_or(status & ANY_DAMAGE, Ordering::Relaxed);
        }
        status
    }

    fn has_data(&self) -> bool {
        self.aside.len() > 0 || self.status() & DATA_READY != 0
    }

    const fn scratch(&self) -> Port {
        Port(self.base + 7)
    }

    /// Sets the port up (115 200 baud, 8 bits, no parity, interrupts off), after a look whether it is there at all; `false`
    /// when it is not.
    pub fn set_up(&self) -> bool {
        self.interrupt_enable().write(0);
        for probe in [0x5a, 0xa5] {
            self.scratch().write(probe);
            if self.scratch().read() != probe {
                return false;
            }
        }
        // Divisor 1: on QEMU it sets the receive time-out, not the speed.
        self.line_control().write(0x80);
        self.data().write(1);
        self.interrupt_enable().write(0);
        self.line_control().write(0x03);
        self.fifo_control().write(FIFO_TRIGGER_14 | FIFO_CLEAR);
        self.busy.store(true, Ordering::Relaxed);
        let works = self.loops_back();
        // DTR and RTS for the peer, OUT2 to connect the interrupt.
        self.modem_control().write(0x0b);
        self.fifo_control().write(FIFO_TRIGGER_14 | FIFO_CLEAR);
        // Whatever happened before is over.
        self.status();
        self.damage.store(0, Ordering::Relaxed);
        works
    }

    /// Whether a byte sent comes back in loop-back mode: memory at these ports would pass the scratch test, too.
    fn loops_back(&self) -> bool {
        const PATIENCE: usize = 100_000;
        self.modem_control().write(0x1e);
        self.data().write(0xae);
        let arrived = (0..PATIENCE).any(|_| self.status() & DATA_READY != 0);
        arrived && self.data().read() == 0xae
    }

    /// Moves bytes that have arrived to `out`, as many as there are and fit, and returns how many. Does not wait.
    ///
    /// # Errors
    /// When a byte was lost or garbled since the last time; what came before and after it is lost, too.
    pub fn receive(&self, out: &mut [u8]) -> Result<usize, Damage> {
        if !self.busy.swap(true, Ordering::Relaxed) {
            // Changing the trigger alone does not clear the FIFO.
            self.fifo_control().write(FIFO_TRIGGER_14);
        }
        let mut count = 0;
        for slot in out {
            let next = self.aside.take().or_else(|| self.take_arrived());
            let Some(byte) = next else { break };
            *slot = byte;
            count += 1;
        }
        match self.damage.load(Ordering::Relaxed) {
            0 => Ok(count),
            damage => {
                self.damage.store(0, Ordering::Relaxed);
                Err(match damage {
                    damage if damage & OVERRUN != 0 => Damage::Overrun,
                    damage if damage & BREAK != 0 => Damage::Break,
                    _ => Damage::Garbled,
                })
            }
        }
    }

    fn take_arrived(&self) -> Option<u8> {
        (self.status() & DATA_READY != 0).then(|| self.data().read())
    }

    /// Sets aside what has arrived, as long as there is room. Not for whoever interrupted another function of the port.
    pub fn take_in(&self) {
        while self.aside.has_room()
            && let Some(byte) = self.take_arrived()
        {
            self.aside.put(byte);
        }
    }

    /// The byte that is `ahead` many behind the next one, when it is set aside.
    #[must_use]
    pub fn peek(&self, ahead: usize) -> Option<u8> {
        self.aside.peek(ahead)
    }

    /// Halts the processor until a byte has arrived. Only for [`LINE`]: the others' interrupts stay masked.
    pub fn sleep_until_data(&self) {
        while !self.has_data() && self.damage.load(Ordering::Relaxed) == 0 {
            self.sleep(FIFO_TRIGGER_1);
        }
    }

    /// Halts the processor until something happens: a byte, or a burst of them when `expected` bytes are still to come, or
    /// the next tick of the board's timer. Only for [`LINE`].
    ///
    /// Polling instead would be as fast on a processor of one's own. In an emulator it starves the thread that brings the
    /// bytes as soon as the host has other work: seconds for what takes milliseconds.
    pub fn sleep_or_tick(&self, expected: usize) {
        interrupts::let_timer_in(true);
        self.sleep(if expected < TRIGGER_BYTES { FIFO_TRIGGER_1 } else { FIFO_TRIGGER_14 });
        interrupts::let_timer_in(false);
    }

    fn sleep(&self, trigger: u8) {
        let busy = trigger != FIFO_TRIGGER_1;
        if self.busy.swap(busy, Ordering::Relaxed) != busy {
            self.fifo_control().write(trigger);
        }
        if self.aside.len() == 0 {
            self.sleep_until(DATA_READY, ON_DATA);
        }
    }

    /// Halts the processor until `interrupt` comes, or another one does, unless `status` is there already.
    fn sleep_until(&self, status: u8, interrupt: u8) {
        // The handler switches the interrupt off. What happens between the look and the halt leaves it pending.
        self.interrupt_enable().write(interrupt);
        if self.status() & status == 0 {
            cpu::wait_for_interrupt();
        }
        self.interrupt_enable().write(0);
    }

    /// Sends all of `bytes`, at the speed of the line. What arrives meanwhile is kept, as long as there is room.
    pub fn send(&self, bytes: &[u8]) {
        for burst in bytes.chunks(FIFO_BYTES) {
            self.wait_for_transmitter();
            for byte in burst {
                self.data().write(*byte);
            }
        }
    }

    /// Waits until the transmitter takes a burst. It is not ready for long when the host does not read: then the host needs
    /// the processor more than we do.
    fn wait_for_transmitter(&self) {
        while !(0..MOST_LOOKS).any(|_| self.looks_ready()) {
            if self.interrupt == Interrupt::Connected {
                let (mut status, mut interrupt) = (TRANSMITTER_EMPTY, ON_EMPTY);
                if self.aside.has_room() {
                    (status, interrupt) = (status | DATA_READY, interrupt | ON_DATA);
                }
                interrupts::let_timer_in(true);
                self.sleep_until(status, interrupt);
                interrupts::let_timer_in(false);
            }
        }
    }

    /// Sets a byte that has arrived aside, and says whether the transmitter is ready.
    fn looks_ready(&self) -> bool {
        let status = self.status();
        if status & DATA_READY != 0 && self.aside.has_room() {
            self.aside.put(self.data().read());
        }
        status & TRANSMITTER_EMPTY != 0
    }

    /// Switches the port's interrupt off, from inside its handler.
    pub(super) fn silence(&self) {
        self.interrupt_enable().write(0);
    }
}
