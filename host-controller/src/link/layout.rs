//! Gives every section its place.

use std::collections::HashMap;

use graft_protocol::{AllocGroup, ExecAddr};

use super::{Image, Program, RelocateError};

/// Where everything goes, relative to a base not known yet.
#[derive(Debug)]
pub struct Layout<'p> {
    _program: &'p Program<'p>,
}

/// One segment before the base is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShape {
    /// Protection and lifetime.
    pub group: AllocGroup,
    /// Distance from the base, in bytes, a multiple of the page size.
    pub offset: u64,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
    /// How many bytes from the start have content; zeroes follow.
    pub content: u64,
}

/// The addresses the executor gave for [`Program::externals`].
#[derive(Clone, Debug, Default)]
pub struct Externals {
    addresses: HashMap<String, ExecAddr>,
}

impl Externals {
    /// Notes that `name` is at `addr`.
    pub fn insert(&mut self, name: impl Into<String>, addr: ExecAddr) {
        self.addresses.insert(name.into(), addr);
    }
}

impl Layout<'_> {
    /// How many bytes to reserve, at any page-aligned address, so that [`Self::link`] finds room there.
    #[must_use]
    pub fn reservation(&self) -> u64 {
        0
    }

    /// The segments, in address order.
    #[must_use]
    pub fn segments(&self) -> &[SegmentShape] {
        &[]
    }

    /// Applies every relocation for a reservation at `base`.
    ///
    /// # Errors
    /// Symbols nobody defines, each with its referrers; values that do not fit their field.
    pub fn link(&self, _base: ExecAddr, _externals: &Externals) -> Result<Image<'_>, RelocateError> {
        todo!("real soon")
    }
}
