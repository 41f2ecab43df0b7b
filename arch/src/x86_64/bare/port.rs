//! I/O ports.
#![expect(unsafe_code, reason = "port I/O")]

use core::arch::asm;

/// A port of a device on the board: what is done with it cannot touch memory, or this module's users would owe more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port(pub(super) u16);

impl Port {
    pub(super) fn read(self) -> u8 {
        let value;
        // SAFETY: the ports used in this crate belong to the UARTs, the interrupt controllers, the timer and QEMU's debug
        // devices; none of them writes memory. No `nomem`: device accesses keep their place among memory accesses.
        unsafe { asm!("in al, dx", out("al") value, in("dx") self.0, options(nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(self, value: u8) {
        // SAFETY: as in `read`.
        unsafe { asm!("out dx, al", in("dx") self.0, in("al") value, options(nostack, preserves_flags)) };
    }
}
