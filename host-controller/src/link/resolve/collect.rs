//! Finds what is part of the program: everything the roots reach, through relocations and whatever else ties sections.
//!
//! The same walk notes what the layout must have room for: slots in the GOT, stubs, common symbols.

use object::LittleEndian as LE;
use object::elf;

use super::{
    Definition, GlobalId, Holds, Program, Provided, RelocationFault, SectionFault, SectionId, Slot, State, Target,
};
use super::{MAX_ALIGN, bind, unwind};
use crate::link::error::Place;
use crate::link::name::printable;
use crate::link::parse::{Binding, Kind, Object, Position, Rela, Relocations, Section, Support, SymbolKind};
use crate::link::reloc::thread::is_relaxed;
use crate::link::reloc::x86_64::{howto, relaxes_when_near, unsupported_name};
use crate::link::reloc::{Expr, Howto, Relax, WithCall, may_use_stub};
use crate::link::{Collect, ResolveError, Unwind};

/// Marks what is part of the program.
pub(super) fn collect(program: &mut Program<'_>) -> Result<(), ResolveError> {
    if program.options.unwind == Unwind::Keep {
        unwind::parse(program)?;
    }
    let mut collector = Collector { program, work: Vec::new() };
    collector.mark_roots()?;
    collector.visit_all()?;
    collector.add_unwind_tables()?;
    if collector.program.thread_local {
        collector.add_support(bind::START_THREAD)?;
    }
    if !collector.program.indirect.is_empty() {
        collector.add_support(bind::BIND_INDIRECT)?;
    }
    Ok(())
}

struct Collector<'p, 'o> {
    program: &'p mut Program<'o>,
    /// Sections that were marked and not looked at yet: a list, not recursion, as chains can be as long as the program.
    work: Vec<SectionId>,
}

/// One relocation with its surroundings.
struct Reference<'r, 'o> {
    from: SectionId,
    section: &'o Section<'o>,
    relocation: &'r Rela,
}

impl<'o> Collector<'_, 'o> {
    fn visit_all(&mut self) -> Result<(), ResolveError> {
        while let Some(id) = self.work.pop() {
            self.visit(id)?;
        }
        Ok(())
    }

    /// Makes the unwind records of all functions so far part of the program, when there is an unwinder for them.
    fn add_unwind_tables(&mut self) -> Result<(), ResolveError> {
        if self.program.options.unwind != Unwind::IfUsed || !self.program.unwind_referenced {
            return Ok(());
        }
        unwind::parse(self.program)?;
        for object in 0..self.program.loaded.len() {
            for section in 0..self.program.loaded[object].object.sections.len() {
                let id = SectionId { object, section };
                if self.program.state(id) == State::Live {
                    self.keep_unwind_records(id)?;
                }
            }
        }
        self.visit_all()
    }

    /// Makes what the linker itself needs part of the program.
    fn add_support(&mut self, name: &[u8]) -> Result<(), ResolveError> {
        if let Some(id) = self.program.names.get(name).copied() {
            self.mark_global(id)?;
        }
        self.visit_all()
    }

    fn mark_roots(&mut self) -> Result<(), ResolveError> {
        let all = self.program.options.collect == Collect::All;
        for object in 0..self.program.loaded.len() {
            let Object { sections, support: Support::No, .. } = self.program.loaded[object].object else { continue };
            for (section, content) in sections.iter().enumerate() {
                let id = SectionId { object, section };
                if self.program.state(id) == State::Waiting && is_root(content, all) {
                    self.mark(id)?;
                }
            }
        }
        for name in self.program.options.entry.iter().chain(&self.program.options.keep) {
            if let Some(id) = self.program.names.get(name.as_bytes()).copied() {
                self.mark_global(id)?;
            }
        }
        if all {
            for id in 0..self.program.globals.len() {
                if matches!(self.program.globals[id].definition, Definition::Common { .. }) {
                    self.mark_global(GlobalId(id))?;
                }
            }
        }
        Ok(())
    }

    fn mark(&mut self, id: SectionId) -> Result<(), ResolveError> {
        if self.program.state(id) != State::Waiting {
            return Ok(());
        }
        let section = self.program.section(id);
        if section.kind == Kind::Unwind {
            // Its records come with their functions.
            self.program.unwind_referenced = true;
            return Ok(());
        }
        if let Some(fault) = unloadable(section) {
            let file = self.program.loaded[id.object].object.name.clone();
            return Err(ResolveError::Section { file, section: printable(section.name), fault });
        }
        self.program.thread_local |= section.has(elf::SHF_TLS);
        let index = self.program.state_index(id);
        self.program.states[index] = State::Live;
        self.work.push(id);
        Ok(())
    }

    fn visit(&mut self, id: SectionId) -> Result<(), ResolveError> {
        let section = self.program.section(id);
        let mut entries = section.relocations.entries().iter().peekable();
        while let Some(relocation) = entries.next() {
            let with_call = self.refer(&Reference { from: id, section, relocation }, entries.peek().copied())?;
            if with_call == WithCall::Yes {
                entries.next();
            }
        }
        let object = self.program.loaded[id.object].object;
        if let Some(group) = section.group
            && !std::mem::replace(&mut self.program.loaded[id.object].live_groups[group], true)
        {
            for member in &object.groups[group].members {
                let member = SectionId { section: *member, ..id };
                // Unwind tables and notes in a group still wait for someone to need them.
                if !matches!(self.program.section(member).kind, Kind::Unwind | Kind::Note) {
                    self.mark(member)?;
                }
            }
        }
        let first = object.dependents.partition_point(|(other, _)| *other < id.section);
        for (_, dependent) in object.dependents[first..].iter().take_while(|(other, _)| *other == id.section) {
            self.mark(SectionId { section: *dependent, ..id })?;
        }
        self.keep_unwind_records(id)
    }

    /// Makes the unwind records of a function part of the program, and what they refer to.
    fn keep_unwind_records(&mut self, id: SectionId) -> Result<(), ResolveError> {
        let records = &self.program.loaded[id.object].unwind;
        let first = records.partition_point(|(section, ..)| *section < id.section);
        let count = records[first..].iter().take_while(|(section, ..)| *section == id.section).count();
        for index in first..first + count {
            let (_, table, record) = self.program.loaded[id.object].unwind[index];
            let shared = self.program.unwind[table].records[record].shared;
            for record in [Some(record), shared].into_iter().flatten() {
                if std::mem::replace(&mut self.program.unwind[table].records[record].live, true) {
                    continue;
                }
                let from = self.program.unwind[table].id;
                let section = self.program.section(from);
                let range = self.program.unwind[table].records[record].relocations.clone();
                for index in range {
                    let relocation = self.program.unwind[table].relocations[index];
                    self.refer(&Reference { from, section, relocation: &relocation }, None)?;
                }
            }
        }
        Ok(())
    }

    /// Makes what a relocation refers to part of the program; says whether `next`, the relocation behind it, was part of it.
    fn refer(&mut self, reference: &Reference<'_, 'o>, next: Option<&Rela>) -> Result<WithCall, ResolveError> {
        let Reference { from, section, relocation } = *reference;
        let r_type = relocation.r_type(LE, false);
        let Some(howto) = howto(r_type) else {
            let symbol = self.program.symbol_name(from.object, relocation);
            let name = unsupported_name(r_type);
            return Err(self.fault(reference, RelocationFault::Type { r_type, name, symbol }));
        };
        let offset = usize::try_from(relocation.r_offset.get(LE)).unwrap_or(usize::MAX);
        if offset.saturating_add(howto.width) > section.content.len() {
            let symbol = self.program.symbol_name(from.object, relocation);
            let (kind, width, size) = (howto.name, howto.width, section.content.len());
            return Err(self.fault(reference, RelocationFault::Bounds { kind, symbol, width, size }));
        }
        let index = relocation.r_sym(LE, false);
        let Some(target) = self.program.target(from.object, index) else {
            return Err(self.no_target(reference, index));
        };
        // A relocation that stores nothing ties sections together, and asks for nothing that is not there.
        let ties = howto.expr == Expr::None;
        match target {
            Target::Section(id, _) | Target::Indirect(id, _) if ties => self.mark(id)?,
            Target::Global(id) if ties => self.mark_global(id)?,
            Target::Section(id, _) | Target::Indirect(id, _) => {
                self.check_thread_local(reference, &howto, target)?;
                match self.program.state(id) {
                    State::Waiting => self.mark(id)?,
                    State::Live => {}
                    State::Discarded | State::Aside => return Err(self.unreachable_section(reference, id)),
                }
            }
            Target::Absolute(_) => {}
            Target::Global(id) => self.refer_global(reference, &howto, id)?,
        }
        if let Target::Indirect(id, value) = target {
            self.note_indirect(id, value);
        }
        let with_call = self.program.with_call(from, howto.expr, relocation, next);
        if howto.expr.is_thread_local() {
            self.note_thread_slot(reference, &howto, target, with_call)?;
        } else {
            self.note_slot(reference, &howto, target, offset);
        }
        Ok(with_call)
    }

    fn refer_global(&mut self, reference: &Reference<'_, 'o>, howto: &Howto, id: GlobalId) -> Result<(), ResolveError> {
        let Reference { from, section, relocation } = *reference;
        let loaded = &self.program.loaded[from.object];
        let index = usize::try_from(relocation.r_sym(LE, false)).unwrap_or(usize::MAX);
        // A definition of one's own that lost to another copy is as good as a strong reference.
        let weak = loaded
            .object
            .symbols
            .get(index)
            .is_some_and(|symbol| symbol.binding == Binding::Weak && symbol.position == Position::Undefined);
        if let Definition::Section(section, _) = self.program.globals[id.0].definition
            && self.program.state(section) == State::Aside
        {
            return Err(self.unreachable_section(reference, section));
        }
        let global = &mut self.program.globals[id.0];
        global.referenced = true;
        global.required |= !weak;
        self.check_thread_local(reference, howto, Target::Global(id))?;
        let global = &mut self.program.globals[id.0];
        if howto.expr == Expr::Size && global.is_undefined() {
            let name = printable(global.name);
            return Err(self.fault(reference, RelocationFault::UnknownSize(name)));
        }
        let offset = usize::try_from(relocation.r_offset.get(LE)).unwrap_or(usize::MAX);
        let addend = relocation.r_addend.get(LE);
        let elsewhere = global.is_elsewhere() && global.stub.is_none();
        if elsewhere && may_use_stub(howto, section.is_code(), section.content, offset, addend) {
            global.stub = Some(self.program.stubs.len());
            self.program.stubs.push(id);
            self.slot(Target::Global(id), None, true);
        }
        self.mark_global(id)
    }

    fn mark_global(&mut self, id: GlobalId) -> Result<(), ResolveError> {
        match self.program.globals[id.0].definition {
            Definition::Section(section, value) => {
                if self.program.globals[id.0].kind == SymbolKind::Indirect {
                    self.note_indirect(section, value);
                }
                self.mark(section)
            }
            Definition::Common { align, index: None } => {
                let global = &mut self.program.globals[id.0];
                if global.kind == SymbolKind::ThreadLocal {
                    let section = format!("COMMON ({})", printable(global.name));
                    let file = self.program.loaded[global.owner.unwrap_or(0)].object.name.clone();
                    return Err(ResolveError::Section { file, section, fault: SectionFault::ThreadLocal });
                }
                if align.max(1) > MAX_ALIGN || !align.max(1).is_power_of_two() {
                    let owner = global.owner.unwrap_or(0);
                    let section = format!("COMMON ({})", printable(global.name));
                    let file = self.program.loaded[owner].object.name.clone();
                    return Err(ResolveError::Section { file, section, fault: SectionFault::Alignment(align) });
                }
                global.definition = Definition::Common { align: align.max(1), index: Some(self.program.commons.len()) };
                self.program.commons.push(id);
                Ok(())
            }
            Definition::Provided(Provided::UnwindIndex { .. }) => {
                self.program.unwind_index = true;
                self.program.unwind_referenced = true;
                Ok(())
            }
            Definition::Provided(Provided::Named { index, .. }) => {
                if !std::mem::replace(&mut self.program.named[index].live, true) {
                    for member in 0..self.program.named[index].members.len() {
                        self.mark(self.program.named[index].members[member])?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Notes that the layout needs a stub for an indirect function.
    fn note_indirect(&mut self, id: SectionId, resolver: u64) {
        let new = self.program.indirect.len();
        self.program.indirect.entry((id, resolver)).or_insert(new);
    }

    /// Notes that the layout needs a slot of the GOT for `target`.
    fn note_slot(&mut self, reference: &Reference<'_, 'o>, howto: &Howto, target: Target, offset: usize) {
        if !matches!(howto.expr, Expr::GotSlot | Expr::GotSlotPcRelative) {
            return;
        }
        let Reference { from, section, relocation } = *reference;
        let near = match target {
            Target::Section(..) | Target::Indirect(..) => true,
            Target::Absolute(_) => false,
            Target::Global(id) => !self.program.globals[id.0].is_elsewhere(),
        };
        let addend = relocation.r_addend.get(LE);
        let spare = near && howto.relax != Relax::No && relaxes_when_near(howto.relax, section.content, offset, addend);
        let symbol = usize::try_from(relocation.r_sym(LE, false)).unwrap_or(usize::MAX);
        self.slot(target, Some((from.object, symbol)), !spare);
    }

    /// Notes the slots a thread-local sequence needs when it is not rewritten.
    fn note_thread_slot(
        &mut self,
        reference: &Reference<'_, 'o>,
        howto: &Howto,
        target: Target,
        with_call: WithCall,
    ) -> Result<(), ResolveError> {
        self.program.thread_local = true;
        let Reference { section, relocation, .. } = *reference;
        let offset = usize::try_from(relocation.r_offset.get(LE)).unwrap_or(usize::MAX);
        if is_relaxed(howto.expr, with_call, section.content, offset) {
            return Ok(());
        }
        let (key, holds): (_, &[Holds]) = match howto.expr {
            Expr::ThreadSlot => ((target, Holds::ThreadOffset), &[Holds::ThreadOffset]),
            Expr::ThreadPair => ((target, Holds::Module), &[Holds::Module, Holds::BlockOffset]),
            Expr::BlockPair => (Slot::BLOCK, &[Holds::Module, Holds::BlockSize]),
            Expr::Descriptor | Expr::DescriptorCall => {
                let symbol = self.program.symbol_name(reference.from.object, relocation);
                return Err(self.fault(reference, RelocationFault::Sequence { kind: howto.name, symbol }));
            }
            _ => return Ok(()),
        };
        let new = self.program.slots.len();
        if *self.program.thread_slots.entry(key).or_insert(new) == new {
            let slots = holds.iter().map(|holds| Slot { target: key.0, holds: *holds, always: true });
            self.program.slots.extend(slots);
        }
        Ok(())
    }

    /// Thread-local symbols have offsets, all others addresses: a relocation is for the one or the other.
    fn check_thread_local(
        &self,
        reference: &Reference<'_, 'o>,
        howto: &Howto,
        target: Target,
    ) -> Result<(), ResolveError> {
        let symbol = self.program.is_thread_local(target);
        let either = match target {
            // Nothing says what an undefined symbol is, where its object does not.
            Target::Global(id) => self.program.globals[id.0].is_undefined() && !symbol,
            _ => false,
        };
        if either || howto.expr == Expr::Size || symbol == howto.expr.is_thread_local() {
            return Ok(());
        }
        let name = self.program.symbol_name(reference.from.object, reference.relocation);
        let fault =
            if symbol { RelocationFault::ThreadLocal(name) } else { RelocationFault::NotThreadLocal(howto.name, name) };
        Err(self.fault(reference, fault))
    }

    fn slot(&mut self, target: Target, local: Option<(usize, usize)>, always: bool) {
        let new = self.program.slots.len();
        let index = match (target, local) {
            (Target::Global(id), _) => *self.program.globals[id.0].slot.get_or_insert(new),
            (_, Some(key)) => *self.program.local_slots.entry(key).or_insert(new),
            (_, None) => new,
        };
        match self.program.slots.get_mut(index) {
            Some(slot) => slot.always |= always,
            None => self.program.slots.push(Slot { target, holds: Holds::Address, always }),
        }
    }

    fn no_target(&self, reference: &Reference<'_, 'o>, index: u32) -> ResolveError {
        let symbols = self.program.loaded[reference.from.object].object.symbols.len();
        let exists = usize::try_from(index).is_ok_and(|index| index < symbols);
        let name = self.program.symbol_name(reference.from.object, reference.relocation);
        let fault =
            if exists { RelocationFault::LocalUndefined(name) } else { RelocationFault::Symbol { index, symbols } };
        self.fault(reference, fault)
    }

    fn unreachable_section(&self, reference: &Reference<'_, 'o>, id: SectionId) -> ResolveError {
        let symbol = self.program.symbol_name(reference.from.object, reference.relocation);
        let section = printable(self.program.section(id).name);
        let fault = match self.program.state(id) {
            State::Discarded => RelocationFault::Discarded { symbol, section },
            _ => RelocationFault::NotLoaded { symbol, section },
        };
        self.fault(reference, fault)
    }

    fn fault(&self, reference: &Reference<'_, 'o>, fault: RelocationFault) -> ResolveError {
        let place = self.program.place(reference.from, reference.relocation.r_offset.get(LE));
        ResolveError::Relocation { place, fault }
    }
}

impl Program<'_> {
    /// A byte of a section, for an error.
    pub(crate) fn place(&self, id: SectionId, offset: u64) -> Place {
        let file = self.loaded[id.object].object.name.clone();
        Place { file, section: printable(self.section(id).name), offset }
    }
}

/// Whether a section is kept for its own sake.
fn is_root(section: &Section<'_>, all: bool) -> bool {
    match section.kind {
        Kind::Array(_) => true,
        Kind::Unwind | Kind::Aside => false,
        Kind::Note => section.has(elf::SHF_GNU_RETAIN),
        Kind::Content | Kind::Zero | Kind::Unknown(_) => {
            all || section.has(elf::SHF_GNU_RETAIN) || matches!(section.name, b".init" | b".fini")
        }
    }
}

/// Why a section cannot be part of an image, if so.
fn unloadable(section: &Section<'_>) -> Option<SectionFault> {
    if section.has(elf::SHF_TLS)
        && (section.has(elf::SHF_EXECINSTR) || !matches!(section.kind, Kind::Content | Kind::Zero))
    {
        return Some(SectionFault::ThreadLocal);
    }
    if section.has(elf::SHF_WRITE) && section.has(elf::SHF_EXECINSTR) {
        return Some(SectionFault::WriteExecute);
    }
    if section.has(elf::SHF_COMPRESSED) {
        return Some(SectionFault::Compressed);
    }
    if section.align > MAX_ALIGN || !section.align.max(1).is_power_of_two() {
        return Some(SectionFault::Alignment(section.align));
    }
    if let Relocations::Unreadable(sh_type) = section.relocations {
        return Some(SectionFault::unreadable(sh_type));
    }
    match section.kind {
        Kind::Unknown(other) => Some(SectionFault::Type(other)),
        Kind::Array(_) if !section.size.is_multiple_of(8) => Some(SectionFault::ArraySize(section.size)),
        _ => None,
    }
}
