//! What the executor does.
#![no_std]

mod line;
mod platform;

pub use line::{Line, LineError, Patience};
pub use platform::{Entry, FrameCount, OutOfFrames, Platform, ReturnPair};
