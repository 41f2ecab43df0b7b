//! The object parser and the whole link: any bytes as an input file, linked whole and by need.
//!
//! Nothing may panic, and what links must lie inside the reservation the layout asked for.
#![no_main]

use graft::link::{Collect, Externals, Input, Options, Unwind, parse, resolve};
use graft_protocol::ExecAddr;
use libfuzzer_sys::fuzz_target;

const BASE: ExecAddr = ExecAddr(0x1000_0000);

fuzz_target!(|data: &[u8]| {
    let Ok(objects) = parse(&[Input::new("fuzz", data)]) else { return };
    for (collect, unwind) in [(Collect::All, Unwind::Keep), (Collect::Reachable, Unwind::Drop)] {
        let options = Options {
            entry: (collect == Collect::Reachable).then(|| "main".to_owned()),
            collect,
            unwind,
            ..Options::default()
        };
        let Ok(program) = resolve(&objects, &options) else { continue };
        let Ok(layout) = program.layout() else { continue };
        let mut externals = Externals::default();
        for external in program.externals() {
            externals.insert(external.name, ExecAddr(0x10_0000));
        }
        let Ok(image) = layout.link(BASE, &externals) else { continue };
        for segment in &image.segments {
            let end = segment.addr.0 + segment.size;
            assert!(segment.addr >= BASE && end <= BASE.0 + layout.reservation());
            assert!(segment.content.len() as u64 <= segment.size);
        }
    }
});
