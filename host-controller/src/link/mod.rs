//! The linker: relocatable objects in, an image for remote memory out. Values in, values out; no I/O anywhere below.
//!
//! A link is a chain of values, each borrowing the last:
//!
//! ```text
//! parse(&[Input])        -> Objects    every file checked and taken apart, archives indexed
//! resolve(&Objects, ..)  -> Program    names bound, archive members pulled by need, unreachable sections dropped
//! Program::layout()      -> Layout     segments and sizes; what to reserve, and whom to look up, before either is known
//! Layout::link(base, ..) -> Image      every relocation applied, for one base address
//! ```
//!
//! All input is untrusted: whatever the bytes are, the outcome is an image or a [`LinkError`], in time linear in the
//! input and with memory bounded by it.

#![warn(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod debug;
mod error;
mod image;
mod layout;
mod linked_elf;
mod name;
mod parse;
mod reloc;
mod relocate;
mod resolve;
#[cfg(test)]
mod tests;

use graft_protocol::ExecAddr;

pub use debug::DebugSections;
pub use error::{
    ArchiveFault, Duplicate, LayoutError, LinkError, ObjectFault, OutOfRange, ParseError, Place, RelocateError,
    RelocationFault, ResolveError, SectionFault, Undefined, WriteError,
};
pub use image::{Image, Initializer, PlacedSection, Segment, Symbol};
pub use layout::{Externals, Layout, SegmentShape};
pub use name::{demangled, printable};
pub use parse::{Objects, parse, thin_members};
pub use resolve::{External, Program, resolve};

/// One file to link: a relocatable object or an archive of them (`.a`, `.rlib`).
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// What error messages call the file.
    pub name: String,
    /// The file's bytes.
    pub bytes: &'a [u8],
    /// Which members of an archive are linked; an object is always linked.
    pub members: Members,
    /// The content of a thin archive's members, by the paths [`thin_members`] gives; empty for everything else.
    pub thin: Vec<(String, &'a [u8])>,
}

impl<'a> Input<'a> {
    /// The object or archive `bytes`, called `name`.
    pub fn new(name: impl Into<String>, bytes: &'a [u8]) -> Self {
        Self { name: name.into(), bytes, members: Members::ByNeed, thin: Vec::new() }
    }
}

/// Which members of an archive are linked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Members {
    /// Those that define a symbol something needs.
    #[default]
    ByNeed,
    /// All of them (`--whole-archive`).
    All,
}

/// Which sections become part of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collect {
    /// Those reachable from the entry and the other roots.
    #[default]
    Reachable,
    /// All of every linked object.
    All,
}

/// What becomes of unwind tables (`.eh_frame`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unwind {
    /// The records of every kept function are part of the image.
    #[default]
    Keep,
    /// The same, when something in the program looks for them: an unwinder.
    IfUsed,
    /// They stay on the controller, as debug information does.
    Drop,
}

/// What to link for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The function the image is entered at; an error when nothing defines it. `None` for a library.
    pub entry: Option<String>,
    /// Further symbols to keep, and to pull archive members for.
    pub keep: Vec<String>,
    /// Which sections become part of the image.
    pub collect: Collect,
    /// What becomes of unwind tables.
    pub unwind: Unwind,
    /// The executor's page size in bytes, a power of two.
    pub page_size: u64,
    /// Symbols with an address of their own, as if an object defined them.
    pub absolute: Vec<(String, ExecAddr)>,
    /// Names that stand for whatever another name stands for: `(alias, other)`. An object that defines the alias defines
    /// the other.
    pub aliases: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            entry: None,
            keep: Vec::new(),
            collect: Collect::default(),
            unwind: Unwind::default(),
            page_size: 4096,
            absolute: Vec::new(),
            aliases: Vec::new(),
        }
    }
}
