//! open, lookup, and the two functions called resolve.

use graft_protocol::{
    ExecAddr, LookupArgs, OpenArgs, ResolveArgs, Seq, SymbolDef, SymbolQuery, Text, WrapperId, call, decode, encode,
    encoded_len,
};

use super::wire::{Controller, expected};

const PUTS: ExecAddr = ExecAddr(0x10_0100);

fn query(name: &str, required: bool) -> SymbolQuery<'_> {
    SymbolQuery { name: Text::new(name), required }
}

fn open(c: &mut Controller) -> ExecAddr {
    let args = OpenArgs { instance: c.dylibs, path: Text::new(""), mode: 0 };
    expected(&c.call::<call::Open>(&args)).unwrap()
}

fn definition(addr: ExecAddr) -> SymbolDef {
    SymbolDef { addr, flags: 0x10, target_flags: 0 }
}

#[test]
fn only_the_executor_itself_opens() {
    let mut c = Controller::new();
    assert!(open(&mut c).0 > 1 << 48, "no believable count");
    assert!(c.dylibs.0 > 1 << 48);
    let mut refusal = |path, mode| {
        let args = OpenArgs { instance: c.dylibs, path: Text::new(path), mode };
        expected::<ExecAddr>(&c.call::<call::Open>(&args)).unwrap_err()
    };
    assert_eq!(refusal("", 1), "open: non-zero mode bits not yet supported (mode 0x1)");
    assert_eq!(refusal("/lib/x.so", 0), "/lib/x.so: this executor has no libraries but itself (the empty path)");
    c.finish();
}

#[test]
fn llvm_19_looks_up() {
    let mut c = Controller::new();
    let (instance, handle) = (c.dylibs, open(&mut c));
    let mut look = |symbols: &[SymbolQuery<'_>]| {
        let reply = c.call::<call::Lookup>(&LookupArgs { instance, handle, symbols: Seq::new(symbols) });
        expected::<Seq<'_, SymbolDef>>(&reply).map(|found| found.iter().collect::<Vec<_>>())
    };
    let none = SymbolDef { addr: ExecAddr::NULL, flags: 0, target_flags: 0 };
    let found = look(&[query("puts", true), query("nosuch", false), query("", false)]);
    assert_eq!(found, Ok(vec![definition(PUTS), definition(ExecAddr::NULL), none]));
    assert_eq!(look(&[query("nosuch", true)]), Err("Missing definition for nosuch".to_owned()));
    assert_eq!(look(&[query("", true)]), Err("Required address for empty symbol \"\"".to_owned()));
    assert_eq!(look(&[]), Ok(vec![]));
    // LLVM 19's debugger hook is not in its Setup.
    let gdb = look(&[query("llvm_orc_registerJITLoaderGDBWrapper", true)]).unwrap()[0].addr;
    let range = [0_u64, 8].iter().flat_map(|word| word.to_le_bytes()).chain([1]).collect::<Vec<_>>();
    assert_eq!(c.call_bytes(gdb.0, &range), [0]);
    c.finish();
}

#[test]
fn the_arguments_of_resolve_say_which_it_is() {
    let mut c = Controller::new();
    let (instance, handle) = (c.dylibs, open(&mut c));
    let name = "__llvm_orc_SimpleExecutorDylibManager_resolve_wrapper";
    let target = c.symbol(name).0;
    assert_eq!(target, c.symbol("orc_rt_ci_sps_NativeDylibManager_lookup").0);
    for count in 0..4 {
        let all = [query("puts", true), query("nosuch", false), query("nosuch", true), query("", false)];
        let symbols = Seq::new(&all[..count]);
        let mut bytes = vec![0; 4096];
        let old = encode(&ResolveArgs { handle, symbols }, &mut bytes).unwrap().to_vec();
        let new = encode(&LookupArgs { instance, handle, symbols }, &mut bytes).unwrap().to_vec();
        let reply = c.call_bytes(target, &old);
        let found: Vec<_> = expected::<Seq<'_, Option<SymbolDef>>>(&reply).unwrap().iter().collect();
        let want = [Some(definition(PUTS)), Some(definition(ExecAddr::NULL)), None, None];
        assert_eq!(found, want[..count]);
        let reply = c.call_bytes(target, &new);
        let found: Vec<_> = expected::<Seq<'_, Option<ExecAddr>>>(&reply).unwrap().iter().collect();
        let want = [Some(PUTS), Some(ExecAddr::NULL), None, None];
        assert_eq!(found, want[..count]);
    }
    // Neither of the two, and an empty name that insists.
    let reply = c.call_bytes(target, b"\x07");
    assert!(expected::<ExecAddr>(&reply).unwrap_err().starts_with("could not deserialize the arguments"));
    let symbols = [query("", true)];
    let args = ResolveArgs { handle, symbols: Seq::new(&symbols) };
    let mut bytes = vec![0; encoded_len(&args)];
    encode(&args, &mut bytes).unwrap();
    let reply = c.call_bytes(target, &bytes);
    assert!(expected::<Seq<'_, Option<SymbolDef>>>(&reply).unwrap().iter().eq([None]));
    c.finish();
}

#[test]
fn every_published_name_is_there_once_and_can_be_looked_up() {
    let mut c = Controller::new();
    let mut names: Vec<_> = c.symbols.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), c.symbols.len());
    assert!(names.iter().all(|name| !name.contains("SharedMemoryMapper")));
    for row in WrapperId::ALL {
        let shared = row.names().iter().any(|name| name.name.contains("SharedMemoryMapper"));
        for name in row.names().iter().filter(|_| !shared) {
            assert_eq!(c.symbol(name.name).0 >> 44, 0xf_ffff, "{}", name.name);
        }
    }
    assert_eq!(c.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_fn"), ExecAddr(0x10_0200));
    let (instance, handle) = (c.dylibs, open(&mut c));
    let symbols = [query("__orc_rt_jit_dispatch_ctx", true), query("graft_info_wrapper", true)];
    let reply = c.call::<call::Lookup>(&LookupArgs { instance, handle, symbols: Seq::new(&symbols) });
    let found: Vec<_> = expected::<Seq<'_, SymbolDef>>(&reply).unwrap().iter().map(|found| found.addr).collect();
    assert_eq!(found, [c.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_ctx"), c.symbol("graft_info_wrapper")]);
    let info = c.call_bytes(found[1].0, b"");
    assert!(decode::<graft_protocol::InfoReply<'_>>(&info).is_ok());
    c.finish();
}
