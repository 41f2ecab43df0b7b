//! The controller's reads and writes of memory.

use graft_protocol::{Blob, ExecAddr, ExecRange, Seq, Text, Wrapper, call, decode};

use super::fake::{FRAMES, PAGE};
use super::wire::Controller;

fn addrs(list: &[u64]) -> Vec<ExecAddr> {
    list.iter().map(|at| ExecAddr(*at)).collect()
}

/// Reads that must be refused: an empty answer, and a line in the log.
fn refused<W: Wrapper>(c: &mut Controller, args: &W::Args<'_>, why: &str) {
    let before = c.machine.state();
    assert_eq!(c.call::<W>(args), b"");
    assert_eq!(c.machine.state(), before);
    let log = c.machine.log();
    assert!(log.iter().any(|line| line.contains(why)), "{why}: {log:?}");
}

#[test]
fn every_width_goes_in_and_out() {
    let mut c = Controller::new();
    let d = c.reserve(2 * PAGE).unwrap();
    c.initialize(&[(3, d, PAGE, b"abc\0def\0")], &[]).unwrap();
    let at = |offset| ExecAddr(d + offset);
    assert_eq!(c.call::<call::WriteUint8s>(&Seq::new(&[(at(0x40), 0x11), (at(0x41), 0x22)])), b"");
    assert_eq!(c.call::<call::WriteUint16s>(&Seq::new(&[(at(0x42), 0x4433)])), b"");
    assert_eq!(c.call::<call::WriteUint32s>(&Seq::new(&[(at(0x44), 0x8877_6655)])), b"");
    assert_eq!(c.call::<call::WriteUint64s>(&Seq::new(&[(at(0x48), 0x1122_3344_5566_7788)])), b"");
    assert_eq!(c.call::<call::WritePointers>(&Seq::new(&[(at(0x51), at(0))])), b"");
    let buffers = [(at(0x60), Blob(b"hello")), (ExecAddr(3), Blob(b""))];
    assert_eq!(c.call::<call::WriteBuffers>(&Seq::new(&buffers)), b"");

    let reply = c.call::<call::ReadUint8s>(&Seq::new(&addrs(&[d + 0x41, d + 0x40])));
    assert!(decode::<Seq<'_, u8>>(&reply).unwrap().iter().eq([0x22, 0x11]));
    let reply = c.call::<call::ReadUint16s>(&Seq::new(&addrs(&[d + 0x42])));
    assert!(decode::<Seq<'_, u16>>(&reply).unwrap().iter().eq([0x4433]));
    let reply = c.call::<call::ReadUint32s>(&Seq::new(&addrs(&[d + 0x44])));
    assert!(decode::<Seq<'_, u32>>(&reply).unwrap().iter().eq([0x8877_6655]));
    let reply = c.call::<call::ReadUint64s>(&Seq::new(&addrs(&[d + 0x48])));
    assert!(decode::<Seq<'_, u64>>(&reply).unwrap().iter().eq([0x1122_3344_5566_7788]));
    let reply = c.call::<call::ReadPointers>(&Seq::new(&addrs(&[d + 0x51])));
    assert!(decode::<Seq<'_, ExecAddr>>(&reply).unwrap().iter().eq([at(0)]));
    let ranges = [ExecRange::new(at(0x60), at(0x65)).unwrap(), ExecRange::default()];
    let reply = c.call::<call::ReadBuffers>(&Seq::new(&ranges));
    assert!(decode::<Seq<'_, Blob<'_>>>(&reply).unwrap().iter().eq([Blob(b"hello"), Blob(b"")]));
    let reply = c.call::<call::ReadStrings>(&Seq::new(&addrs(&[d, d + 4])));
    assert!(decode::<Seq<'_, Text<'_>>>(&reply).unwrap().iter().eq([Text::new("abc"), Text::new("def")]));
    assert_eq!(c.call::<call::ReadUint8s>(&Seq::new(&[])), [0; 8]);
    c.finish();
}

#[test]
fn reserved_memory_reads_as_zeroes_and_can_be_written() {
    let mut c = Controller::new();
    let d = c.reserve(1 << 24).unwrap();
    let reply = c.call::<call::ReadUint64s>(&Seq::new(&addrs(&[d + PAGE - 4])));
    assert!(decode::<Seq<'_, u64>>(&reply).unwrap().iter().eq([0]));
    assert_eq!(c.machine.free_frames(), FRAMES - 2, "a page on each side");
    let reply = c.call::<call::ReadStrings>(&Seq::new(&addrs(&[d + (1 << 23)])));
    assert!(decode::<Seq<'_, Text<'_>>>(&reply).unwrap().iter().eq([Text::new("")]));
    assert_eq!(c.call::<call::WriteUint64s>(&Seq::new(&[(ExecAddr(d + PAGE - 4), u64::MAX)])), b"");
    assert_eq!(c.machine.peek(d + PAGE - 4, 8).unwrap(), [0xff; 8]);
    // What was written stays when only its neighbours are initialized, and goes with the region that covers it.
    c.initialize(&[(3, d + 4 * PAGE, PAGE, b"")], &[]).unwrap();
    assert_eq!(c.machine.peek(d + PAGE - 4, 8).unwrap(), [0xff; 8]);
    c.release(&[d]).unwrap();
    c.finish();
}

#[test]
fn line_8_nothing_outside_a_reservation_is_touched() {
    let mut c = Controller::new();
    let d = c.reserve(2 * PAGE).unwrap();
    let e = c.reserve(PAGE).unwrap();
    c.initialize(&[(3, d, 2 * PAGE, b"")], &[]).unwrap();
    c.initialize(&[(3, e, PAGE, b"")], &[]).unwrap();
    let end = d + 2 * PAGE;
    assert_eq!(e, end);
    let unmapped = "is not in one reservation of this session";
    for at in [0, 8, d - 1, end - 1, end + PAGE, u64::MAX - 1] {
        let why = if at > u64::MAX - 4 { "run past the end of the address space" } else { unmapped };
        refused::<call::ReadUint32s>(&mut c, &Seq::new(&addrs(&[at])), why);
        refused::<call::WriteUint32s>(&mut c, &Seq::new(&[(ExecAddr(at), 1)]), why);
        refused::<call::WriteBuffers>(&mut c, &Seq::new(&[(ExecAddr(at), Blob(b"1234"))]), why);
    }
    // One bad element spoils all.
    refused::<call::WriteUint8s>(&mut c, &Seq::new(&[(ExecAddr(d), 1), (ExecAddr(end + PAGE), 2)]), unmapped);
    let ranges = [ExecRange::new(ExecAddr(d), ExecAddr(end + 1)).unwrap()];
    refused::<call::ReadBuffers>(&mut c, &Seq::new(&ranges), unmapped);
    // More than a message can carry.
    let big = c.reserve(1 << 24).unwrap();
    let ranges = [ExecRange::from_len(ExecAddr(big), 1 << 24).unwrap()];
    refused::<call::ReadBuffers>(&mut c, &Seq::new(&ranges), "above the limit");
    c.check_good_load();
    c.finish();
}

#[test]
fn line_8_what_is_refused_takes_no_memory() {
    let mut c = Controller::new();
    let d = c.reserve(8 * PAGE).unwrap();
    let bad = ExecAddr(d + 8 * PAGE);
    let unmapped = "is not in one reservation of this session";
    let free = c.machine.free_frames();
    // Good elements on pages nobody has touched, and a bad one behind them.
    let at = |page: u64| ExecAddr(d + page * PAGE);
    refused::<call::WriteUint8s>(&mut c, &Seq::new(&[(at(0), 1), (at(1), 1), (bad, 1)]), unmapped);
    refused::<call::WritePointers>(&mut c, &Seq::new(&[(at(0), at(0)), (bad, at(0))]), unmapped);
    refused::<call::WriteBuffers>(&mut c, &Seq::new(&[(at(0), Blob(b"good")), (bad, Blob(b"bad"))]), unmapped);
    refused::<call::ReadUint8s>(&mut c, &Seq::new(&[at(0), at(1), bad]), unmapped);
    refused::<call::ReadPointers>(&mut c, &Seq::new(&[at(0), at(1), bad]), unmapped);
    refused::<call::ReadStrings>(&mut c, &Seq::new(&[at(0), at(1), bad]), unmapped);
    let range = |from| ExecRange::from_len(from, 8).unwrap();
    refused::<call::ReadBuffers>(&mut c, &Seq::new(&[range(at(0)), range(at(1)), range(bad)]), unmapped);
    assert_eq!(c.machine.free_frames(), free);
    // Without the bad one they are done.
    assert_eq!(c.call::<call::WriteUint8s>(&Seq::new(&[(at(0), 1), (at(1), 1)])), b"");
    assert_eq!(c.machine.free_frames(), free - 2);
    c.finish();
}

#[test]
fn accesses_that_there_is_no_memory_for_take_none() {
    let mut c = Controller::new();
    let d = c.reserve((FRAMES + 8) * PAGE).unwrap();
    let at = |page: u64| ExecAddr(d + page * PAGE);
    let free = c.machine.free_frames();
    let elements: Vec<_> = (0..=free).map(|page| (at(page), 1)).collect();
    refused::<call::WriteUint8s>(&mut c, &Seq::new(&elements), "out of memory");
    let all: Vec<_> = (0..=free).map(at).collect();
    refused::<call::ReadUint8s>(&mut c, &Seq::new(&all), "out of memory");
    refused::<call::ReadStrings>(&mut c, &Seq::new(&all), "out of memory");
    let buffers = [(at(0), Blob(b"a")), (at(free - 1), Blob(&[1; 2 * PAGE as usize]))];
    c.initialize(&[(3, d + PAGE, (free - 2) * PAGE, b"")], &[]).unwrap();
    refused::<call::WriteBuffers>(&mut c, &Seq::new(&buffers), "out of memory");
    assert_eq!(c.machine.free_frames(), 2);
    // Many elements on one page cost one.
    let elements: Vec<_> = (0..PAGE).map(|byte| (ExecAddr(d + byte), 1)).collect();
    assert_eq!(c.call::<call::WriteUint8s>(&Seq::new(&elements)), b"");
    assert_eq!(c.machine.free_frames(), 1);
    c.finish();
}

#[test]
fn line_8_strings_end_with_their_memory() {
    let mut c = Controller::new();
    let d = c.reserve(PAGE).unwrap();
    let full = vec![b'x'; PAGE as usize];
    c.initialize(&[(3, d, PAGE, &full)], &[]).unwrap();
    refused::<call::ReadStrings>(&mut c, &Seq::new(&addrs(&[d + 1])), "no NUL in the 4095 bytes at");
    refused::<call::ReadStrings>(&mut c, &Seq::new(&addrs(&[d - 1])), "is not in one reservation");
    c.check_good_load();
    c.finish();
}

#[test]
fn line_8_what_is_initialized_read_only_stays_so() {
    let mut c = Controller::new();
    let d = c.reserve(4 * PAGE).unwrap();
    c.initialize(&[(1, d, PAGE, b"ro"), (5, d + PAGE, PAGE, b"rx"), (3, d + 2 * PAGE, PAGE, b"rw")], &[]).unwrap();
    let write = |at| [(ExecAddr(at), 0x42_u8)];
    refused::<call::WriteUint8s>(&mut c, &Seq::new(&write(d)), "is not writable: it is initialized as R--");
    refused::<call::WriteUint8s>(&mut c, &Seq::new(&write(d + PAGE)), "is not writable: it is initialized as R-X");
    refused::<call::WriteUint16s>(
        &mut c,
        &Seq::new(&[(ExecAddr(d + 2 * PAGE - 1), 0x4242)]),
        "is not writable: it is initialized as R-X",
    );
    assert_eq!(c.call::<call::WriteUint8s>(&Seq::new(&write(d + 2 * PAGE))), b"");
    assert_eq!(c.machine.peek(d + 2 * PAGE, 2).unwrap(), b"\x42w");
    let reply = c.call::<call::ReadBuffers>(&Seq::new(&[ExecRange::from_len(ExecAddr(d + PAGE), 2).unwrap()]));
    assert!(decode::<Seq<'_, Blob<'_>>>(&reply).unwrap().iter().eq([Blob(b"rx")]));
    // A write over all kinds of pages at once, the first of them unwritable.
    assert_eq!(c.machine.prot(d + PAGE), Some(graft_protocol::Prot::ReadExec));
    c.finish();
}
