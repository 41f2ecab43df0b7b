//! The real bare-metal platform and line.
//!
//! [`start`] brings the machine up and hands out [`Machine`]: a [`crate::Platform`] over page tables of its own, a
//! [`crate::Line`] over the first serial port, and what the loader said. How the address space is laid out is in
//! `layout.rs`.

mod exit;
mod layout;
mod line;
mod memory;
mod platform;
mod selftest;
mod start;
mod trap;

pub use exit::{ExitCode, die};
pub use line::SerialLine;
pub use platform::BarePlatform;
pub use selftest::run as self_test;
pub use start::{Machine, start};
