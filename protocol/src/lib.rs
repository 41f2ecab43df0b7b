//! What Graft's controller and executor say to each other.

#![no_std]

mod addr;
mod fault;
mod prot;

pub use addr::{ExecAddr, ExecRange};
pub use fault::{Fault, FaultKind};
pub use prot::{AllocGroup, AllocGroupError, Lifetime, Prot};
