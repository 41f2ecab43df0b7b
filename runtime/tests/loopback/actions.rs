//! Allocation actions: order, failures, what they may be.

use std::sync::{Arc, Mutex};

use graft_protocol::{FaultKind, Outcome, Text, WrapperId, encode, encoded_len};
use graft_runtime::{Entry, ReturnPair};

use super::fake::{FRAMES, Machine, PAGE, fault};
use super::wire::{Call, Controller};

const NONE: Call<'_> = (0, b"");

type Log = Arc<Mutex<String>>;

/// A wrapper function that notes its argument blob and succeeds.
fn noting(machine: &Machine) -> (Vec<u8>, Log) {
    let log = Log::default();
    let code = {
        let log = Arc::clone(&log);
        machine.code(move |_, entry| {
            note(&log, entry);
            Ok([0, 1])
        })
    };
    (code, log)
}

fn note(log: &Log, entry: Entry<'_>) {
    let Entry::Wrapper { args } = entry else { panic!("{entry:?}") };
    log.lock().unwrap().push_str(std::str::from_utf8(args).unwrap());
}

fn taken(log: &Log) -> String {
    std::mem::take(&mut log.lock().unwrap())
}

/// A result in the executor's heap, as a wrapper function returns one of more than 8 bytes.
fn large_result(machine: &Machine, bytes: &[u8]) -> ReturnPair {
    let at = machine.services().allocate(bytes.len() as u64, 16).unwrap();
    graft_runtime::Platform::store(machine, at, bytes);
    [at.0, bytes.len() as u64]
}

fn error_bytes(text: &str) -> Vec<u8> {
    let error = Outcome(Err(Text::new(text)));
    let mut bytes = vec![0; encoded_len(&error)];
    encode(&error, &mut bytes).unwrap();
    bytes
}

#[test]
fn they_run_forwards_and_are_undone_backwards() {
    let mut c = Controller::new();
    let (code, log) = noting(&c.machine);
    let f = c.load(&code);
    let pairs = [((f, &b"a"[..]), (f, &b"A"[..])), ((f, b"b"), (f, b"B")), ((f, b"c"), (f, b"C"))];
    for v1 in [true, false] {
        let base = c.reserve(PAGE).unwrap();
        let segments = [(3, base, PAGE, &b"x"[..])];
        if v1 {
            c.finalize(&segments, &pairs).unwrap();
        } else {
            c.initialize(&segments, &pairs).unwrap();
        }
        assert_eq!(taken(&log), "abc");
        if v1 { c.deallocate(&[base]) } else { c.release(&[base]) }.unwrap();
        assert_eq!(taken(&log), "CBA");
    }
    c.finish();
}

#[test]
fn a_failed_one_undoes_those_before_it() {
    for v1 in [true, false] {
        let mut c = Controller::new();
        let (code, log) = noting(&c.machine);
        let f = c.load(&code);
        let failing = {
            let log = Arc::clone(&log);
            c.machine.code(move |machine, entry| {
                note(&log, entry);
                Ok(large_result(machine, &error_bytes("no such thing")))
            })
        };
        let bad = c.load(&failing);
        let free = c.machine.free_frames();
        let base = c.reserve(PAGE).unwrap();
        let segments = [(3, base, PAGE, &b"x"[..])];
        let pairs = [
            ((f, &b"a"[..]), (f, &b"A"[..])),
            ((f, b"b"), (bad, b"B")),
            ((bad, b"f"), (f, b"F")),
            ((f, b"g"), (f, b"G")),
        ];
        let result = if v1 { c.finalize(&segments, &pairs) } else { c.initialize(&segments, &pairs).map(|_| ()) };
        assert_eq!(result, Err("no such thing\nno such thing".to_owned()), "with the text of the failed clean-up");
        assert_eq!(taken(&log), "abfBA");
        // One frame is the heap's, which held the results.
        assert_eq!(c.machine.free_frames(), free - 1);
        // LLVM 19 drops the reservation with the failed request, its successors keep it.
        let gone = if v1 {
            c.deallocate(&[base])
        } else {
            c.check_good_load();
            c.initialize(&segments, &[]).unwrap();
            c.release(&[base])
        };
        assert_eq!(gone.is_err(), v1, "{gone:?}");
        c.check_good_load();
        c.finish();
    }
}

#[test]
fn an_empty_result_is_a_failure() {
    let mut c = Controller::new();
    let empty = c.machine.code(|_, _| Ok([0, 0]));
    let f = c.load(&empty);
    let base = c.reserve(PAGE).unwrap();
    let text = "Could not deserialize result from serialized wrapper function call";
    assert_eq!(c.initialize(&[(3, base, PAGE, b"")], &[((f, b""), NONE)]), Err(text.to_owned()));
    // So is a memory write of the executor's own: it returns nothing.
    let write = c.address(WrapperId::WriteUint8s);
    let result = c.initialize(&[(3, base, PAGE, b"")], &[((write, &[0; 8]), NONE)]);
    assert_eq!(result, Err(text.to_owned()));
    c.initialize(&[(3, base, PAGE, b"")], &[(NONE, (f, b""))]).unwrap();
    assert_eq!(c.deinitialize(&[base]), Err(text.to_owned()));
    assert_eq!(c.machine.free_frames(), FRAMES - 1, "freed all the same");
    c.finish();
}

#[test]
fn out_of_band_texts_and_faults_are_failures() {
    let mut c = Controller::new();
    let text = c.machine.code(|machine, _| {
        let [at, _] = large_result(machine, b"out of band\0");
        Ok([at, 0])
    });
    let crash = c.machine.code(|_, _| Err(fault(FaultKind::DIVIDE_ERROR, 0x1234, 0)));
    let wild = c.machine.code(|_, _| Ok([0xdead_0000, 99]));
    let wild_text = c.machine.code(|_, _| Ok([0xdead_0000, 0]));
    let base = c.reserve(PAGE).unwrap();
    let mut failure = |code: &[u8]| {
        let at = c.load(code);
        c.initialize(&[(3, base, PAGE, b"")], &[((at, b""), NONE)]).unwrap_err()
    };
    assert_eq!(failure(&text), "out of band");
    assert_eq!(failure(&crash), "divide error, instruction at 0x1234");
    assert_eq!(
        failure(&wild),
        "wrapper function returned 99 bytes at 0xdead0000: 0xdead0000..0xdead0063 is not in one reservation of this session"
    );
    assert!(failure(&wild_text).starts_with("wrapper function failed with a text that cannot be read: "));
    c.check_good_load();
    c.finish();
}

#[test]
fn null_members_are_passed_over() {
    let mut c = Controller::new();
    let (code, log) = noting(&c.machine);
    let f = c.load(&code);
    let base = c.reserve(PAGE).unwrap();
    let pairs =
        [((f, &b"j"[..]), NONE), (NONE, (f, &b"K"[..])), ((0, b"xyz"), (0, b"17 bytes of blob.")), (NONE, NONE)];
    c.initialize(&[(3, base, PAGE, b"")], &pairs).unwrap();
    assert_eq!(taken(&log), "j");
    c.deinitialize(&[base]).unwrap();
    assert_eq!(taken(&log), "K");
    c.release(&[base]).unwrap();
    assert_eq!(taken(&log), "", "not a second time");
    c.finish();
}

#[test]
fn they_may_be_code_of_their_own_request() {
    let mut c = Controller::new();
    let (code, log) = noting(&c.machine);
    let base = c.reserve(3 * PAGE).unwrap();
    // The first from memory that lives only as long as the request.
    let segments = [(5, base, PAGE, &code[..]), (13, base + PAGE, PAGE, &code)];
    c.initialize(&segments, &[((base + PAGE, b"a"), (base, b"A"))]).unwrap();
    assert_eq!(taken(&log), "a");
    c.release(&[base]).unwrap();
    assert_eq!(taken(&log), "A");
    c.finish();
}

#[test]
fn the_executors_own_hooks_are_actions() {
    let mut c = Controller::new();
    let (eh, no_eh) = (c.address(WrapperId::RegisterEhFrame), c.address(WrapperId::DeregisterEhFrame));
    let debug = c.symbol("llvm_orc_registerJITLoaderGDBAllocAction").0;
    let base = c.reserve(PAGE).unwrap();
    let range: Vec<u8> = [base, base + 52].iter().flat_map(|at| at.to_le_bytes()).collect();
    let mut object = range.clone();
    object.push(1);
    let pairs = [((eh, &range[..]), (no_eh, &range[..])), ((debug, &object), NONE)];
    c.initialize(&[(1, base, PAGE, b"")], &pairs).unwrap();
    c.release(&[base]).unwrap();
    c.finish();
}

#[test]
fn regions_go_newest_first() {
    let mut c = Controller::new();
    let (code, log) = noting(&c.machine);
    let f = c.load(&code);
    let base = c.reserve(4 * PAGE).unwrap();
    for (page, blob) in [(2, &b"1"[..]), (0, b"2"), (3, b"3")] {
        c.initialize(&[(3, base + page * PAGE, PAGE, b"")], &[(NONE, (f, blob))]).unwrap();
    }
    let other = c.reserve(PAGE).unwrap();
    c.initialize(&[(3, other, PAGE, b"")], &[(NONE, (f, b"4"))]).unwrap();
    c.release(&[base, other]).unwrap();
    assert_eq!(taken(&log), "4321");
    c.finish();
}

#[test]
fn the_end_of_the_session_runs_what_is_left() {
    let mut c = Controller::new();
    let (code, log) = noting(&c.machine);
    let base = c.reserve(PAGE).unwrap();
    c.initialize(&[(5, base, PAGE, &code)], &[(NONE, (base, b"A")), (NONE, (base, b"B"))]).unwrap();
    c.finish();
    assert_eq!(taken(&log), "BA");
}
