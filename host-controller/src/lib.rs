//! What the user sees.

pub mod link;
