//! Binds names, pulls archive members, and drops what nothing reaches.
//!
//! The two steps live in [`bind`] and [`collect`]; a [`Program`] is their result.

mod bind;
mod collect;
mod fault;
mod global;
mod unwind;

use std::collections::HashMap;

use super::name::printable;
use super::parse::{Array, Kind, Object, Position, Rela, Section, SymbolKind};
use super::reloc::thread::call_field;
use super::reloc::{Expr, WithCall};
use super::{Layout, LayoutError, Objects, Options, ResolveError};

use object::LittleEndian as LE;
use object::elf;

pub use fault::{RelocationFault, SectionFault};
pub(crate) use global::{Definition, Global, GlobalId, Provided};
pub(crate) use unwind::{FUNCTION_OFFSET, Table};

/// The largest alignment of a section: a 2 MiB page. Beyond, the reservation would be mostly padding.
pub(crate) const MAX_ALIGN: u64 = 2 << 20;

/// The program: which sections are in it, and what each name stands for.
#[derive(Debug)]
pub struct Program<'o> {
    pub(crate) options: &'o Options,
    /// The objects that are part of it, in link order.
    pub(crate) loaded: Vec<Loaded<'o>>,
    /// What is to be done with each section, at [`Self::state_index`].
    pub(crate) states: Vec<State>,
    pub(crate) globals: Vec<Global<'o>>,
    pub(crate) names: HashMap<&'o [u8], GlobalId>,
    pub(crate) entry: Option<GlobalId>,
    /// The GOT, in order.
    pub(crate) slots: Vec<Slot>,
    /// The slots of local symbols: by object and symbol.
    pub(crate) local_slots: HashMap<(usize, usize), usize>,
    /// The slots that thread-local sequences use, by what they refer to: the first, where they are a pair.
    pub(crate) thread_slots: HashMap<(Target, Holds), usize>,
    /// Whether it has thread-local storage.
    pub(crate) thread_local: bool,
    /// The indirect functions that are used, each with its place in the order of their stubs and slots.
    pub(crate) indirect: HashMap<(SectionId, u64), usize>,
    /// The symbols with a stub, in order.
    pub(crate) stubs: Vec<GlobalId>,
    /// The common symbols that are part of the program.
    pub(crate) commons: Vec<GlobalId>,
    /// The sections that `__start_` and `__stop_` symbols delimit.
    pub(crate) named: Vec<Named<'o>>,
    pub(crate) unwind: Vec<Table<'o>>,
    /// Whether something refers to the unwind tables, so that they exist even when empty.
    pub(crate) unwind_referenced: bool,
    /// Whether something refers to the index of unwind records.
    pub(crate) unwind_index: bool,
    pub(crate) externals: Vec<External<'o>>,
    pub(crate) skipped: &'o [String],
}

/// A name that nothing in the program defines: the executor is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External<'o> {
    /// The symbol's name, as on the wire.
    pub name: &'o str,
    /// Whether the program links without it (every reference is weak).
    pub weak: bool,
}

/// An object that is part of the program.
#[derive(Debug)]
pub(crate) struct Loaded<'o> {
    pub object: &'o Object<'o>,
    /// Where its sections' states start.
    pub first_state: usize,
    /// What its symbols from the first global one on are bound to.
    pub globals: Vec<GlobalId>,
    /// Which of its groups are part of the program.
    pub live_groups: Vec<bool>,
    /// Which unwind records go with which section, by section: (section, table, record).
    pub unwind: Vec<(usize, usize, usize)>,
}

/// A section of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SectionId {
    /// Index of the loaded object.
    pub object: usize,
    /// Index of its section.
    pub section: usize,
}

/// What is to be done with a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is never loaded.
    Aside,
    /// Another object's copy of its group is used.
    Discarded,
    /// Nothing refers to it so far.
    Waiting,
    /// It is part of the program.
    Live,
}

/// A slot of the GOT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub target: Target,
    pub holds: Holds,
    /// Whether the slot is needed even when the program is small enough that every instruction reaches its target.
    pub always: bool,
}

impl Slot {
    /// The pair of slots for the whole block of thread-local storage.
    pub(crate) const BLOCK: (Target, Holds) = (Target::Absolute(0), Holds::Module);
}

/// What a slot of the GOT holds of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holds {
    Address,
    /// Its offset from the thread pointer.
    ThreadOffset,
    /// Its offset in the block of thread-local storage.
    BlockOffset,
    /// The offset of the block's end.
    BlockSize,
    /// The number of its module.
    Module,
}

/// What a relocation refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// An offset in a section.
    Section(SectionId, u64),
    /// An indirect function: its stub. The offset in a section is that of its resolver.
    Indirect(SectionId, u64),
    /// An address.
    Absolute(u64),
    /// Whatever the name is bound to.
    Global(GlobalId),
}

/// Sections of one name that symbols delimit.
#[derive(Debug)]
pub(crate) struct Named<'o> {
    pub name: &'o [u8],
    pub members: Vec<SectionId>,
    /// Whether the members are part of the program.
    pub live: bool,
}

/// Binds every name, pulls the archive members that are needed, and drops what nothing reaches.
///
/// # Errors
/// Duplicate definitions, or what the linker does not support in a section that is kept.
pub fn resolve<'o>(objects: &'o Objects<'_>, options: &'o Options) -> Result<Program<'o>, ResolveError> {
    let mut program = Program {
        options,
        loaded: Vec::with_capacity(objects.all.len()),
        states: Vec::new(),
        globals: Vec::new(),
        names: HashMap::new(),
        entry: None,
        slots: Vec::new(),
        local_slots: HashMap::new(),
        thread_slots: HashMap::new(),
        thread_local: false,
        indirect: HashMap::new(),
        stubs: Vec::new(),
        commons: Vec::new(),
        named: Vec::new(),
        unwind: Vec::new(),
        unwind_referenced: false,
        unwind_index: false,
        externals: Vec::new(),
        skipped: &objects.skipped,
    };
    bind::bind(&mut program, &objects.all)?;
    collect::collect(&mut program)?;
    program.externals = program.globals.iter().filter_map(Global::external).collect();
    Ok(program)
}

impl<'o> Program<'o> {
    /// The names the executor must provide, each once.
    #[must_use]
    pub fn externals(&self) -> &[External<'o>] {
        &self.externals
    }

    /// Gives every section its place, relative to a base not known yet.
    ///
    /// # Errors
    /// Sizes that do not fit the address space.
    pub fn layout(&self) -> Result<Layout<'_>, LayoutError> {
        Layout::new(self)
    }

    pub(crate) fn section(&self, id: SectionId) -> &'o Section<'o> {
        &self.loaded[id.object].object.sections[id.section]
    }

    pub(crate) fn state_index(&self, id: SectionId) -> usize {
        self.loaded[id.object].first_state + id.section
    }

    pub(crate) fn state(&self, id: SectionId) -> State {
        self.states[self.state_index(id)]
    }

    /// The sections of the program, in link order.
    pub(crate) fn live(&self) -> impl Iterator<Item = (SectionId, &'o Section<'o>)> {
        self.loaded.iter().enumerate().flat_map(move |(object, loaded)| {
            let states = self.states.iter().skip(loaded.first_state);
            loaded.object.sections.iter().zip(states).enumerate().filter_map(move |(section, (content, state))| {
                (*state == State::Live).then_some((SectionId { object, section }, content))
            })
        })
    }

    /// What symbol `index` of an object stands for, or `None` when there is no such symbol or it stands for nothing.
    pub(crate) fn target(&self, object: usize, index: u32) -> Option<Target> {
        let loaded = &self.loaded[object];
        let index = usize::try_from(index).ok()?;
        // Symbol 0 stands for "no symbol": the value is the addend alone.
        if index == 0 {
            return Some(Target::Absolute(0));
        }
        if let Some(global) = index.checked_sub(loaded.object.first_global) {
            return loaded.globals.get(global).map(|id| Target::Global(*id));
        }
        let symbol = loaded.object.symbols.get(index)?;
        match symbol.position {
            Position::Section(section) if symbol.kind == SymbolKind::Indirect => {
                Some(Target::Indirect(SectionId { object, section }, symbol.value))
            }
            Position::Section(section) => Some(Target::Section(SectionId { object, section }, symbol.value)),
            Position::Absolute => Some(Target::Absolute(symbol.value)),
            Position::Undefined | Position::Common => None,
        }
    }

    /// Whether a target is thread-local: it has an offset and no address.
    pub(crate) fn is_thread_local(&self, target: Target) -> bool {
        match target {
            Target::Section(id, _) => self.section(id).has(elf::SHF_TLS),
            Target::Absolute(_) | Target::Indirect(..) => false,
            Target::Global(id) => self.globals[id.0].kind == SymbolKind::ThreadLocal,
        }
    }

    /// Whether the relocation `next` is the call of `__tls_get_addr` that ends the sequence `relocation` starts: then both
    /// are rewritten together.
    pub(in crate::link) fn with_call(
        &self,
        id: SectionId,
        expr: Expr,
        relocation: &Rela,
        next: Option<&Rela>,
    ) -> WithCall {
        let is_call = |next: &Rela| {
            let start = usize::try_from(relocation.r_offset.get(LE)).ok()?;
            let distance = call_field(expr, self.section(id).content, start, next.r_type(LE, false))?;
            let at = usize::try_from(next.r_offset.get(LE)).ok()?;
            let symbol = usize::try_from(next.r_sym(LE, false)).ok()?;
            let name = self.loaded[id.object].object.symbols.get(symbol)?.name;
            Some(at.checked_sub(start) == Some(distance) && name == b"__tls_get_addr")
        };
        let has_call = matches!(expr, Expr::ThreadPair | Expr::BlockPair);
        if has_call && next.and_then(is_call) == Some(true) { WithCall::Yes } else { WithCall::No }
    }

    /// How many bytes all indirect functions take, with so many each.
    pub(crate) fn indirect_size(&self, each: u64) -> u64 {
        each.saturating_mul(u64::try_from(self.indirect.len()).unwrap_or(u64::MAX))
    }

    /// The indirect functions, in the order of their stubs and slots.
    pub(crate) fn indirect_order(&self) -> Vec<(SectionId, u64)> {
        let mut order: Vec<_> = self.indirect.iter().map(|(resolver, index)| (*index, *resolver)).collect();
        order.sort_unstable_by_key(|(index, _)| *index);
        order.into_iter().map(|(_, resolver)| resolver).collect()
    }

    /// The printable name of what a relocation refers to.
    pub(crate) fn symbol_name(&self, object: usize, relocation: &Rela) -> String {
        let object = self.loaded[object].object;
        let symbol = usize::try_from(relocation.r_sym(LE, false)).ok().and_then(|index| object.symbols.get(index));
        match symbol.map(|symbol| (symbol.name, symbol.position)) {
            Some((b"", Position::Section(section))) => {
                object.sections.get(section).map_or_else(String::new, |section| printable(section.name))
            }
            Some((name, _)) => printable(name),
            None => String::from("(no symbol)"),
        }
    }

    /// The role of a section of the program in running functions before the entry or at unload.
    pub(crate) fn array(&self, id: SectionId) -> Option<Array> {
        match self.section(id).kind {
            Kind::Array(array) => Some(array),
            _ => None,
        }
    }
}
