//! The linked image as an ELF file at its final addresses, for debuggers and disassemblers.

use object::elf;
use object::write::StringId;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};

use super::error::WriteError;
use super::image::{Image, Segment};

/// What a debugger needs the file to hold the segments at: their offset in the file and in memory agree in a page.
const FILE_ALIGN: usize = 4096;

/// A section of the file: a segment, or what of it has no content.
struct Part<'s> {
    segment: &'s Segment,
    zero: bool,
    name: StringId,
    offset: usize,
}

impl Image<'_> {
    /// The image as an executable ELF file: a section and a program header for each segment, and all symbols. It is for
    /// people and their tools; nothing loads it.
    ///
    /// # Errors
    /// When it does not fit the form.
    pub fn to_elf(&self) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::new();
        let mut writer = Writer::new(object::Endianness::Little, true, &mut out);
        writer.reserve_file_header();
        let filled: Vec<_> = self.segments.iter().filter(|segment| segment.size > 0).collect();
        writer.reserve_program_headers(u32::try_from(filled.len()).unwrap_or(u32::MAX));
        writer.reserve_null_section_index();
        let mut parts = Vec::new();
        let mut indices = Vec::new();
        for segment in filled {
            if !segment.content.is_empty() {
                let offset = writer.reserve(segment.content.len(), FILE_ALIGN);
                indices.push(writer.reserve_section_index());
                parts.push(Part { segment, zero: false, name: writer.add_section_name(name(segment)), offset });
            }
            if segment.group.prot.is_writable() && zero_fill(segment) > 0 {
                indices.push(writer.reserve_section_index());
                parts.push(Part { segment, zero: true, name: writer.add_section_name(b".bss"), offset: 0 });
            }
        }
        let symbols = self.symbols();
        writer.reserve_null_symbol_index();
        let strings: Vec<_> = symbols
            .iter()
            .map(|symbol| {
                writer.reserve_symbol_index(None);
                writer.add_string(symbol.name)
            })
            .collect();
        writer.reserve_symtab_section_index();
        writer.reserve_symtab();
        writer.reserve_strtab_section_index();
        writer.reserve_strtab();
        writer.reserve_shstrtab_section_index();
        writer.reserve_shstrtab();
        writer.reserve_section_headers();

        writer.write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_EXEC,
            e_machine: elf::EM_X86_64,
            e_entry: self.entry.unwrap_or_default().0,
            e_flags: 0,
        })?;
        writer.write_align_program_headers();
        for segment in self.segments.iter().filter(|segment| segment.size > 0) {
            let offset = parts.iter().find(|part| !part.zero && std::ptr::eq(part.segment, segment));
            writer.write_program_header(&ProgramHeader {
                p_type: elf::PT_LOAD,
                p_flags: flags(segment),
                p_offset: offset.map_or(0, |part| part.offset as u64),
                p_vaddr: segment.addr.0,
                p_paddr: segment.addr.0,
                p_filesz: segment.content.len() as u64,
                p_memsz: segment.size,
                p_align: FILE_ALIGN as u64,
            });
        }
        for part in parts.iter().filter(|part| !part.zero) {
            writer.write_align(FILE_ALIGN);
            writer.write(&part.segment.content);
        }
        writer.write_null_symbol();
        // Local symbols come first, as the form has it; `symbols` is in address order.
        let (local, global): (Vec<_>, Vec<_>) = symbols.iter().zip(&strings).partition(|(symbol, _)| !symbol.exported);
        let first_global = local.len() + 1;
        for (symbol, name) in local.into_iter().chain(global) {
            let kind = match (symbol.function, symbol.range.is_empty()) {
                (true, _) => elf::STT_FUNC,
                (false, false) => elf::STT_OBJECT,
                (false, true) => elf::STT_NOTYPE,
            };
            let binding = if symbol.exported { elf::STB_GLOBAL } else { elf::STB_LOCAL };
            let at = symbol.range.start().0;
            let section = parts.iter().zip(&indices).find(|(part, _)| part.start() <= at && at < part.end());
            writer.write_symbol(&Sym {
                name: Some(*name),
                section: section.map(|(_, index)| *index),
                st_info: binding << 4 | kind,
                st_other: elf::STV_DEFAULT,
                st_shndx: if section.is_some() { 0 } else { elf::SHN_ABS },
                st_value: at,
                st_size: symbol.range.len(),
            });
        }
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        for part in &parts {
            writer.write_section_header(&part.header());
        }
        writer.write_symtab_section_header(u32::try_from(first_global).unwrap_or(u32::MAX));
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
        Ok(out)
    }
}

impl Part<'_> {
    fn start(&self) -> u64 {
        let skipped = if self.zero { self.segment.content.len() as u64 } else { 0 };
        self.segment.addr.0.wrapping_add(skipped)
    }

    fn end(&self) -> u64 {
        self.start().wrapping_add(if self.zero { zero_fill(self.segment) } else { self.segment.content.len() as u64 })
    }

    fn header(&self) -> SectionHeader {
        let prot = self.segment.group.prot;
        let access = match (prot.is_writable(), prot.is_executable()) {
            (true, _) => elf::SHF_WRITE,
            (_, true) => elf::SHF_EXECINSTR,
            _ => 0,
        };
        SectionHeader {
            name: Some(self.name),
            sh_type: if self.zero { elf::SHT_NOBITS } else { elf::SHT_PROGBITS },
            sh_flags: u64::from(elf::SHF_ALLOC | access),
            sh_addr: self.start(),
            sh_offset: self.offset as u64,
            sh_size: self.end().wrapping_sub(self.start()),
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
        }
    }
}

fn zero_fill(segment: &Segment) -> u64 {
    segment.size.saturating_sub(segment.content.len() as u64)
}

/// What disassemblers and debuggers know such contents by.
fn name(segment: &Segment) -> &'static [u8] {
    match (segment.group.prot.is_writable(), segment.group.prot.is_executable()) {
        (true, _) => b".data",
        (_, true) => b".text",
        _ => b".rodata",
    }
}

fn flags(segment: &Segment) -> u32 {
    let prot = segment.group.prot;
    elf::PF_R | if prot.is_writable() { elf::PF_W } else { 0 } | if prot.is_executable() { elf::PF_X } else { 0 }
}
