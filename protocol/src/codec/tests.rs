//! The codec by example: bytes that must come out, and bytes that must be refused.

extern crate std;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::addr::ExecRange;

fn bytes_of<T: Encode>(value: &T) -> Vec<u8> {
    let mut out = vec![0; encoded_len(value)];
    let len = encode(value, &mut out).unwrap().len();
    assert_eq!(len, out.len());
    out
}

#[test]
fn examples_of_the_specification() {
    // Section 3 of the wire specification.
    assert_eq!(bytes_of(&Outcome(Ok(()))), [0]);
    assert_eq!(bytes_of(&Expected(Ok(ExecAddr(0x7f6a_9058_9000)))), [1, 0x00, 0x90, 0x58, 0x90, 0x6a, 0x7f, 0, 0]);
    let failure = Expected::<ExecAddr>(Err(Text::new("Cannot allocate memory")));
    let wire = bytes_of(&failure);
    assert_eq!(wire[..10], [0, 0x16, 0, 0, 0, 0, 0, 0, 0, b'C']);
    assert_eq!(decode::<Expected<'_, ExecAddr>>(&wire), Ok(failure));
    assert_eq!(bytes_of(&Seq::new(&[0x11_u8])), [1, 0, 0, 0, 0, 0, 0, 0, 0x11]);
}

#[test]
fn counts_are_bounded_by_their_bytes_before_anything_is_walked() {
    let mut wire = vec![0xff; 8];
    assert_eq!(decode::<Seq<'_, ExecAddr>>(&wire), Err(DecodeError::Underflow { needed: u64::MAX, left: 0 }));
    wire = 3_u64.to_le_bytes().to_vec();
    wire.extend([0; 16]);
    assert_eq!(decode::<Seq<'_, ExecAddr>>(&wire), Err(DecodeError::Underflow { needed: 24, left: 16 }));
    assert_eq!(decode::<Blob<'_>>(&u64::MAX.to_le_bytes()), Err(DecodeError::Underflow { needed: u64::MAX, left: 0 }));
}

#[test]
fn announced_limits_hold() {
    let limits = Limits { count: 2, string: 3 };
    let three = bytes_of(&Seq::new(&[1_u8, 2, 3]));
    assert_eq!(decode_with::<Seq<'_, u8>>(&three, limits), Err(DecodeError::CountAboveLimit { count: 3, limit: 2 }));
    let four = bytes_of(&Text::new("four"));
    assert_eq!(decode_with::<Text<'_>>(&four, limits), Err(DecodeError::StringAboveLimit { len: 4, limit: 3 }));
    assert!(decode_with::<Text<'_>>(&bytes_of(&Text::new("two")), limits).is_ok());
}

#[test]
fn every_byte_must_be_used_and_every_flag_be_defined() {
    assert_eq!(decode::<u8>(&[1, 2]), Err(DecodeError::Trailing { left: 1 }));
    assert_eq!(decode::<bool>(&[2]), Err(DecodeError::BadBool(2)));
    assert_eq!(decode::<Outcome<'_>>(&[2]), Err(DecodeError::BadTag(2)));
    assert_eq!(decode::<Expected<'_, u8>>(&[2]), Err(DecodeError::BadTag(2)));
    assert_eq!(decode::<Option<u8>>(&[7]), Err(DecodeError::BadTag(7)));
    let backward = bytes_of(&(2_u64, 1_u64));
    assert_eq!(
        decode::<ExecRange>(&backward),
        Err(DecodeError::BackwardRange { start: ExecAddr(2), end: ExecAddr(1) })
    );
}

#[test]
fn sequences_read_back_what_was_written() {
    let names = [Text::new("a"), Text::new(""), Text::new("long name")];
    let wire = bytes_of(&Seq::new(&names));
    let read: Seq<'_, Text<'_>> = decode(&wire).unwrap();
    assert_eq!(read, Seq::new(&names));
    assert_eq!(bytes_of(&read), wire);
    assert_eq!(read.iter().size_hint(), (3, Some(3)));
    for cut in 0..wire.len() {
        assert!(decode::<Seq<'_, Text<'_>>>(&wire[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn a_short_buffer_is_an_error() {
    let mut out = [0; 3];
    assert_eq!(encode(&7_u64, &mut out), Err(BufferTooSmall { needed: 8 }));
}

#[test]
fn text_shows_nothing_unprintable() {
    use std::string::ToString;
    assert_eq!(Text(b"a\x1b[2J\xffb\n").to_string(), "a\\u{1b}[2J\\xffb\n");
}
