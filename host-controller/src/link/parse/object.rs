//! One relocatable object.

use object::LittleEndian as LE;
use object::elf;
use object::pod::slice_from_all_bytes;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use thiserror::Error;

use super::section::{self, Kind, Relocations, Section};
use super::symbol::{self, Binding, Symbol, SymbolKind};
use crate::link::debug::is_debug;
use crate::link::name::printable;
use crate::link::{Members, ParseError};

type Header = elf::FileHeader64<LE>;
type SectionHeader = elf::SectionHeader64<LE>;

/// A relocatable object, checked.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// Printable; an archive's with the member.
    pub name: String,
    /// `ByNeed`: linked only when something needs it.
    pub members: Members,
    pub support: Support,
    pub sections: Vec<Section<'a>>,
    pub symbols: Vec<Symbol<'a>>,
    /// Index of the first symbol that other objects see.
    pub first_global: usize,
    /// Whether it defines indirect functions.
    pub indirect: bool,
    pub groups: Vec<Group<'a>>,
    /// Sections that are there for the sake of another (`SHF_LINK_ORDER`): (the other, the section).
    pub dependents: Vec<(usize, usize)>,
    /// The relocations of debug sections, unread.
    debug_tables: Vec<DebugTable>,
}

/// Whether an object is of the linker's own archive, whose arrays of functions are not linked for their own sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    No,
    /// What the inputs define goes first.
    Last,
    /// It goes before the inputs' archives.
    First,
}

/// A table of relocations of a debug section.
#[derive(Clone, Copy, Debug)]
struct DebugTable {
    /// The section it relocates.
    section: usize,
    /// The section it is.
    table: usize,
    /// Its `sh_type`.
    sh_type: u32,
}

/// Sections that are kept or dropped together.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    /// What identifies the copies of a group, of which only one is linked; `None` for a group with no copies.
    pub signature: Option<&'a [u8]>,
    pub members: Vec<usize>,
}

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ObjectFault {
    #[error("not an ELF file ({0})")]
    NotElf(&'static str),
    #[error("ELF header is truncated: {0} bytes of 64")]
    Header(usize),
    #[error("not a 64-bit little-endian ELF file (class {class}, data {data})")]
    Class { class: u8, data: u8 },
    #[error("wrong architecture: ELF machine {0}, expected 62 (x86-64)")]
    Machine(u16),
    #[error("not a relocatable object but {0}: not supported yet")]
    Linked(&'static str),
    #[error("not a relocatable object: ELF type {0}")]
    Type(u16),
    #[error("only GCC's LTO code inside: compile without -flto or with -ffat-lto-objects")]
    SlimLto,
    #[error("section headers: {0}")]
    SectionHeaders(String),
    #[error("section {index} ({name}) of {size:#x} bytes at {offset:#x} runs past the end of the file")]
    SectionRange { index: usize, name: String, offset: u64, size: u64 },
    #[error("sections overlap: {sum:#x} bytes of content in a file of {file:#x}")]
    Overlap { sum: u64, file: usize },
    #[error("{table} {index}: name at {offset:#x} is not a string of its string table")]
    Name { table: &'static str, index: usize, offset: u32 },
    #[error("names add up to more than {limit} bytes in a file of {file}")]
    Names { file: usize, limit: usize },
    #[error("more than one symbol table: sections {first} and {second}")]
    SymbolTables { first: usize, second: usize },
    #[error("section {index} is a table of {size} bytes with entries of {entry}, expected {expected}")]
    Table { index: usize, size: usize, entry: u64, expected: usize },
    #[error("section {index}: compact relocations (CREL): {reason}")]
    Crel { index: usize, reason: String },
    #[error("symbol table states {first_global} local symbols and has {symbols}")]
    FirstGlobal { first_global: u32, symbols: usize },
    #[error("symbol {symbol} is local where global ones are, or the reverse")]
    MisplacedSymbol { symbol: usize },
    #[error("symbol {symbol} is in section {section}, of {sections}")]
    SymbolSection { symbol: usize, section: usize, sections: usize },
    #[error("symbol {symbol} has an extended section index, and there is no table of these")]
    NoExtendedIndex { symbol: usize },
    #[error("symbol {symbol} is in the reserved section {section:#x}")]
    ReservedSection { symbol: usize, section: u16 },
    #[error("symbol {symbol} has the unknown binding {binding}")]
    SymbolBinding { symbol: usize, binding: u8 },
    #[error("section {index} links to section {link}, of {sections}")]
    Link { index: usize, link: usize, sections: usize },
    #[error("section {section} has more than one table of relocations: sections {first} and {second}")]
    RelocationTables { section: usize, first: usize, second: usize },
    #[error("section {index} relocates by symbols of section {link}, which is not the symbol table")]
    RelocationSymbols { index: usize, link: usize },
    #[error("group in section {index} is empty or has the unknown flags {flags:#x}")]
    Group { index: usize, flags: u32 },
    #[error("section {section} is in more than one group")]
    Groups { section: usize },
}

impl ObjectFault {
    /// Whether the file is not an object for this machine at all, rather than a broken one.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self, Self::NotElf(_) | Self::Class { .. } | Self::Machine(_) | Self::SlimLto)
    }
}

impl<'a> Object<'a> {
    pub(super) fn parse(name: String, bytes: &'a [u8], members: Members) -> Result<Self, ParseError> {
        match Reader::new(bytes).and_then(Reader::read) {
            Ok(parts) => Ok(Self {
                name,
                members,
                support: Support::No,
                sections: parts.sections,
                symbols: parts.symbols,
                first_global: parts.first_global,
                indirect: parts.indirect,
                groups: parts.groups,
                dependents: parts.dependents,
                debug_tables: parts.debug_tables,
            }),
            Err(fault) => Err(ParseError::Object { file: name, fault }),
        }
    }

    /// The relocations of debug sections, each with the section's index; not those that cannot be read.
    pub(crate) fn debug_relocations(&self) -> impl Iterator<Item = (usize, Relocations<'a>)> {
        self.debug_tables.iter().filter_map(|table| {
            let content = self.sections.get(table.table)?.content;
            let relocations = match table.sh_type {
                elf::SHT_RELA => Relocations::Rela(slice_from_all_bytes(content).ok()?),
                elf::SHT_CREL => Relocations::unpack(content).ok()?,
                _ => return None,
            };
            Some((table.section, relocations))
        })
    }
}

/// The object while it is taken apart.
struct Reader<'a> {
    bytes: &'a [u8],
    headers: &'a [SectionHeader],
    sections: Vec<Section<'a>>,
    symbols: Vec<Symbol<'a>>,
    first_global: usize,
    indirect: bool,
    /// Index of the symbol table's section; 0 when there is none.
    symbol_table: usize,
    groups: Vec<Group<'a>>,
    dependents: Vec<(usize, usize)>,
    debug_tables: Vec<DebugTable>,
    /// How many bytes names may still take in sum: names can share bytes, and without a limit a few kilobytes of headers
    /// that all point at one long name would take quadratic time.
    name_bytes_left: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, ObjectFault> {
        let header = header(bytes)?;
        let malformed = |error: object::read::Error| ObjectFault::SectionHeaders(error.to_string());
        let headers = header.section_headers(LE, bytes).map_err(malformed)?;
        let name_bytes_left = name_limit(bytes);
        let mut reader = Self {
            bytes,
            headers,
            sections: Vec::with_capacity(headers.len()),
            symbols: Vec::new(),
            first_global: 0,
            indirect: false,
            symbol_table: 0,
            groups: Vec::new(),
            dependents: Vec::new(),
            debug_tables: Vec::new(),
            name_bytes_left,
        };
        if !headers.is_empty() {
            let index = header.shstrndx(LE, bytes).map_err(malformed)?;
            let names = reader.content(usize::try_from(index).unwrap_or(usize::MAX))?;
            reader.read_sections(names)?;
        }
        Ok(reader)
    }

    fn read(mut self) -> Result<Self, ObjectFault> {
        self.read_symbols()?;
        for (index, header) in self.headers.iter().enumerate() {
            match header.sh_type.get(LE) {
                elf::SHT_RELA | elf::SHT_REL | elf::SHT_CREL => self.read_relocations(index, header)?,
                elf::SHT_GROUP => self.read_group(index, header)?,
                _ => {}
            }
            if header.sh_flags.get(LE) & u64::from(elf::SHF_LINK_ORDER) != 0 {
                let other = self.section_index(index, header.sh_link.get(LE))?;
                if other != 0 && self.sections.get(index).is_some_and(|section| section.kind != Kind::Aside) {
                    self.dependents.push((other, index));
                }
            }
        }
        self.dependents.sort_unstable();
        Ok(self)
    }

    fn read_sections(&mut self, names: &'a [u8]) -> Result<(), ObjectFault> {
        let mut sum = 0_u64;
        for (index, header) in self.headers.iter().enumerate() {
            let sh_type = header.sh_type.get(LE);
            // Section 0 has no content; its size is the number of sections when that does not fit the header.
            if index == 0 || sh_type == elf::SHT_NULL {
                self.sections.push(Section {
                    name: &[],
                    kind: Kind::Aside,
                    flags: 0,
                    align: 0,
                    size: 0,
                    content: &[],
                    relocations: Relocations::NONE,
                    group: None,
                });
                continue;
            }
            let name = self.name(names, "section", index, header.sh_name.get(LE))?;
            let flags = header.sh_flags.get(LE);
            let content = header.data(LE, self.bytes).map_err(|_| ObjectFault::SectionRange {
                index,
                name: printable(name),
                offset: header.sh_offset.get(LE),
                size: header.sh_size.get(LE),
            })?;
            sum = sum.saturating_add(u64::try_from(content.len()).unwrap_or(u64::MAX));
            self.sections.push(Section {
                name,
                kind: section::kind(sh_type, flags, name),
                flags,
                align: header.sh_addralign.get(LE),
                size: header.sh_size.get(LE),
                content,
                relocations: Relocations::NONE,
                group: None,
            });
        }
        // No tool makes sections that share bytes, and what is linked must not be larger than what was given.
        if sum > u64::try_from(self.bytes.len()).unwrap_or(u64::MAX) {
            return Err(ObjectFault::Overlap { sum, file: self.bytes.len() });
        }
        Ok(())
    }

    fn read_symbols(&mut self) -> Result<(), ObjectFault> {
        let mut table = None;
        let mut extended: &[object::U32Bytes<LE>] = &[];
        for (index, header) in self.headers.iter().enumerate() {
            match header.sh_type.get(LE) {
                elf::SHT_SYMTAB => {
                    if self.symbol_table != 0 {
                        return Err(ObjectFault::SymbolTables { first: self.symbol_table, second: index });
                    }
                    self.symbol_table = index;
                    table = Some(header);
                }
                elf::SHT_SYMTAB_SHNDX => extended = self.table(index, header)?,
                _ => {}
            }
        }
        let Some(header) = table else { return Ok(()) };
        let entries: &[elf::Sym64<LE>] = self.table(self.symbol_table, header)?;
        let names = self.content(self.section_index(self.symbol_table, header.sh_link.get(LE))?)?;
        let first_global = header.sh_info.get(LE);
        self.first_global = usize::try_from(first_global).unwrap_or(usize::MAX);
        if self.first_global > entries.len() {
            return Err(ObjectFault::FirstGlobal { first_global, symbols: entries.len() });
        }
        self.symbols.reserve_exact(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let extended = extended.get(index).map(|entry| entry.get(LE));
            let mut symbol = symbol::decode(entry, index, extended, self.headers.len())?;
            if (symbol.binding == Binding::Local) != (index < self.first_global) {
                return Err(ObjectFault::MisplacedSymbol { symbol: index });
            }
            if !matches!(symbol.kind, SymbolKind::Section | SymbolKind::File) {
                symbol.name = self.name(names, "symbol", index, entry.st_name.get(LE))?;
            }
            self.indirect |= symbol.kind == SymbolKind::Indirect && symbol.position != symbol::Position::Undefined;
            if symbol.name == b"__gnu_lto_slim" {
                return Err(ObjectFault::SlimLto);
            }
            self.symbols.push(symbol);
        }
        Ok(())
    }

    fn read_relocations(&mut self, index: usize, header: &'a SectionHeader) -> Result<(), ObjectFault> {
        let target = self.section_index(index, header.sh_info.get(LE))?;
        let sh_type = header.sh_type.get(LE);
        let Some(section) = self.sections.get(target) else { return Ok(()) };
        if section.kind == Kind::Aside {
            // Nothing that is loaded depends on it: what is wrong here is not looked for.
            if is_debug(section.name) && usize::try_from(header.sh_link.get(LE)) == Ok(self.symbol_table) {
                self.debug_tables.push(DebugTable { section: target, table: index, sh_type });
            }
            return Ok(());
        }
        let link = self.section_index(index, header.sh_link.get(LE))?;
        if link != self.symbol_table {
            return Err(ObjectFault::RelocationSymbols { index, link });
        }
        let relocations = match sh_type {
            elf::SHT_RELA => Relocations::Rela(self.table(index, header)?),
            elf::SHT_CREL => {
                let content = self.sections.get(index).map_or(&[][..], |section| section.content);
                Relocations::unpack(content).map_err(|error| ObjectFault::Crel { index, reason: error.to_string() })?
            }
            other => Relocations::Unreadable(other),
        };
        let Some(section) = self.sections.get_mut(target) else { return Ok(()) };
        if !matches!(section.relocations, Relocations::Rela([])) {
            let first = self.headers.iter().position(|other| {
                let relocates = [elf::SHT_RELA, elf::SHT_REL, elf::SHT_CREL].contains(&other.sh_type.get(LE));
                relocates && other.sh_info.get(LE) == header.sh_info.get(LE)
            });
            return Err(ObjectFault::RelocationTables { section: target, first: first.unwrap_or(0), second: index });
        }
        section.relocations = relocations;
        Ok(())
    }

    fn read_group(&mut self, index: usize, header: &'a SectionHeader) -> Result<(), ObjectFault> {
        let words: &[object::U32Bytes<LE>] = self.table(index, header)?;
        let flags = words.first().map_or(0, |word| word.get(LE));
        let (Some((_, indices)), 0) = (words.split_first(), flags & !elf::GRP_COMDAT) else {
            return Err(ObjectFault::Group { index, flags });
        };
        let signature = match flags {
            0 => None,
            _ => Some(self.signature(index, header)?),
        };
        let mut members = Vec::with_capacity(indices.len());
        for word in indices {
            let member = self.section_index(index, word.get(LE))?;
            let Some(section) = self.sections.get_mut(member) else { continue };
            if section.group.replace(self.groups.len()).is_some() {
                return Err(ObjectFault::Groups { section: member });
            }
            members.push(member);
        }
        self.groups.push(Group { signature, members });
        Ok(())
    }

    /// The name that identifies a group: that of its symbol, or of the section the symbol stands for.
    fn signature(&self, index: usize, header: &SectionHeader) -> Result<&'a [u8], ObjectFault> {
        let missing = ObjectFault::Name { table: "group", index, offset: header.sh_info.get(LE) };
        let symbol = usize::try_from(header.sh_info.get(LE)).ok().and_then(|symbol| self.symbols.get(symbol));
        match symbol {
            Some(Symbol { kind: SymbolKind::Section, position: symbol::Position::Section(section), .. }) => {
                Ok(self.sections.get(*section).map_or(&[], |section| section.name))
            }
            Some(symbol) => Ok(symbol.name),
            None => Err(missing),
        }
    }

    /// `link`, checked to be the index of a section.
    fn section_index(&self, index: usize, link: u32) -> Result<usize, ObjectFault> {
        let link = usize::try_from(link).unwrap_or(usize::MAX);
        if link < self.headers.len() {
            Ok(link)
        } else {
            Err(ObjectFault::Link { index, link, sections: self.headers.len() })
        }
    }

    /// The bytes of section `index`.
    fn content(&self, index: usize) -> Result<&'a [u8], ObjectFault> {
        let missing = ObjectFault::Link { index: 0, link: index, sections: self.headers.len() };
        let header = self.headers.get(index).ok_or(missing)?;
        header.data(LE, self.bytes).map_err(|_| ObjectFault::SectionRange {
            index,
            name: String::from("string table"),
            offset: header.sh_offset.get(LE),
            size: header.sh_size.get(LE),
        })
    }

    /// The entries of section `index`, whose content was read before.
    fn table<T: object::pod::Pod>(&self, index: usize, header: &SectionHeader) -> Result<&'a [T], ObjectFault> {
        let content = self.sections.get(index).map_or(&[][..], |section| section.content);
        let expected = size_of::<T>();
        let entry = header.sh_entsize.get(LE);
        // Some tools leave the entry size of groups and index tables at 0.
        let fits = entry == 0 || usize::try_from(entry) == Ok(expected);
        match slice_from_all_bytes(content) {
            Ok(entries) if fits => Ok(entries),
            _ => Err(ObjectFault::Table { index, size: content.len(), entry, expected }),
        }
    }

    fn name(
        &mut self,
        names: &'a [u8],
        table: &'static str,
        index: usize,
        offset: u32,
    ) -> Result<&'a [u8], ObjectFault> {
        if offset == 0 {
            return Ok(&[]);
        }
        let invalid = || ObjectFault::Name { table, index, offset };
        let tail = usize::try_from(offset).ok().and_then(|start| names.get(start..)).ok_or_else(invalid)?;
        let shown = tail.get(..self.name_bytes_left.saturating_add(1)).unwrap_or(tail);
        match object::read::StringTable::new(shown, 0, u64::try_from(shown.len()).unwrap_or(u64::MAX)).get(0) {
            Ok(name) => {
                self.name_bytes_left = self.name_bytes_left.saturating_sub(name.len());
                Ok(name)
            }
            Err(()) if shown.len() < tail.len() => {
                Err(ObjectFault::Names { file: self.bytes.len(), limit: name_limit(self.bytes) })
            }
            Err(()) => Err(invalid()),
        }
    }
}

/// How long the names of an object may be in sum. String tables share suffixes, so the sum can exceed the file.
fn name_limit(bytes: &[u8]) -> usize {
    bytes.len().saturating_mul(16).saturating_add(4096)
}

fn header(bytes: &[u8]) -> Result<&Header, ObjectFault> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(ObjectFault::NotElf(describe(bytes)));
    }
    let (class, data) = match bytes {
        [_, _, _, _, class, data, ..] => (*class, *data),
        _ => return Err(ObjectFault::Header(bytes.len())),
    };
    if (class, data) != (elf::ELFCLASS64, elf::ELFDATA2LSB) {
        return Err(ObjectFault::Class { class, data });
    }
    let (header, _) = object::pod::from_bytes::<Header>(bytes).map_err(|()| ObjectFault::Header(bytes.len()))?;
    let machine = header.e_machine.get(LE);
    if machine != elf::EM_X86_64 {
        return Err(ObjectFault::Machine(machine));
    }
    match header.e_type.get(LE) {
        elf::ET_REL => Ok(header),
        elf::ET_EXEC => Err(ObjectFault::Linked("a linked executable (ET_EXEC)")),
        elf::ET_DYN => Err(ObjectFault::Linked("a shared object or position-independent executable (ET_DYN)")),
        elf::ET_CORE => Err(ObjectFault::Linked("a core dump (ET_CORE)")),
        other => Err(ObjectFault::Type(other)),
    }
}

/// What a file that is not ELF looks like.
fn describe(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "it is empty",
        [b'B', b'C', 0xc0, 0xde, ..] | [0xde, 0xc0, 0x17, 0x0b, ..] => "it is LLVM bitcode: compile without -flto",
        [0xcf, 0xfa, 0xed, 0xfe, ..] => "it is a Mach-O file",
        [b'M', b'Z', ..] | [0x64, 0x86, ..] => "it is a Windows file",
        [0, b'a', b's', b'm', ..] => "it is a WebAssembly module",
        _ if bytes.iter().take(512).all(|c| c.is_ascii_graphic() || c.is_ascii_whitespace()) => "it is text",
        _ => "its first bytes are not \\x7fELF",
    }
}
