//! Which definition a name is bound to, and what is said when there is none or more than one.

use object::elf::*;

use super::elf::{ABS, ALLOC, EXEC, Elf, UNDEF, WRITE};
use super::{BASE, error, inputs, link, link_at, options};
use crate::link::{Collect, Input, LinkError, Options, RelocateError};
use graft_protocol::ExecAddr;

/// An object whose `main` has a pointer to each of `names` behind it, at `main + 8 * n`.
pub(super) fn pointers(names: &[&str]) -> Elf {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &vec![0xc3; 8 * (names.len() + 1)]);
    elf.symbol("main", text, 0);
    for (index, name) in names.iter().enumerate() {
        let symbol = elf.symbol(name, UNDEF, 0);
        elf.relocate(text, 8 * (index as u64 + 1), R_X86_64_64, symbol, 0);
    }
    elf
}

pub(super) fn definition(name: &str, content: &[u8]) -> Elf {
    let mut elf = Elf::default();
    let data = elf.section(".data", WRITE, content);
    elf.symbol(name, data, 0);
    elf
}

#[test]
fn strong_definitions_win_in_either_order() {
    let mut weak = Elf::default();
    let data = weak.section(".data", WRITE, &[1; 8]);
    weak.weak("x", data, 0);
    let (user, weak, strong) = (pointers(&["x"]).build(), weak.build(), definition("x", &[2; 8]).build());
    for files in [[user.clone(), weak.clone(), strong.clone()], [strong, weak.clone(), user.clone()]] {
        let linked = link(&files, &[]).unwrap();
        assert_eq!(linked.bytes(linked.word(linked.address("main") + 8), 1), [2]);
    }
    let linked = link(&[user, weak.clone(), weak], &[]).unwrap();
    assert_eq!(linked.bytes(linked.address("x"), 1), [1]);
}

#[test]
fn duplicates_are_reported_all_at_once_with_both_files() {
    let files = [
        Elf::with_main().build(),
        definition("x", &[1]).build(),
        definition("x", &[2]).build(),
        Elf::with_main().build(),
    ];
    assert_eq!(
        error(&files),
        "duplicate symbol: x\n  defined in 1.o\n  defined in 2.o\n\
         duplicate symbol: main\n  defined in 0.o\n  defined in 3.o"
    );
}

#[test]
fn undefined_symbols_are_reported_all_at_once_with_their_referrers() {
    let files = [pointers(&["a", "b"]).build(), pointers(&["b"]).build()];
    let mut second = pointers(&["b"]);
    second.symbols[0].name = "other".to_owned();
    let files = [files[0].clone(), second.build()];
    let all = Options { collect: Collect::All, ..options() };
    let error = link_at(BASE, &inputs(&files), &all, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "undefined symbol: a\n  referenced by 0.o: .text+0x8\n\
         undefined symbol: b\n  referenced by 0.o: .text+0x10\n  referenced by 1.o: .text+0x8"
    );
    // What nothing reaches needs no definition.
    assert!(link(&files, &[("a", 1), ("b", 2)]).is_ok());
    let LinkError::Relocate(RelocateError::Undefined { symbols, .. }) = error else { panic!("{error}") };
    assert_eq!(symbols.len(), 2);
}

#[test]
fn many_referrers_are_counted() {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0xc3; 80]);
    elf.symbol("main", text, 0);
    let symbol = elf.symbol("gone", UNDEF, 0);
    (0..10).for_each(|index| elf.relocate(text, index * 8, R_X86_64_64, symbol, 0));
    let text = error(&[elf.build()]);
    assert!(text.ends_with("0.o: .text+0x20\n  and 5 more times"), "{text}");
}

#[test]
fn commons_share_the_largest_and_strictest_and_yield_to_definitions() {
    let tentative = |size, align| {
        let mut elf = Elf::default();
        elf.common("x", size, align);
        elf.build()
    };
    let user = pointers(&["x"]).build();
    let linked = link(&[user.clone(), tentative(16, 4), tentative(32, 64), tentative(8, 8)], &[]).unwrap();
    let x = linked.address("x");
    assert!(x.is_multiple_of(64));
    assert_eq!(linked.symbols.iter().find(|(name, ..)| name == "x").unwrap().2, 32);
    assert_eq!(linked.word(linked.address("main") + 8), x);
    let linked = link(&[user, tentative(16, 4), definition("x", &[7]).build(), tentative(32, 4)], &[]).unwrap();
    assert_eq!(linked.bytes(linked.address("x"), 1), [7]);
}

#[test]
fn huge_commons_take_address_space_only() {
    let mut elf = pointers(&["x"]);
    elf.symbols.pop();
    elf.common("x", 8 << 30, 4096);
    let linked = link(&[elf.build()], &[]).unwrap();
    assert!(linked.reservation > 8 << 30);
    assert!(linked.segments.iter().all(|segment| segment.content.len() < 4096));
    let mut elf = pointers(&["x"]);
    elf.symbols.pop();
    elf.common("x", u64::MAX - 100, 1);
    assert!(error(&[elf.build()]).contains("COMMON (x) of 0xffffffffffffff9b bytes does not fit"));
    let mut elf = pointers(&["x"]);
    elf.symbols.pop();
    elf.common("x", 8, 24);
    assert!(error(&[elf.build()]).contains("section COMMON (x): alignment 0x18 is not a power of two"));
}

#[test]
fn absolute_symbols_keep_their_value() {
    let mut elf = pointers(&["x", "y"]);
    elf.symbols[1].section = ABS;
    elf.symbols[1].value = 0x1234;
    let file = [elf.build()];
    let given = Options { absolute: vec![("y".to_owned(), ExecAddr(0x777))], ..options() };
    let linked = link_at(BASE, &inputs(&file), &given, &[]).unwrap();
    let main = linked.address("main");
    assert_eq!((linked.word(main + 8), linked.word(main + 16)), (0x1234, 0x777));
    assert_eq!(linked.address("x"), 0x1234);
    let clash = Options { absolute: vec![("x".to_owned(), ExecAddr(1))], ..options() };
    let text = link_at(BASE, &inputs(&file), &clash, &[]).unwrap_err().to_string();
    assert_eq!(text, "duplicate symbol: x\n  defined in the linker's options\n  defined in 0.o");
}

#[test]
fn hidden_symbols_are_not_asked_of_the_executor() {
    let mut elf = pointers(&["x"]);
    elf.symbols[1].other = STV_HIDDEN;
    let file = elf.build();
    let error = link(std::slice::from_ref(&file), &[("x", 0x1000)]).unwrap_err().to_string();
    assert_eq!(error, "undefined hidden symbol: x\n  referenced by 0.o: .text+0x8");
    let linked = link(&[file, definition("x", &[1]).build()], &[]).unwrap();
    assert_eq!(linked.externals, []);
    for visibility in [STV_INTERNAL, STV_PROTECTED] {
        let mut elf = definition("x", &[1]);
        elf.symbols[0].other = visibility;
        assert!(link(&[pointers(&["x"]).build(), elf.build()], &[]).is_ok());
    }
}

#[test]
fn locals_bind_within_their_object() {
    let mut elf = pointers(&[]);
    let data = elf.section(".data", WRITE, &[5]);
    let local = elf.local("x", data, 0);
    let absolute = elf.local("y", ABS, 0x99);
    elf.sections[0].content = vec![0xc3; 24];
    elf.sections[0].size = 24;
    elf.relocate(1, 8, R_X86_64_64, local, 0);
    elf.relocate(1, 16, R_X86_64_64, absolute, 1);
    let linked = link(&[elf.build(), definition("x", &[6]).build()], &[]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.bytes(linked.word(main + 8), 1), [5]);
    assert_eq!(linked.word(main + 16), 0x9a);
}

#[test]
fn versions_satisfy_plain_and_versioned_references() {
    let mut elf = definition("foo@@V1", &[3]);
    elf.symbol("foo", 1, 0);
    let linked = link(&[pointers(&["foo", "foo@V1"]).build(), elf.build()], &[]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.bytes(linked.word(main + 8), 1), [3]);
    assert_eq!(linked.word(main + 8), linked.word(main + 16));
}

#[test]
fn unique_internal_and_protected_definitions_bind_across_objects() {
    for (bind, visibility) in [
        (STB_GNU_UNIQUE, STV_DEFAULT),
        (STB_GLOBAL, STV_INTERNAL),
        (STB_GLOBAL, STV_PROTECTED),
        (STB_GLOBAL, STV_HIDDEN),
    ] {
        let mut elf = definition("x", &[9]);
        (elf.symbols[0].bind, elf.symbols[0].other) = (bind, visibility);
        let linked = link(&[pointers(&["x"]).build(), elf.build()], &[]).unwrap();
        assert_eq!(linked.bytes(linked.word(linked.address("main") + 8), 1), [9], "{bind} {visibility}");
    }
}

#[test]
fn the_entry_must_be_code() {
    assert_eq!(error(&[definition("x", &[1]).build()]), "undefined entry symbol: main");
    assert_eq!(
        error(&[definition("main", &[1]).build()]),
        "entry symbol main in 0.o is not code: it is in a data section"
    );
    let mut elf = Elf::with_main();
    elf.symbols[0].kind = STT_TLS;
    assert!(error(&[elf.build()]).contains("thread-local"));
}

#[test]
fn linker_made_symbols_exist_when_asked_for() {
    let linked = link(&[pointers(&["_GLOBAL_OFFSET_TABLE_", "__dso_handle"]).build()], &[]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.word(main + 8), linked.got);
    assert!(linked.word(main + 16).abs_diff(main) < 1 << 31);
}

#[test]
fn archive_members_are_pulled_for_strong_references_only() {
    let mut weak = pointers(&[]);
    let symbol = weak.weak("x", UNDEF, 0);
    weak.sections[0].content = vec![0; 16];
    weak.sections[0].size = 16;
    weak.relocate(1, 8, R_X86_64_64, symbol, 0);
    let archive = super::input::archive(&[
        ("x.o", &definition("x", &[1]).build()),
        ("y.o", &definition("y", &[2]).build()),
        ("chain.o", &{
            let mut elf = definition("z", &[0; 8]);
            let needs = elf.symbol("y", UNDEF, 0);
            elf.relocate(1, 0, R_X86_64_64, needs, 0);
            elf.build()
        }),
        ("z2.o", &definition("z", &[9]).build()),
    ]);
    let with = |user: Vec<u8>| {
        let files = [user];
        let mut inputs = inputs(&files);
        inputs.push(Input::new("lib.a", &archive));
        link_at(BASE, &inputs, &options(), &[]).unwrap()
    };
    let linked = with(weak.build());
    assert_eq!((linked.find("x"), linked.word(linked.address("main") + 8)), (None, 0));
    let linked = with(pointers(&["z"]).build());
    assert_eq!(linked.word(linked.address("z")), linked.address("y"));
    assert_eq!(linked.find("x"), None);
}

#[test]
fn members_of_archives_yield_to_objects_and_are_all_linked_on_request() {
    let archive = super::input::archive(&[("x.o", &definition("x", &[1]).build()), ("m.o", &Elf::with_main().build())]);
    let object = definition("x", &[2]).build();
    let user = pointers(&["x"]).build();
    let inputs = [Input::new("u.o", &user), Input::new("lib.a", &archive), Input::new("o.o", &object)];
    let linked = link_at(BASE, &inputs, &options(), &[]).unwrap();
    assert_eq!(linked.bytes(linked.address("x"), 1), [2]);
    let mut whole = inputs.clone();
    whole[1].members = crate::link::Members::All;
    let text = link_at(BASE, &whole, &options(), &[]).unwrap_err().to_string();
    assert!(text.contains("duplicate symbol: x\n  defined in lib.a(x.o)\n  defined in o.o"), "{text}");
    // The entry is a need like any other.
    let inputs = [Input::new("lib.a", &archive[..])];
    assert!(link_at(BASE, &inputs, &options(), &[]).is_ok());
    let keep = Options { keep: vec!["x".to_owned()], ..options() };
    assert!(link_at(BASE, &inputs, &keep, &[]).unwrap().find("x").is_some());
}

#[test]
fn read_only_data_is_read_only() {
    let mut elf = Elf::with_main();
    let data = elf.section(".rodata", ALLOC, b"text");
    let symbol = elf.symbol("s", data, 0);
    elf.relocate(1, 0, R_X86_64_NONE, symbol, 0);
    let linked = link(&[elf.build()], &[]).unwrap();
    let segment = linked.segments.iter().find(|segment| segment.addr.0 <= linked.address("s")).unwrap();
    assert_eq!(segment.group.prot, graft_protocol::Prot::Read);
}
