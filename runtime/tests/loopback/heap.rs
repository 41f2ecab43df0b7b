//! The heap of loaded code.

use std::collections::BTreeMap;

use graft_protocol::{ExecAddr, Seq, call};

use super::fake::{FRAMES, PAGE};
use super::wire::Controller;

#[test]
fn blocks_are_apart_aligned_and_counted() {
    let c = Controller::new();
    let services = c.machine.services();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut state = 5_u64;
    for _ in 0..if cfg!(miri) { 100 } else { 5_000 } {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = state >> 33;
        if dice.is_multiple_of(2) || live.is_empty() {
            let (size, align) = ((dice >> 4) % 700, 1 << ((dice >> 16) % 9));
            let at = services.allocate(size, align).unwrap().0;
            assert_eq!(at % align.max(16), 0);
            let below = live.range(..=at).next_back();
            assert!(below.is_none_or(|(other, len)| other + (*len).max(1) <= at));
            assert!(live.range(at..).next().is_none_or(|(other, _)| at + size.max(1) <= *other));
            assert_eq!(services.block_size(ExecAddr(at)), Some(size));
            live.insert(at, size);
        } else {
            let at = *live.keys().nth((dice >> 8) as usize % live.len()).unwrap();
            live.remove(&at);
            services.free(ExecAddr(at));
            assert_eq!(services.block_size(ExecAddr(at)), None);
        }
    }
    live.keys().for_each(|at| services.free(ExecAddr(*at)));
    // All of it grew together again.
    assert_eq!(services.allocate(FRAMES * PAGE + 1, 16), None, "the machine has no such memory");
    let at = services.allocate(FRAMES * PAGE, 16).unwrap();
    services.free(at);
    drop(services);
    c.finish();
}

#[test]
fn what_is_no_block_is_not_freed() {
    let c = Controller::new();
    let services = c.machine.services();
    let at = services.allocate(100, 16).unwrap();
    for wrong in [0x1234, at.0 + 16, at.0 + 112] {
        services.free(ExecAddr(wrong));
        assert_eq!(c.machine.log(), [format!("free of {wrong:#x}, which is not a block of the heap: ignored")]);
    }
    services.free(at);
    services.free(at);
    assert_eq!(c.machine.log().len(), 1, "twice is once too often");
    drop(services);
    c.finish();
}

#[test]
fn memory_runs_out_politely_and_large_blocks_give_it_back() {
    let c = Controller::new();
    let services = c.machine.services();
    let half = FRAMES / 2 * PAGE;
    let a = services.allocate(half, 16).unwrap();
    assert_eq!(services.allocate(half + PAGE, 16), None);
    assert_eq!(services.allocate(u64::MAX, 16), None);
    assert_eq!(services.allocate(1, 1 << 63), None);
    let b = services.allocate(half - 16 * PAGE, 4096).unwrap();
    services.free(a);
    services.free(b);
    assert!(c.machine.free_frames() >= FRAMES - 2, "{}", c.machine.free_frames());
    drop(services);
    c.finish();
}

#[test]
fn the_controller_reads_and_writes_it_and_does_not_release_it() {
    let mut c = Controller::new();
    let at = c.machine.services().allocate(64, 4096).unwrap();
    assert_eq!(c.call::<call::WriteUint8s>(&Seq::new(&[(at, 7)])), b"");
    assert_eq!(c.machine.peek(at.0, 1).unwrap(), [7]);
    let base = at.0 / PAGE * PAGE;
    assert!(c.release(&[base]).is_err());
    assert!(c.deinitialize(&[base]).is_err());
    assert!(c.initialize(&[(5, base, PAGE, b"code")], &[]).is_err());
    assert!(c.finalize(&[(5, base, PAGE, b"code")], &[]).is_err());
    c.finish();
}
