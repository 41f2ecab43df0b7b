//! What the CPU does: mechanism without policy, one module per instruction set.
//!
//! [`machine`] is the instruction set compiled for, and the only name other crates use; the `cfg` here is the only one that
//! picks it. What is pure of each set compiles on every host, for the tests.
//!
//! # The contract of `machine`
//!
//! On every host:
//!
//! - `boot_info`: what the loader left in memory, checked: [`BootInfo`](machine::boot_info::BootInfo) with the map of
//!   physical memory and the command line;
//! - `fault`: from a [`Trap`](machine::fault::Trap) to the protocol's [`Fault`](graft_protocol::Fault);
//! - `paging`: [`Tables`](machine::paging::Tables) over any [`FrameStore`](machine::paging::FrameStore): map, reserve as
//!   demand-zero, commit, protect, unmap; changes are whole or not at all, and what the processor must forget is a
//!   [`Flush`](machine::paging::Flush).
//!
//! Where code of the set runs, in a process or bare:
//!
//! - `checkpoint`: calls that come back whatever happens, on a stack of their own, and the way from there to the runtime's.
//!
//! Where there is nothing else (`target_os = "none"`):
//!
//! - `checkpoint::user`: the same in ring 3, and the page through which code there calls the runtime;
//! - `bare`: entry, traps, interrupts, the clock, the serial ports and the debug devices. It calls two functions of whoever
//!   links it, `graft_start` and `graft_trap`.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod x86_64;

core::cfg_select! {
    target_arch = "x86_64" => { pub use x86_64 as machine; }
    // Nothing of this host can run loaded code; the pure parts still have their tests.
    _ => {}
}
