//! Takes `.eh_frame` apart: one record per function, and those that functions share.
//!
//! Records are kept one by one, so that none describes a function that is not there. Their content is not interpreted:
//! all that moves in them is relocated, but for the offset from a function's record to the shared one.

use std::borrow::Cow;
use std::ops::Range;

use object::LittleEndian as LE;

use super::{Program, SectionFault, SectionId, State};
use crate::link::ResolveError;
use crate::link::name::printable;
use crate::link::parse::{Kind, Object, Position, Rela, Relocations};

/// The records of one section.
#[derive(Debug)]
pub(crate) struct Table<'o> {
    pub id: SectionId,
    /// In the order of the section.
    pub records: Vec<Record>,
    /// By offset.
    pub relocations: Cow<'o, [Rela]>,
}

/// A record: a function's (FDE), or one that functions share (CIE).
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Its bytes in the section, with the length field.
    pub bytes: Range<usize>,
    /// The relocations that apply to it, by index in the table's.
    pub relocations: Range<usize>,
    /// The shared record of a function's, by index in the table's.
    pub shared: Option<usize>,
    /// Whether it is part of the program.
    pub live: bool,
}

/// Length field, then the offset back to the shared record, then the function's address.
const SHARED_OFFSET: usize = 4;
pub(crate) const FUNCTION_OFFSET: usize = 8;

/// Takes the unwind tables of every loaded object apart.
pub(super) fn parse(program: &mut Program<'_>) -> Result<(), ResolveError> {
    for index in 0..program.loaded.len() {
        let loaded = &program.loaded[index];
        let object = loaded.object;
        let mut functions = Vec::new();
        for (section, content) in object.sections.iter().enumerate() {
            let waiting = program.states[loaded.first_state + section] == State::Waiting;
            if content.kind != Kind::Unwind || content.content.is_empty() || !waiting {
                continue;
            }
            let id = SectionId { object: index, section };
            let table = table(object, id).map_err(|fault| ResolveError::Section {
                file: object.name.clone(),
                section: printable(content.name),
                fault,
            })?;
            for (record, content) in table.records.iter().enumerate() {
                if let Some(function) = function(object, &table, content) {
                    functions.push((function, program.unwind.len(), record));
                }
            }
            program.unwind.push(table);
        }
        functions.sort_unstable();
        program.loaded[index].unwind = functions;
    }
    Ok(())
}

/// The section of the function that a record describes.
fn function(object: &Object<'_>, table: &Table<'_>, record: &Record) -> Option<usize> {
    record.shared?;
    let at = record.bytes.start + FUNCTION_OFFSET;
    let relocations = table.relocations.get(record.relocations.clone())?;
    let relocation = relocations.iter().find(|relocation| usize::try_from(relocation.r_offset.get(LE)) == Ok(at))?;
    // The object's own copy, whatever the name is bound to: another copy has a record of its own.
    match object.symbols.get(usize::try_from(relocation.r_sym(LE, false)).ok()?)?.position {
        Position::Section(section) => Some(section),
        _ => None,
    }
}

fn table<'o>(object: &'o Object<'o>, id: SectionId) -> Result<Table<'o>, SectionFault> {
    let section = &object.sections[id.section];
    if let Relocations::Unreadable(other) = section.relocations {
        return Err(SectionFault::unreadable(other));
    }
    let entries = section.relocations.entries();
    let relocations = if entries.is_sorted_by_key(|entry| entry.r_offset.get(LE)) {
        Cow::Borrowed(entries)
    } else {
        let mut sorted = entries.to_vec();
        sorted.sort_by_key(|entry| entry.r_offset.get(LE));
        Cow::Owned(sorted)
    };
    let mut table = Table { id, records: Vec::new(), relocations };
    let (mut start, mut next_relocation) = (0, 0);
    while let Some(length) = word(section.content, start) {
        let fault = |reason| SectionFault::Unwind { offset: start, reason };
        // A terminator. Tools that join sections put one in the middle; there may be records behind it.
        if length == 0 {
            start += 4;
            continue;
        }
        if length == u32::MAX {
            return Err(fault("the 64-bit form of records is not supported"));
        }
        let end = usize::try_from(length).ok().and_then(|length| length.checked_add(start + 4));
        let end =
            end.filter(|end| *end <= section.content.len()).ok_or(fault("it runs past the end of the section"))?;
        let shared = match word(section.content, start + SHARED_OFFSET).filter(|_| end >= start + FUNCTION_OFFSET) {
            None => return Err(fault("it is too short")),
            Some(0) => None,
            Some(back) => {
                let at = usize::try_from(back).ok().and_then(|back| (start + SHARED_OFFSET).checked_sub(back));
                let record =
                    at.and_then(|at| table.records.binary_search_by_key(&at, |record| record.bytes.start).ok());
                let record = record.filter(|record| table.records[*record].shared.is_none());
                Some(record.ok_or(fault("it refers to no shared record before it"))?)
            }
        };
        let first = next_relocation;
        while table.relocations.get(next_relocation).is_some_and(|relocation| relocation.r_offset.get(LE) < offset(end))
        {
            next_relocation += 1;
        }
        let relocations = first..next_relocation;
        table.records.push(Record { bytes: start..end, relocations, shared, live: false });
        start = end;
    }
    if start < section.content.len() {
        return Err(SectionFault::Unwind { offset: start, reason: "it is shorter than its length field" });
    }
    Ok(table)
}

fn word(content: &[u8], at: usize) -> Option<u32> {
    let bytes = content.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}
