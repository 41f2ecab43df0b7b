//! What the executor does.
//!
//! [`Executor`] serves sessions of the protocol over two seams: a [`Platform`] below (pages, calls into loaded code) and a
//! [`Line`] beside (bytes to and from the controller). [`exports`] are the C functions loaded code may call. Two real
//! platforms live with the binary, bare metal and a Linux process; a fake one in the tests.
//!
//! Policy only: what a page-table entry looks like, or how a fault is caught, is the platform's.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

extern crate alloc;

mod access;
mod actions;
#[cfg(any(test, target_os = "none"))]
pub mod bare;
mod calls;
mod channel;
mod console;
mod dispatch;
mod dylib;
mod executor;
pub mod exports;
mod initialize;
mod line;
mod log;
mod memory;
mod platform;
mod ranges;
mod region;
mod release;
mod reply;
mod reservations;
mod run;
mod services;
mod session;
mod session_heap;
mod text;
mod token;
mod wrapper;

pub use executor::Executor;
pub use line::{Line, LineError, Patience, Phase, has_hangup};
pub use platform::{Entry, FrameCount, OutOfFrames, Platform, ReturnPair, Ring};
pub use services::Services;
pub use session::{Ending, ProtocolError, SessionEnd};
