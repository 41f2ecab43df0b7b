//! Why a section or a relocation cannot be part of an image.

use object::elf;
use thiserror::Error;

/// Why a section cannot be part of an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SectionFault {
    /// The image's pages are never both.
    #[error("it is writable and executable; no page of an image is both")]
    WriteExecute,
    /// Thread-local storage of a form that has no meaning.
    #[error("thread-local storage is data, defined in a section")]
    ThreadLocal,
    /// Compressed content.
    #[error("it is compressed, which only debug sections may be")]
    Compressed,
    /// The alignment is not a power of two, or too large.
    #[error("alignment {0:#x} is not a power of two up to {limit:#x}", limit = super::MAX_ALIGN)]
    Alignment(u64),
    /// The section's type has no meaning here.
    #[error("section type {0:#x} is not supported")]
    Type(u32),
    /// Relocations without addends.
    #[error("its relocations have no addends (SHT_REL), which x86-64 does not use")]
    Rel,
    /// Relocations of another form.
    #[error("its relocations are of section type {0:#x}, which is not supported")]
    Relocations(u32),
    /// An array of functions that is not whole pointers.
    #[error("an array of functions has {0} bytes, which is not a multiple of 8")]
    ArraySize(u64),
    /// Malformed unwind tables.
    #[error("record at {offset:#x}: {reason}")]
    Unwind {
        /// Where the record starts.
        offset: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl SectionFault {
    /// The fault of relocations that come in section type `sh_type`.
    pub(super) fn unreadable(sh_type: u32) -> Self {
        match sh_type {
            elf::SHT_REL => Self::Rel,
            other => Self::Relocations(other),
        }
    }
}

/// Why a relocation cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RelocationFault {
    /// The linker does not know the type.
    #[error("relocation type {r_type} ({name}) to {symbol} is not supported")]
    Type {
        /// Its number.
        r_type: u32,
        /// Its name in the psABI, without the prefix.
        name: &'static str,
        /// The symbol referred to.
        symbol: String,
    },
    /// There is no such symbol.
    #[error("relocation refers to symbol {index}, of {symbols}")]
    Symbol {
        /// The symbol's index.
        index: u32,
        /// How many there are.
        symbols: usize,
    },
    /// The field is not in the section.
    #[error("{kind} to {symbol}: a field of {width} bytes does not lie in the section's {size:#x} bytes of content")]
    Bounds {
        /// The type's name.
        kind: &'static str,
        /// The symbol referred to.
        symbol: String,
        /// Of the field, in bytes.
        width: usize,
        /// Of the section's content, in bytes.
        size: usize,
    },
    /// The target was dropped because another file has the same group.
    #[error("refers to {symbol} in section {section}, which was dropped for another file's copy of its group")]
    Discarded {
        /// The symbol.
        symbol: String,
        /// Its section.
        section: String,
    },
    /// The target is not part of any image.
    #[error("refers to {symbol} in section {section}, which is not loaded")]
    NotLoaded {
        /// The symbol.
        symbol: String,
        /// Its section.
        section: String,
    },
    /// The target is a local symbol that is not defined.
    #[error("refers to {0}, which is local and not defined")]
    LocalUndefined(String),
    /// The target is thread-local, and the relocation wants an address.
    #[error("refers to {0} as if it were not thread-local: a declaration lacks __thread")]
    ThreadLocal(String),
    /// The target is not thread-local, and the relocation is for such symbols.
    #[error("{0} to {1}, which is not thread-local: a declaration has __thread too many")]
    NotThreadLocal(&'static str, String),
    /// The field is not in an instruction that the relocation is for.
    #[error("{kind} to {symbol} is not in an instruction that the psABI has for it")]
    Sequence {
        /// The type's name.
        kind: &'static str,
        /// The symbol referred to.
        symbol: String,
    },
    /// The size of the target is not known.
    #[error("asks for the size of {0}, which no file defines")]
    UnknownSize(String),
}
