//! Takes files apart: objects and archives.

use super::{Input, ParseError};

/// Every input, checked and taken apart.
#[derive(Debug)]
pub struct Objects<'a> {
    _inputs: Vec<Input<'a>>,
}

/// Takes every input apart.
///
/// # Errors
/// The first file that is not what it claims to be.
pub fn parse<'a>(_inputs: &[Input<'a>]) -> Result<Objects<'a>, ParseError> {
    todo!("real soon")
}

/// The paths of a thin archive's members, relative to the archive's directory; empty for any other file.
///
/// # Errors
/// The archive is malformed.
pub fn thin_members(_name: &str, _bytes: &[u8]) -> Result<Vec<String>, ParseError> {
    todo!("real soon")
}
