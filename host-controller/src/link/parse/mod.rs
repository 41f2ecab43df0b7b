//! Takes files apart: objects, and archives of objects.
//!
//! Everything an object says about itself is checked here, once: later phases index by what was checked. What an object
//! *uses* (an unknown relocation, an odd alignment) is judged later, and only where it ends up in the image.

mod archive;
mod object;
mod section;
mod symbol;

use super::name::printable;
use super::{Input, Members, ParseError};

pub use archive::{ArchiveFault, thin_members};
pub use object::ObjectFault;
pub(crate) use object::{Object, Support};
pub(crate) use section::{Array, Kind, Rela, Relocations, Role, Section};
pub(crate) use symbol::{Binding, Position, Symbol, SymbolKind, Visibility};

/// What programs may need of the linker itself, assembled from the sources beside it.
const SUPPORT: &[u8] = include_bytes!("../support/support.a");

/// Those of its members that go before the inputs' archives: a C library's ask the kernel, or stand on all of it.
const FIRST: [&str; 2] = ["(terminate.o)", "(unwind.o)"];

/// Every input, checked and taken apart.
#[derive(Debug)]
pub struct Objects<'a> {
    /// Objects and archive members, in the order given.
    pub(crate) all: Vec<Object<'a>>,
    /// Archive members that are not objects for this machine, each with the reason: for the error when a symbol is missing.
    pub(crate) skipped: Vec<String>,
}

/// Takes every input apart.
///
/// # Errors
/// The first file that is not what it claims to be.
pub fn parse<'a>(inputs: &[Input<'a>]) -> Result<Objects<'a>, ParseError> {
    let mut objects = Objects { all: Vec::with_capacity(inputs.len()), skipped: Vec::new() };
    for input in inputs {
        if archive::is_archive(input.bytes) {
            archive::parse(input, &mut objects)?;
        } else {
            let name = printable(input.name.as_bytes());
            objects.all.push(Object::parse(name, input.bytes, Members::All)?);
        }
    }
    // Last: what an input defines goes first.
    let first = objects.all.len();
    archive::parse(&Input::new("graft", SUPPORT), &mut objects)?;
    for object in objects.all.iter_mut().skip(first) {
        object.support =
            if FIRST.iter().any(|name| object.name.ends_with(name)) { Support::First } else { Support::Last };
    }
    Ok(objects)
}
