//! The debug information of one object, as if it had been linked.
//!
//! Debug sections are never shipped, and cost nothing until something asks about an address: only then those of the one
//! object whose code lies there are copied and relocated. What is wrong with them never fails a link; it only leaves
//! questions unanswered.

use std::collections::HashMap;

use graft_protocol::ExecAddr;
use object::LittleEndian as LE;

use super::Image;
use super::parse::{Kind, Object};
use super::reloc::x86_64::howto;
use super::reloc::{Expr, Operands, WithCall, apply};
use super::resolve::{Definition, SectionId, State, Target};

/// What every debug section's name begins with.
const PREFIX: &[u8] = b".debug_";

/// The address of code that is not in the program (DWARF 5 §7.5.1 leaves it open; consumers know the largest one).
const GONE: u64 = u64::MAX;

/// The same in lists of DWARF 4 and older, where the largest address has another meaning (DWARF 4 §2.17.3).
const GONE_FROM_LIST: u64 = u64::MAX - 1;

/// The debug sections of one object, with final addresses in them.
#[derive(Debug, Default)]
pub struct DebugSections<'l> {
    sections: HashMap<&'l [u8], Vec<u8>>,
}

impl DebugSections<'_> {
    /// The content of a section; empty when the object has none of this name.
    #[must_use]
    pub fn section(&self, name: &str) -> &[u8] {
        self.sections.get(name.as_bytes()).map_or(&[], Vec::as_slice)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }
}

impl<'l> Image<'l> {
    /// The debug sections of the object whose section lies at `addr`; none when there is no such object.
    #[must_use]
    pub fn debug_sections(&self, addr: ExecAddr) -> DebugSections<'l> {
        let program = self.layout.program;
        let holds = |(id, _): &(SectionId, _)| self.section_range(*id).contains(addr);
        let Some((SectionId { object, .. }, _)) = program.live().find(holds) else { return DebugSections::default() };
        let parts: &'l Object<'l> = program.loaded[object].object;
        let mut found = DebugSections::default();
        // Sections of one name make one, as a linker would join them; references to them count from its start.
        let mut places = vec![None; parts.sections.len()];
        for (place, section) in places.iter_mut().zip(&parts.sections) {
            if section.kind == Kind::Aside
                && is_debug(section.name)
                && let Some(content) = section.unpacked()
            {
                let joined = found.sections.entry(section.name).or_default();
                let start = joined.len();
                joined.extend_from_slice(&content);
                *place = Some(start..joined.len());
            }
        }
        let starts: Vec<Option<u64>> = places.iter().map(|place| u64::try_from(place.as_ref()?.start).ok()).collect();
        for (index, relocations) in parts.debug_relocations() {
            // Each section once, whatever number of tables there is for it.
            let place = places.get_mut(index).and_then(Option::take);
            let (Some(section), Some(place)) = (parts.sections.get(index), place) else { continue };
            let output = found.sections.get_mut(section.name).and_then(|joined| joined.get_mut(place));
            let Some(output) = output else { continue };
            // No relocation of data looks at what it overwrites.
            let input = vec![0; output.len()];
            for relocation in relocations.entries() {
                let Some(howto) = howto(relocation.r_type(LE, false)).filter(|howto| howto.expr == Expr::Absolute)
                else {
                    continue;
                };
                let target = program.target(object, relocation.r_sym(LE, false));
                let (symbol, addend) = match target.and_then(|target| self.debug_value(object, target, &starts)) {
                    Some(symbol) => (symbol, relocation.r_addend.get(LE)),
                    None if matches!(section.name, b".debug_loc" | b".debug_ranges") => (GONE_FROM_LIST, 0),
                    None => (GONE, 0),
                };
                let operands = Operands {
                    symbol,
                    addend,
                    place: 0,
                    got: 0,
                    slot: None,
                    stub: None,
                    size: 0,
                    thread: 0,
                    with_call: WithCall::No,
                };
                // A field that cannot be filled stays as it is: what it describes is not found, and nothing else is lost.
                let _ = apply(&howto, &operands, relocation.r_offset.get(LE), &input, output);
            }
        }
        found
    }

    /// What a relocation of debug information counts from; `None` for what is not in the program, or another object's copy.
    fn debug_value(&self, object: usize, target: Target, starts: &[Option<u64>]) -> Option<u64> {
        let program = self.layout.program;
        let placed = match target {
            Target::Absolute(value) => return Some(value),
            Target::Section(id, value) if program.section(id).kind == Kind::Aside => {
                return starts.get(id.section).copied().flatten().map(|start| start.wrapping_add(value));
            }
            Target::Section(id, _) | Target::Indirect(id, _) => id,
            Target::Global(id) => match program.globals.get(id.0)?.definition {
                Definition::Section(id, _) => id,
                Definition::Common { index: Some(_), .. } => return Some(self.address(target).0),
                _ => return None,
            },
        };
        let own = placed.object == object && program.state(placed) == State::Live;
        own.then(|| self.address(target).0)
    }
}

/// Whether relocations of the section are kept for [`Image::debug_sections`].
pub(super) fn is_debug(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}
