//! Binds names.

use super::{Layout, LayoutError, Objects, Options, ResolveError};

/// The program: which sections are in it, and what each name stands for.
#[derive(Debug)]
pub struct Program<'o> {
    _objects: &'o Objects<'o>,
}

/// A name that nothing in the program defines: the executor is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External<'o> {
    /// The symbol's name, as on the wire.
    pub name: &'o str,
    /// Whether the program links without it (every reference is weak).
    pub weak: bool,
}

/// Binds every name, pulls the archive members that are needed, and drops what nothing reaches.
///
/// # Errors
/// Duplicate definitions, or what the linker does not support in a section that is kept.
pub fn resolve<'o>(_objects: &'o Objects<'_>, _options: &Options) -> Result<Program<'o>, ResolveError> {
    todo!("real soon")
}

impl<'o> Program<'o> {
    /// The names the executor must provide, each once.
    #[must_use]
    pub fn externals(&self) -> &[External<'o>] {
        &[]
    }

    /// Gives every section its place, relative to a base not known yet.
    ///
    /// # Errors
    /// Sizes that do not fit the address space.
    pub fn layout(&self) -> Result<Layout<'_>, LayoutError> {
        todo!("real soon")
    }
}
