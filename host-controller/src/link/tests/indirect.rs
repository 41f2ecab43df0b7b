//! Indirect functions (`STT_GNU_IFUNC`): whatever refers to one gets its stub, and the stub what the resolver said.

use object::elf::*;

use super::elf::{ALLOC, EXEC, Elf, WRITE};
use super::link;

/// `main` with room for a relocation of each kind, and the indirect function `f` at `resolver`.
fn object(bind: u8) -> (Elf, usize, usize) {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0x90; 48]);
    elf.symbol("main", text, 0);
    let resolvers = elf.section(".text.resolver", EXEC, &[0xc3; 16]);
    let f = elf.raw_symbol("f", bind, STT_GNU_IFUNC, resolvers, 8);
    elf.raw_symbol("resolver", STB_GLOBAL, STT_FUNC, resolvers, 8);
    (elf, text, f)
}

#[test]
fn ifunc_calls_addresses_and_got_slots_all_mean_one_stub() {
    for bind in [STB_GLOBAL, STB_LOCAL, STB_WEAK] {
        let (mut elf, text, f) = object(bind);
        let data = elf.section(".data", WRITE, &[0; 16]);
        let pointer = elf.symbol("pointer", data, 0);
        elf.relocate(text, 0, R_X86_64_PLT32, f, -4);
        elf.relocate(text, 4, R_X86_64_PC32, f, 0);
        elf.relocate(text, 8, R_X86_64_GOTPCREL, f, 0);
        elf.relocate(text, 16, R_X86_64_64, f, 0);
        elf.relocate(text, 24, R_X86_64_PC64, pointer, 0);
        elf.relocate(data, 0, R_X86_64_64, f, 0);
        let linked = link(&[elf.build()], &[]).unwrap();
        let main = linked.address("main");
        let at = |offset: u64| (main + offset).wrapping_add_signed(linked.half(main + offset).into());
        let stub = at(0) + 4;
        let from_got = linked.word(at(8));
        assert_eq!([at(4), from_got, linked.word(main + 16), linked.word(linked.address("pointer"))], [stub; 4]);
        // movabs $slot, %r11; jmp *(%r11)
        assert_eq!(linked.bytes(stub, 2), [0x49, 0xbb]);
        assert_eq!(linked.bytes(stub + 10, 3), [0x41, 0xff, 0x23]);
        let slot = linked.word(stub + 2);
        assert_eq!(linked.word(slot), linked.address("resolver"), "until it was asked");
        // The first to run goes through the slots, from the first to the last.
        let bind = linked.initializers[0];
        let bound = |offset: u64| (bind + offset + 4).wrapping_add_signed(linked.half(bind + offset).into());
        assert_eq!((bound(9), bound(16)), (slot, slot + 8));
    }
}

#[test]
fn ifunc_names_of_one_resolver_share_a_stub_and_the_resolver_stays_itself() {
    let (mut elf, text, f) = object(STB_GLOBAL);
    let resolvers = elf.symbols[f - 1].section;
    let again = elf.raw_symbol("again", STB_GLOBAL, STT_GNU_IFUNC, resolvers, 8);
    let other = elf.raw_symbol("other", STB_GLOBAL, STT_GNU_IFUNC, resolvers, 0);
    for (index, symbol) in [f, again, other, f + 1].into_iter().enumerate() {
        elf.relocate(text, 8 * index as u64, R_X86_64_64, symbol, 0);
    }
    let linked = link(&[elf.build()], &[]).unwrap();
    let main = linked.address("main");
    let words: Vec<u64> = (0..4).map(|index| linked.word(main + 8 * index)).collect();
    assert_eq!(words[0], words[1]);
    assert_eq!(words[2], words[0] + 16);
    assert_eq!(words[3], linked.word(linked.word(words[0] + 2)), "the resolver");
}

#[test]
fn an_ifunc_may_be_the_entry_and_one_that_nothing_uses_costs_nothing() {
    let mut elf = Elf::with_main();
    elf.symbols[0].kind = STT_GNU_IFUNC;
    let linked = link(&[elf.build()], &[]).unwrap();
    assert_eq!(linked.bytes(linked.entry.unwrap().0, 2), [0x49, 0xbb]);
    let (elf, ..) = object(STB_GLOBAL);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert!(linked.initializers.is_empty() && linked.find("f").is_none());
    let mut constant = Elf::with_main();
    constant.section(".rodata", ALLOC, &[1]);
    assert!(link(&[constant.build()], &[]).unwrap().initializers.is_empty());
}
