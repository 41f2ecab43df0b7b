//! Binds names: definitions compete, groups are made unique, archive members are pulled by need.

use std::collections::{HashMap, HashSet, VecDeque};

use super::global::{Conflict, Offer};
use super::{Definition, Global, GlobalId, Loaded, Named, Program, Provided, SectionId, State};
use crate::link::error::Duplicate;
use crate::link::name::printable;
use crate::link::parse::{Binding, Kind, Object, Position, Support, Symbol, SymbolKind};
use crate::link::{Members, ResolveError};

/// What sets the thread pointer, where there is thread-local storage.
pub(super) const START_THREAD: &[u8] = b"__graft_start_thread";

/// What asks the resolvers of indirect functions, where there are any.
pub(super) const BIND_INDIRECT: &[u8] = b"__graft_bind_indirect";

/// How many duplicates an error lists.
const DUPLICATES: usize = 1000;

/// Loads the objects and whatever they need, and binds every name.
pub(super) fn bind<'o>(program: &mut Program<'o>, objects: &'o [Object<'o>]) -> Result<(), ResolveError> {
    let names = objects.iter().map(|object| object.symbols.len() - object.first_global).sum();
    program.names.reserve(names);
    program.globals.reserve(names);
    let mut binder = Binder {
        program,
        objects,
        is_loaded: vec![false; objects.len()],
        queue: VecDeque::new(),
        signatures: HashSet::new(),
        versions: Vec::new(),
        duplicates: Vec::new(),
    };
    binder.add_options();
    // All that is certain first: an archive's definition never competes with that of an object given by itself.
    for (index, object) in objects.iter().enumerate() {
        if object.members == Members::All {
            binder.load(index);
        }
    }
    for (index, object) in objects.iter().enumerate() {
        if object.support == Support::First {
            binder.index(index);
        }
    }
    for (index, object) in objects.iter().enumerate() {
        if object.members == Members::ByNeed {
            binder.index(index);
        }
    }
    while let Some(id) = binder.queue.pop_front() {
        let global = &binder.program.globals[id.0];
        if let (true, Some(index)) = (global.is_undefined(), global.lazy) {
            binder.load(index);
        }
    }
    if !binder.duplicates.is_empty() {
        return Err(ResolveError::Duplicate(binder.duplicates));
    }
    binder.bind_versions();
    provide(program);
    check_entry(program)
}

struct Binder<'p, 'o> {
    program: &'p mut Program<'o>,
    objects: &'o [Object<'o>],
    is_loaded: Vec<bool>,
    /// Names to load archive members for.
    queue: VecDeque<GlobalId>,
    /// The groups that are there.
    signatures: HashSet<&'o [u8]>,
    /// Names with a default version: the whole and what it is bound to.
    versions: Vec<(&'o [u8], GlobalId)>,
    duplicates: Vec<Duplicate>,
}

impl<'o> Binder<'_, 'o> {
    fn add_options(&mut self) {
        let options = self.program.options;
        for (alias, other) in &options.aliases {
            let id = self.intern(other.as_bytes());
            // What stood for the alias so far, as the other of an alias before, goes along.
            if let Some(former) = self.program.names.insert(alias.as_bytes(), id) {
                self.program.names.values_mut().filter(|stands| **stands == former).for_each(|stands| *stands = id);
            }
        }
        for (name, addr) in &options.absolute {
            let id = self.intern(name.as_bytes());
            let definition = Definition::Absolute(addr.0);
            self.define(
                id,
                Offer { definition, binding: Binding::Strong, kind: SymbolKind::Plain, size: 0, owner: None },
            );
        }
        for name in options.entry.iter().chain(&options.keep) {
            let id = self.intern(name.as_bytes());
            self.want(id);
        }
        self.program.entry = options.entry.as_ref().map(|name| self.intern(name.as_bytes()));
    }

    fn intern(&mut self, name: &'o [u8]) -> GlobalId {
        let globals = &mut self.program.globals;
        *self.program.names.entry(name).or_insert_with(|| {
            globals.push(Global::new(name));
            GlobalId(globals.len() - 1)
        })
    }

    /// Notes what an archive member defines, and queues it when that is wanted already.
    fn index(&mut self, index: usize) {
        for symbol in globals(&self.objects[index]) {
            if symbol.position == Position::Undefined {
                continue;
            }
            let (base, _) = split_version(symbol.name);
            let id = self.intern(base);
            let global = &mut self.program.globals[id.0];
            if global.is_undefined() && global.lazy.is_none() {
                global.lazy = Some(index);
                if global.wanted {
                    self.queue.push_back(id);
                }
            }
        }
    }

    /// Notes that something needs `id`, and queues the archive member that has it.
    fn want(&mut self, id: GlobalId) {
        let global = &mut self.program.globals[id.0];
        if !global.wanted {
            global.wanted = true;
            if global.is_undefined() && global.lazy.is_some() {
                self.queue.push_back(id);
            }
        }
    }

    fn load(&mut self, index: usize) {
        if std::mem::replace(&mut self.is_loaded[index], true) {
            return;
        }
        let object = &self.objects[index];
        let loaded = self.program.loaded.len();
        let first_state = self.program.states.len();
        self.program.states.extend(object.sections.iter().map(|section| match section.kind {
            Kind::Aside => State::Aside,
            _ => State::Waiting,
        }));
        for group in &object.groups {
            // One copy per signature, also of groups with strong symbols.
            if group.signature.is_some_and(|signature| !self.signatures.insert(signature)) {
                for member in &group.members {
                    self.program.states[first_state + member] = State::Discarded;
                }
            }
        }
        self.program.loaded.push(Loaded {
            object,
            first_state,
            globals: Vec::new(),
            live_groups: vec![false; object.groups.len()],
            unwind: Vec::new(),
        });
        self.program.loaded[loaded].globals =
            globals(object).iter().map(|symbol| self.bind_symbol(loaded, first_state, symbol)).collect();
        if object.sections.iter().any(|section| section.kind != Kind::Aside && section.has(object::elf::SHF_TLS)) {
            let start = self.intern(START_THREAD);
            self.want(start);
        }
        if object.indirect {
            let bind = self.intern(BIND_INDIRECT);
            self.want(bind);
        }
    }

    fn bind_symbol(&mut self, object: usize, first_state: usize, symbol: &'o Symbol<'o>) -> GlobalId {
        let (base, default_version) = split_version(symbol.name);
        let id = self.intern(base);
        let global = &mut self.program.globals[id.0];
        global.visibility = global.visibility.min(symbol.visibility);
        let definition = match symbol.position {
            Position::Undefined => None,
            Position::Absolute => Some(Definition::Absolute(symbol.value)),
            Position::Common => Some(Definition::Common { align: symbol.value, index: None }),
            // The copy of the group that was kept has the definition.
            Position::Section(section) if self.program.states[first_state + section] == State::Discarded => None,
            Position::Section(section) => Some(Definition::Section(SectionId { object, section }, symbol.value)),
        };
        if symbol.kind == SymbolKind::ThreadLocal && global.is_undefined() {
            // No address the executor might have for the name would do.
            global.kind = SymbolKind::ThreadLocal;
        }
        match definition {
            Some(definition) => {
                if default_version {
                    self.versions.push((symbol.name, id));
                }
                let Symbol { binding, kind, size, .. } = *symbol;
                self.define(id, Offer { definition, binding, kind, size, owner: Some(object) });
            }
            None if symbol.binding == Binding::Strong || symbol.position != Position::Undefined => self.want(id),
            None => {}
        }
        id
    }

    fn define(&mut self, id: GlobalId, offer: Offer) {
        let global = &mut self.program.globals[id.0];
        let first = global.owner;
        if let Err(Conflict) = global.offer(offer)
            && self.duplicates.len() < DUPLICATES
        {
            let name = printable(global.name);
            self.duplicates.push(Duplicate { name, first: self.file(first), second: self.file(offer.owner) });
        }
    }

    fn file(&self, owner: Option<usize>) -> String {
        match owner {
            Some(owner) => self.program.loaded[owner].object.name.clone(),
            None => String::from("the linker's options"),
        }
    }

    /// Binds references to `foo@V` to definitions of `foo@@V`.
    fn bind_versions(&mut self) {
        for (name, id) in std::mem::take(&mut self.versions) {
            let (base, _) = split_version(name);
            let mut reference = base.to_vec();
            reference.extend_from_slice(name.get(base.len() + 1..).unwrap_or(&[]));
            let Some(alias) = self.program.names.get(&reference[..]).copied() else { continue };
            let Global { definition, weak, owner, kind, size, .. } = self.program.globals[id.0];
            let global = &mut self.program.globals[alias.0];
            if global.is_undefined() {
                (global.definition, global.weak, global.owner) = (definition, weak, owner);
                (global.kind, global.size) = (kind, size);
            }
        }
    }
}

/// The symbols that other objects see.
fn globals<'o>(object: &'o Object<'o>) -> &'o [Symbol<'o>] {
    object.symbols.get(object.first_global..).unwrap_or(&[])
}

/// The name that references use, and whether it had a default version (`foo@@V`).
fn split_version(name: &[u8]) -> (&[u8], bool) {
    let at = name.iter().position(|&c| c == b'@');
    match at.map(|at| (name.get(..at), name.get(at + 1))) {
        Some((Some(base), Some(b'@'))) if !base.is_empty() => (base, true),
        _ => (name, false),
    }
}

/// Defines what only the linker can, where something refers to it.
fn provide(program: &mut Program<'_>) {
    let mut delimiters = Vec::new();
    for (index, global) in program.globals.iter_mut().enumerate() {
        if !global.is_undefined() {
            continue;
        }
        if let Some(provided) = Provided::named(global.name) {
            global.definition = Definition::Provided(provided);
            if global.name == b"_TLS_MODULE_BASE_" {
                global.kind = SymbolKind::ThreadLocal;
            }
        } else if let Some(section) = global.name.strip_prefix(b"__start_") {
            delimiters.push((section, index, false));
        } else if let Some(section) = global.name.strip_prefix(b"__stop_") {
            delimiters.push((section, index, true));
        }
    }
    if delimiters.is_empty() {
        return;
    }
    let mut members: HashMap<&[u8], Vec<SectionId>> = HashMap::new();
    for (object, loaded) in program.loaded.iter().enumerate() {
        for (section, content) in loaded.object.sections.iter().enumerate() {
            let waiting = program.states[loaded.first_state + section] == State::Waiting;
            if waiting && matches!(content.kind, Kind::Content | Kind::Zero | Kind::Note) && content.is_c_identifier() {
                members.entry(content.name).or_default().push(SectionId { object, section });
            }
        }
    }
    let mut known: HashMap<&[u8], usize> = HashMap::new();
    for (name, global, end) in delimiters {
        let index = match (known.get(name), members.remove(name)) {
            (Some(index), _) => *index,
            (None, Some(members)) => {
                program.named.push(Named { name, members, live: false });
                known.insert(name, program.named.len() - 1);
                program.named.len() - 1
            }
            // No such section: the name stays undefined, and weak references to it are 0.
            (None, None) => continue,
        };
        program.globals[global].definition = Definition::Provided(Provided::Named { index, end });
    }
}

fn check_entry(program: &Program<'_>) -> Result<(), ResolveError> {
    let Some(entry) = program.entry else { return Ok(()) };
    let global = &program.globals[entry.0];
    let name = printable(global.name);
    let what = match global.definition {
        Definition::Undefined => return Err(ResolveError::NoEntry { name, skipped: program.skipped.to_vec() }),
        Definition::Section(id, _) if program.state(id) == State::Aside => "in a section that is not loaded",
        Definition::Section(id, _) if !program.section(id).has(object::elf::SHF_EXECINSTR) => "in a data section",
        Definition::Common { .. } | Definition::Provided(_) => "data",
        Definition::Section(..) | Definition::Absolute(_) => match global.kind {
            SymbolKind::ThreadLocal => "thread-local",
            _ => return Ok(()),
        },
    };
    let owner = global.owner.map_or_else(String::new, |owner| program.loaded[owner].object.name.clone());
    Err(ResolveError::EntryNotCode { name, file: owner, what })
}
