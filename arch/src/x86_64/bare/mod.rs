//! The machine itself: entry, processor state, traps, serial ports, clock. For `target_os = "none"` only.
//!
//! Whoever links this gives it two functions, resolved by the linker so that none can be missing at run time:
//!
//! - `extern "Rust" fn graft_start(boot: Result<BootInfo, BootInfoError>) -> !`, called once, on the boot page tables (the
//!   first 4 GiB identity mapped, everything allowed), on the runtime's stack, with interrupts off;
//! - `extern "Rust" fn graft_trap(frame: &mut TrapFrame)`, called for every exception, after [`trap::load`].
//!
//! All of it assumes one processor, and that interrupts stay off except inside [`uart::Uart::sleep_until_data`].

pub mod clock;
pub mod cpu;
pub mod deadline;
pub mod debug;
mod entry;
pub mod interrupts;
mod port;
pub mod segments;
pub mod stacks;
pub mod trap;
pub mod uart;

pub use entry::NO_LONG_MODE;
