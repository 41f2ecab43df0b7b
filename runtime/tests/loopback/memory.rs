//! The life cycle of memory in both dialects.

use graft_protocol::Prot;

use super::fake::{FRAMES, HIGH, LOW, PAGE};
use super::wire::Controller;

#[test]
fn a_program_loads_runs_and_goes() {
    let mut c = Controller::new();
    c.check_good_load();
    assert_eq!(c.machine.free_frames(), FRAMES);
    c.finish();
}

#[test]
fn content_is_stored_filled_up_and_protected_outward() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    assert_eq!(base, LOW.0, "the low arena comes first");
    let segments =
        [(1, base, 104, &b"rodata"[..]), (3, base + PAGE, 2 * PAGE + 8, b"data"), (5, base + 4 * PAGE, 0, b"")];
    assert_eq!(c.initialize(&segments, &[]), Ok(base));
    assert_eq!(c.machine.peek(base, 8).unwrap(), b"rodata\0\0");
    assert_eq!(c.machine.prot(base + PAGE - 1), Some(Prot::Read));
    assert_eq!(c.machine.prot(base + 3 * PAGE), Some(Prot::ReadWrite));
    assert_eq!(c.machine.peek(base + 3 * PAGE, 8).unwrap(), [0; 8]);
    c.finish();
}

#[test]
fn a_reservation_takes_no_frame_until_it_is_used() {
    let mut c = Controller::new();
    // More than the machine has memory.
    let base = c.reserve(8 * FRAMES * PAGE / 2).unwrap();
    assert_eq!(base, HIGH.0);
    assert_eq!(c.machine.free_frames(), FRAMES);
    let odd = c.reserve(PAGE + 1).unwrap();
    assert_eq!(odd, LOW.0);
    assert_eq!(c.reserve(1).unwrap(), LOW.0 + 2 * PAGE);
    c.release(&[base, odd]).unwrap();
    c.finish();
}

#[test]
fn one_reservation_holds_many_regions() {
    let mut c = Controller::new();
    let base = c.reserve(16 * PAGE).unwrap();
    // From the middle outward, as slab managers may.
    for page in [8, 2, 12, 4, 0] {
        assert_eq!(c.initialize(&[(3, base + page * PAGE, PAGE, b"x")], &[]), Ok(base + page * PAGE));
    }
    c.deinitialize(&[base + 2 * PAGE, base + 8 * PAGE]).unwrap();
    assert_eq!(c.machine.peek(base + 8 * PAGE, 1).unwrap(), [0]);
    assert_eq!(c.initialize(&[(3, base + 7 * PAGE, 3 * PAGE, b"y")], &[]), Ok(base + 7 * PAGE));
    c.release(&[base]).unwrap();
    assert_eq!(c.machine.free_frames(), FRAMES);
    c.finish();
}

#[test]
fn ten_thousand_rounds_lose_no_frame() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let code = c.machine.code(|_, _| Ok([7, 0]));
    for round in 0..if cfg!(miri) { 20 } else { 10_000 } {
        let segments =
            [(1, base, PAGE, &b"r"[..]), (5, base + PAGE, PAGE, &code), (3, base + 2 * PAGE, 2 * PAGE, b"w")];
        assert_eq!(c.initialize(&segments, &[]), Ok(base));
        assert_eq!(c.machine.free_frames(), FRAMES - 4);
        if round % 100 == 0 {
            assert_eq!(c.run(base + PAGE), Some(7));
        }
        c.deinitialize(&[base]).unwrap();
        assert_eq!(c.machine.free_frames(), FRAMES);
        assert_eq!(c.machine.prot(base + PAGE), Some(Prot::ReadWrite), "no longer executable");
    }
    assert_eq!(c.run(base + PAGE), None);
    c.finish();
}

#[test]
fn deinitializing_twice_succeeds() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let key = c.initialize(&[(3, base + PAGE, PAGE, b"")], &[]).unwrap();
    c.deinitialize(&[key]).unwrap();
    c.deinitialize(&[key]).unwrap();
    c.deinitialize(&[key, key]).unwrap();
    // A region that covers the old key is not the old region.
    c.initialize(&[(3, base, 2 * PAGE, b"")], &[]).unwrap();
    let text = c.deinitialize(&[key]).unwrap_err();
    let expected =
        format!("In deinitialize, address {key:#x} does not correspond to the start of any initialized region");
    assert_eq!(text, expected);
    c.finish();
}

#[test]
fn finalize_lifetime_memory_is_freed_at_once() {
    let mut c = Controller::new();
    let base = c.reserve(4 * PAGE).unwrap();
    let segments =
        [(1, base, PAGE, &b"stays"[..]), (13, base + PAGE, 2 * PAGE, b"goes"), (9, base + 3 * PAGE, 8, b"goes")];
    c.initialize(&segments, &[]).unwrap();
    assert_eq!(c.machine.free_frames(), FRAMES - 1);
    assert_eq!(c.machine.peek(base + PAGE, 4).unwrap(), [0; 4]);
    assert_eq!(c.run(base + PAGE), None, "it cannot be entered any more");
    c.deinitialize(&[base]).unwrap();
    c.finish();
}

#[test]
fn llvm_19_finalizes_and_deallocates() {
    let mut c = Controller::new();
    let code = c.machine.code(|_, _| Ok([41, 0]));
    let (a, b) = (c.reserve(2 * PAGE).unwrap(), c.reserve(PAGE).unwrap());
    c.finalize(&[(5, a, PAGE, &code), (3, a + PAGE, PAGE, b"")], &[]).unwrap();
    c.finalize(&[], &[]).unwrap();
    assert_eq!(c.run(a), Some(41));
    // One was never finalized; an unknown one does not keep the others.
    assert_eq!(c.deallocate(&[b, 0x123_000, a]), Err("No allocation entry found for 0x123000".to_owned()));
    assert_eq!(c.machine.free_frames(), FRAMES);
    assert_eq!(c.deallocate(&[a]), Err(format!("No allocation entry found for {a:#x}")));
    c.finish();
}

#[test]
fn errors_are_joined_and_the_rest_goes_on() {
    let mut c = Controller::new();
    let (a, b) = (c.reserve(PAGE).unwrap(), c.reserve(PAGE).unwrap());
    let text = c.release(&[0x123_000, a, b + 1, b]).unwrap_err();
    let line = |at: u64| format!("In release, {at:#x} is not part of any reserved address range");
    assert_eq!(text, format!("{}\n{}", line(b + 1), line(0x123_000)));
    assert_eq!(c.release(&[a]), Err(line(a)));
    c.finish();
}

#[test]
fn an_ended_session_leaves_nothing() {
    let mut c = Controller::new();
    let code = c.machine.code(|machine, _| {
        machine.services().allocate(100, 16).unwrap();
        Ok([0, 0])
    });
    let at = c.load(&code);
    c.reserve(1 << 24).unwrap();
    assert_eq!(c.run(at), Some(0));
    assert!(c.machine.free_frames() < FRAMES);
    c.finish();
}

#[test]
fn a_request_that_finds_one_frame_too_few_changes_nothing() {
    let mut c = Controller::new();
    let base = c.reserve(8 * PAGE).unwrap();
    let segments = [(3, base, 2 * PAGE, &b"one"[..]), (1, base + 3 * PAGE, 2 * PAGE, b"two")];
    c.machine.limit_free_frames(3);
    let before = c.machine.state();
    let refused = c.initialize(&segments, &[]).unwrap_err();
    assert_eq!(refused, format!("Cannot allocate memory: {} bytes wanted, {} bytes free", 4 * PAGE, 3 * PAGE));
    assert_eq!(c.machine.state(), before);
    c.machine.limit_free_frames(4);
    c.initialize(&segments, &[]).unwrap();
    c.finish();
}

#[test]
fn a_refused_request_leaves_what_was_deinitialized_before_deinitialized() {
    let mut c = Controller::new();
    let base = c.reserve(8 * PAGE).unwrap();
    let segments = [(3, base, 2 * PAGE, &b"one"[..])];
    c.initialize(&segments, &[]).unwrap();
    c.deinitialize(&[base]).unwrap();
    c.deinitialize(&[base]).unwrap();
    c.machine.limit_free_frames(1);
    c.initialize(&segments, &[]).unwrap_err();
    c.deinitialize(&[base]).unwrap();
    c.machine.limit_free_frames(8);
    c.initialize(&segments, &[]).unwrap();
    c.deinitialize(&[base]).unwrap();
    c.finish();
}

#[test]
fn a_protection_that_cannot_be_set_undoes_the_request() {
    let mut c = Controller::new();
    let base = c.reserve(8 * PAGE).unwrap();
    let before = c.machine.state();
    c.machine.fail_next_protect();
    let refused = c.initialize(&[(1, base, PAGE, b"one")], &[]).unwrap_err();
    assert!(refused.starts_with("Cannot allocate memory: "), "{refused}");
    assert_eq!(c.machine.state(), before);
    c.initialize(&[(1, base, PAGE, b"one")], &[]).unwrap();
    c.finish();
}
