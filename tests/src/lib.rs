//! Shared rig of the tests, the demo and the benchmarks: the programs, how they are built, what runs them.
//!
//! [`programs`] is the one table of example programs; [`objects`] compiles them; [`place`] knows where things are and
//! builds Graft itself; [`tools`] finds the tools of others; [`child`]
//! runs a process with a time limit; [`interop`] crosses controllers with executors. Nothing here is a test.

pub mod child;
pub mod interop;
pub mod objects;
pub mod place;
pub mod programs;
pub mod target;
pub mod tools;
