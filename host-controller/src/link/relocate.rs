//! Applies every relocation, for one base address.

use std::collections::HashMap;

use graft_protocol::ExecAddr;
use object::LittleEndian as LE;

use super::error::{OutOfRange, Place, Undefined};
use super::layout::{Location, NOWHERE, Piece, STUB_SIZE};
use super::name::printable;
use super::parse::{Rela, SymbolKind, Visibility};
use super::reloc::thread::MODULE;
use super::reloc::x86_64::howto;
use super::reloc::{ApplyError, Expr, Operands, WithCall, apply, may_use_stub};
use super::resolve::{FUNCTION_OFFSET, Global, GlobalId, Holds, SectionId, Slot, Target};
use super::{Externals, Image, Layout, RelocateError, Segment, image};

/// Padding between functions: running into it is a trap, not whatever comes next.
const TRAP: u8 = 0xcc;

/// How many referrers of an undefined symbol an error names, and for how many symbols it does.
const REFERRERS: usize = 5;
const WITH_REFERRERS: usize = 1000;

pub(super) fn link<'l>(
    layout: &'l Layout<'l>,
    base: ExecAddr,
    externals: &Externals,
) -> Result<Image<'l>, RelocateError> {
    let program = layout.program;
    let page_size = program.options.page_size;
    if !base.is_aligned(page_size) {
        return Err(RelocateError::Misaligned { base, page_size });
    }
    let past_the_end = RelocateError::PastTheEnd { base, size: layout.reservation() };
    let base = match base.align_up(layout.align()) {
        Some(aligned) if aligned.checked_add(layout.size()).is_some() => aligned,
        _ => return Err(past_the_end),
    };
    let mut linker = Linker { layout, base: base.0, externals: Vec::new() };
    linker.bind_externals(externals)?;
    let mut segments = Vec::with_capacity(layout.shapes.len());
    for (shape, chunk) in layout.shapes.iter().zip(&layout.chunks) {
        let mut content = Vec::with_capacity(usize::try_from(shape.content).unwrap_or(0));
        let padding = if shape.group.prot.is_executable() { TRAP } else { 0 };
        for (piece, offset) in &chunk.pieces {
            // Pieces come in address order, within content that was measured to hold them.
            content.resize(usize::try_from(offset - shape.offset).unwrap_or(0), padding);
            linker.append(*piece, *offset, &mut content)?;
        }
        segments.push(Segment {
            group: shape.group,
            addr: ExecAddr(linker.at(shape.offset)),
            size: shape.size,
            content,
        });
    }
    let entry = program.entry.map(|id| ExecAddr(linker.address(Target::Global(id))));
    Ok(image::assemble(layout, base, segments, entry, linker.externals))
}

/// What a relocation applies to.
#[derive(Clone, Copy)]
struct Field<'f> {
    /// What it lies in, before any relocation.
    input: &'f [u8],
    /// Where in it.
    at: u64,
    /// The relocation behind this one.
    next: Option<&'f Rela>,
}

struct Linker<'l> {
    layout: &'l Layout<'l>,
    base: u64,
    /// The address of every global that is not defined in the program; 0 for all others.
    externals: Vec<u64>,
}

impl Linker<'_> {
    /// Takes the executor's addresses, and finds out what is missing.
    fn bind_externals(&mut self, externals: &Externals) -> Result<(), RelocateError> {
        let program = self.layout.program;
        self.externals = vec![0; program.globals.len()];
        let mut missing = Vec::new();
        for (index, global) in program.globals.iter().enumerate() {
            if !global.referenced || !global.is_undefined() {
                continue;
            }
            let visible = !global.visibility.is_hidden() && global.kind != SymbolKind::ThreadLocal;
            match externals.address(global.name).filter(|_| visible) {
                Some(address) => self.externals[index] = address.0,
                None if global.required => missing.push(index),
                None => {}
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(self.undefined(&missing)) }
    }

    /// The error for symbols nobody defines: finds those who refer to them, which costs time only now.
    fn undefined(&self, missing: &[usize]) -> RelocateError {
        let program = self.layout.program;
        let first = missing.iter().take(WITH_REFERRERS);
        let index: HashMap<usize, usize> = first.enumerate().map(|(at, global)| (*global, at)).collect();
        let entry = |id: &usize| {
            let Global { name, visibility, .. } = program.globals[*id];
            let hidden = visibility < Visibility::Protected;
            Undefined { name: printable(name), hidden, referrers: Vec::new(), more: 0 }
        };
        let mut symbols: Vec<Undefined> = missing.iter().map(entry).collect();
        let mut note = |id: SectionId, relocation: &Rela| {
            let Some(Target::Global(global)) = program.target(id.object, relocation.r_sym(LE, false)) else { return };
            let Some(symbol) = index.get(&global.0).and_then(|at| symbols.get_mut(*at)) else { return };
            if symbol.referrers.len() < REFERRERS {
                symbol.referrers.push(program.place(id, relocation.r_offset.get(LE)));
            } else {
                symbol.more += 1;
            }
        };
        for (id, section) in program.live() {
            section.relocations.entries().iter().for_each(|relocation| note(id, relocation));
        }
        for table in &program.unwind {
            for record in table.records.iter().filter(|record| record.live) {
                let relocations = table.relocations.get(record.relocations.clone()).unwrap_or(&[]);
                relocations.iter().for_each(|relocation| note(table.id, relocation));
            }
        }
        RelocateError::Undefined { symbols, skipped: program.skipped.to_vec() }
    }

    fn at(&self, offset: u64) -> u64 {
        self.base.wrapping_add(offset)
    }

    fn address(&self, target: Target) -> u64 {
        match self.layout.locate(target) {
            Location::Offset(offset) => self.at(offset),
            Location::Address(address) => address,
            Location::External(id) => self.externals[id.0],
        }
    }

    fn slot(&self, slot: &Slot) -> u64 {
        let (start, end) = self.layout.thread;
        match slot.holds {
            Holds::Address => self.address(slot.target),
            Holds::ThreadOffset => self.thread_local(slot.target).wrapping_sub(self.at(end)),
            Holds::BlockOffset => self.thread_local(slot.target).wrapping_sub(self.at(start)),
            Holds::BlockSize => end.wrapping_sub(start),
            Holds::Module => MODULE,
        }
    }

    /// The address of a thread-local symbol; one that is weak and not defined counts as the end of the block.
    fn thread_local(&self, target: Target) -> u64 {
        match self.layout.locate(target) {
            Location::External(_) => self.at(self.layout.thread.1),
            _ => self.address(target),
        }
    }

    /// Appends a piece of a segment, which lies at `offset` from the base.
    fn append(&self, piece: Piece, offset: u64, content: &mut Vec<u8>) -> Result<(), RelocateError> {
        match piece {
            Piece::Section(id) => self.append_section(id, offset, content),
            Piece::Got => {
                for (slot, offset) in self.layout.program.slots.iter().zip(&self.layout.slots) {
                    if *offset != NOWHERE {
                        content.extend_from_slice(&self.slot(slot).to_le_bytes());
                    }
                }
                Ok(())
            }
            Piece::Stubs => {
                self.append_stubs(content);
                Ok(())
            }
            Piece::IndirectStubs => {
                let slots = (self.at(self.layout.indirect.1)..).step_by(8);
                for (_, slot) in self.layout.program.indirect.iter().zip(slots) {
                    content.extend_from_slice(&[0x49, 0xbb]);
                    content.extend_from_slice(&slot.to_le_bytes());
                    content.extend_from_slice(&[0x41, 0xff, 0x23, TRAP, TRAP, TRAP]);
                }
                Ok(())
            }
            // The support code puts the function in its resolver's place.
            Piece::IndirectSlots => {
                for (id, value) in self.layout.program.indirect_order() {
                    content.extend_from_slice(&self.address(Target::Section(id, value)).to_le_bytes());
                }
                Ok(())
            }
            Piece::Unwind => self.append_unwind(content),
            Piece::UnwindIndex => {
                self.append_unwind_index(content);
                Ok(())
            }
        }
    }

    fn append_section(&self, id: SectionId, offset: u64, content: &mut Vec<u8>) -> Result<(), RelocateError> {
        let section = self.layout.program.section(id);
        let start = content.len();
        content.extend_from_slice(section.content);
        // Zero-fill between symbols that also delimit content.
        let size = usize::try_from(section.size).unwrap_or(section.content.len());
        content.resize(start.saturating_add(size), 0);
        let output = content.get_mut(start..).unwrap_or(&mut []);
        let mut entries = section.relocations.entries().iter().peekable();
        while let Some(relocation) = entries.next() {
            let at = relocation.r_offset.get(LE);
            let target = self.layout.program.target(id.object, relocation.r_sym(LE, false));
            let field = Field { next: entries.peek().copied(), input: section.content, at };
            let place = self.at(offset.wrapping_add(at));
            if self.relocate(id, relocation, target, place, field, output)? == WithCall::Yes {
                entries.next();
            }
        }
        Ok(())
    }

    /// Applies one relocation at address `place`; says whether it took the next with it.
    fn relocate(
        &self,
        id: SectionId,
        relocation: &Rela,
        target: Option<Target>,
        place: u64,
        field: Field<'_>,
        output: &mut [u8],
    ) -> Result<WithCall, RelocateError> {
        let program = self.layout.program;
        // Both were checked when the section became part of the program.
        let (Some(howto), Some(target)) = (howto(relocation.r_type(LE, false)), target) else {
            return Err(self.bounds(id, relocation, "unknown"));
        };
        let index = usize::try_from(relocation.r_sym(LE, false)).unwrap_or(usize::MAX);
        let own = program.loaded[id.object].object.symbols.get(index);
        let (slot, stub, size) = match target {
            Target::Global(GlobalId(global)) => {
                let global = &program.globals[global];
                (global.slot, global.stub, global.size)
            }
            _ => (program.local_slots.get(&(id.object, index)).copied(), None, own.map_or(0, |symbol| symbol.size)),
        };
        let thread_local = howto.expr.is_thread_local();
        let slot = match howto.expr {
            Expr::ThreadSlot => program.thread_slots.get(&(target, Holds::ThreadOffset)).copied(),
            Expr::ThreadPair => program.thread_slots.get(&(target, Holds::Module)).copied(),
            Expr::BlockPair => program.thread_slots.get(&Slot::BLOCK).copied(),
            _ => slot,
        };
        let with_call = program.with_call(id, howto.expr, relocation, field.next);
        let slot = slot.and_then(|slot| self.layout.slots.get(slot)).filter(|slot| **slot != NOWHERE);
        let addend = relocation.r_addend.get(LE);
        let may_use_stub = |_: &u64| {
            let start = usize::try_from(field.at).unwrap_or(usize::MAX);
            may_use_stub(&howto, program.section(id).is_code(), field.input, start, addend)
        };
        let stub = stub.and_then(|stub| u64::try_from(stub).ok()).filter(may_use_stub);
        let operands = Operands {
            symbol: if thread_local { self.thread_local(target) } else { self.address(target) },
            addend,
            place,
            got: self.at(self.layout.got),
            slot: slot.map(|slot| self.at(*slot)),
            stub: stub.map(|stub| self.at(self.layout.stubs.wrapping_add(stub.wrapping_mul(STUB_SIZE)))),
            size,
            thread: self.at(self.layout.thread.1),
            with_call,
        };
        let applied = apply(&howto, &operands, field.at, field.input, output);
        applied.map(|()| with_call).map_err(|error| match error {
            ApplyError::Range { value, limit } => RelocateError::OutOfRange(Box::new(OutOfRange {
                place: self.place(id, relocation),
                kind: howto.name,
                symbol: program.symbol_name(id.object, relocation),
                value,
                limit,
                hint: howto.hint,
            })),
            ApplyError::Bounds | ApplyError::NoSlot => self.bounds(id, relocation, howto.name),
        })
    }

    fn append_stubs(&self, content: &mut Vec<u8>) {
        let program = self.layout.program;
        let mut end = self.layout.stubs;
        for id in &program.stubs {
            end = end.wrapping_add(STUB_SIZE);
            let slot = program.globals[id.0].slot.and_then(|slot| self.layout.slots.get(slot)).copied();
            // The instruction ends two bytes before the stub. Stubs lie right behind the GOT, so the distance fits.
            let distance = slot.unwrap_or(NOWHERE).wrapping_sub(end.wrapping_sub(2));
            content.extend_from_slice(&[0xff, 0x25]);
            content.extend(distance.to_le_bytes().into_iter().take(4));
            content.extend_from_slice(&[TRAP, TRAP]);
        }
    }

    fn append_unwind(&self, content: &mut Vec<u8>) -> Result<(), RelocateError> {
        let program = self.layout.program;
        for (table, offsets) in program.unwind.iter().zip(&self.layout.unwind.records) {
            let section = program.section(table.id);
            for (record, offset) in table.records.iter().zip(offsets).filter(|(record, _)| record.live) {
                let input = section.content.get(record.bytes.clone()).unwrap_or(&[]);
                let start = content.len();
                content.extend_from_slice(input);
                let output = content.get_mut(start..).unwrap_or(&mut []);
                let relocations = table.relocations.get(record.relocations.clone()).unwrap_or(&[]);
                for relocation in relocations {
                    let at = relocation.r_offset.get(LE).wrapping_sub(record.bytes.start as u64);
                    let place = self.at(self.layout.unwind.start.wrapping_add(*offset).wrapping_add(at));
                    let own = at == FUNCTION_OFFSET as u64;
                    let target = self.unwind_target(table.id, relocation, own);
                    self.relocate(table.id, relocation, target, place, Field { input, at, next: None }, output)?;
                }
                // The distance from the field back to the shared record, which moved.
                let shared = record.shared.and_then(|shared| offsets.get(shared));
                if let (Some(shared), Some(field)) = (shared, output.get_mut(4..8)) {
                    let distance = offset.wrapping_add(4).wrapping_sub(*shared);
                    field.copy_from_slice(distance.to_le_bytes().first_chunk::<4>().unwrap_or(&[0; 4]));
                }
            }
        }
        content.extend_from_slice(&[0; 4]);
        Ok(())
    }

    /// The records of functions by address (LSB Core §10.6.2), as unwinders search them.
    fn append_unwind_index(&self, content: &mut Vec<u8>) {
        let program = self.layout.program;
        let start = self.at(self.layout.unwind_index);
        let mut records = Vec::new();
        for (table, offsets) in program.unwind.iter().zip(&self.layout.unwind.records) {
            for (record, offset) in table.records.iter().zip(offsets) {
                if !record.live || record.shared.is_none() {
                    continue;
                }
                let own = record.bytes.start.wrapping_add(FUNCTION_OFFSET) as u64;
                let relocations = table.relocations.get(record.relocations.clone()).unwrap_or(&[]);
                let function = relocations.iter().find(|relocation| relocation.r_offset.get(LE) == own);
                let target = function.and_then(|relocation| {
                    Some((self.unwind_target(table.id, relocation, true)?, relocation.r_addend.get(LE)))
                });
                let function = target.map_or(0, |(target, addend)| self.address(target).wrapping_add_signed(addend));
                records.push((function, self.at(self.layout.unwind.start.wrapping_add(*offset))));
            }
        }
        records.sort_unstable();
        let near = |address: u64, from: u64| i32::try_from(address.wrapping_sub(from).cast_signed()).ok();
        let table: Option<Vec<(i32, i32)>> =
            records.iter().map(|(function, record)| Some((near(*function, start)?, near(*record, start)?))).collect();
        let first = near(self.at(self.layout.unwind.start), start.wrapping_add(4));
        let end = content.len().saturating_add(8 * records.len() + 12);
        if let (Some(table), Some(first), Ok(count)) = (table, first, u32::try_from(records.len())) {
            // Version 1; a distance from the field, a number, distances from the index.
            content.extend_from_slice(&[1, 0x1b, 0x03, 0x3b]);
            content.extend_from_slice(&first.to_le_bytes());
            content.extend_from_slice(&count.to_le_bytes());
            for (function, record) in table {
                content.extend_from_slice(&function.to_le_bytes());
                content.extend_from_slice(&record.to_le_bytes());
            }
        } else {
            // Too far for distances: an address, and no table.
            content.extend_from_slice(&[1, 0x04, 0xff, 0xff]);
            content.extend_from_slice(&self.at(self.layout.unwind.start).to_le_bytes());
        }
        content.resize(end, 0);
    }

    /// What a relocation of an unwind record refers to; that of the function is the object's own copy.
    fn unwind_target(&self, id: SectionId, relocation: &Rela, own: bool) -> Option<Target> {
        let program = self.layout.program;
        let index = relocation.r_sym(LE, false);
        let symbols = &program.loaded[id.object].object.symbols;
        match usize::try_from(index).ok().and_then(|index| symbols.get(index)) {
            Some(symbol) if own => match symbol.position {
                super::parse::Position::Section(section) => {
                    Some(Target::Section(SectionId { section, ..id }, symbol.value))
                }
                _ => program.target(id.object, index),
            },
            _ => program.target(id.object, index),
        }
    }

    fn place(&self, id: SectionId, relocation: &Rela) -> Place {
        self.layout.program.place(id, relocation.r_offset.get(LE))
    }

    fn bounds(&self, id: SectionId, relocation: &Rela, kind: &'static str) -> RelocateError {
        let symbol = self.layout.program.symbol_name(id.object, relocation);
        RelocateError::Bounds { place: self.place(id, relocation), kind, symbol }
    }
}
