//! What the linker makes of a symbol table entry.

use object::LittleEndian as LE;
use object::elf;

use super::ObjectFault;

/// A symbol of an object, at the object's own index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    /// Empty for sections and files.
    pub name: &'a [u8],
    /// An offset in the section, an address, or the alignment of a common symbol.
    pub value: u64,
    pub size: u64,
    pub position: Position,
    pub binding: Binding,
    pub kind: SymbolKind,
    pub visibility: Visibility,
}

/// Where a symbol lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Elsewhere.
    Undefined,
    /// At an address of its own.
    Absolute,
    /// Wherever the linker puts it: C's tentative definition.
    Common,
    /// In a section of the object, by index.
    Section(usize),
}

/// How a symbol takes part in binding names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Local,
    Weak,
    /// Global, also unique ones: there is one program, so every name in it is unique.
    Strong,
}

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SymbolKind {
    /// Data, or not stated.
    Plain,
    Function,
    Section,
    File,
    ThreadLocal,
    /// A function that returns the function's address (`STT_GNU_IFUNC`).
    Indirect,
}

/// Who may see a symbol; the order is from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Visibility {
    Internal,
    Hidden,
    Protected,
    Default,
}

impl Visibility {
    /// Whether the symbol stays within its own program.
    pub(crate) fn is_hidden(self) -> bool {
        self <= Self::Hidden
    }
}

/// Large common, of the medium code model (psABI: `SHN_X86_64_LCOMMON`).
const SHN_LCOMMON: u16 = 0xff02;

/// Decodes entry `index`, all but its name. `extended` is its entry in the table of extended section indices.
pub(super) fn decode<'a>(
    entry: &elf::Sym64<LE>,
    index: usize,
    extended: Option<u32>,
    sections: usize,
) -> Result<Symbol<'a>, ObjectFault> {
    let in_section = |section: usize| {
        if section < sections {
            Ok(Position::Section(section))
        } else {
            Err(ObjectFault::SymbolSection { symbol: index, section, sections })
        }
    };
    let shndx = entry.st_shndx.get(LE);
    let position = match shndx {
        elf::SHN_UNDEF => Position::Undefined,
        elf::SHN_ABS => Position::Absolute,
        elf::SHN_COMMON | SHN_LCOMMON => Position::Common,
        elf::SHN_XINDEX => match extended {
            Some(section) => in_section(usize::try_from(section).unwrap_or(usize::MAX))?,
            None => return Err(ObjectFault::NoExtendedIndex { symbol: index }),
        },
        reserved if reserved >= elf::SHN_LORESERVE => {
            return Err(ObjectFault::ReservedSection { symbol: index, section: reserved });
        }
        section => in_section(usize::from(section))?,
    };
    let binding = match entry.st_bind() {
        elf::STB_LOCAL => Binding::Local,
        elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => Binding::Strong,
        elf::STB_WEAK => Binding::Weak,
        other => return Err(ObjectFault::SymbolBinding { symbol: index, binding: other }),
    };
    let kind = match entry.st_type() {
        elf::STT_FUNC => SymbolKind::Function,
        elf::STT_SECTION => SymbolKind::Section,
        elf::STT_FILE => SymbolKind::File,
        elf::STT_TLS => SymbolKind::ThreadLocal,
        elf::STT_GNU_IFUNC => SymbolKind::Indirect,
        _ => SymbolKind::Plain,
    };
    let visibility = match entry.st_visibility() {
        elf::STV_INTERNAL => Visibility::Internal,
        elf::STV_HIDDEN => Visibility::Hidden,
        elf::STV_PROTECTED => Visibility::Protected,
        _ => Visibility::Default,
    };
    let (value, size) = (entry.st_value.get(LE), entry.st_size.get(LE));
    Ok(Symbol { name: &[], value, size, position, binding, kind, visibility })
}
