//! The edges of every relocation type the table knows, found by asking the table: a new row is tested as it is added.

use object::elf::*;

use super::elf::{ALLOC, EXEC, Elf};
use super::{Linked, link};
use crate::link::reloc::Expr;
use crate::link::reloc::x86_64::howto;
use crate::link::{LinkError, RelocateError};

const GUARD: u8 = 0xa5;
const SIZE: u64 = 16;

/// Links a field of type `r_type` in data full of garbage that refers to itself, at `place`.
fn link_field(r_type: u32, addend: i64) -> Result<Linked, LinkError> {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xc3]);
    let data = elf.section(".rodata", ALLOC, &[GUARD; 24]);
    elf.symbol("main", text, 0);
    let place = elf.symbol("place", data, 8);
    elf.symbols[place - 1].size = SIZE;
    elf.relocate(text, 0, R_X86_64_NONE, place, 0);
    elf.relocate(data, 8, r_type, place, addend);
    link(&[elf.build()], &[])
}

/// What the formula gives for the addend 0, from the addresses of a link with a field that holds every value.
fn origin(expr: Expr) -> i64 {
    let (wide, slot) = match expr {
        Expr::None => return 0,
        Expr::Absolute => (R_X86_64_64, false),
        Expr::PcRelative | Expr::Branch => (R_X86_64_PC64, false),
        Expr::GotSlot => (R_X86_64_GOT64, true),
        Expr::GotSlotPcRelative => (R_X86_64_GOTPCREL64, true),
        Expr::GotPcRelative => (R_X86_64_GOTPC64, false),
        Expr::GotOffset => (R_X86_64_GOTOFF64, false),
        Expr::Size => (R_X86_64_SIZE64, false),
        other => unreachable!("{other:?} is for thread-local symbols"),
    };
    let linked = link_field(wide, 0).unwrap();
    let (place, got) = (linked.address("place"), linked.got);
    if slot {
        assert_eq!(linked.word(got), place, "the only slot is the first");
    }
    let value = match expr {
        Expr::None | Expr::PcRelative | Expr::Branch | Expr::GotSlot => 0,
        Expr::Absolute => place,
        Expr::GotSlotPcRelative | Expr::GotPcRelative => got.wrapping_sub(place),
        Expr::GotOffset => place.wrapping_sub(got),
        Expr::Size => SIZE,
        other => unreachable!("{other:?} is for thread-local symbols"),
    };
    value.cast_signed()
}

/// The ranges a field of `width` bytes can have: distances are signed, addresses and sizes may be either or both.
fn ranges(expr: Expr, width: usize) -> Vec<(i64, i64)> {
    let bits = 8 * width as u32;
    if bits == 64 {
        return vec![(i64::MIN, i64::MAX)];
    }
    let (signed, unsigned) = ((-1 << (bits - 1), (1 << (bits - 1)) - 1), (0, (1 << bits) - 1));
    match expr {
        Expr::Absolute => vec![signed, unsigned, (signed.0, unsigned.1)],
        Expr::Size => vec![unsigned],
        _ => vec![signed],
    }
}

#[test]
fn every_type_of_the_table_holds_exactly_its_range() {
    let mut tested = Vec::new();
    for (r_type, howto) in (1..=0xffff).filter_map(|r_type| Some((r_type, howto(r_type)?))) {
        if howto.expr.is_thread_local() {
            continue;
        }
        let (name, width, (min, max)) = (howto.name, howto.width, howto.range);
        assert!(!tested.contains(&name), "{name} names two types");
        tested.push(name);
        assert!(ranges(howto.expr, width).contains(&howto.range), "{name}: {min}..={max} in {width} bytes");
        let origin = origin(howto.expr);
        let accepted = |value: i64| {
            let linked =
                link_field(r_type, value.wrapping_sub(origin)).unwrap_or_else(|e| panic!("{name} {value}: {e}"));
            let bytes = linked.bytes(linked.address("place") - 8, 24);
            assert_eq!(bytes[8..8 + width], value.to_le_bytes()[..width], "{name} {value}");
            let around = [&bytes[..8], &bytes[8 + width..]].concat();
            assert!(around.iter().all(|byte| *byte == GUARD), "{name} {value}: around the field {around:02x?}");
        };
        accepted(min);
        accepted(max);
        for (value, limit) in [(min.checked_sub(1), min), (max.checked_add(1), max)] {
            // Nothing is beyond the limits of 64 bits.
            let Some(value) = value else { continue };
            match link_field(r_type, value.wrapping_sub(origin)) {
                Err(LinkError::Relocate(RelocateError::OutOfRange(fault))) => {
                    assert_eq!((fault.value, fault.limit), (value, limit), "{name}");
                }
                other => panic!("{name} {value}: {other:?}"),
            }
        }
    }
    // Those of `linker.md`'s table that are not about threads or indirect functions.
    for name in [
        "64",
        "PC32",
        "PLT32",
        "GOT32",
        "GOTPCREL",
        "32",
        "32S",
        "16",
        "PC16",
        "8",
        "PC8",
        "PC64",
        "GOTOFF64",
        "GOTPC32",
        "GOT64",
        "GOTPCREL64",
        "GOTPC64",
        "GOTPLT64",
        "PLTOFF64",
        "SIZE32",
        "SIZE64",
        "GOTPCRELX",
        "REX_GOTPCRELX",
        "CODE_4_GOTPCRELX",
        "CODE_5_GOTPCRELX",
        "CODE_6_GOTPCRELX",
    ] {
        assert!(tested.contains(&name), "{name} is not in the table");
    }
}

#[test]
fn code_4_gotpcrelx_and_the_other_apx_forms_keep_their_instruction_and_find_the_slot() {
    // mov (REX2), add (EVEX, new destination) and imul (EVEX, no flags) from f@GOTPCREL(%rip), all with a near f.
    for (r_type, code) in [
        (43, &[0xd5, 0x48, 0x8b, 0x05][..]),
        (46, &[0x62, 0xec, 0xfc, 0x10, 0x03, 0x05]),
        (49, &[0x62, 0xec, 0xfc, 0x0c, 0xaf, 0x05]),
    ] {
        let mut elf = Elf::default();
        let text = elf.section(".text", EXEC, &[code, &[GUARD; 4], &[0xc3]].concat());
        elf.symbol("main", text, 0);
        let data = elf.section(".rodata", ALLOC, &[1; 8]);
        let target = elf.symbol("f", data, 0);
        elf.relocate(text, code.len() as u64, r_type, target, -4);
        let linked = link(&[elf.build()], &[]).unwrap();
        let (main, len) = (linked.address("main"), code.len() as u64);
        assert_eq!(linked.bytes(main, code.len()), code, "type {r_type}");
        let slot = (main + len + 4).wrapping_add_signed(linked.half(main + len).into());
        assert_eq!(linked.word(slot), linked.address("f"), "type {r_type}");
    }
}
