//! The linked image.

use graft_protocol::{AllocGroup, ExecAddr, ExecRange};

use super::layout::{Layout, Location, NOWHERE, STUB_SIZE};
use super::name::printable;
use super::parse::{Position, Role, SymbolKind};
use super::resolve::{Definition, SectionId, State, Target};

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
    pub(super) layout: &'l Layout<'l>,
    base: ExecAddr,
    externals: Vec<u64>,
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

/// A section of the image, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSection<'l> {
    /// The file it comes from, an archive's with the member.
    pub file: &'l str,
    /// Its name.
    pub name: &'l [u8],
    /// Where it lies.
    pub range: ExecRange,
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
    /// The section it lies in, or `None` for one that has none.
    pub section: Option<&'l [u8]>,
    /// Whether other programs may refer to it.
    pub exported: bool,
    /// Whether it is a function.
    pub function: bool,
}

pub(super) fn assemble<'l>(
    layout: &'l Layout<'l>,
    base: ExecAddr,
    segments: Vec<Segment>,
    entry: Option<ExecAddr>,
    externals: Vec<u64>,
) -> Image<'l> {
    let (initializers, finalizers) = (Vec::new(), Vec::new());
    let mut image = Image { segments, entry, initializers, finalizers, layout, base, externals };
    for id in &layout.array_order {
        image.list_functions(*id);
    }
    // Unload undoes what was done last first.
    image.finalizers.reverse();
    image
}

impl<'l> Image<'l> {
    /// The range of addresses the image occupies.
    #[must_use]
    pub fn range(&self) -> ExecRange {
        // The linker checked that the end exists.
        ExecRange::from_len(self.base, self.layout.size()).unwrap_or_default()
    }

    /// The address of a name that other programs may refer to.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<ExecAddr> {
        let program = self.layout.program;
        let id = program.names.get(name.as_bytes())?;
        let global = &program.globals[id.0];
        let visible = !global.visibility.is_hidden() && self.is_placed(global.definition);
        visible.then(|| self.address(Target::Global(*id)))
    }

    /// The symbols of the image, in address order, those of one object that others cannot see among them.
    #[must_use]
    pub fn symbols(&self) -> Vec<Symbol<'l>> {
        let program = self.layout.program;
        let mut symbols = Vec::new();
        for global in &program.globals {
            let section = match global.definition {
                Definition::Section(id, _) => Some(id),
                Definition::Common { index: Some(_), .. } | Definition::Absolute(_) => None,
                _ => continue,
            };
            if !self.is_placed(global.definition) {
                continue;
            }
            let Some(id) = program.names.get(global.name) else { continue };
            symbols.push(Symbol {
                name: global.name,
                range: range(self.address(Target::Global(*id)), global.size),
                file: global.owner.map_or("", |owner| &program.loaded[owner].object.name),
                section: section.map(|id| program.section(id).name),
                exported: !global.visibility.is_hidden(),
                function: global.kind == SymbolKind::Function,
            });
        }
        for (index, loaded) in program.loaded.iter().enumerate() {
            let object = loaded.object;
            for symbol in object.symbols.get(..object.first_global).unwrap_or(&[]) {
                let Position::Section(section) = symbol.position else { continue };
                let id = SectionId { object: index, section };
                if symbol.name.is_empty() || program.state(id) != State::Live {
                    continue;
                }
                symbols.push(Symbol {
                    name: symbol.name,
                    range: range(self.address(Target::Section(id, symbol.value)), symbol.size),
                    file: &object.name,
                    section: Some(program.section(id).name),
                    exported: false,
                    function: symbol.kind == SymbolKind::Function,
                });
            }
        }
        symbols.sort_by_key(|symbol| (symbol.range.start(), symbol.range.end()));
        symbols
    }

    /// The symbols that the executor was asked for, with the addresses it gave; null where a weak one has none.
    pub fn external_symbols(&self) -> impl Iterator<Item = (&'l [u8], ExecAddr)> {
        let globals = self.layout.program.globals.iter().zip(&self.externals);
        let externals = globals.filter(|(global, _)| global.referenced && global.is_undefined());
        externals.map(|(global, address)| (global.name, ExecAddr(*address)))
    }

    /// The sections of the image, in link order; not those the linker makes, nor unwind tables, which it takes apart.
    pub fn sections(&self) -> impl Iterator<Item = PlacedSection<'l>> {
        let program = self.layout.program;
        program.live().map(move |(id, section)| PlacedSection {
            file: &program.loaded[id.object].object.name,
            name: section.name,
            range: self.section_range(id),
        })
    }

    /// Where a section of the program lies.
    pub(super) fn section_range(&self, id: SectionId) -> ExecRange {
        range(self.address(Target::Section(id, 0)), self.layout.program.section(id).size)
    }

    /// The image's bytes from `addr` on, as they were shipped; at most `len`, and none outside of it.
    #[must_use]
    pub fn bytes_at(&self, addr: ExecAddr, len: usize) -> &[u8] {
        let after = self.segments.partition_point(|segment| segment.addr <= addr);
        let segment = after.checked_sub(1).and_then(|index| self.segments.get(index));
        let from = segment.and_then(|segment| {
            let offset = usize::try_from(addr.checked_offset_from(segment.addr)?).ok()?;
            segment.content.get(offset..)
        });
        from.map_or(&[], |bytes| bytes.get(..len).unwrap_or(bytes))
    }

    /// The slots of the GOT that are in use, by address: what each holds the address of.
    #[must_use]
    pub fn got_slots(&self) -> Vec<(String, ExecAddr)> {
        let program = self.layout.program;
        let used = program.slots.iter().zip(&self.layout.slots).filter(|(_, offset)| **offset != NOWHERE);
        used.map(|(slot, offset)| {
            let name = match slot.target {
                Target::Section(id, value) | Target::Indirect(id, value) => {
                    format!("{}+{value:#x}", printable(program.section(id).name))
                }
                Target::Absolute(address) => format!("{address:#x}"),
                Target::Global(id) => printable(program.globals[id.0].name),
            };
            (name, ExecAddr(self.base.0.wrapping_add(*offset)))
        })
        .collect()
    }

    /// The stubs, by address: which function each jumps to.
    #[must_use]
    pub fn stubs(&self) -> Vec<(String, ExecAddr)> {
        let program = self.layout.program;
        let start = self.base.0.wrapping_add(self.layout.stubs);
        let addresses = (start..).step_by(STUB_SIZE.try_into().unwrap_or(usize::MAX)).map(ExecAddr);
        program.stubs.iter().map(|id| printable(program.globals[id.0].name)).zip(addresses).collect()
    }

    /// Where the GOT lies.
    #[must_use]
    pub fn got(&self) -> ExecAddr {
        ExecAddr(self.base.0.wrapping_add(self.layout.got))
    }

    fn is_placed(&self, definition: Definition) -> bool {
        match definition {
            Definition::Section(id, _) => self.layout.program.state(id) == State::Live,
            Definition::Common { index, .. } => index.is_some(),
            Definition::Absolute(_) => true,
            Definition::Undefined | Definition::Provided(_) => false,
        }
    }

    pub(super) fn address(&self, target: Target) -> ExecAddr {
        match self.layout.locate(target) {
            Location::Offset(offset) => ExecAddr(self.base.0.wrapping_add(offset)),
            Location::Address(address) => ExecAddr(address),
            Location::External(id) => ExecAddr(self.externals[id.0]),
        }
    }

    /// Notes the functions of one array.
    fn list_functions(&mut self, id: SectionId) {
        let program = self.layout.program;
        let Some(array) = program.array(id) else { return };
        let start = self.address(Target::Section(id, 0));
        let mut list: Vec<Initializer> = (0..program.section(id).size / 8)
            .filter_map(|index| {
                let slot = start.checked_add(index * 8)?;
                let function = ExecAddr(self.word(slot)?);
                // Old start-up code brackets `.ctors` with -1 and 0, which are no functions.
                (function.0 != 0 && function.0 != u64::MAX).then_some(Initializer { slot, function })
            })
            .collect();
        if array.backwards {
            list.reverse();
        }
        match array.role {
            Role::Preinit | Role::Init => self.initializers.extend(list),
            Role::Fini => self.finalizers.extend(list),
        }
    }

    /// Eight bytes of content.
    fn word(&self, addr: ExecAddr) -> Option<u64> {
        let segment = self.segments.partition_point(|segment| segment.addr <= addr).checked_sub(1)?;
        let segment = self.segments.get(segment)?;
        let offset = usize::try_from(addr.checked_offset_from(segment.addr)?).ok()?;
        segment.content.get(offset..)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

fn range(start: ExecAddr, size: u64) -> ExecRange {
    ExecRange::from_len(start, size).or_else(|| ExecRange::from_len(start, 0)).unwrap_or_default()
}
