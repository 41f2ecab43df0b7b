//! The real bare-metal platform and line.
//!
//! [`start`] brings the machine up and hands out [`Machine`]: a [`crate::Platform`] over page tables of its own, a
//! [`crate::Line`] over the first serial port, and what the loader said. How the address space is laid out is in
//! `board/layout.rs`. What decides without touching the machine (its frames, the firmware's map, the executor's heap) lies
//! beside `board` and is tested on any host.

#[cfg(target_os = "none")]
mod board;
mod frames;
mod heap;
mod memory_map;

#[cfg(target_os = "none")]
pub use board::{BarePlatform, ExitCode, Machine, SerialLine, die, self_test, start};
