//! The linker on objects written for the purpose.
#![expect(clippy::cast_possible_truncation, reason = "test values are small")]

mod edges;
mod elf;
mod hostile;
mod indirect;
mod input;
mod relocations;
mod sections;
mod symbols;
mod thread;
mod views;

use graft_protocol::ExecAddr;

use super::{Externals, Image, Input, LinkError, Options, parse, resolve};

pub(super) const BASE: u64 = 0x1000_0000;

/// What a test looks at in an image.
#[derive(Debug)]
pub(super) struct Linked {
    segments: Vec<super::Segment>,
    entry: Option<ExecAddr>,
    /// By name, first defined first.
    symbols: Vec<(String, u64, u64)>,
    initializers: Vec<u64>,
    finalizers: Vec<u64>,
    externals: Vec<(String, bool)>,
    reservation: u64,
    got: u64,
}

impl Linked {
    pub(super) fn address(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_else(|| panic!("{name} is not in the image: {:?}", self.symbols))
    }

    pub(super) fn find(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(symbol, ..)| symbol == name).map(|(_, addr, _)| *addr)
    }

    /// `len` bytes at `addr`, zero-fill included.
    pub(super) fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let segment =
            self.segments.iter().find(|s| s.addr.0 <= addr && addr < s.addr.0 + s.size).expect("in a segment");
        let offset = (addr - segment.addr.0) as usize;
        (offset..offset + len).map(|at| segment.content.get(at).copied().unwrap_or(0)).collect()
    }

    pub(super) fn word(&self, addr: u64) -> u64 {
        u64::from_le_bytes(self.bytes(addr, 8).try_into().expect("eight bytes"))
    }

    pub(super) fn half(&self, addr: u64) -> i32 {
        i32::from_le_bytes(self.bytes(addr, 4).try_into().expect("four bytes"))
    }
}

pub(super) fn options() -> Options {
    Options { entry: Some("main".to_owned()), ..Options::default() }
}

/// Links `files` at [`BASE`] for the entry `main`, with `externals`.
pub(super) fn link(files: &[Vec<u8>], externals: &[(&str, u64)]) -> Result<Linked, LinkError> {
    link_at(BASE, &inputs(files), &options(), externals)
}

pub(super) fn inputs(files: &[Vec<u8>]) -> Vec<Input<'_>> {
    files.iter().enumerate().map(|(index, bytes)| Input::new(format!("{index}.o"), bytes)).collect()
}

pub(super) fn link_at(
    base: u64,
    inputs: &[Input<'_>],
    options: &Options,
    externals: &[(&str, u64)],
) -> Result<Linked, LinkError> {
    let objects = parse(inputs)?;
    let program = resolve(&objects, options)?;
    let layout = program.layout()?;
    let addresses: Externals = externals.iter().map(|(name, addr)| (*name, ExecAddr(*addr))).collect();
    let image: Image<'_> = layout.link(ExecAddr(base), &addresses)?;
    let symbol =
        |s: super::Symbol<'_>| (String::from_utf8_lossy(s.name).into_owned(), s.range.start().0, s.range.len());
    let functions = |list: &[super::Initializer]| list.iter().map(|one| one.function.0).collect();
    Ok(Linked {
        symbols: image.symbols().into_iter().map(symbol).collect(),
        initializers: functions(&image.initializers),
        finalizers: functions(&image.finalizers),
        entry: image.entry,
        got: image.got().0,
        externals: program.externals().iter().map(|one| (one.name.to_owned(), one.weak)).collect(),
        reservation: layout.reservation(),
        segments: image.segments,
    })
}

/// The text of the error that linking `files` gives.
pub(super) fn error(files: &[Vec<u8>]) -> String {
    match link(files, &[]) {
        Ok(linked) => panic!("linked: {linked:?}"),
        Err(error) => error.to_string(),
    }
}
