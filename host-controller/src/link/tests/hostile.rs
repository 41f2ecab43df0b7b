//! Objects that are broken on purpose: whatever the bytes, there is an image or an error, soon.

use object::elf::*;

use super::elf::{ALLOC, COMMON, EXEC, Elf, UNDEF, WRITE};
use super::{BASE, input, link_at, options};
use crate::link::{Collect, Input, Options};

/// A little of everything.
fn sample() -> Elf {
    let mut elf = Elf::default();
    let text = elf.section(".text", EXEC, &[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3]);
    let inline = elf.section(".text.f", EXEC, &[0xc3]);
    let data = elf.section(".data", WRITE, &[0; 24]);
    let init = elf.raw_section(".init_array", SHT_INIT_ARRAY, WRITE, &[0; 8]);
    elf.section("names", ALLOC, b"a\0");
    elf.zero(".bss", WRITE, 100);
    elf.section(".debug_info", 0, b"debug");
    let record = [16, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let mut frames = record.to_vec();
    frames.extend(record);
    frames[24] = 24;
    let frame = elf.section(".eh_frame", ALLOC, &frames);
    elf.symbol("main", text, 0);
    let f = elf.weak("f", inline, 0);
    let puts = elf.symbol("puts", UNDEF, 0);
    let shared = elf.raw_symbol("shared", STB_GLOBAL, STT_OBJECT, COMMON, 8);
    let section = elf.raw_symbol("", STB_LOCAL, STT_SECTION, data, 0);
    let (start, stop) = (elf.symbol("__start_names", UNDEF, 0), elf.weak("__stop_names", UNDEF, 0));
    elf.groups.push((true, f, vec![inline]));
    elf.relocate(text, 3, R_X86_64_REX_GOTPCRELX, shared, -4);
    elf.relocate(text, 8, R_X86_64_PLT32, puts, -4);
    elf.relocate(data, 0, R_X86_64_64, start, 0);
    elf.relocate(data, 8, R_X86_64_PC64, stop, 0);
    elf.relocate(data, 16, R_X86_64_SIZE32, section, 0);
    elf.relocate(init, 0, R_X86_64_64, f, 0);
    elf.relocate(frame, 28, R_X86_64_PC32, section, 0);
    elf
}

/// Links in every mode; the outcome does not matter, that there is one does.
fn attempt(bytes: &[u8]) {
    for collect in [Collect::Reachable, Collect::All] {
        let options = Options { collect, ..options() };
        let result = link_at(BASE, &[Input::new("x", bytes)], &options, &[("puts", 0x2000_0000)]);
        if let Err(error) = result {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 20_000, "{text}");
        }
    }
}

#[test]
fn the_sample_links() {
    let bytes = sample().build();
    link_at(BASE, &[Input::new("x", &bytes)], &options(), &[("puts", 0x2000_0000)]).unwrap();
}

#[test]
fn objects_cut_at_any_byte_are_refused() {
    let bytes = sample().build();
    for end in 0..bytes.len() {
        let input = [Input::new("x", &bytes[..end])];
        let error = link_at(BASE, &input, &options(), &[("puts", 1)]).expect_err("a truncated object");
        assert!(error.to_string().starts_with("x: "), "{error}");
    }
}

#[test]
fn archives_cut_at_any_byte_do_not_panic() {
    let archive = input::archive(&[("a.o", &sample().build()), ("b.o", &Elf::with_main().build())]);
    (0..archive.len()).for_each(|end| attempt(&archive[..end]));
}

#[test]
fn no_single_byte_panics() {
    let bytes = sample().build();
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff, bytes[at] ^ 1] {
            let mut broken = bytes.clone();
            broken[at] = value;
            attempt(&broken);
        }
    }
}

#[test]
fn no_group_of_bytes_panics() {
    let bytes = sample().build();
    // A fixed sequence, the same on every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..4_000 {
        let mut broken = bytes.clone();
        for _ in 0..1 + next() % 6 {
            let at = next() as usize % broken.len();
            let value = [0, 0xff, next() as u8, next() as u8 & 0x1f][next() as usize % 4];
            broken[at] = value;
            if next() % 4 == 0 {
                broken[at..].iter_mut().take(8).for_each(|byte| *byte = value);
            }
        }
        attempt(&broken);
    }
}

/// How long a link may take that is linear; quadratic ones of these sizes take minutes.
const SOON: std::time::Duration = std::time::Duration::from_secs(20);

#[test]
fn chains_and_crowds_take_linear_time() {
    let start = std::time::Instant::now();
    // A chain of sections: recursion would overflow the stack.
    let mut chain = Elf::with_main();
    let sections: Vec<usize> = (0..20_000).map(|_| chain.section(".t", EXEC, &[0; 8])).collect();
    let symbols: Vec<usize> = sections.iter().map(|section| chain.local("", *section, 0)).collect();
    chain.relocate(1, 0, R_X86_64_NONE, symbols[0], 0);
    let links = sections.iter().zip(&symbols[1..]).map(|(from, to)| (*from, vec![(0, R_X86_64_64, *to, 0)]));
    chain.relocations.extend(links);
    attempt(&chain.build());
    // One group of many sections, and many references to many sections of one name.
    let mut crowd = Elf::with_main();
    let members: Vec<usize> = (0..20_000).map(|_| crowd.section("crowd", WRITE, &[0; 8])).collect();
    let signature = crowd.symbol("signature", members[0], 0);
    let bound = crowd.symbol("__start_crowd", UNDEF, 0);
    crowd.groups.push((true, signature, members));
    crowd.relocations.push((1, (0..20_000).map(|_| (0, R_X86_64_NONE, bound, 0)).collect()));
    attempt(&crowd.build());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}
