//! From an address to the lines of source it was compiled from.

use std::fmt;

use addr2line::Context;
use gimli::{Dwarf, EndianSlice, LittleEndian};
use graft_protocol::ExecAddr;

use crate::link::{DebugSections, Image, demangled, printable};

/// How many functions inlined into one another a report lists.
const MOST_FRAMES: usize = 64;

/// A place in the source of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// The function, as its programmer wrote it.
    pub function: Option<String>,
    /// The path of the file, as the compiler was given it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: Option<u32>,
}

impl fmt::Display for SourceFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.column.map_or(Ok(()), |column| write!(f, ":{column}"))
    }
}

/// The source of the instruction that has the byte at `addr`, then the calls it was inlined by, innermost first.
///
/// Empty without debug information there.
#[must_use]
pub fn source_frames(image: &Image<'_>, addr: ExecAddr) -> Vec<SourceFrame> {
    let sections = image.debug_sections(addr);
    if sections.is_empty() {
        return Vec::new();
    }
    // Debug information that cannot be read says nothing, which is no reason to report less of the rest.
    frames(&sections, addr).unwrap_or_default()
}

fn frames(sections: &DebugSections<'_>, addr: ExecAddr) -> Result<Vec<SourceFrame>, gimli::Error> {
    let dwarf = Dwarf::load(|id| Ok::<_, gimli::Error>(EndianSlice::new(sections.section(id.name()), LittleEndian)))?;
    let context = Context::from_dwarf(dwarf)?;
    // Debug information split off into another file is not there to load.
    let mut found = context.find_frames(addr.0).skip_all_loads()?;
    let mut frames = Vec::new();
    while frames.len() < MOST_FRAMES
        && let Some(frame) = found.next()?
    {
        let name = frame.function.as_ref().map(|function| function.name.slice());
        let function = name.map(|name| demangled(name).unwrap_or_else(|| printable(name)));
        // Line 0 is code that no line stands for (DWARF 5 §6.2.2).
        let line = frame.location.as_ref().and_then(|location| location.line).filter(|line| *line != 0);
        let file = frame.location.as_ref().and_then(|location| location.file);
        let (Some(file), Some(line)) = (file, line) else { continue };
        let column = frame.location.as_ref().and_then(|location| location.column).filter(|column| *column != 0);
        frames.push(SourceFrame { function, file: printable(file.as_bytes()), line, column });
    }
    Ok(frames)
}
