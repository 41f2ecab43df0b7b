//! QEMU's debug devices: a console that takes bytes, and a port that ends the machine.

use super::cpu;
use super::port::Port;

/// The device reads as this number where it exists.
const CONSOLE: Port = Port(0xe9);
const EXIT: Port = Port(0xf4);

/// The debug console. Where there is none, the bytes go nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Console;

impl Console {
    /// Writes `bytes`.
    pub fn write(self, bytes: &[u8]) {
        for byte in bytes {
            CONSOLE.write(*byte);
        }
    }
}

/// Ends the machine; QEMU exits with status `2 * code + 1`. Where there is no such device, the processor stops for ever.
pub fn exit(code: u8) -> ! {
    EXIT.write(code);
    cpu::halt()
}
