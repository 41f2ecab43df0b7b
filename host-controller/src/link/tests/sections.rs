//! What becomes of sections: which are part of the image, in which order, and where.

use graft_protocol::Prot;
use object::elf::*;

use super::elf::{ALLOC, EXEC, Elf, UNDEF, WRITE};
use super::{BASE, Linked, error, inputs, link, link_at, options};
use crate::link::{Collect, Options, Unwind};

/// Links with everything kept, whether something refers to it or not.
fn link_all(files: &[Vec<u8>]) -> Linked {
    link_at(BASE, &inputs(files), &Options { collect: Collect::All, ..options() }, &[]).unwrap()
}

fn all_error(elf: &Elf) -> String {
    let files = [elf.build()];
    let options = Options { collect: Collect::All, ..options() };
    link_at(BASE, &inputs(&files), &options, &[]).unwrap_err().to_string()
}

#[test]
fn what_nothing_reaches_is_left_out() {
    let mut elf = Elf::with_main();
    let used = elf.section(".data.used", WRITE, &[0; 8]);
    let far = elf.section(".rodata.far", ALLOC, &[1]);
    let unused = elf.section(".text.unused", EXEC, &[0xc3]);
    let retained = elf.section("kept", WRITE | u64::from(SHF_GNU_RETAIN), &[2]);
    let (used_symbol, far_symbol) = (elf.symbol("used", used, 0), elf.symbol("far", far, 0));
    elf.symbol("retained", retained, 0);
    elf.symbol("unused", unused, 0);
    elf.relocate(1, 0, R_X86_64_NONE, used_symbol, 0);
    elf.relocate(used, 0, R_X86_64_64, far_symbol, 0);
    // What is left out may even be wrong.
    elf.relocate(unused, 0, 250, far_symbol, 0);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert!(linked.find("far").is_some() && linked.find("retained").is_some());
    assert_eq!(linked.find("unused"), None);
    assert!(all_error(&elf).contains("relocation type 250"));
}

#[test]
fn segments_are_pages_of_one_protection() {
    let mut elf = Elf::with_main();
    elf.section(".rodata", ALLOC, &[1; 10]);
    elf.section(".data", WRITE, &[2; 10]);
    elf.zero(".bss", WRITE, 10_000);
    let linked = link_all(&[elf.build()]);
    let segments: Vec<_> =
        linked.segments.iter().map(|s| (s.group.prot, s.addr.0 - BASE, s.size, s.content.len())).collect();
    assert_eq!(
        segments,
        [(Prot::Read, 0, 0x1000, 10), (Prot::ReadExec, 0x1000, 0x1000, 1), (Prot::ReadWrite, 0x2000, 0x3000, 10)]
    );
    assert_eq!(linked.reservation, 0x5000);
}

#[test]
fn huge_zero_fill_takes_address_space_only_and_lies_behind_the_rest() {
    let mut elf = Elf::with_main();
    let huge = elf.zero(".bss.huge", WRITE, 8 << 30);
    let small = elf.zero(".bss.small", WRITE, 8);
    let (huge, small) = (elf.symbol("huge", huge, 0), elf.symbol("small", small, 0));
    elf.relocate(1, 0, R_X86_64_NONE, huge, 0);
    elf.relocate(1, 0, R_X86_64_NONE, small, 0);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert!(linked.address("small") < BASE + 0x10_0000);
    assert!(linked.reservation > 8 << 30);
    let mut elf = Elf::with_main();
    elf.zero(".bss.1", WRITE, 1 << 63);
    elf.zero(".bss.2", WRITE, 1 << 63);
    assert!(
        all_error(&elf).starts_with("0.o: section .bss.2 of 0x8000000000000000 bytes does not fit the address space")
    );
}

#[test]
fn instructions_keep_their_slots_when_the_program_is_too_large_to_reach_across() {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xc3]);
    elf.symbol("main", text, 0);
    let first = elf.zero(".bss.1", WRITE, 4 << 30);
    let second = elf.zero(".bss.2", WRITE, 4 << 30);
    let (first, target) = (elf.symbol("first", first, 0), elf.symbol("target", second, 0));
    elf.relocate(text, 3, R_X86_64_REX_GOTPCRELX, target, -4);
    elf.relocate(text, 7, R_X86_64_NONE, first, 0);
    let linked = link(&[elf.build()], &[]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.bytes(main, 3), [0x48, 0x8b, 0x05]);
    let slot = (main + 7).wrapping_add_signed(linked.half(main + 3).into());
    assert_eq!(linked.word(slot), linked.address("target"));
    assert!(linked.address("target") - main > 4 << 30);
}

#[test]
fn alignment_is_honoured_up_to_two_mebibytes() {
    for (align, fine) in [(0, true), (1, true), (64, true), (0x20_0000, true), (0x40_0000, false), (24, false)] {
        let mut elf = Elf::with_main();
        elf.section(".data", WRITE, &[1]);
        let data = elf.section(".data", WRITE, &[2]);
        elf.align(data, align);
        elf.symbol("x", data, 0);
        let files = [elf.build()];
        let options = Options { collect: Collect::All, ..options() };
        // A base that is aligned to no more than a page.
        match link_at(BASE + 0x1000, &inputs(&files), &options, &[]) {
            Ok(linked) => {
                assert!(fine && linked.address("x").is_multiple_of(align.max(1)));
                let end = BASE + 0x1000 + linked.reservation;
                assert!(linked.segments.iter().all(|segment| segment.addr.0 + segment.size <= end));
                assert!(linked.segments.iter().all(|segment| segment.content.len() < 0x1000));
            }
            Err(error) => {
                assert!(!fine);
                assert_eq!(
                    error.to_string(),
                    format!("0.o: section .data: alignment {align:#x} is not a power of two up to 0x200000")
                );
            }
        }
    }
}

#[test]
fn sections_that_cannot_be_loaded_are_named() {
    for (flags, sh_type, text) in [
        (WRITE | EXEC, SHT_PROGBITS, "it is writable and executable; no page of an image is both"),
        (EXEC | u64::from(SHF_TLS), SHT_PROGBITS, "thread-local storage is data, defined in a section"),
        (ALLOC | u64::from(SHF_COMPRESSED), SHT_PROGBITS, "it is compressed, which only debug sections may be"),
        (ALLOC, SHT_DYNAMIC, "section type 0x6 is not supported"),
        (WRITE, SHT_INIT_ARRAY, "an array of functions has 5 bytes, which is not a multiple of 8"),
    ] {
        let mut elf = Elf::with_main();
        elf.raw_section("odd", sh_type, flags, &[0; 5]);
        assert_eq!(all_error(&elf), format!("0.o: section odd: {text}"));
    }
}

#[test]
fn debug_and_excluded_sections_stay_home() {
    let mut elf = Elf::with_main();
    let debug = elf.section(".debug_info", 0, &[0xdd; 100]);
    elf.section(".rmeta", ALLOC | u64::from(SHF_EXCLUDE), &[0xdd; 100]);
    let target = elf.symbol("x", UNDEF, 0);
    elf.relocate(debug, 0, R_X86_64_64, target, 0);
    let linked = link_all(&[elf.build()]);
    assert!(linked.externals.is_empty());
    assert!(linked.segments.iter().all(|segment| !segment.content.contains(&0xdd)));
    let local = elf.local("d", debug, 0);
    elf.relocate(1, 0, R_X86_64_8, local, 0);
    assert_eq!(error(&[elf.build()]), "0.o: .text.main+0x0: refers to d in section .debug_info, which is not loaded");
}

#[test]
fn compressed_debug_sections_are_never_relocated() {
    let mut elf = Elf::with_main();
    let debug = elf.section(".debug_info", u64::from(SHF_COMPRESSED), &[0xdd; 32]);
    // The offset counts in the uncompressed bytes, of which there are more.
    elf.relocate(debug, 0x1000, R_X86_64_64, 1, 0);
    let linked = link_all(&[elf.build()]);
    assert!(linked.segments.iter().all(|segment| !segment.content.contains(&0xdd)));
}

#[test]
fn shf_gnu_retain_keeps_a_section_and_what_it_refers_to() {
    let retained = |flag: u32| {
        let mut elf = Elf::with_main();
        let kept = elf.section(".data.kept", WRITE | u64::from(flag), &[0; 8]);
        let needed = elf.section(".data.needed", WRITE, &[0x5a]);
        elf.symbol("kept", kept, 0);
        let target = elf.symbol("needed", needed, 0);
        elf.relocate(kept, 0, R_X86_64_64, target, 0);
        link(&[elf.build()], &[]).unwrap()
    };
    let linked = retained(SHF_GNU_RETAIN);
    assert_eq!(linked.bytes(linked.word(linked.address("kept")), 1), [0x5a]);
    let linked = retained(0);
    assert_eq!((linked.find("kept"), linked.find("needed")), (None, None));
}

/// Two copies of an inline function `f`, told apart by their first byte; `main` refers to it.
fn inline_copy(byte: u8, user: bool) -> Elf {
    let mut elf = if user { Elf::with_main() } else { Elf::default() };
    let text = elf.section(".text.f", EXEC, &[byte, 0xc3]);
    let f = elf.symbol("f", text, 0);
    elf.groups.push((true, f, vec![text]));
    if user {
        elf.relocate(1, 0, R_X86_64_NONE, f, 0);
    }
    elf
}

#[test]
fn groups_are_linked_once_even_with_strong_symbols() {
    let linked = link_all(&[inline_copy(0x90, true).build(), inline_copy(0xcc, false).build()]);
    assert_eq!(linked.bytes(linked.address("f"), 2), [0x90, 0xc3]);
    // Without the groups this is a duplicate.
    let mut second = inline_copy(0xcc, false);
    second.groups.clear();
    assert!(error(&[inline_copy(0x90, true).build(), second.build()]).starts_with("duplicate symbol: f"));
}

#[test]
fn references_into_a_dropped_copy_are_errors_unless_they_are_not_loaded() {
    let mut second = inline_copy(0xcc, false);
    let text = 1;
    let data = second.section(".data.keep", WRITE | u64::from(SHF_GNU_RETAIN), &[0; 8]);
    let debug = second.section(".debug_info", 0, &[0; 8]);
    let local = second.raw_symbol("", STB_LOCAL, STT_SECTION, text, 0);
    second.relocate(debug, 0, R_X86_64_64, local, 0);
    let first = inline_copy(0x90, true).build();
    assert!(link(&[first.clone(), second.build()], &[]).is_ok());
    second.relocate(data, 0, R_X86_64_64, local, 0);
    assert_eq!(
        error(&[first, second.build()]),
        "1.o: .data.keep+0x0: refers to .text.f in section .text.f, which was dropped for another file's copy of its group"
    );
}

#[test]
fn sections_of_one_name_may_differ_in_flags() {
    let mut elf = Elf::with_main();
    elf.section("mixed", ALLOC, &[1]);
    elf.section("mixed", WRITE, &[2]);
    let linked = link_all(&[elf.build()]);
    assert_eq!(linked.segments.len(), 3);
}

/// `main`, followed by pointers to `names` at 8, 16, ...
fn with_pointers(names: &[&str]) -> Elf {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &vec![0xc3; 8 * (names.len() + 1)]);
    elf.symbol("main", text, 0);
    for (index, name) in names.iter().enumerate() {
        let symbol = elf.symbol(name, UNDEF, 0);
        elf.relocate(text, 8 * (index as u64 + 1), R_X86_64_64, symbol, 0);
    }
    elf
}

#[test]
fn start_and_stop_symbols_delimit_all_sections_of_a_name() {
    let entries = |byte: u8| {
        let mut elf = Elf::default();
        elf.section(".data.other", WRITE, &[0xee; 3]);
        elf.section("tests", if byte == 1 { ALLOC } else { WRITE }, &[byte; 8]);
        elf.build()
    };
    let user = with_pointers(&["__start_tests", "__stop_tests"]).build();
    let linked = link(&[user.clone(), entries(1), entries(2)], &[]).unwrap();
    let main = linked.address("main");
    let (start, stop) = (linked.word(main + 8), linked.word(main + 16));
    assert_eq!(stop - start, 16);
    assert_eq!(linked.bytes(start, 16), [[1; 8], [2; 8]].concat());
    assert!(error(&[user]).starts_with("undefined symbol: __start_tests\n  referenced by 0.o: .text+0x8"));
}

#[test]
fn delimited_zero_fill_stays_zero_fill_unless_content_is_among_it() {
    let files = |size: u64, content: bool| {
        let mut elf = with_pointers(&["__start_pool", "__stop_pool"]);
        elf.zero("pool", WRITE, size);
        if content {
            elf.section("pool", WRITE, &[7]);
        }
        [elf.build()]
    };
    let delimited =
        |linked: &Linked| (linked.word(linked.address("main") + 8), linked.word(linked.address("main") + 16));
    let linked = link(&files(8 << 30, false), &[]).unwrap();
    let (start, stop) = delimited(&linked);
    assert_eq!(stop - start, 8 << 30);
    let linked = link(&files(100, true), &[]).unwrap();
    let (start, stop) = delimited(&linked);
    assert_eq!((stop - start, linked.bytes(stop - 2, 2)), (101, vec![0, 7]));
    let text = error(&files(8 << 30, true));
    assert_eq!(text, "sections named pool hold content and 0x200000000 bytes of zero-fill; limit 0x100000");
}

#[test]
fn initializers_run_by_priority_across_objects() {
    let object = |arrays: &[(&str, u32, &[u64])]| {
        let mut elf = Elf::default();
        for (name, sh_type, values) in arrays {
            let array = elf.raw_section(name, *sh_type, WRITE, &vec![0xaa; values.len() * 8]);
            for (index, value) in values.iter().enumerate() {
                elf.relocate(array, index as u64 * 8, R_X86_64_64, 0, *value as i64);
            }
        }
        elf.build()
    };
    let files = [
        with_pointers(&["__init_array_start", "__init_array_end"]).build(),
        object(&[(".init_array", SHT_INIT_ARRAY, &[30, 31]), (".init_array.00200", SHT_INIT_ARRAY, &[20])]),
        object(&[
            (".init_array", SHT_INIT_ARRAY, &[32]),
            (".init_array.00100", SHT_INIT_ARRAY, &[10]),
            (".preinit_array", SHT_PREINIT_ARRAY, &[1]),
            (".ctors.65385", SHT_PROGBITS, &[16, 15]),
            (".ctors", SHT_PROGBITS, &[u64::MAX, 34, 33, 0]),
            (".fini_array", SHT_FINI_ARRAY, &[50, 51]),
            (".fini_array.00100", SHT_FINI_ARRAY, &[40]),
            (".dtors", SHT_PROGBITS, &[53, 52]),
        ]),
    ];
    let linked = link(&files, &[]).unwrap();
    assert_eq!(linked.initializers, [1, 10, 15, 16, 20, 30, 31, 32, 33, 34]);
    assert_eq!(linked.finalizers, [53, 52, 51, 50, 40]);
    let main = linked.address("main");
    let (start, end) = (linked.word(main + 8), linked.word(main + 16));
    let array: Vec<u64> = (start..end).step_by(8).map(|at| linked.word(at)).collect();
    assert_eq!(array, [10, 20, 30, 31, 32]);
}

/// A shared record and one record per function, 24 bytes each; the functions' sections.
fn with_unwind(elf: &mut Elf, functions: &[(usize, usize)]) -> usize {
    let mut content = Vec::new();
    content.extend(20_u32.to_le_bytes());
    content.extend(0_u32.to_le_bytes());
    content.extend([0x11; 16]);
    for index in 1..=functions.len() as u32 {
        content.extend(20_u32.to_le_bytes());
        content.extend((index * 24 + 4).to_le_bytes());
        content.extend([0x22; 16]);
    }
    content.extend([0; 4]);
    let frame = elf.raw_section(".eh_frame", SHT_X86_64_UNWIND, ALLOC, &content);
    for (index, (_, symbol)) in functions.iter().enumerate() {
        elf.relocate(frame, (index as u64 + 1) * 24 + 8, R_X86_64_PC32, *symbol, 0);
    }
    frame
}

#[test]
fn unwind_records_follow_their_functions() {
    let mut elf = Elf::with_main();
    let dead = elf.section(".text.dead", EXEC, &[0xc3]);
    let live = elf.section(".text.live", EXEC, &[0xc3]);
    let (dead_symbol, live_symbol) = (elf.local("dead", dead, 0), elf.local("live", live, 0));
    elf.relocate(1, 0, R_X86_64_NONE, live_symbol, 0);
    let main = elf.local("main_local", 1, 0);
    let frame = with_unwind(&mut elf, &[(dead, dead_symbol), (live, live_symbol), (1, main)]);
    // A personality, referred to by the shared record.
    let personality = elf.section(".text.personality", EXEC, &[0xc3]);
    let personality = elf.symbol("personality", personality, 0);
    elf.relocations
        .iter_mut()
        .find(|(section, _)| *section == frame)
        .unwrap()
        .1
        .insert(0, (12, R_X86_64_PC32, personality, 0));
    let files = [elf.build()];
    let linked = link(&files, &[]).unwrap();
    assert_eq!(linked.find("dead"), None);
    assert!(linked.find("personality").is_some());
    let frames = &linked.segments[0];
    assert_eq!((frames.group.prot, frames.content.len()), (Prot::Read, 3 * 24 + 4));
    let at = frames.addr.0;
    for (record, function) in [(24, "live"), (48, "main")] {
        assert_eq!(
            u64::try_from(linked.half(at + record + 4)).unwrap(),
            record + 4,
            "distance back to the shared record"
        );
        let place = at + record + 8;
        assert_eq!(place.wrapping_add_signed(linked.half(place).into()), linked.address(function));
    }
    assert_eq!(linked.half(at + 72), 0, "terminator");
    let drop = Options { unwind: Unwind::Drop, ..options() };
    let linked = link_at(BASE, &inputs(&files), &drop, &[]).unwrap();
    assert!(linked.find("personality").is_none() && linked.segments[0].group.prot == Prot::ReadExec);
}

#[test]
fn malformed_unwind_tables_are_named() {
    for (content, text) in [
        (&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..], "record at 0x0: the 64-bit form of records is not supported"),
        (&[20, 0, 0, 0, 0, 0, 0, 0], "record at 0x0: it runs past the end of the section"),
        (&[2, 0, 0, 0, 0, 0], "record at 0x0: it is too short"),
        (&[4, 0, 0, 0, 9, 0, 0, 0], "record at 0x0: it refers to no shared record before it"),
        (&[0, 0, 0, 0, 1, 2], "record at 0x4: it is shorter than its length field"),
    ] {
        let mut elf = Elf::with_main();
        elf.section(".eh_frame", ALLOC, content);
        assert_eq!(error(&[elf.build()]), format!("0.o: section .eh_frame: {text}"));
    }
}

#[test]
fn a_symbol_at_the_start_of_unwind_tables_finds_them() {
    let mut elf = Elf::with_main();
    let main = elf.local("main_local", 1, 0);
    let frame = with_unwind(&mut elf, &[(1, main)]);
    let begin = elf.local("begin", frame, 0);
    let data = elf.section(".data", WRITE, &[0; 8]);
    elf.symbol("pointer", data, 0);
    elf.relocate(data, 0, R_X86_64_64, begin, 0);
    let linked = link_all(&[elf.build()]);
    assert_eq!(linked.word(linked.address("pointer")), BASE);
}

#[test]
fn bases_are_checked() {
    let files = [Elf::with_main().build()];
    let at = |base| link_at(base, &inputs(&files), &options(), &[]).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(at(0x1001).unwrap_err(), "base address 0x1001 is not a multiple of the page size 0x1000");
    assert_eq!(
        at(0xffff_ffff_ffff_f000).unwrap_err(),
        "an image of 0x1000 bytes at 0xfffffffffffff000 runs past the end of the address space"
    );
    assert!(at(0xffff_ffff_ffff_e000).is_ok());
    let odd = Options { page_size: 3000, ..options() };
    let error = link_at(BASE, &inputs(&files), &odd, &[]).unwrap_err().to_string();
    assert_eq!(error, "page size 3000 is not a power of two between 1 KiB and 1 GiB");
}
