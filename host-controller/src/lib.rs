//! What the user sees: link objects, ship them to an executor, run them.
//!
//! [`link`] turns objects into an image. [`transport`] names and reaches executors, [`session`] calls them, [`memory`]
//! manages their memory; [`launch`] puts these together and runs a program, and [`report`] says where in its source it
//! failed. [`check`] holds an image against rules. [`relay`] gives an executor to others. The command `graft` is a thin
//! rim around them.

pub mod check;
pub mod launch;
pub mod link;
pub mod memory;
pub mod relay;
pub mod report;
pub mod session;
pub mod transport;
