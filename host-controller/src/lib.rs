//! What the user sees: link objects, ship them to an executor, run them.
//!
//! [`link`] turns objects into an image. [`transport`] names and reaches executors, [`session`] calls them, [`memory`]
//! manages their memory. The command `graft` is a thin rim around these.

pub mod launch;
pub mod link;
pub mod memory;
pub mod relay;
pub mod session;
pub mod transport;
