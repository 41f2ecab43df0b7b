//! Thread-local storage: the block, what counts from its end, and the sequences that are not rewritten.
//!
//! Those that are, are compared with a static linker's in `tests/link_lld.rs`; here are the forms it does not know.

use object::elf::*;

use super::elf::{EXEC, Elf, UNDEF, WRITE};
use super::{Linked, error, link};

const TLS: u64 = WRITE | SHF_TLS as u64;
const SET: (&str, u64) = ("graft_set_thread_pointer", 0x2000_0000);

/// `main` of `code` and, 16 bytes before the thread pointer, the thread-local `x` behind 8 bytes of content.
fn object(code: &[u8]) -> (Elf, usize, usize) {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, code);
    elf.symbol("main", text, 0);
    elf.section(".tdata", TLS, &[1; 8]);
    let data = elf.section(".tdata.x", TLS, &[7; 8]);
    let zero = elf.zero(".tbss", TLS, 8);
    let x = elf.raw_symbol("x", STB_GLOBAL, STT_TLS, data, 0);
    let zeroed = elf.raw_symbol("zeroed", STB_GLOBAL, STT_TLS, zero, 0);
    elf.relocate(text, 0, R_X86_64_NONE, zeroed, 0);
    (elf, text, x)
}

fn linked(elf: &Elf) -> Linked {
    link(&[elf.build()], &[SET]).unwrap()
}

/// What `code` becomes with a relocation of `r_type` to `x` at `at`.
fn instruction(code: &[u8], at: u64, r_type: u32) -> (Vec<u8>, Linked) {
    let (mut elf, text, x) = object(code);
    elf.relocate(text, at, r_type, x, -4);
    let linked = linked(&elf);
    (linked.bytes(linked.address("main"), code.len()), linked)
}

#[test]
fn tls_block_holds_content_then_zeroes_and_ends_at_the_thread_pointer() {
    let (mut elf, text, x) = object(&[0x90; 32]);
    let all = elf.symbols.iter().position(|symbol| symbol.name == "zeroed").unwrap() + 1;
    elf.relocate(text, 0, R_X86_64_TPOFF64, x, 0);
    elf.relocate(text, 8, R_X86_64_TPOFF32, all, 2);
    elf.relocate(text, 12, R_X86_64_DTPOFF32, x, 0);
    elf.relocate(text, 16, R_X86_64_DTPOFF64, x, 0);
    elf.relocate(text, 24, R_X86_64_DTPMOD64, x, 0);
    let linked = linked(&elf);
    let main = linked.address("main");
    assert_eq!(linked.word(main).cast_signed(), -16);
    assert_eq!((linked.half(main + 8), linked.half(main + 12)), (-6, -16));
    assert_eq!((linked.word(main + 16).cast_signed(), linked.word(main + 24)), (-16, 1));
    assert_eq!(linked.word(linked.address("x")), 0x0707_0707_0707_0707);
    assert_eq!(linked.word(linked.address("zeroed")), 0);
    // What sets the thread pointer is the first of all to run, and names the end of the block.
    let start = linked.initializers[0];
    let pointer = (start + 7).wrapping_add_signed(linked.half(start + 3).into());
    assert_eq!(pointer, linked.address("x") + 16);
}

#[test]
fn tls_alignment_is_that_of_the_largest_section() {
    let (mut elf, text, x) = object(&[0x90; 16]);
    let wide = elf.section(".tdata.wide", TLS, &[9; 4]);
    elf.align(wide, 256);
    let symbol = elf.raw_symbol("wide", STB_GLOBAL, STT_TLS, wide, 0);
    elf.relocate(text, 0, R_X86_64_TPOFF64, symbol, 0);
    elf.relocate(text, 8, R_X86_64_TPOFF64, x, 0);
    let linked = linked(&elf);
    assert_eq!(linked.address("wide") % 256, 0);
    assert_eq!(linked.word(linked.address("main")).cast_signed(), -256);
    assert_eq!(
        linked.address("wide") - linked.address("x"),
        linked.word(linked.address("main")).wrapping_sub(linked.word(linked.address("main") + 8))
    );
}

#[test]
fn gottpoff_in_another_instruction_finds_the_offset_in_the_got() {
    // cmp x@gottpoff(%rip), %rax; the same with a short one, and with what only the APX forms can hold.
    for (code, at, r_type) in [
        (&[0x48, 0x3b, 0x05, 1, 1, 1, 1][..], 3, R_X86_64_GOTTPOFF),
        (&[0x90, 0x8b, 0x05, 1, 1, 1, 1], 3, R_X86_64_GOTTPOFF),
        (&[0xd5, 0x48, 0x3b, 0x05, 1, 1, 1, 1], 4, 44),
        (&[0x90, 0x62, 0xf4, 0xfc, 0x18, 0x05, 1, 1, 1, 1], 6, 47),
        (&[0x62, 0xf4, 0xfc, 0x18, 0x03, 0x05, 1, 1, 1, 1], 6, 50),
    ] {
        let (bytes, linked) = instruction(code, at, r_type);
        let field = linked.address("main") + at;
        assert_eq!(bytes[..at as usize], code[..at as usize]);
        let slot = (field + 4).wrapping_add_signed(linked.half(field).into());
        assert_eq!(linked.word(slot).cast_signed(), -16, "{code:x?}");
    }
}

#[test]
fn code_4_gottpoff_and_code_4_gotpc32_tlsdesc_are_rewritten() {
    // mov, add and lea with %r31 or %r8, whose number moves from one field to the other.
    for (code, becomes, r_type) in [
        ([0xd5, 0x4c, 0x8b, 0x3d], [0xd5, 0x19, 0xc7, 0xc7], 44),
        ([0xd5, 0x0c, 0x03, 0x05], [0xd5, 0x09, 0x81, 0xc0], 44),
        ([0xd5, 0x48, 0x8d, 0x05], [0xd5, 0x18, 0xc7, 0xc0], 45),
    ] {
        let (bytes, linked) = instruction(&[&code[..], &[1; 4], &[0xc3]].concat(), 4, r_type);
        assert_eq!(bytes[..4], becomes);
        assert_eq!(linked.half(linked.address("main") + 4), -16);
        assert_eq!(bytes[8], 0xc3);
    }
}

#[test]
fn tlsgd_and_tlsld_of_the_large_code_model_are_rewritten() {
    let call = [0x48, 0xb8, 1, 1, 1, 1, 1, 1, 1, 1, 0x48, 0x01, 0xd8, 0xff, 0xd0];
    for (r_type, becomes) in [
        (R_X86_64_TLSGD, "6448 8b0425 00000000 488d80 f0ffffff 660f1f440000"),
        (R_X86_64_TLSLD, "66666666 2e0f1f84 0000000000 6448 8b0425 00000000"),
    ] {
        let (mut elf, text, x) = object(&[&[0x48, 0x8d, 0x3d, 1, 1, 1, 1], &call[..]].concat());
        let get = elf.symbol("__tls_get_addr", UNDEF, 0);
        elf.relocate(text, 3, r_type, x, -4);
        elf.relocate(text, 9, R_X86_64_PLTOFF64, get, 0);
        let linked = linked(&elf);
        let bytes: String = linked.bytes(linked.address("main"), 22).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(bytes, becomes.replace(' ', ""));
        assert!(linked.find("__tls_get_addr").is_none());
    }
}

#[test]
fn tlsgd_and_tlsld_without_their_call_ask_tls_get_addr() {
    for r_type in [R_X86_64_TLSGD, R_X86_64_TLSLD] {
        // A `nop` between the two, as no compiler emits.
        let (mut elf, text, x) = object(&[0x48, 0x8d, 0x3d, 1, 1, 1, 1, 0x90, 0xe8, 1, 1, 1, 1]);
        let get = elf.symbol("__tls_get_addr", UNDEF, 0);
        elf.relocate(text, 3, r_type, x, -4);
        elf.relocate(text, 9, R_X86_64_PLT32, get, -4);
        let linked = linked(&elf);
        let main = linked.address("main");
        let pair = (main + 7).wrapping_add_signed(linked.half(main + 3).into());
        // Counted from the start of the block: x is there, and 16 bytes on its end, which offsets count from.
        let offset = if r_type == R_X86_64_TLSGD { 0 } else { 16 };
        assert_eq!((linked.word(pair), linked.word(pair + 8)), (1, offset));
        let called = (main + 13).wrapping_add_signed(linked.half(main + 9).into());
        assert_eq!(called, linked.address("__tls_get_addr"));
        // lea (start of the block), %rax; add 8(%rdi), %rax; ret
        let start = (called + 7).wrapping_add_signed(linked.half(called + 3).into());
        assert_eq!(start, linked.address("x"));
        assert_eq!(linked.bytes(called + 7, 5), [0x48, 0x03, 0x47, 0x08, 0xc3]);
    }
}

#[test]
fn what_is_thread_local_and_what_is_not_do_not_mix() {
    let (mut elf, text, x) = object(&[0x90; 16]);
    elf.relocate(text, 4, R_X86_64_PC32, x, 0);
    assert_eq!(
        error(&[elf.build()]),
        "0.o: .text+0x4: refers to x as if it were not thread-local: a declaration lacks __thread"
    );
    let (mut elf, text, _) = object(&[0x90; 16]);
    elf.relocate(text, 4, R_X86_64_TPOFF32, 1, 0);
    assert_eq!(
        error(&[elf.build()]),
        "0.o: .text+0x4: TPOFF32 to main, which is not thread-local: a declaration has __thread too many"
    );
    let (mut elf, text, x) = object(&[0x90; 16]);
    elf.relocate(text, 4, R_X86_64_GOTPC32_TLSDESC, x, -4);
    assert_eq!(
        error(&[elf.build()]),
        "0.o: .text+0x4: GOTPC32_TLSDESC to x is not in an instruction that the psABI has for it"
    );
    // An address of that name elsewhere is of no use.
    let (mut elf, text, _) = object(&[0x90; 16]);
    let other = elf.raw_symbol("other", STB_GLOBAL, STT_TLS, UNDEF, 0);
    elf.relocate(text, 4, R_X86_64_TPOFF32, other, 0);
    let error = link(&[elf.build()], &[SET, ("other", 0x2000)]).unwrap_err().to_string();
    assert!(error.starts_with("undefined symbol: other"), "{error}");
}

#[test]
fn tls_that_nothing_refers_to_costs_nothing() {
    let mut elf = Elf::with_main();
    elf.section(".tdata", TLS, &[1; 8]);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert!(linked.initializers.is_empty() && linked.externals.is_empty());
}
