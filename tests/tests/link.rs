//! Every program of the table links offline, where there is no executor to find fault with.

use std::fs;

use graft::link::{Externals, Input, Options, parse, resolve};
use graft_protocol::ExecAddr;
use graft_tests::objects;
use graft_tests::programs::{PROGRAMS, Program};

/// Below 2 GiB, where every code model reaches.
const LOW: ExecAddr = ExecAddr(0x1000_0000);

/// Where a hosted executor might be.
const HIGH: ExecAddr = ExecAddr(0x7f12_3456_7000);

/// Where the functions of the executor are.
const FUNCTIONS: ExecAddr = ExecAddr(0x10_0000);

fn link(program: &'static Program, base: ExecAddr, functions: ExecAddr) -> Result<(), String> {
    let built = objects::built(program)?;
    let files: Vec<Vec<u8>> = built.inputs.iter().map(|path| fs::read(path).unwrap()).collect();
    let inputs: Vec<Input<'_>> =
        built.inputs.iter().zip(&files).map(|(path, bytes)| Input::new(path.to_string_lossy(), bytes)).collect();
    let objects = parse(&inputs).map_err(|error| error.to_string())?;
    let options = Options { entry: Some("main".to_owned()), ..Options::default() };
    let linked = resolve(&objects, &options).map_err(|error| error.to_string())?;
    let layout = linked.layout().map_err(|error| error.to_string())?;
    let mut externals = Externals::default();
    for external in layout.externals().iter().filter(|external| !external.weak) {
        externals.insert(external.name, functions);
    }
    let image = layout.link(base, &externals).map_err(|error| error.to_string())?;
    image.address_of("main").map(drop).ok_or_else(|| "the image has no main".to_owned())
}

#[test]
fn every_program_links_below_2_gib() {
    for program in PROGRAMS {
        let result = link(program, LOW, FUNCTIONS);
        assert_eq!(result, Ok(()), "{}", program.name);
    }
}

#[test]
fn what_is_position_independent_links_anywhere() {
    for program in PROGRAMS {
        let bound = ["no-pic", "kernel"].iter().any(|word| program.name.contains(word));
        match link(program, HIGH, FUNCTIONS) {
            Ok(()) => assert!(!bound, "{} cannot work there", program.name),
            Err(text) => assert!(bound && text.contains("below 2 GiB"), "{}: {text}", program.name),
        }
    }
}
