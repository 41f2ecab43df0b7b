//! What files are accepted as, and what is said of the others.

use super::elf::{EXEC, Elf};
use super::{BASE, link, link_at, options};
use crate::link::{Input, parse, thin_members};
use object::elf::*;

/// A GNU archive without an index.
pub(super) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = b"!<arch>\n".to_vec();
    for (name, content) in members {
        member(&mut file, &format!("{name}/"), content);
    }
    file
}

fn member(file: &mut Vec<u8>, name: &str, content: &[u8]) {
    header(file, name, content.len());
    file.extend(content);
    if !content.len().is_multiple_of(2) {
        file.push(b'\n');
    }
}

fn header(file: &mut Vec<u8>, name: &str, size: usize) {
    file.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 644).bytes());
}

fn parse_error(name: &str, bytes: &[u8]) -> String {
    match parse(&[Input::new(name, bytes)]) {
        Ok(objects) => panic!("parsed: {objects:?}"),
        Err(error) => error.to_string(),
    }
}

/// The error for an object with `bytes` at `offset`.
fn patched(offset: usize, bytes: &[u8]) -> String {
    let mut file = Elf::with_main().build();
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
    parse_error("x.o", &file)
}

#[test]
fn other_files_are_named_for_what_they_are() {
    assert_eq!(parse_error("x", b""), "x: not an ELF file (it is empty)");
    assert_eq!(parse_error("x.c", b"int main(void) {}\n"), "x.c: not an ELF file (it is text)");
    assert!(parse_error("x.bc", b"BC\xc0\xde....").contains("LLVM bitcode"));
    assert_eq!(parse_error("x", b"\x7fELF"), "x: ELF header is truncated: 4 bytes of 64");
    assert_eq!(patched(4, &[1]), "x.o: not a 64-bit little-endian ELF file (class 1, data 1)");
    assert_eq!(patched(18, &[183, 0]), "x.o: wrong architecture: ELF machine 183, expected 62 (x86-64)");
    assert!(patched(16, &[2, 0]).contains("a linked executable (ET_EXEC): not supported yet"));
    assert!(patched(16, &[3, 0]).contains("(ET_DYN): not supported yet"));
    assert_eq!(patched(16, &[9, 0]), "x.o: not a relocatable object: ELF type 9");
}

#[test]
fn section_headers_are_checked() {
    assert!(patched(58, &[40]).starts_with("x.o: section headers: "));
    assert!(patched(40, &[0xff; 8]).starts_with("x.o: section headers: "));
    assert!(patched(60, &[0xff, 0xfe]).starts_with("x.o: section headers: "));
    assert_eq!(patched(62, &[200, 0]), "x.o: section 0 links to section 200, of 6");
}

#[test]
fn tables_are_checked_field_by_field() {
    let error = |change: fn(&mut Elf)| {
        let mut elf = Elf::with_main();
        change(&mut elf);
        parse_error("x.o", &elf.build())
    };
    assert_eq!(error(|elf| elf.symbols[0].section = 99), "x.o: symbol 1 is in section 99, of 6");
    assert_eq!(error(|elf| elf.symbols[0].section = 0xff77), "x.o: symbol 1 is in section 65399, of 6");
    assert_eq!(error(|elf| elf.symbols[0].section = 0xffff_ff77), "x.o: symbol 1 is in the reserved section 0xff77");
    assert_eq!(error(|elf| elf.symbols[0].bind = 7), "x.o: symbol 1 has the unknown binding 7");
    assert_eq!(
        error(|elf| elf.sections[0].size = 1 << 40),
        "x.o: section 1 (.text.main) of 0x10000000000 bytes at 0x40 runs past the end of the file"
    );
    assert_eq!(
        error(|elf| elf.groups.push((true, 77, vec![1]))),
        "x.o: group 2: name at 0x4d is not a string of its string table"
    );
    assert_eq!(error(|elf| elf.groups.push((true, 1, vec![77]))), "x.o: section 2 links to section 77, of 7");
    assert_eq!(
        error(|elf| (0..2).for_each(|_| elf.groups.push((true, 1, vec![1])))),
        "x.o: section 1 is in more than one group"
    );
    assert_eq!(
        error(|elf| {
            elf.relocate(1, 0, R_X86_64_NONE, 0, 0);
            elf.relocations.push(elf.relocations[0].clone());
        }),
        "x.o: section 1 has more than one table of relocations: sections 2 and 3"
    );
}

#[test]
fn relocations_name_symbols_that_exist() {
    let mut elf = Elf::with_main();
    elf.relocate(1, 0, R_X86_64_NONE, 500, 0);
    assert_eq!(super::error(&[elf.build()]), "0.o: .text.main+0x0: relocation refers to symbol 500, of 2");
    let mut elf = Elf::with_main();
    let gone = elf.raw_symbol("gone", STB_LOCAL, STT_NOTYPE, 0, 0);
    elf.relocate(1, 0, R_X86_64_NONE, gone, 0);
    assert!(super::error(&[elf.build()]).ends_with("refers to gone, which is local and not defined"));
}

#[test]
fn overlapping_sections_are_refused() {
    let mut file = Elf::with_main();
    file.section(".big", EXEC, &[0x90; 4000]);
    let bytes = file.build();
    // Make `.text.main` cover what `.big` covers.
    let shoff = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let mut bytes = bytes;
    bytes[shoff + 64 + 32..][..8].copy_from_slice(&4000_u64.to_le_bytes());
    assert!(parse_error("x.o", &bytes).starts_with("x.o: sections overlap: "));
}

#[test]
fn names_may_share_bytes_but_not_without_end() {
    let mut elf = Elf::with_main();
    let long = "x".repeat(1 << 20);
    elf.symbol(&long, 1, 0);
    assert!(link(&[elf.build()], &[]).is_ok(), "one long name is a name");
    for _ in 0..100 {
        elf.symbol("y", 1, 0);
    }
    let mut bytes = elf.build();
    // Point the short names at the long one.
    let shoff = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let symtab = (0..6).map(|index| shoff + index * 64).find(|at| bytes[at + 4] == 2).unwrap();
    let offset = u64::from_le_bytes(bytes[symtab + 24..][..8].try_into().unwrap()) as usize;
    let name = bytes[offset + 24 * 2..][..4].to_vec();
    (3..103).for_each(|index| bytes[offset + 24 * index..][..4].copy_from_slice(&name));
    assert!(parse_error("x.o", &bytes).starts_with("x.o: names add up to more than "));
}

#[test]
fn unreadable_relocations_are_errors_where_they_are_needed() {
    for (sh_type, text) in [(SHT_REL, "SHT_REL"), (SHT_CREL, "CREL")] {
        for (target, fails) in [(1, true), (2, false)] {
            let mut elf = Elf::with_main();
            elf.section(".debug_info", 0, &[0; 8]);
            let table = elf.raw_section(".rel", sh_type, 0, &[]);
            elf.sections[table - 1].info = target;
            elf.sections[table - 1].link = table as u32 + 1;
            match link(&[elf.build()], &[]) {
                Ok(_) => assert!(!fails),
                Err(error) => assert!(fails && error.to_string().contains(text), "{error}"),
            }
        }
    }
}

#[test]
fn compact_relocations_that_lie_are_errors() {
    let with = |packed: &[u8]| {
        let mut elf = Elf::with_main();
        let table = elf.raw_section(".crel.text", SHT_CREL, 0, packed);
        elf.sections[table - 1].info = 1;
        elf.sections[table - 1].link = table as u32 + 1;
        link(&[elf.build()], &[])
    };
    // The header counts entries, in units of 8; 4 says that they have addends.
    assert!(with(&[4]).is_ok());
    for (packed, words) in [
        (&[8 + 4][..], "compact relocations (CREL)"),
        // More entries than any file holds, and numbers that do not end.
        (&[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "compact relocations (CREL)"),
        (&[0x80; 20], "compact relocations (CREL)"),
        (&[8 + 4, 0xff, 0x80, 0x80], "compact relocations (CREL)"),
        // Without addends.
        (&[8, 0], "SHT_REL"),
        // A type, a symbol and a place that are not there.
        (&[8 + 4, 2, 0x7f], "relocation"),
        (&[8 + 4, 1, 0x3f], ""),
    ] {
        let error = with(packed).unwrap_err().to_string();
        assert!(error.contains(words), "{packed:x?}: {error}");
    }
}

#[test]
fn archives_of_every_kind_are_read() {
    let main = Elf::with_main().build();
    let linked =
        |bytes: &[u8]| link_at(BASE, &[Input::new("lib.a", bytes)], &options(), &[]).map(|linked| linked.entry);
    let plain = archive(&[("a.txt", b"odd"), ("m.o", &main)]);
    assert!(linked(&plain).unwrap().is_some());
    for index in ["/", "/SYM64/", "__.SYMDEF"] {
        let mut file = b"!<arch>\n".to_vec();
        member(&mut file, index, &[0; 8]);
        if index != "__.SYMDEF" {
            member(&mut file, "//", b"a_name_longer_than_fifteen_bytes.o/\n");
            member(&mut file, "/0", &main);
        } else {
            let mut long = b"a_name_longer_than_fifteen_bytes.o\0\0".to_vec();
            long.extend(&main);
            member(&mut file, "#1/36", &long);
        }
        assert!(linked(&file).unwrap().is_some(), "{index}");
    }
    let mut foreign = main.clone();
    foreign[18] = 183;
    let error = linked(&archive(&[("arm.o", &foreign), ("note.txt", b"hi")])).unwrap_err().to_string();
    assert_eq!(
        error,
        "undefined entry symbol: main\nnot searched:\n\
         lib.a(arm.o): wrong architecture: ELF machine 183, expected 62 (x86-64)\n\
         lib.a(note.txt): not an ELF file (it is text)"
    );
    assert!(linked(&archive(&[])).is_err());
}

#[test]
fn thin_archives_need_their_members() {
    let main = Elf::with_main().build();
    let mut file = b"!<thin>\n".to_vec();
    member(&mut file, "//", b"dir/m.o/\n");
    header(&mut file, "/0", main.len());
    assert_eq!(thin_members("t.a", &file).unwrap(), ["dir/m.o"]);
    assert_eq!(parse_error("t.a", &file), "t.a: thin archive: its member dir/m.o was not read");
    let mut input = Input::new("t.a", &file[..]);
    input.thin = vec![("dir/m.o".to_owned(), &main)];
    assert!(link_at(BASE, &[input], &options(), &[]).is_ok());
    assert_eq!(thin_members("m.o", &main).unwrap(), Vec::<String>::new());
}

#[test]
fn broken_archives_are_named_with_the_member() {
    let main = Elf::with_main().build();
    let whole = archive(&[("a.o", &main), ("b.o", &main)]);
    let cut = &whole[..whole.len() - 10];
    assert!(parse_error("l.a", cut).starts_with("l.a: archive is truncated: member b.o of "));
    assert!(parse_error("l.a", &whole[..100]).contains("member a.o"));
    assert!(parse_error("l.a", &whole[..30]).starts_with("l.a: archive is malformed after 0 members: "));
    for index in ["/", "/SYM64/", "__.SYMDEF"] {
        let mut lying = b"!<arch>\n".to_vec();
        header(&mut lying, index, 1_000_000);
        lying.extend([0; 32]);
        member(&mut lying, "m.o", &main);
        assert_eq!(
            parse_error("l.a", &lying),
            "l.a: archive is truncated: member (the index) of 1000000 bytes runs past the end"
        );
    }
    let broken = archive(&[("a.o", &main[..main.len() - 70])]);
    assert!(parse_error("l.a", &broken).starts_with("l.a(a.o): "));
}

#[test]
fn more_sections_than_sixteen_bits_count() {
    let mut elf = Elf::default();
    for _ in 0..0xff20 {
        elf.section(".note", 0, &[]);
    }
    let text = elf.section(".text", EXEC, &[0xc3]);
    elf.symbol("main", text, 0);
    assert_eq!(link(&[elf.build()], &[]).unwrap().entry.unwrap().0, BASE);
}
