//! Archives: GNU, BSD, thin, with 32-bit, 64-bit or no index.
//!
//! The index is not read: it can be absent or stale, and the members' own symbol tables say the same.

use std::collections::HashMap;

use object::archive::{Header, MAGIC, THIN_MAGIC};
use object::read::archive::ArchiveFile;
use thiserror::Error;

use super::{Object, Objects};
use crate::link::name::printable;
use crate::link::{Input, Members, ParseError};

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArchiveFault {
    /// A header is malformed or runs past the end.
    #[error("archive is malformed after {members} members: {reason}")]
    Malformed {
        /// How many members were read before.
        members: usize,
        /// What the reader found.
        reason: String,
    },
    /// A member runs past the end of the archive.
    #[error("archive is truncated: member {member} of {size} bytes runs past the end")]
    Truncated {
        /// The member.
        member: String,
        /// The size its header states.
        size: u64,
    },
    /// The content of a thin archive's member was not given.
    #[error("thin archive: its member {0} was not read")]
    ThinMember(String),
    /// The names of the members add up to more than any archive has.
    #[error("archive of {archive} bytes has member names of more than {limit} bytes in sum")]
    Names {
        /// The archive's size.
        archive: usize,
        /// The limit.
        limit: usize,
    },
}

/// A member before it is taken apart.
struct Member<'a> {
    name: &'a [u8],
    /// `None` in a thin archive.
    bytes: Option<&'a [u8]>,
}

pub(super) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) || bytes.starts_with(&THIN_MAGIC)
}

/// The paths of a thin archive's members, relative to the archive's directory; empty for any other file.
///
/// # Errors
/// The archive is malformed.
pub fn thin_members(name: &str, bytes: &[u8]) -> Result<Vec<String>, ParseError> {
    if !bytes.starts_with(&THIN_MAGIC) {
        return Ok(Vec::new());
    }
    let list = members(name, bytes)?;
    Ok(list.iter().map(|member| String::from_utf8_lossy(member.name).into_owned()).collect())
}

/// Takes every member of the archive apart and appends it to `objects`.
pub(super) fn parse<'a>(input: &Input<'a>, objects: &mut Objects<'a>) -> Result<(), ParseError> {
    let thin: HashMap<&[u8], &'a [u8]> = input.thin.iter().map(|(path, bytes)| (path.as_bytes(), *bytes)).collect();
    let archive = printable(input.name.as_bytes());
    for member in members(&input.name, input.bytes)? {
        let Some(bytes) = member.bytes.or_else(|| thin.get(member.name).copied()) else {
            return Err(fault(&input.name, ArchiveFault::ThinMember(printable(member.name))));
        };
        let name = format!("{archive}({})", printable(member.name));
        match Object::parse(name, bytes, input.members) {
            Ok(object) => objects.all.push(object),
            // A `.rlib` holds metadata, archives hold notes and objects for other machines: as long as nothing needs them
            // they do no harm.
            Err(ParseError::Object { file, fault }) if fault.is_foreign() && input.members == Members::ByNeed => {
                objects.skipped.push(format!("{file}: {fault}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn members<'a>(archive: &str, bytes: &'a [u8]) -> Result<Vec<Member<'a>>, ParseError> {
    let mut list = Vec::new();
    let malformed = |members, error: object::read::Error| {
        fault(archive, ArchiveFault::Malformed { members, reason: error.to_string() })
    };
    let file = ArchiveFile::parse(bytes).map_err(|error| malformed(0, error))?;
    // Long names may share bytes; without a limit, a few crafted headers make the scan quadratic.
    let limit = bytes.len().saturating_mul(16).saturating_add(4096);
    let mut names = 0_usize;
    for member in file.members() {
        let member = member.map_err(|error| malformed(list.len(), error))?;
        let name = member.name();
        names = names.saturating_add(name.len());
        if names > limit {
            return Err(fault(archive, ArchiveFault::Names { archive: bytes.len(), limit }));
        }
        let content = if member.is_thin() {
            None
        } else {
            let truncated =
                |_| fault(archive, ArchiveFault::Truncated { member: printable(name), size: member.size() });
            Some(member.data(bytes).map_err(truncated)?)
        };
        list.push(Member { name, bytes: content });
    }
    match overlong_index(bytes) {
        Some(size) if list.is_empty() => {
            Err(fault(archive, ArchiveFault::Truncated { member: "(the index)".to_owned(), size }))
        }
        _ => Ok(list),
    }
}

/// The size that the first header states, when the archive is shorter: an index like that hides every member.
fn overlong_index(bytes: &[u8]) -> Option<u64> {
    let (header, behind) = object::pod::from_bytes::<Header>(bytes.get(MAGIC.len()..)?).ok()?;
    let size = std::str::from_utf8(&header.size).ok()?.trim_end().parse().ok()?;
    (size > behind.len() as u64).then_some(size)
}

fn fault(archive: &str, fault: ArchiveFault) -> ParseError {
    ParseError::Archive { file: printable(archive.as_bytes()), fault }
}
