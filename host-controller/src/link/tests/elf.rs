//! Writes relocatable objects field by field, right or wrong as a test needs them.

use object::elf;

pub(super) const ALLOC: u64 = elf::SHF_ALLOC as u64;
pub(super) const WRITE: u64 = ALLOC | elf::SHF_WRITE as u64;
pub(super) const EXEC: u64 = ALLOC | elf::SHF_EXECINSTR as u64;

/// An object under construction. Section 0 and symbol 0 exist; user sections and symbols get the numbers the methods
/// return.
#[derive(Clone, Debug, Default)]
pub(super) struct Elf {
    pub sections: Vec<Shdr>,
    pub symbols: Vec<Sym>,
    /// Per section number.
    pub relocations: Vec<(usize, Vec<Entry>)>,
    /// `(comdat, signature symbol number, member sections)`.
    pub groups: Vec<(bool, usize, Vec<usize>)>,
}

/// `(offset, type, symbol number, addend)`.
pub(super) type Entry = (u64, u32, usize, i64);

#[derive(Clone, Debug)]
pub(super) struct Shdr {
    pub name: String,
    pub sh_type: u32,
    pub flags: u64,
    pub content: Vec<u8>,
    pub size: u64,
    pub align: u64,
    pub link: u32,
    pub info: u32,
    pub entsize: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Sym {
    pub name: String,
    pub bind: u8,
    pub kind: u8,
    pub other: u8,
    /// A section number, or a reserved one above 0xffff_0000 (`RESERVED | SHN_ABS`).
    pub section: usize,
    pub value: u64,
    pub size: u64,
}

pub(super) const RESERVED: usize = 0xffff_0000;
pub(super) const ABS: usize = RESERVED | elf::SHN_ABS as usize;
pub(super) const COMMON: usize = RESERVED | elf::SHN_COMMON as usize;
pub(super) const UNDEF: usize = 0;

impl Elf {
    pub(super) fn section(&mut self, name: &str, flags: u64, content: &[u8]) -> usize {
        self.raw_section(name, elf::SHT_PROGBITS, flags, content)
    }

    pub(super) fn raw_section(&mut self, name: &str, sh_type: u32, flags: u64, content: &[u8]) -> usize {
        self.sections.push(Shdr {
            name: name.to_owned(),
            sh_type,
            flags,
            content: content.to_vec(),
            size: content.len() as u64,
            align: 1,
            link: 0,
            info: 0,
            entsize: 0,
        });
        self.sections.len()
    }

    pub(super) fn zero(&mut self, name: &str, flags: u64, size: u64) -> usize {
        let index = self.raw_section(name, elf::SHT_NOBITS, flags, &[]);
        self.sections[index - 1].size = size;
        index
    }

    pub(super) fn align(&mut self, section: usize, align: u64) {
        self.sections[section - 1].align = align;
    }

    /// A global symbol; `section` 0 makes it undefined.
    pub(super) fn symbol(&mut self, name: &str, section: usize, value: u64) -> usize {
        self.raw_symbol(name, elf::STB_GLOBAL, elf::STT_NOTYPE, section, value)
    }

    pub(super) fn weak(&mut self, name: &str, section: usize, value: u64) -> usize {
        self.raw_symbol(name, elf::STB_WEAK, elf::STT_NOTYPE, section, value)
    }

    pub(super) fn local(&mut self, name: &str, section: usize, value: u64) -> usize {
        self.raw_symbol(name, elf::STB_LOCAL, elf::STT_NOTYPE, section, value)
    }

    pub(super) fn common(&mut self, name: &str, size: u64, align: u64) -> usize {
        let index = self.symbol(name, COMMON, align);
        self.symbols[index - 1].size = size;
        index
    }

    pub(super) fn raw_symbol(&mut self, name: &str, bind: u8, kind: u8, section: usize, value: u64) -> usize {
        self.symbols.push(Sym { name: name.to_owned(), bind, kind, other: 0, section, value, size: 0 });
        self.symbols.len()
    }

    pub(super) fn relocate(&mut self, section: usize, offset: u64, r_type: u32, symbol: usize, addend: i64) {
        let entry = (offset, r_type, symbol, addend);
        match self.relocations.iter_mut().find(|(target, _)| *target == section) {
            Some((_, entries)) => entries.push(entry),
            None => self.relocations.push((section, vec![entry])),
        }
    }

    /// Adds a code section with `main` at its start, whose only instruction is `ret`.
    pub(super) fn with_main() -> Self {
        let mut elf = Self::default();
        let text = elf.section(".text.main", EXEC, &[0xc3]);
        elf.symbol("main", text, 0);
        elf
    }

    pub(super) fn build(&self) -> Vec<u8> {
        let mut order: Vec<usize> = (0..self.symbols.len()).collect();
        order.sort_by_key(|index| self.symbols[*index].bind != elf::STB_LOCAL);
        let mut numbers: Vec<usize> = vec![0; order.len() + 1];
        order.iter().enumerate().for_each(|(at, index)| numbers[index + 1] = at + 1);
        // A number nobody handed out stays as it is: the test wants it wrong.
        let number = |symbol: usize| numbers.get(symbol).copied().unwrap_or(symbol);
        let locals = order.iter().filter(|index| self.symbols[**index].bind == elf::STB_LOCAL).count();
        let mut sections = self.sections.clone();
        let symtab = sections.len() + self.relocations.len() + self.groups.len() + 1;
        for (target, entries) in &self.relocations {
            let mut content = Vec::new();
            for (offset, r_type, symbol, addend) in entries {
                content.extend(offset.to_le_bytes());
                content.extend(((number(*symbol) as u64) << 32 | u64::from(*r_type)).to_le_bytes());
                content.extend(addend.to_le_bytes());
            }
            sections.push(table(".rela", elf::SHT_RELA, content, symtab, *target, 24));
        }
        for (comdat, signature, members) in &self.groups {
            let words = [u32::from(*comdat)].into_iter().chain(members.iter().map(|member| *member as u32));
            let content = words.flat_map(u32::to_le_bytes).collect();
            sections.push(table(".group", elf::SHT_GROUP, content, symtab, number(*signature), 4));
        }
        let mut strings = vec![0];
        let (mut symbols, mut extended) = (vec![0; 24], vec![0; 4]);
        for index in order {
            let symbol = &self.symbols[index];
            let far = symbol.section < RESERVED && symbol.section >= usize::from(elf::SHN_LORESERVE);
            let shndx = if far { elf::SHN_XINDEX } else { symbol.section as u16 };
            symbols.extend(string(&mut strings, &symbol.name).to_le_bytes());
            symbols.extend([symbol.bind << 4 | symbol.kind, symbol.other]);
            symbols.extend(shndx.to_le_bytes());
            symbols.extend(symbol.value.to_le_bytes());
            symbols.extend(symbol.size.to_le_bytes());
            extended.extend(if far { symbol.section as u32 } else { 0 }.to_le_bytes());
        }
        sections.push(table(".symtab", elf::SHT_SYMTAB, symbols, symtab + 2, locals + 1, 24));
        sections.push(table(".symtab_shndx", elf::SHT_SYMTAB_SHNDX, extended, symtab, 0, 4));
        sections.push(table(".strtab", elf::SHT_STRTAB, strings, 0, 0, 0));
        write(&mut sections)
    }
}

fn table(name: &str, sh_type: u32, content: Vec<u8>, link: usize, info: usize, entsize: u64) -> Shdr {
    let size = content.len() as u64;
    let (link, info) = (link as u32, info as u32);
    Shdr { name: name.to_owned(), sh_type, flags: 0, content, size, align: 8, link, info, entsize }
}

fn string(strings: &mut Vec<u8>, text: &str) -> u32 {
    if text.is_empty() {
        return 0;
    }
    let offset = strings.len() as u32;
    strings.extend(text.as_bytes());
    strings.push(0);
    offset
}

fn write(sections: &mut Vec<Shdr>) -> Vec<u8> {
    let mut names = vec![0];
    let mut offsets: Vec<u32> = sections.iter().map(|section| string(&mut names, &section.name)).collect();
    offsets.push(string(&mut names, ".shstrtab"));
    sections.push(table(".shstrtab", elf::SHT_STRTAB, names, 0, 0, 0));
    let count = sections.len() + 1;
    let mut file = vec![0; 64];
    let mut headers = Vec::new();
    let extended = count >= usize::from(elf::SHN_LORESERVE);
    let first = [0, if extended { count as u64 } else { 0 }];
    let name_table = (count - 1) as u32;
    header(&mut headers, 0, 0, [0, first[0], first[1]], if extended { name_table } else { 0 }, 0, 0, 0);
    for (section, name) in sections.iter().zip(offsets) {
        let (flags, size) = (section.flags, section.size);
        let place = [flags, file.len() as u64, size];
        header(&mut headers, name, section.sh_type, place, section.link, section.info, section.align, section.entsize);
        file.extend(&section.content);
    }
    let shoff = file.len() as u64;
    file.extend(headers);
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file[16..18].copy_from_slice(&elf::ET_REL.to_le_bytes());
    file[18..20].copy_from_slice(&elf::EM_X86_64.to_le_bytes());
    file[20] = 1;
    file[40..48].copy_from_slice(&shoff.to_le_bytes());
    file[52] = 64;
    file[58] = 64;
    if extended {
        file[62..64].copy_from_slice(&elf::SHN_XINDEX.to_le_bytes());
    } else {
        file[60..62].copy_from_slice(&(count as u16).to_le_bytes());
        file[62..64].copy_from_slice(&(name_table as u16).to_le_bytes());
    }
    file
}

#[expect(clippy::too_many_arguments, reason = "the fields of a section header")]
fn header(
    out: &mut Vec<u8>,
    name: u32,
    sh_type: u32,
    [flags, offset, size]: [u64; 3],
    link: u32,
    info: u32,
    align: u64,
    entsize: u64,
) {
    out.extend(name.to_le_bytes());
    out.extend(sh_type.to_le_bytes());
    for word in [flags, 0, offset, size] {
        out.extend(word.to_le_bytes());
    }
    out.extend(link.to_le_bytes());
    out.extend(info.to_le_bytes());
    out.extend(align.to_le_bytes());
    out.extend(entsize.to_le_bytes());
}
