//! Shared rig of the tests, the demo and the benchmarks: the programs, how they are built, what runs them.
//!
//! [`programs`] is the one table of example programs; [`objects`] compiles them; [`place`] knows where things are and
//! builds Graft itself; [`tools`] finds the tools of others and [`install`] fetches those that are missing; [`child`]
//! runs a process with a time limit; [`target`] starts executors; [`raw`] is a controller that may misbehave,
//! and [`rig`] an executor that must bear it; [`interop`] crosses controllers with them; [`seeds`]
//! makes what the fuzz targets begin with. Nothing here is a test.

pub mod child;
pub mod install;
pub mod interop;
pub mod objects;
pub mod place;
pub mod programs;
pub mod raw;
pub mod rig;
pub mod seeds;
pub mod target;
pub mod tools;
