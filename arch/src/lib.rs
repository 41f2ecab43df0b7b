//! What the CPU does: mechanism without policy, one module per instruction set.
//!
//! [`x86_64::checkpoint`] (calls that come back whatever happens) serves bare metal and a Linux process alike.
#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod x86_64;
