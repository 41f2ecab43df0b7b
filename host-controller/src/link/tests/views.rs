//! Aliases, and what people see of an image: its GOT, its stubs, the ELF file.

use graft_protocol::ExecAddr;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::symbols::{definition, pointers};
use super::{BASE, Externals, inputs, link_at, options};
use crate::link::{Options, parse, resolve};

fn aliases(pairs: &[(&str, &str)]) -> Options {
    let own = |(alias, other): &(&str, &str)| ((*alias).to_owned(), (*other).to_owned());
    Options { aliases: pairs.iter().map(own).collect(), ..options() }
}

#[test]
fn an_alias_is_the_other_wherever_that_is_defined() {
    let file = [pointers(&["x", "y"]).build(), definition("y", &[5]).build()];
    let linked = link_at(BASE, &inputs(&file), &aliases(&[("x", "y")]), &[]).unwrap();
    let main = linked.address("main");
    assert_eq!(linked.word(main + 8), linked.address("y"));
    assert_eq!(linked.word(main + 16), linked.address("y"));
    // The executor is asked for the other.
    let file = [pointers(&["x"]).build()];
    let linked = link_at(BASE, &inputs(&file), &aliases(&[("x", "puts")]), &[("puts", 0x1230)]).unwrap();
    assert_eq!(linked.externals, [("puts".to_owned(), false)]);
    assert_eq!(linked.word(linked.address("main") + 8), 0x1230);
}

#[test]
fn aliases_chain_in_any_order_and_circles_do_no_harm() {
    let file = [pointers(&["a", "b"]).build(), definition("c", &[5]).build()];
    for pairs in [[("a", "b"), ("b", "c")], [("b", "c"), ("a", "b")]] {
        let linked = link_at(BASE, &inputs(&file), &aliases(&pairs), &[]).unwrap();
        let main = linked.address("main");
        assert_eq!((linked.word(main + 8), linked.word(main + 16)), (linked.address("c"), linked.address("c")));
    }
    let error = link_at(BASE, &inputs(&file), &aliases(&[("a", "b"), ("b", "a")]), &[]).unwrap_err().to_string();
    assert!(error.starts_with("undefined symbol: "), "{error}");
}

#[test]
fn an_alias_that_is_defined_as_well_is_a_duplicate() {
    let file = [pointers(&[]).build(), definition("x", &[1]).build(), definition("y", &[2]).build()];
    let error = link_at(BASE, &inputs(&file), &aliases(&[("x", "y")]), &[]).unwrap_err().to_string();
    assert_eq!(error, "duplicate symbol: y\n  defined in 1.o\n  defined in 2.o");
}

#[test]
fn the_elf_file_holds_the_segments_and_the_symbols() {
    let files = [pointers(&["x"]).build(), definition("x", &[7, 8]).build()];
    let given = inputs(&files);
    let objects = parse(&given).unwrap();
    let options = options();
    let program = resolve(&objects, &options).unwrap();
    let layout = program.layout().unwrap();
    let image = layout.link(ExecAddr(BASE), &Externals::default()).unwrap();
    let bytes = image.to_elf().unwrap();
    let file: ElfFile64<'_> = ElfFile64::parse(&bytes[..]).unwrap();
    assert_eq!(file.entry(), image.entry.unwrap().0);
    assert_eq!(file.elf_header().e_type(object::Endianness::Little), object::elf::ET_EXEC);
    let loads: Vec<_> = file.elf_program_headers().to_vec();
    assert_eq!(loads.len(), image.segments.len());
    for (load, segment) in loads.iter().zip(&image.segments) {
        let endian = object::Endianness::Little;
        assert_eq!((load.p_vaddr(endian), load.p_memsz(endian)), (segment.addr.0, segment.size));
        assert_eq!(load.data(endian, &bytes[..]).unwrap(), segment.content);
    }
    for symbol in image.symbols() {
        let name = std::str::from_utf8(symbol.name).unwrap();
        let written = file.symbols().find(|one| one.name() == Ok(name)).unwrap();
        assert_eq!((written.address(), written.size()), (symbol.range.start().0, symbol.range.len()));
        let section = file.section_by_index(written.section_index().unwrap()).unwrap();
        assert!(section.address() <= written.address());
    }
}
