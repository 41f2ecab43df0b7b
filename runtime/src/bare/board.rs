//! The machine brought up, and the real platform and line over it.

mod exit;
mod layout;
mod line;
mod memory;
mod platform;
mod ring;
mod selftest;
mod start;
mod trap;

pub use exit::{ExitCode, die};
pub use line::SerialLine;
pub use platform::BarePlatform;
pub use selftest::run as self_test;
pub use start::{Machine, start};
