//! The message reader: any bytes as a stream, fed whole and cut anywhere.
//!
//! Every message taken encodes to the bytes it came from, and a cut stream never says anything a longer one takes back.
#![no_main]

use graft_protocol::{Message, encode, encoded_len};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some((message, taken))) = Message::split(rest, LIMIT) {
        let mut out = vec![0; encoded_len(&message)];
        assert_eq!(encode(&message, &mut out), Ok(&rest[..taken]));
        assert_eq!(Message::split(&rest[..taken - 1], LIMIT), Ok(None));
        rest = &rest[taken..];
    }
});
