//! Why a link fails: one enum per phase, and their sum.

use thiserror::Error;

/// Why a link failed, whichever the phase.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A file could not be taken apart.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Names could not be bound.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The program has no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The program cannot be linked at that address with those externals.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
}

/// Why a file could not be taken apart.
#[derive(Debug, Error)]
pub enum ParseError {}

/// Why names could not be bound.
#[derive(Debug, Error)]
pub enum ResolveError {}

/// Why a program has no layout.
#[derive(Debug, Error)]
pub enum LayoutError {}

/// Why a program cannot be linked at an address.
#[derive(Debug, Error)]
pub enum RelocateError {}
