//! Every relocation type: its value, the edges of its range, and the bytes around its field.

use object::elf::*;

use super::elf::{ABS, ALLOC, EXEC, Elf, UNDEF};
use super::{BASE, Linked, error, inputs, link, link_at, options};
use crate::link::reloc::x86_64::howto;
use crate::link::{LinkError, RelocateError};

const GUARD: u8 = 0xa5;

/// Links a field of type `r_type` to an absolute symbol `s`, in data full of garbage; the field's place and the image.
fn field(r_type: u32, s: u64, addend: i64) -> Result<(u64, Linked), LinkError> {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xc3]);
    let data = elf.section(".rodata", ALLOC, &[GUARD; 24]);
    elf.symbol("main", text, 0);
    let place = elf.symbol("place", data, 8);
    elf.symbols[place - 1].size = 16;
    let target = elf.symbol("target", ABS, s);
    elf.symbols[target - 1].size = s;
    elf.relocate(text, 0, R_X86_64_NONE, place, 0);
    elf.relocate(data, 8, r_type, target, addend);
    let linked = link(&[elf.build()], &[])?;
    Ok((linked.address("place"), linked))
}

/// The stored value, once the bytes around it were seen to be intact.
fn stored(r_type: u32, s: u64, addend: i64) -> Result<i128, LinkError> {
    let (place, linked) = field(r_type, s, addend)?;
    let width = howto(r_type).unwrap().width;
    let around = linked.bytes(place - 8, 24);
    assert!(around[..8].iter().all(|byte| *byte == GUARD), "before the field: {around:02x?}");
    assert!(around[8 + width..].iter().all(|byte| *byte == GUARD), "behind the field: {around:02x?}");
    let mut bytes = [if around[7 + width] & 0x80 == 0 { 0 } else { 0xff }; 16];
    bytes[..width].copy_from_slice(&around[8..8 + width]);
    Ok(i128::from_le_bytes(bytes))
}

fn limit_of(error: LinkError) -> (i64, i64) {
    match error {
        LinkError::Relocate(RelocateError::OutOfRange(fault)) => (fault.value, fault.limit),
        other => panic!("not out of range: {other}"),
    }
}

#[test]
fn absolute_and_relative_fields_hold_exactly_their_range() {
    // All of these compute S + A, or S + A - P for a known P; the addend makes the value.
    let (place, _) = field(R_X86_64_64, 0, 0).unwrap();
    let place = place as i64;
    let rows = [
        (R_X86_64_32, 0, 0, i64::from(u32::MAX)),
        (R_X86_64_32S, 0, i64::from(i32::MIN), i64::from(i32::MAX)),
        (R_X86_64_16, 0, i64::from(i16::MIN), i64::from(u16::MAX)),
        (R_X86_64_8, 0, i64::from(i8::MIN), i64::from(u8::MAX)),
        (R_X86_64_PC32, place, i64::from(i32::MIN), i64::from(i32::MAX)),
        (R_X86_64_PC16, place, i64::from(i16::MIN), i64::from(i16::MAX)),
        (R_X86_64_PC8, place, i64::from(i8::MIN), i64::from(i8::MAX)),
        (R_X86_64_SIZE32, 0, 0, i64::from(u32::MAX)),
    ];
    for (r_type, origin, min, max) in rows {
        let width = howto(r_type).unwrap().width as u32 * 8;
        for value in [min, min + 1, max - 1, max] {
            let got = stored(r_type, 0, value + origin).unwrap_or_else(|e| panic!("{r_type} {value}: {e}"));
            let modulus = 1_i128 << width;
            assert_eq!(got.rem_euclid(modulus), i128::from(value).rem_euclid(modulus), "type {r_type}");
        }
        assert_eq!(limit_of(stored(r_type, 0, min - 1 + origin).unwrap_err()), (min - 1, min), "type {r_type}");
        assert_eq!(limit_of(stored(r_type, 0, max + 1 + origin).unwrap_err()), (max + 1, max), "type {r_type}");
    }
}

#[test]
fn the_whole_address_counts_not_its_low_half() {
    assert!(stored(R_X86_64_32, 0x1_0000_0010, 0).is_err());
    assert!(stored(R_X86_64_32S, 0x8000_0000, 0).is_err());
    assert_eq!(stored(R_X86_64_32S, 0xffff_ffff_8000_0000, 0).unwrap(), i128::from(i32::MIN));
    assert!(stored(R_X86_64_32, 0xffff_ffff_8000_0000, 0).is_err());
    assert!(stored(R_X86_64_PC32, 0x7fff_ffff_ffff_ffff, 0).is_err());
    // Addresses wrap: what lies just above the top is just below 0.
    assert_eq!(stored(R_X86_64_32S, 0xffff_ffff_ffff_fff0, 0x20).unwrap(), 0x10);
}

#[test]
fn wide_fields_hold_every_value() {
    for s in [0, 1, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0] {
        let (place, linked) = field(R_X86_64_64, s, -3).unwrap();
        assert_eq!(linked.word(place), s.wrapping_sub(3));
        let (place, linked) = field(R_X86_64_PC64, s, 5).unwrap();
        assert_eq!(linked.word(place), s.wrapping_add(5).wrapping_sub(place));
        let (place, linked) = field(R_X86_64_SIZE64, s, 1).unwrap();
        assert_eq!(linked.word(place), s.wrapping_add(1));
        let (place, linked) = field(R_X86_64_GOTOFF64, s, 7).unwrap();
        assert_eq!(linked.word(place), s.wrapping_add(7).wrapping_sub(linked.got));
        let (place, linked) = field(R_X86_64_PLTOFF64, s, 7).unwrap();
        assert_eq!(linked.word(place), s.wrapping_add(7).wrapping_sub(linked.got));
    }
}

#[test]
fn got_relocations_find_a_slot_that_holds_the_address() {
    let s = 0x7fff_1234_5678;
    for (r_type, addend) in [(R_X86_64_GOTPCREL, -4), (R_X86_64_GOTPCREL, -5), (R_X86_64_GOTPCRELX, 3), (43, -4)] {
        let (place, linked) = field(r_type, s, addend).unwrap();
        let slot = place.wrapping_add_signed(i64::from(linked.half(place)) - addend);
        assert_eq!(linked.word(slot), s, "type {r_type}");
    }
    for r_type in [R_X86_64_GOT64, R_X86_64_GOTPLT64] {
        let (place, linked) = field(r_type, s, 0).unwrap();
        assert_eq!(linked.word(linked.got + linked.word(place)), s);
    }
    let (place, linked) = field(R_X86_64_GOT32, s, 0).unwrap();
    assert_eq!(linked.word(linked.got + u64::try_from(linked.half(place)).unwrap()), s);
    let (place, linked) = field(R_X86_64_GOTPCREL64, s, 8).unwrap();
    assert_eq!(linked.word(place.wrapping_add(linked.word(place)) - 8), s);
    let (place, linked) = field(R_X86_64_GOTPC64, s, 8).unwrap();
    assert_eq!(place.wrapping_add(linked.word(place)), linked.got + 8);
    let (place, linked) = field(R_X86_64_GOTPC32, s, 0).unwrap();
    assert_eq!(place.wrapping_add_signed(i64::from(linked.half(place))), linked.got);
}

#[test]
fn local_symbols_have_slots_of_their_own() {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0; 16]);
    let data = elf.section(".data", super::elf::WRITE, &[1, 2]);
    elf.symbol("main", text, 0);
    for index in 0..4 {
        let local = elf.local("x", data, index % 2);
        elf.relocate(text, index * 4, R_X86_64_GOTPCREL, local, -4);
    }
    let linked = link(&[elf.build()], &[]).unwrap();
    let main = linked.address("main");
    for index in 0..4 {
        let slot = (main + index * 4).wrapping_add_signed(i64::from(linked.half(main + index * 4)) + 4);
        assert_eq!(linked.bytes(linked.word(slot), 1), [1 + (index % 2) as u8]);
    }
}

#[test]
fn relocations_that_store_nothing_need_nothing() {
    let mut elf = Elf::with_main();
    let debug = elf.section(".debug_info", 0, &[0]);
    let (missing, debug) = (elf.symbol("missing", UNDEF, 0), elf.local("debug", debug, 0));
    elf.relocate(1, 0, R_X86_64_NONE, missing, 0);
    elf.relocate(1, 0, R_X86_64_NONE, debug, 0);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert_eq!(linked.externals, []);
}

/// Links code whose field at `offset` refers to an external at `s`; its place and the bytes.
fn code(code: &[u8], offset: u64, r_type: u32, addend: i64, s: u64) -> (u64, Linked) {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, code);
    elf.symbol("main", text, 0);
    let target = elf.symbol("f", UNDEF, 0);
    elf.relocate(text, offset, r_type, target, addend);
    let linked = link(&[elf.build()], &[("f", s)]).unwrap();
    (linked.address("main"), linked)
}

#[test]
fn calls_out_of_reach_go_through_a_stub() {
    for (bytes, offset, r_type) in [
        (&[0xe8, 0, 0, 0, 0][..], 1, R_X86_64_PLT32),
        (&[0xe8, 0, 0, 0, 0], 1, R_X86_64_PC32),
        (&[0xe9, 0, 0, 0, 0], 1, R_X86_64_PC32),
        (&[0x0f, 0x84, 0, 0, 0, 0], 2, R_X86_64_PC32),
    ] {
        let s = 0x7fff_0000_0000;
        let (main, linked) = code(bytes, offset, r_type, -4, s);
        let at = main + offset;
        let stub = (at + 4).wrapping_add_signed(linked.half(at).into());
        assert_eq!(linked.bytes(stub, 2), [0xff, 0x25], "jmp *slot(%rip)");
        assert_eq!(linked.word((stub + 6).wrapping_add_signed(linked.half(stub + 2).into())), s);
        let (main, linked) = code(bytes, offset, r_type, -4, BASE + 0x10_0000);
        let at = main + offset;
        assert_eq!((at + 4).wrapping_add_signed(linked.half(at).into()), BASE + 0x10_0000, "near: direct");
    }
}

#[test]
fn calls_of_a_place_behind_a_functions_start_never_go_to_its_stub() {
    // `call f+8` and `lea f+8(%rip)`, and beside them a `call f` that makes a stub.
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xe8, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x48, 0x8d, 0x05, 0, 0, 0, 0]);
    elf.symbol("main", text, 0);
    let f = elf.symbol("f", UNDEF, 0);
    elf.relocate(text, 1, R_X86_64_PLT32, f, -4);
    for (offset, addend) in [(6, 4), (6, -8), (13, 4)] {
        let mut elf = elf.clone();
        elf.relocate(text, offset, R_X86_64_PLT32, f, addend);
        let near = BASE + 0x1000_0000;
        let linked = link(&[elf.build()], &[("f", near)]).unwrap();
        let at = linked.address("main") + offset;
        assert_eq!(at.wrapping_add_signed(linked.half(at).into()), near.wrapping_add_signed(addend));
        let far = link(&[elf.build()], &[("f", 0x7fff_0000_0000)]).unwrap_err().to_string();
        assert!(far.starts_with(&format!("0.o: .text+{offset:#x}: PLT32 to f = 0x")), "{far}");
    }
}

#[test]
fn relative_pointers_in_data_lead_to_the_stub_whatever_they_count_from() {
    let s = 0x7fff_0000_0000;
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xc3]);
    let table = elf.section(".rodata", ALLOC, &[0; 12]);
    elf.symbol("main", text, 0);
    let place = elf.symbol("table", table, 0);
    let f = elf.symbol("f", UNDEF, 0);
    elf.relocate(text, 0, R_X86_64_NONE, place, 0);
    for offset in [0, 4, 8] {
        // `.long f@PLT - table`
        elf.relocate(table, offset, R_X86_64_PLT32, f, offset.cast_signed());
    }
    let linked = link(&[elf.build()], &[("f", s)]).unwrap();
    let table = linked.address("table");
    for offset in [0, 4, 8] {
        let stub = table.wrapping_add_signed(linked.half(table + offset).into());
        assert_eq!(linked.bytes(stub, 2), [0xff, 0x25], "jmp *slot(%rip)");
        assert_eq!(linked.word((stub + 6).wrapping_add_signed(linked.half(stub + 2).into())), s);
    }
}

#[test]
fn data_out_of_reach_is_an_error_that_says_what_to_do() {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xc3]);
    elf.symbol("main", text, 0);
    let target = elf.symbol("foo", UNDEF, 0);
    elf.relocate(text, 3, R_X86_64_PC32, target, -4);
    let near = BASE + 7 + 0x7fff_ffff;
    let file = elf.build();
    let linked = link(std::slice::from_ref(&file), &[("foo", near)]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.half(main + 3), 0x7fff_ffff);
    assert_eq!(
        link(&[file], &[("foo", near + 1)]).unwrap_err().to_string(),
        "0.o: .text+0x3: PC32 to foo = 0x80000000, limit 0x7fffffff; compile with -fPIC or place the slab nearer"
    );
}

/// The instruction at `main` after linking, and the address behind it.
fn relaxed(bytes: &[u8], field: u64, r_type: u32, s: u64) -> (Vec<u8>, u64, Linked) {
    let (main, linked) = code(bytes, field, r_type, -4, s);
    (linked.bytes(main, bytes.len()), main + bytes.len() as u64, linked)
}

#[test]
fn branches_through_the_got_become_direct_exactly_when_they_reach() {
    // The instruction lies behind one stub-free start of code, at BASE + 0x1000.
    let end = BASE + 0x1000 + 6;
    for (target, direct) in [
        (0x2000_0000, true),
        (end + 0x7fff_ffff, true),
        (end + 0x8000_0000, false),
        (end.wrapping_sub(0x8000_0000), true),
        (end.wrapping_sub(0x8000_0001), false),
    ] {
        let (bytes, behind, _) = relaxed(&[0xff, 0x15, 0, 0, 0, 0], 2, R_X86_64_GOTPCRELX, target);
        assert_eq!(behind, end);
        let distance = i32::from_le_bytes(bytes[2..].try_into().unwrap());
        if direct {
            assert_eq!(bytes[..2], [0x67, 0xe8], "addr32 call");
            assert_eq!(behind.wrapping_add_signed(distance.into()), target);
        } else {
            assert_eq!(bytes[..2], [0xff, 0x15]);
        }
        // The jump is a byte shorter: its reach is counted from one byte earlier.
        let direct = (i64::from(i32::MIN)..=i64::from(i32::MAX)).contains(&(target.wrapping_sub(end - 1) as i64));
        let (bytes, behind, _) = relaxed(&[0xff, 0x25, 0, 0, 0, 0], 2, R_X86_64_GOTPCRELX, target);
        if direct {
            let distance = i32::from_le_bytes(bytes[1..5].try_into().unwrap());
            assert_eq!((bytes[0], bytes[5]), (0xe9, 0x90));
            assert_eq!((behind - 1).wrapping_add_signed(distance.into()), target);
        } else {
            assert_eq!(bytes[..2], [0xff, 0x25]);
        }
    }
}

#[test]
fn loads_from_the_got_become_lea_or_an_immediate() {
    // mov f@GOTPCREL(%rip), %r10
    let load = [0x4c, 0x8b, 0x15, 0, 0, 0, 0];
    let (bytes, behind, _) = relaxed(&load, 3, R_X86_64_REX_GOTPCRELX, 0x2000_0000);
    assert_eq!(bytes[..3], [0x4c, 0x8d, 0x15]);
    assert_eq!(behind.wrapping_add_signed(i32::from_le_bytes(bytes[3..].try_into().unwrap()).into()), 0x2000_0000);
    // Out of reach of the displacement, but a sign-extended immediate: mov $f, %r10.
    let (bytes, ..) = relaxed(&load, 3, R_X86_64_REX_GOTPCRELX, 0xffff_ffff_8000_0000);
    assert_eq!(bytes, [0x49, 0xc7, 0xc2, 0, 0, 0, 0x80]);
    // Neither: the slot.
    let (bytes, behind, linked) = relaxed(&load, 3, R_X86_64_REX_GOTPCRELX, 0x1_8000_0000);
    assert_eq!(bytes[..3], load[..3]);
    let slot = behind.wrapping_add_signed(i32::from_le_bytes(bytes[3..].try_into().unwrap()).into());
    assert_eq!(linked.word(slot), 0x1_8000_0000);
}

#[test]
fn arithmetic_on_the_got_takes_immediates_that_are_the_same_value() {
    let rex = R_X86_64_REX_GOTPCRELX;
    // cmp f@GOTPCREL(%rip), %r9  ->  cmp $f, %r9
    let (bytes, ..) = relaxed(&[0x4c, 0x3b, 0x0d, 0, 0, 0, 0], 3, rex, 0x7fff_ffff);
    assert_eq!(bytes, [0x49, 0x81, 0xf9, 0xff, 0xff, 0xff, 0x7f]);
    let (bytes, ..) = relaxed(&[0x4c, 0x3b, 0x0d, 0, 0, 0, 0], 3, rex, 0x8000_0000);
    assert_eq!(bytes[..3], [0x4c, 0x3b, 0x0d], "would be sign-extended");
    // add f@GOTPCREL(%rip), %rax  ->  add $f, %rax
    let (bytes, ..) = relaxed(&[0x48, 0x03, 0x05, 0, 0, 0, 0], 3, rex, 0x1234);
    assert_eq!(bytes, [0x48, 0x81, 0xc0, 0x34, 0x12, 0, 0]);
    // test %rax, f@GOTPCREL(%rip)  ->  test $f, %rax
    let (bytes, ..) = relaxed(&[0x48, 0x85, 0x05, 0, 0, 0, 0], 3, rex, 0x1234);
    assert_eq!(bytes, [0x48, 0xf7, 0xc0, 0x34, 0x12, 0, 0]);
    // 32-bit operation: xor f@GOTPCREL(%rip), %edx  ->  xor $f, %edx
    let (bytes, ..) = relaxed(&[0x33, 0x15, 0, 0, 0, 0], 2, R_X86_64_GOTPCRELX, 0x8000_0000);
    assert_eq!(bytes, [0x81, 0xf2, 0, 0, 0, 0x80]);
    // Behind 0f it is another instruction: movntps %xmm0, f@GOTPCREL(%rip) is not a sub.
    let (bytes, ..) = relaxed(&[0x0f, 0x2b, 0x05, 0, 0, 0, 0], 3, R_X86_64_GOTPCRELX, 0x1234);
    assert_eq!(bytes[..3], [0x0f, 0x2b, 0x05]);
    // A store is none of these forms: mov %rax, f@GOTPCREL(%rip).
    let (bytes, ..) = relaxed(&[0x48, 0x89, 0x05, 0, 0, 0, 0], 3, rex, 0x1234);
    assert_eq!(bytes[..3], [0x48, 0x89, 0x05]);
}

#[test]
fn a_field_at_the_very_start_has_no_instruction_to_rewrite() {
    for r_type in [R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX] {
        let (main, linked) = code(&[0, 0, 0, 0, 0xc3], 0, r_type, -4, 0x2000_0000);
        let slot = (main + 4).wrapping_add_signed(linked.half(main).into());
        assert_eq!(linked.word(slot), 0x2000_0000);
    }
}

#[test]
fn calls_to_undefined_weak_functions_link_anywhere() {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xc3]);
    elf.symbol("main", text, 0);
    let target = elf.weak("maybe", UNDEF, 0);
    elf.relocate(text, 1, R_X86_64_PLT32, target, -4);
    elf.relocate(text, 8, R_X86_64_REX_GOTPCRELX, target, -4);
    let files = [elf.build()];
    for base in [BASE, 0x7fff_0000_0000, 0xffff_ffff_8000_0000] {
        let linked = link_at(base, &inputs(&files), &options(), &[]).unwrap();
        assert_eq!(linked.externals, [("maybe".to_owned(), true)]);
        let main = linked.address("main");
        let called = (main + 5).wrapping_add_signed(linked.half(main + 1).into());
        if called != 0 {
            let slot = (called + 6).wrapping_add_signed(linked.half(called + 2).into());
            assert_eq!(linked.word(slot), 0);
        }
    }
}

#[test]
fn unknown_types_are_named() {
    for (r_type, name) in [(R_X86_64_TLSDESC, "TLSDESC"), (R_X86_64_IRELATIVE, "IRELATIVE"), (200, "unknown")] {
        let error = field(r_type, 0, 0).unwrap_err().to_string();
        assert_eq!(error, format!("0.o: .rodata+0x8: relocation type {r_type} ({name}) to target is not supported"));
    }
}

#[test]
fn fields_beyond_the_section_are_errors() {
    let mut elf = Elf::with_main();
    let data = elf.section(".data", super::elf::WRITE, &[0; 10]);
    let target = elf.symbol("x", data, 0);
    elf.relocate(1, 0, R_X86_64_NONE, target, 0);
    for offset in [3, 10, u64::MAX, u64::MAX - 3] {
        let mut elf = elf.clone();
        elf.relocate(data, offset, R_X86_64_64, target, 0);
        let text = error(&[elf.build()]);
        assert!(text.contains("a field of 8 bytes does not lie in the section's 0xa bytes of content"), "{text}");
    }
    elf.relocate(data, 2, R_X86_64_64, target, 0);
    assert!(link(&[elf.build()], &[]).is_ok());
}
