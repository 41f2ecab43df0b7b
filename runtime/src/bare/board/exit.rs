//! Ways the machine ends, each with its number and a sentence on every channel that is not the protocol's.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use graft_arch::machine::bare::{NO_LONG_MODE, debug, uart};

/// What QEMU's debug-exit device is told; QEMU exits with twice the number plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// The processor has no 64-bit mode; the entry itself says so.
    NoLongMode = NO_LONG_MODE,
    /// The processor cannot make pages not executable.
    NoNx = 0x11,
    /// There is not enough memory.
    TooLittleMemory = 0x12,
    /// There is no serial port for the protocol.
    NoUart = 0x13,
    /// The loader told nothing that could be used.
    NoBootInfo = 0x14,
    /// The self-test passed.
    SelfTestPassed = 0x20,
    /// The self-test failed.
    SelfTestFailed = 0x21,
    /// The executor itself ran into a fault.
    Fault = 0x30,
    /// The executor found a bug in itself.
    Panic = 0x31,
}

/// Whether the console port exists, so that last words can go there.
pub(super) static CONSOLE_EXISTS: AtomicBool = AtomicBool::new(false);

/// Says why, on the debug console and the console port, and ends the machine.
pub fn die(code: ExitCode, why: fmt::Arguments<'_>) -> ! {
    static DYING: AtomicBool = AtomicBool::new(false);
    // Last words that fail in turn must not go on for ever.
    if !DYING.swap(true, Ordering::Relaxed) {
        let _ = writeln!(LastWords, "graft: {why}");
    }
    debug::exit(code as u8)
}

struct LastWords;

impl Write for LastWords {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        debug::Console.write(text.as_bytes());
        if CONSOLE_EXISTS.load(Ordering::Relaxed) {
            uart::CONSOLE.send(text.as_bytes());
        }
        Ok(())
    }
}
