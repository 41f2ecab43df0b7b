//! The SPS decoder: any bytes, read as the arguments and the reply of every row of the table.
//!
//! What decodes must encode to the same bytes again, and walking a sequence must give as many elements as it announced.
#![no_main]

use graft_protocol::{Decode, Encode, Limits, Wrapper, WrapperId, call, decode_with, encode, encoded_len};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { count: 1 << 16, string: 1 << 16 };

fn round_trip<'a, T: Decode<'a> + Encode>(bytes: &'a [u8]) {
    if let Ok(value) = decode_with::<T>(bytes, LIMITS) {
        let mut out = vec![0; encoded_len(&value)];
        assert_eq!(encode(&value, &mut out), Ok(bytes));
    }
}

macro_rules! rows {
    ($($row:ident),* $(,)?) => {
        &[$(|bytes| {
            round_trip::<<call::$row as Wrapper>::Args<'_>>(bytes);
            round_trip::<<call::$row as Wrapper>::Reply<'_>>(bytes);
        }),*]
    };
}

const ROWS: &[fn(&[u8])] = rows! {
    Reserve,
    Finalize,
    Deallocate,
    Initialize,
    Deinitialize,
    Release,
    SharedReserve,
    SharedInitialize,
    SharedDeinitialize,
    SharedRelease,
    Open,
    Lookup,
    Resolve22,
    Resolve,
    RegisterEhFrame,
    DeregisterEhFrame,
    RegisterDebugObject,
    RunAsMain,
    RunAsVoidFunction,
    RunAsIntFunction,
    WriteUint8s,
    WriteUint16s,
    WriteUint32s,
    WriteUint64s,
    WritePointers,
    WriteBuffers,
    ReadUint8s,
    ReadUint16s,
    ReadUint32s,
    ReadUint64s,
    ReadPointers,
    ReadBuffers,
    ReadStrings,
    CallMain,
    TimeLimit,
    Ring,
    Info,
    ConsoleOutput
};

// A seed names its row by its place in the table.
const _: () = assert!(ROWS.len() == WrapperId::ALL.len());

fuzz_target!(|data: &[u8]| {
    let Some((&pick, bytes)) = data.split_first() else { return };
    ROWS[usize::from(pick) % ROWS.len()](bytes);
});
