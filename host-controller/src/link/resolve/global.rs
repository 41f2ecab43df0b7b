//! A name that objects share, and how its definitions compete.

use super::{External, SectionId};
use crate::link::parse::{Array, Binding, Role, SymbolKind, Visibility};

/// Index of a [`Global`] in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GlobalId(pub usize);

/// A name that objects share.
#[derive(Debug)]
pub(crate) struct Global<'o> {
    pub name: &'o [u8],
    pub definition: Definition,
    /// Whether another definition may replace this one.
    pub weak: bool,
    /// The loaded object that defines it.
    pub owner: Option<usize>,
    pub kind: SymbolKind,
    pub size: u64,
    /// The narrowest of those that the objects ask for.
    pub visibility: Visibility,
    /// The first archive member that defines it, by index in the inputs.
    pub lazy: Option<usize>,
    /// Whether something needs a definition: pulls archive members.
    pub wanted: bool,
    /// Whether a section of the program refers to it.
    pub referenced: bool,
    /// Whether such a reference is not weak.
    pub required: bool,
    /// Its slot in the GOT.
    pub slot: Option<usize>,
    /// Its stub.
    pub stub: Option<usize>,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Definition {
    Undefined,
    /// An offset in a section.
    Section(SectionId, u64),
    Absolute(u64),
    /// Zero-fill of the size of the symbol; the index is that in the program's list, once it is part of the program.
    Common {
        align: u64,
        index: Option<usize>,
    },
    /// What the linker makes.
    Provided(Provided),
}

/// What the linker defines when nothing else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provided {
    /// Start of the GOT.
    Got,
    /// Where the thread pointer points: the end of the block of thread-local storage.
    ThreadPointer,
    /// Start of the block of thread-local storage.
    ThreadStart,
    /// Start or end of the slots of indirect functions.
    Indirect { end: bool },
    /// Start or end of the index of unwind records.
    UnwindIndex { end: bool },
    /// Start or end of the image.
    Image { end: bool },
    /// An address that identifies the program.
    DsoHandle,
    /// Start or end of the sections of one name.
    Named { index: usize, end: bool },
    /// Start or end of an array of functions.
    Array { role: Role, end: bool },
}

/// A definition that an object offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub definition: Definition,
    pub binding: Binding,
    pub kind: SymbolKind,
    pub size: u64,
    pub owner: Option<usize>,
}

/// The same symbol is defined twice, and neither definition gives way.
#[derive(Debug)]
pub(super) struct Conflict;

impl<'o> Global<'o> {
    pub(super) fn new(name: &'o [u8]) -> Self {
        Self {
            name,
            definition: Definition::Undefined,
            weak: false,
            owner: None,
            kind: SymbolKind::Plain,
            size: 0,
            visibility: Visibility::Default,
            lazy: None,
            wanted: false,
            referenced: false,
            required: false,
            slot: None,
            stub: None,
        }
    }

    /// Whether the name is bound to nothing in the program.
    pub(crate) fn is_undefined(&self) -> bool {
        self.definition == Definition::Undefined
    }

    /// Whether its address is not known to be near the program.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.definition, Definition::Undefined | Definition::Absolute(_))
    }

    /// Takes `offer` unless the present definition is at least as strong.
    pub(super) fn offer(&mut self, offer: Offer) -> Result<(), Conflict> {
        let weak = offer.binding == Binding::Weak;
        let replaces = match (self.definition, offer.definition) {
            (Definition::Undefined, _) => true,
            // Tentative definitions share one object that satisfies them all.
            (Definition::Common { align: old, .. }, Definition::Common { align: new, .. }) => {
                self.size = self.size.max(offer.size);
                self.definition = Definition::Common { align: old.max(new), index: None };
                false
            }
            (Definition::Common { .. }, _) => !weak,
            (_, Definition::Common { .. }) => self.weak,
            // Some objects name one place twice (`foo` and `foo@@V1`).
            (old, new) if old == new && self.owner == offer.owner => false,
            _ if weak => false,
            _ if self.weak => true,
            _ => return Err(Conflict),
        };
        if replaces {
            self.definition = offer.definition;
            self.weak = weak;
            self.kind = offer.kind;
            self.size = offer.size;
            self.owner = offer.owner;
        }
        Ok(())
    }

    /// The name as something to ask the executor for.
    pub(super) fn external(&self) -> Option<External<'o>> {
        let outside = self.referenced && self.is_undefined() && !self.visibility.is_hidden();
        let name = std::str::from_utf8(self.name).ok().filter(|name| !name.is_empty())?;
        outside.then_some(External { name, weak: !self.required })
    }
}

impl Provided {
    /// What the linker makes for `name`, not counting the delimiters of sections.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let array = |role, end| Self::Array { role, end };
        Some(match name {
            b"_GLOBAL_OFFSET_TABLE_" => Self::Got,
            b"__graft_thread_pointer" | b"_TLS_MODULE_BASE_" => Self::ThreadPointer,
            b"__graft_thread_start" => Self::ThreadStart,
            b"__GNU_EH_FRAME_HDR" => Self::UnwindIndex { end: false },
            b"__graft_unwind_index_end" => Self::UnwindIndex { end: true },
            b"__executable_start" => Self::Image { end: false },
            b"_end" => Self::Image { end: true },
            b"__graft_indirect_start" => Self::Indirect { end: false },
            b"__graft_indirect_end" => Self::Indirect { end: true },
            b"__dso_handle" => Self::DsoHandle,
            b"__preinit_array_start" => array(Role::Preinit, false),
            b"__preinit_array_end" => array(Role::Preinit, true),
            b"__init_array_start" => array(Role::Init, false),
            b"__init_array_end" => array(Role::Init, true),
            b"__fini_array_start" => array(Role::Fini, false),
            b"__fini_array_end" => array(Role::Fini, true),
            _ => return None,
        })
    }
}

impl Array {
    /// Whether the array lies between the `_start` and `_end` symbols of its role.
    pub(crate) fn is_delimited(self) -> bool {
        !self.backwards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(definition: Definition, binding: Binding, size: u64, owner: usize) -> Offer {
        Offer { definition, binding, kind: SymbolKind::Plain, size, owner: Some(owner) }
    }

    fn place(object: usize) -> Definition {
        Definition::Section(SectionId { object, section: 1 }, 0)
    }

    fn common(align: u64) -> Definition {
        Definition::Common { align, index: None }
    }

    /// What `offers` leave behind: the definition's owner and size, or a conflict.
    fn bound(offers: &[Offer]) -> Option<(Option<usize>, u64)> {
        let mut global = Global::new(b"x");
        for one in offers {
            global.offer(*one).ok()?;
        }
        Some((global.owner, global.size))
    }

    #[test]
    fn strong_beats_common_beats_weak_in_every_order() {
        let strong = offer(place(0), Binding::Strong, 1, 0);
        let tentative = offer(common(4), Binding::Strong, 2, 1);
        let weak = offer(place(2), Binding::Weak, 3, 2);
        let late = offer(place(3), Binding::Weak, 4, 3);
        for offers in [[strong, tentative, weak], [tentative, weak, strong], [weak, strong, tentative]] {
            assert_eq!(bound(&offers), Some((Some(0), 1)));
        }
        assert_eq!(bound(&[tentative, weak]), Some((Some(1), 2)));
        assert_eq!(bound(&[weak, tentative]), Some((Some(1), 2)));
        assert_eq!(bound(&[weak, late]), Some((Some(2), 3)), "the first weak definition wins");
        assert_eq!(bound(&[strong, offer(place(4), Binding::Strong, 1, 4)]), None);
    }

    #[test]
    fn commons_take_the_largest_size_and_the_strictest_alignment() {
        let mut global = Global::new(b"x");
        for (align, size) in [(4, 16), (32, 8), (8, 32)] {
            global.offer(offer(common(align), Binding::Strong, size, 0)).unwrap();
        }
        assert_eq!((global.size, global.definition), (32, common(32)));
    }
}
