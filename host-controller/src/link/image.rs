//! The linked image.

use graft_protocol::{AllocGroup, ExecAddr, ExecRange};

/// Linked bytes with their protections, for one base address.
#[derive(Debug)]
pub struct Image<'l> {
    /// What is to be written where, in address order.
    pub segments: Vec<Segment>,
    /// Where to enter, when [`super::Options::entry`] was given.
    pub entry: Option<ExecAddr>,
    /// The functions to call before the entry, in this order.
    pub initializers: Vec<Initializer>,
    /// The functions to call at unload, in this order.
    pub finalizers: Vec<Initializer>,
    symbols: Vec<Symbol<'l>>,
}

/// One contiguous piece of the image with one protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Protection and lifetime.
    pub group: AllocGroup,
    /// Where it starts, page-aligned.
    pub addr: ExecAddr,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
    /// The first bytes; the rest up to `size` is zero.
    pub content: Vec<u8>,
}

/// A pointer to a function that runs before the entry or at unload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initializer {
    /// Where the pointer lies in the image.
    pub slot: ExecAddr,
    /// The function it points to.
    pub function: ExecAddr,
}

/// A symbol of the image, for reports and for later links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'l> {
    /// Its name; not necessarily UTF-8.
    pub name: &'l [u8],
    /// The bytes it covers; empty when the object states no size.
    pub range: ExecRange,
    /// The file that defines it, an archive's with the member.
    pub file: &'l str,
    /// The section it lies in, or `None` for an absolute symbol.
    pub section: Option<&'l [u8]>,
}

impl<'l> Image<'l> {
    /// The symbols of the image, in address order.
    #[must_use]
    pub fn symbols(&self) -> &[Symbol<'l>] {
        &self.symbols
    }
}
