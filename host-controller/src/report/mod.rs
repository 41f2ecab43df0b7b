//! What a fault of the program means in the program's own source, from what was linked.
//!
//! The executor sends addresses; names, files and lines never leave the controller.

mod instruction;
mod source;

pub use instruction::{LONGEST_INSTRUCTION, decode};
pub use source::{SourceFrame, source_frames};
