//! Why a link fails: one enum per phase, and their sum.

use std::fmt;

use graft_protocol::ExecAddr;
use thiserror::Error;

use super::name::demangled;

pub use super::parse::{ArchiveFault, ObjectFault};
pub use super::resolve::{RelocationFault, SectionFault};

/// Why a link failed, whichever the phase.
#[derive(Debug, Error)]
pub enum LinkError {
    /// A file could not be taken apart.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Names could not be bound.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The program has no layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The program cannot be linked at that address with those externals.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
}

/// Why a file could not be taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// An object is malformed or of a kind that is not linked.
    #[error("{file}: {fault}")]
    Object {
        /// The file, an archive's with the member.
        file: String,
        /// What is wrong with it.
        fault: ObjectFault,
    },
    /// An archive is malformed.
    #[error("{file}: {fault}")]
    Archive {
        /// The archive.
        file: String,
        /// What is wrong with it.
        fault: ArchiveFault,
    },
}

/// A byte of an input: what an error points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, an archive's with the member.
    pub file: String,
    /// The section.
    pub section: String,
    /// The offset in the section, in bytes.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}+{:#x}", self.file, self.section, self.offset)
    }
}

/// Why names could not be bound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResolveError {
    /// Symbols with more than one strong definition.
    #[error("{}", lines(.0))]
    Duplicate(Vec<Duplicate>),
    /// Nothing defines the entry.
    #[error("undefined entry symbol: {name}{}", not_searched(.skipped))]
    NoEntry {
        /// The entry's name.
        name: String,
        /// Archive members that could not be searched for it.
        skipped: Vec<String>,
    },
    /// The entry is not an address code can be entered at.
    #[error("entry symbol {name} in {file} is not code: it is {what}")]
    EntryNotCode {
        /// The entry's name.
        name: String,
        /// The file that defines it.
        file: String,
        /// What it is.
        what: &'static str,
    },
    /// A section that would be part of the image cannot be.
    #[error("{file}: section {section}: {fault}")]
    Section {
        /// The file, an archive's with the member.
        file: String,
        /// The section.
        section: String,
        /// Why it cannot be loaded.
        fault: SectionFault,
    },
    /// A relocation in a section of the image is malformed or not supported.
    #[error("{place}: {fault}")]
    Relocation {
        /// Where it applies.
        place: Place,
        /// Why it cannot be applied.
        fault: RelocationFault,
    },
}

/// Two strong definitions of one symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The symbol.
    pub name: String,
    /// The file with the first definition.
    pub first: String,
    /// The file with the other.
    pub second: String,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "duplicate symbol: {}", self.name)?;
        if let Some(written) = demangled(self.name.as_bytes()) {
            write!(f, " ({written})")?;
        }
        write!(f, "\n  defined in {}\n  defined in {}", self.first, self.second)
    }
}

/// Why a program has no layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The page size is not one.
    #[error("page size {0} is not a power of two between 1 KiB and 1 GiB")]
    PageSize(u64),
    /// The sections do not fit a 64-bit address space.
    #[error("{file}: section {section} of {size:#x} bytes does not fit the address space after {offset:#x} bytes")]
    TooLarge {
        /// The file, an archive's with the member.
        file: String,
        /// The section.
        section: String,
        /// Its size in bytes.
        size: u64,
        /// What was laid out before it, in bytes.
        offset: u64,
    },
    /// Sections of one name, used through `__start_` and `__stop_`, are both writable and executable.
    #[error("sections named {section}, used through __start_ or __stop_, are both writable and executable")]
    WriteExecute {
        /// The sections' name.
        section: String,
    },
    /// Sections of one name, used through `__start_` and `__stop_`, mix content with too much zero-fill.
    #[error("sections named {section} hold content and {zero:#x} bytes of zero-fill; limit {limit:#x}")]
    MixedZeroFill {
        /// The sections' name.
        section: String,
        /// The zero-fill in bytes.
        zero: u64,
        /// How much would be accepted.
        limit: u64,
    },
}

/// Why a program cannot be linked at an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RelocateError {
    /// Symbols that neither the program nor the executor defines.
    #[error("{}{}{}", lines(.symbols), not_searched(.skipped), advice(.symbols))]
    Undefined {
        /// The symbols.
        symbols: Vec<Undefined>,
        /// Archive members that could not be searched for them.
        skipped: Vec<String>,
    },
    /// A value does not fit its field.
    #[error(transparent)]
    OutOfRange(Box<OutOfRange>),
    /// A field is not in the content of its section.
    #[error("{place}: {kind} to {symbol} does not lie in the content of its section")]
    Bounds {
        /// Where the field would be.
        place: Place,
        /// The relocation type.
        kind: &'static str,
        /// The symbol referred to.
        symbol: String,
    },
    /// The base is not page-aligned.
    #[error("base address {base} is not a multiple of the page size {page_size:#x}")]
    Misaligned {
        /// The base.
        base: ExecAddr,
        /// The page size.
        page_size: u64,
    },
    /// The image would run past the end of the address space.
    #[error("an image of {size:#x} bytes at {base} runs past the end of the address space")]
    PastTheEnd {
        /// The base.
        base: ExecAddr,
        /// The image's size in bytes.
        size: u64,
    },
}

/// A value that does not fit its field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {kind} to {symbol} = {}, limit {}{hint}", hex(*.value), hex(*.limit))]
pub struct OutOfRange {
    /// Where the field is.
    pub place: Place,
    /// The relocation type.
    pub kind: &'static str,
    /// The symbol referred to.
    pub symbol: String,
    /// The value, which is beyond the limit.
    pub value: i64,
    /// The nearest value that fits.
    pub limit: i64,
    /// What to do about it.
    pub hint: &'static str,
}

/// An undefined symbol with those who refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undefined {
    /// The symbol.
    pub name: String,
    /// Whether it is hidden: only the program itself may define it.
    pub hidden: bool,
    /// The first places that refer to it.
    pub referrers: Vec<Place>,
    /// How many more there are.
    pub more: usize,
}

impl fmt::Display for Undefined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "undefined {}symbol: {}", if self.hidden { "hidden " } else { "" }, self.name)?;
        if let Some(written) = demangled(self.name.as_bytes()) {
            write!(f, " ({written})")?;
        }
        for place in &self.referrers {
            write!(f, "\n  referenced by {place}")?;
        }
        if self.more > 0 {
            write!(f, "\n  and {} more times", self.more)?;
        }
        Ok(())
    }
}

/// One item per line; a long list is cut, with the number left out.
fn lines<T: fmt::Display>(items: &[T]) -> String {
    const SHOWN: usize = 20;
    let mut text = items.iter().take(SHOWN).map(T::to_string).collect::<Vec<_>>().join("\n");
    if items.len() > SHOWN {
        text.push_str(&format!("\nand {} more", items.len() - SHOWN));
    }
    text
}

fn not_searched(skipped: &[String]) -> String {
    if skipped.is_empty() { String::new() } else { format!("\nnot searched:\n{}", lines(skipped)) }
}

/// What to do about symbols that tell what they belong to.
fn advice(symbols: &[Undefined]) -> String {
    const CXX: [&str; 4] = ["__cxa_", "__gxx_", "_ZSt", "_ZTVN10__cxxabiv"];
    const UNWIND: [&str; 3] = ["_Unwind_", "rust_eh_personality", "__gcc_personality"];
    let begins = |with: &[&str]| symbols.iter().any(|symbol| with.iter().any(|with| symbol.name.starts_with(with)));
    let mut text = String::new();
    if begins(&UNWIND) {
        text.push_str("\nnote: nothing unwinds stacks here by itself: link libgcc_eh.a (and libgcc.a), or compile with -fno-exceptions, \
             or Rust with -C panic=abort");
    }
    if begins(&CXX) {
        text.push_str(
            "\nnote: there is no C++ runtime here: link libsupc++.a, or compile with -fno-exceptions -fno-rtti",
        );
    }
    if symbols.iter().any(|symbol| symbol.name == "graft_set_thread_pointer") {
        text.push_str("\nnote: this executor has no thread-local storage for loaded code: use a machine");
    }
    if symbols.iter().any(|symbol| LIBC.contains(&symbol.name.as_str())) {
        text.push_str(
            "\nnote: there is no C library on the target beyond what `graft run --help` lists: link one as an archive",
        );
    }
    text
}

/// What programs most often want of a C library.
#[rustfmt::skip] // a list of words
const LIBC: &[&str] = &[
    "__assert_fail", "__errno_location", "__printf_chk", "__stack_chk_fail", "atexit", "atoi", "errno", "fclose", "fflush",
    "fopen", "fprintf", "fputs", "fread", "fwrite", "getchar", "getenv", "memchr", "open", "perror", "printf", "qsort",
    "rand", "read", "scanf", "sleep", "snprintf", "sprintf", "stderr", "stdin", "stdout", "strcat", "strchr", "strcmp",
    "strcpy", "strdup", "strerror", "strncmp", "strncpy", "strrchr", "strstr", "strtol", "strtoul", "time", "usleep",
    "vprintf", "write",
];

/// Signed hexadecimal, the sign before the prefix.
fn hex(value: i64) -> String {
    if value < 0 { format!("-{:#x}", value.unsigned_abs()) } else { format!("{value:#x}") }
}

/// Why an image cannot be written as an ELF file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the linked image does not fit an ELF file: {0}")]
pub struct WriteError(pub(crate) String);

impl From<object::write::Error> for WriteError {
    fn from(error: object::write::Error) -> Self {
        Self(error.to_string())
    }
}
