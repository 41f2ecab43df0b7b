//! The controller's side of a session: any bytes as what an executor sends, in pieces of any size.
//!
//! With an odd first byte a good Setup goes ahead of them, so that what follows a Setup is reached, too. Whatever comes,
//! every wait ends: the stream does.
#![no_main]

use std::io::{self, Cursor, Read};
use std::time::Duration;

use graft::session::{CallError, Options, Session, Wire};
use graft_protocol::{ExecAddr, Message, ReserveArgs, Seq, Setup, Text, call, encode, encoded_len};
use libfuzzer_sys::fuzz_target;

/// Hands out at most `most` bytes at a time.
struct Pieces {
    bytes: Cursor<Vec<u8>>,
    most: usize,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = out.len().min(self.most);
        self.bytes.read(&mut out[..most])
    }
}

/// The Setup of an executor that reserves memory, in the bytes it travels in.
fn setup() -> Vec<u8> {
    let symbols = [(Text::new("__llvm_orc_SimpleExecutorMemoryManager_reserve_wrapper"), ExecAddr(0x1000))];
    let setup = Message::Setup(Setup {
        triple: Text::new("x86_64-unknown-none-elf"),
        page_size: 4096,
        symbols: Seq::new(&symbols),
        ..Setup::default()
    });
    let mut bytes = vec![0; encoded_len(&setup)];
    assert!(encode(&setup, &mut bytes).is_ok());
    bytes
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let mut bytes = if first & 1 == 1 { setup() } else { Vec::new() };
    bytes.extend(rest);
    let reader = Pieces { bytes: Cursor::new(bytes), most: 1 + usize::from(first >> 1) };
    let wire = Wire { reader: Box::new(reader), writer: Box::new(io::sink()), shut: Box::new(|| {}) };
    let patience = Duration::from_secs(20);
    let options = Options { message_limit: 1 << 20, setup_patience: patience, patience, ..Options::default() };
    let Ok(session) = Session::open(wire, options) else { return };
    session.on_call(ExecAddr(0x10), |_, arguments| arguments.to_vec());
    // An answer, or the end of the stream; never the end of patience.
    let answer = session.call::<call::Reserve>(&ReserveArgs { instance: ExecAddr(1), size: 4096 });
    assert!(!matches!(answer, Err(CallError::TimedOut { .. })));
    session.finish();
});
