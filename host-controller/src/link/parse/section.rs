//! What the linker makes of a section header.

use std::borrow::Cow;

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::CrelIterator;

pub(crate) type Rela = elf::Rela64<LE>;

/// How many bytes zlib makes of one at most.
const MOST_DEFLATED: usize = 1032;

/// A section of an object, at the object's own index.
#[derive(Clone, Debug)]
pub(crate) struct Section<'a> {
    pub name: &'a [u8],
    pub kind: Kind,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_addralign`, unchecked.
    pub align: u64,
    /// In memory, in bytes.
    pub size: u64,
    /// The bytes in the file: none for zero-fill, `size` many otherwise.
    pub content: &'a [u8],
    pub relocations: Relocations<'a>,
    /// The group the section belongs to, an index into the object's.
    pub group: Option<usize>,
}

/// What a section is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing that is loaded: debug information, the object's own tables, excluded sections.
    Aside,
    /// Bytes.
    Content,
    /// Zeroes that take no room in the file.
    Zero,
    /// Notes to tools; loaded only when something refers to them.
    Note,
    /// Pointers to functions that run before the entry or at unload.
    Array(Array),
    /// `.eh_frame`.
    Unwind,
    /// A type that has no meaning here.
    Unknown(u32),
}

/// An array of pointers to functions that run before the entry or at unload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub role: Role,
    /// Smaller runs earlier (later at unload).
    pub priority: u32,
    /// Whether the entries count from the end (`.ctors`, `.dtors`).
    pub backwards: bool,
}

/// When the functions of an array run. The order is that of execution before the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Preinit,
    Init,
    Fini,
}

/// The relocations that apply to a section.
#[derive(Clone, Debug)]
pub(crate) enum Relocations<'a> {
    Rela(&'a [Rela]),
    /// `SHT_CREL`, unpacked.
    Compact(Box<[Rela]>),
    /// A form x86-64 objects do not use (`SHT_REL`).
    Unreadable(u32),
}

impl Relocations<'_> {
    pub(crate) const NONE: Self = Self::Rela(&[]);

    /// The entries; none where the form cannot be read, which is an error for every section of the image.
    pub(crate) fn entries(&self) -> &[Rela] {
        match self {
            Self::Rela(entries) => entries,
            Self::Compact(entries) => entries,
            Self::Unreadable(_) => &[],
        }
    }

    /// Unpacks the content of a `SHT_CREL` section; what its entries lack an addend for is as unreadable as `SHT_REL`.
    pub(super) fn unpack(content: &[u8]) -> object::read::Result<Self> {
        let packed = CrelIterator::new(content)?;
        if !packed.is_rela() {
            return Ok(Self::Unreadable(elf::SHT_REL));
        }
        // As many as are there, whatever number the header states: each takes a byte at least.
        let unpacked = packed.map(|entry| {
            let entry = entry?;
            let info = u64::from(entry.r_sym) << 32 | u64::from(entry.r_type);
            Ok(Rela {
                r_offset: object::U64::new(LE, entry.r_offset),
                r_info: object::U64::new(LE, info),
                r_addend: object::I64::new(LE, entry.r_addend),
            })
        });
        unpacked.collect::<object::read::Result<_>>().map(Self::Compact)
    }
}

impl<'a> Section<'a> {
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & u64::from(flag) != 0
    }

    /// Whether it holds instructions.
    pub(crate) fn is_code(&self) -> bool {
        self.has(elf::SHF_EXECINSTR)
    }

    /// The content, unpacked where it is packed; `None` when it cannot be, or not by zlib.
    pub(crate) fn unpacked(&self) -> Option<Cow<'a, [u8]>> {
        if !self.has(elf::SHF_COMPRESSED) {
            return Some(Cow::Borrowed(self.content));
        }
        let (header, packed) = object::pod::from_bytes::<elf::CompressionHeader64<LE>>(self.content).ok()?;
        if header.ch_type.get(LE) != elf::ELFCOMPRESS_ZLIB {
            return None;
        }
        // Deflate makes no more of its input, whatever the header states.
        let most = packed.len().saturating_mul(MOST_DEFLATED);
        let size = usize::try_from(header.ch_size.get(LE)).ok().filter(|size| *size <= most)?;
        decompress_to_vec_zlib_with_limit(packed, size).ok().map(Cow::Owned)
    }

    /// Whether a name like this lets C code ask for `__start_<name>` and `__stop_<name>`.
    pub(crate) fn is_c_identifier(&self) -> bool {
        let head = self.name.first().is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
        head && self.name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
    }
}

/// What a section is for, from its type, flags and name.
pub(super) fn kind(sh_type: u32, flags: u64, name: &[u8]) -> Kind {
    if flags & u64::from(elf::SHF_ALLOC) == 0 || flags & u64::from(elf::SHF_EXCLUDE) != 0 {
        return Kind::Aside;
    }
    match sh_type {
        elf::SHT_NULL | elf::SHT_GROUP | elf::SHT_SYMTAB | elf::SHT_STRTAB => Kind::Aside,
        // LLVM and rustc give `.eh_frame` the type the psABI reserved for it, GNU as gives it PROGBITS.
        elf::SHT_PROGBITS | elf::SHT_X86_64_UNWIND if name == b".eh_frame" => Kind::Unwind,
        elf::SHT_PROGBITS | elf::SHT_INIT_ARRAY | elf::SHT_FINI_ARRAY | elf::SHT_PREINIT_ARRAY => {
            array(sh_type, name).map_or(Kind::Content, Kind::Array)
        }
        elf::SHT_NOBITS => Kind::Zero,
        elf::SHT_X86_64_UNWIND => Kind::Content,
        elf::SHT_NOTE => Kind::Note,
        other => Kind::Unknown(other),
    }
}

/// Objects of old compilers call arrays of pointers PROGBITS: the name decides, and the type where it says more.
fn array(sh_type: u32, name: &[u8]) -> Option<Array> {
    const LAST: u32 = 65536;
    let (stem, number) = match name.iter().rposition(|&c| c == b'.') {
        Some(dot) if dot > 0 => {
            let (stem, number) = name.split_at(dot);
            (stem, std::str::from_utf8(number.get(1..).unwrap_or(&[])).ok().and_then(|n| n.parse::<u32>().ok()))
        }
        _ => (name, None),
    };
    let forwards = |role| Array { role, priority: number.unwrap_or(LAST), backwards: false };
    // `.ctors.N` counts the other way round.
    let backwards =
        |role| Array { role, priority: number.map_or(LAST, |n| 65535_u32.saturating_sub(n)), backwards: true };
    Some(match (stem, sh_type) {
        (b".preinit_array", _) | (_, elf::SHT_PREINIT_ARRAY) => forwards(Role::Preinit),
        (b".init_array", _) | (_, elf::SHT_INIT_ARRAY) => forwards(Role::Init),
        (b".fini_array", _) | (_, elf::SHT_FINI_ARRAY) => forwards(Role::Fini),
        (b".ctors", _) => backwards(Role::Init),
        (b".dtors", _) => backwards(Role::Fini),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_known_by_name_or_type_and_ordered_by_number() {
        let init = |priority| Some(Array { role: Role::Init, priority, backwards: false });
        assert_eq!(array(elf::SHT_INIT_ARRAY, b".init_array"), init(65536));
        assert_eq!(array(elf::SHT_INIT_ARRAY, b".init_array.00101"), init(101));
        assert_eq!(array(elf::SHT_PROGBITS, b".init_array.7"), init(7));
        assert_eq!(array(elf::SHT_INIT_ARRAY, b"renamed"), init(65536));
        let ctors = array(elf::SHT_PROGBITS, b".ctors.65434").unwrap();
        assert_eq!((ctors.role, ctors.priority, ctors.backwards), (Role::Init, 101, true));
        assert_eq!(array(elf::SHT_PROGBITS, b".ctors").unwrap().priority, 65536);
        assert_eq!(array(elf::SHT_PROGBITS, b".ctors_table"), None);
        assert_eq!(array(elf::SHT_PROGBITS, b".text.init_array"), None);
    }

    #[test]
    fn excluded_and_unallocated_sections_are_put_aside() {
        let alloc = u64::from(elf::SHF_ALLOC);
        assert_eq!(kind(elf::SHT_PROGBITS, 0, b".debug_info"), Kind::Aside);
        assert_eq!(kind(elf::SHT_PROGBITS, alloc | u64::from(elf::SHF_EXCLUDE), b".rmeta"), Kind::Aside);
        assert_eq!(kind(elf::SHT_X86_64_UNWIND, alloc, b".eh_frame"), Kind::Unwind);
        assert_eq!(kind(elf::SHT_DYNAMIC, alloc, b".dynamic"), Kind::Unknown(elf::SHT_DYNAMIC));
    }
}
