//! Interrupt controllers: everything masked but the serial line's interrupt, which only ends a sleep, and at times the
//! timer's, which does the same.
//!
//! The two 8259 PICs route it. Where there is a local APIC, its LINT0 must let the PIC's interrupts through: some
//! firmware leaves it masked, and then they never arrive.
#![expect(unsafe_code, reason = "writes the local interrupt controller's registers")]

use core::ptr;

use ::x86_64::registers::model_specific::Msr;

use super::port::Port;
use super::uart;

const MASTER_COMMAND: Port = Port(0x20);
const MASTER_DATA: Port = Port(0x21);
const SLAVE_COMMAND: Port = Port(0xa0);
const SLAVE_DATA: Port = Port(0xa1);
/// Writes to it take about a microsecond on old boards, which the PICs need between commands.
const DELAY: Port = Port(0x80);

/// The vector of interrupt line 0; those of the slave follow at 40.
const FIRST_VECTOR: u8 = 32;
const TIMER_LINE: u8 = 0;
const SERIAL_LINE: u8 = 4;
const TIMER_VECTOR: u8 = FIRST_VECTOR + TIMER_LINE;
const SERIAL_VECTOR: u8 = FIRST_VECTOR + SERIAL_LINE;
/// What the PICs raise when a line fell silent before it was acknowledged, and what the local APIC raises then.
const SPURIOUS_VECTORS: [u8; 3] = [FIRST_VECTOR + 7, FIRST_VECTOR + 15, 0xff];

const END_OF_INTERRUPT: u8 = 0x20;

/// Moves the PICs' vectors out of the way of the exceptions and masks all lines but the first serial port's.
pub fn set_up_pics() {
    let write = |port: Port, value| {
        port.write(value);
        DELAY.write(0);
    };
    // Initialisation words 1 to 4 (Intel 8259A): edge triggered, cascaded; vectors; the cascade on line 2; 8086 mode.
    write(MASTER_COMMAND, 0x11);
    write(SLAVE_COMMAND, 0x11);
    write(MASTER_DATA, FIRST_VECTOR);
    write(SLAVE_DATA, FIRST_VECTOR + 8);
    write(MASTER_DATA, 1 << 2);
    write(SLAVE_DATA, 2);
    write(MASTER_DATA, 1);
    write(SLAVE_DATA, 1);
    write(MASTER_DATA, !(1 << SERIAL_LINE));
    write(SLAVE_DATA, 0xff);
}

/// Lets the board's timer interrupt a sleep, or not. It ticks about 18 times a second from [`super::clock`]'s start on.
pub(super) fn let_timer_in(on: bool) {
    let timer = if on { 1 << TIMER_LINE } else { 0 };
    MASTER_DATA.write(!(1 << SERIAL_LINE | timer));
}

/// The physical address of the local APIC's registers; `None` when it is off, or in x2APIC mode, where it has none.
///
/// For processors that have one.
#[must_use]
pub fn apic_registers() -> Option<u64> {
    const ENABLED: u64 = 1 << 11;
    const X2APIC: u64 = 1 << 10;
    // SAFETY: IA32_APIC_BASE exists where CPUID reports an APIC (SDM 4, table 2-2); reading it changes nothing.
    let base = unsafe { Msr::new(0x1b).read() };
    (base & (ENABLED | X2APIC) == ENABLED).then_some(base & 0x000f_ffff_ffff_f000)
}

/// The number of this processor's local APIC, whose registers are at `registers`.
///
/// # Safety
/// As for [`connect_apic`].
#[must_use]
pub unsafe fn apic_number(registers: u64) -> u8 {
    const NUMBER: u64 = 0x20;
    // SAFETY: a register of the local APIC, by the caller's promise; reading it changes nothing.
    let number = unsafe { ptr::read_volatile((registers + NUMBER) as *const u32) };
    number.to_be_bytes()[0]
}

/// Lets the PICs' interrupts and the board's non-maskable one through the local APIC, whose registers are at `registers`.
///
/// # Safety
/// `registers` must be the virtual address where the page of [`apic_registers`] is mapped, uncached and writable.
pub unsafe fn connect_apic(registers: u64) {
    const SPURIOUS_VECTOR: u64 = 0xf0;
    const LINT0: u64 = 0x350;
    const LINT1: u64 = 0x360;
    // Software enable with vector 255; LINT0 as the PIC's (ExtINT), LINT1 as NMI (SDM 3A §10.4.7.2, §10.5.1).
    for (register, value) in [(SPURIOUS_VECTOR, 0x1ff), (LINT0, 0x700), (LINT1, 0x400)] {
        let register = (registers + register) as *mut u32;
        // SAFETY: a register of the local APIC, by the caller's promise; none of the three touches memory.
        unsafe { ptr::write_volatile(register, value) };
    }
}

/// Handles an interrupt from outside; `false` when `vector` is none that could come.
pub(super) fn handle(vector: u8) -> bool {
    if vector == SERIAL_VECTOR {
        uart::LINE.silence();
        MASTER_COMMAND.write(END_OF_INTERRUPT);
        return true;
    }
    if vector == TIMER_VECTOR {
        MASTER_COMMAND.write(END_OF_INTERRUPT);
        return true;
    }
    // Line 15 is spurious on the slave only: the master's line 2 was real and wants its acknowledgement.
    if vector == FIRST_VECTOR + 15 {
        MASTER_COMMAND.write(END_OF_INTERRUPT);
    }
    SPURIOUS_VECTORS.contains(&vector)
}
