//! Whole sessions against the real executor, over a line in memory and a fake platform.
//!
//! Everything here is ordinary code: it runs under Miri, and loaded code is played by closures.

mod access;
mod actions;
mod dispatch;
mod dylib;
mod fake;
mod heap;
mod memory;
mod refusals;
mod run;
mod session;
mod wire;
