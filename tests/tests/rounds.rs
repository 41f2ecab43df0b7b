//! One range, initialized, run and deinitialized ten thousand times: no byte is lost, and what is gone is no code.

use graft_protocol::{AddrsArgs, ExecAddr, FinalizeArgs, Prot, RunMainArgs, Seq, Wrapper, call, decode};
use graft_qemu::MachineKind;
use graft_tests::raw::{Said, bytes_of, expected, outcome};
use graft_tests::rig::{PAGE, Rig, on_executors, segment};

/// How many times.
const ROUNDS: u32 = 10_000;

/// How many are sent before the first answer is read: their answers fit what any line holds.
const BATCH: u32 = 50;

/// `mov eax, round; ret`, so that code of an earlier round would show.
fn code_of(round: u32) -> Vec<u8> {
    let mut code = vec![0xb8];
    code.extend(round.to_le_bytes());
    code.push(0xc3);
    code
}

/// Three requests of a round, as bytes.
fn round(rig: &Rig, base: ExecAddr, number: u32) -> Vec<(ExecAddr, Vec<u8>)> {
    let content = code_of(number);
    let segments = [segment(Prot::ReadExec, base, &content)];
    let instance = rig.manager();
    let keys = [base];
    fn request<W: Wrapper>(rig: &Rig, args: &W::Args<'_>) -> (ExecAddr, Vec<u8>) {
        (rig.client.wrapper::<W>(), bytes_of(args))
    }
    vec![
        request::<call::Initialize>(
            rig,
            &FinalizeArgs { instance, segments: Seq::new(&segments), actions: Seq::default() },
        ),
        request::<call::RunAsMain>(rig, &RunMainArgs { entry: base, args: Seq::default() }),
        request::<call::Deinitialize>(rig, &AddrsArgs { instance, addrs: Seq::new(&keys) }),
    ]
}

fn rounds(rig: &mut Rig, base: ExecAddr, numbers: std::ops::Range<u32>) {
    for first in numbers.clone().step_by(BATCH as usize) {
        let batch = first..numbers.end.min(first + BATCH);
        let calls: Vec<_> = batch.clone().flat_map(|number| round(rig, base, number)).collect();
        rig.client.send_calls(&calls);
        for number in batch {
            assert_eq!(expected::<ExecAddr>(&result(rig)), Ok(base), "round {number}");
            assert_eq!(decode::<i64>(&result(rig)), Ok(i64::from(number)), "round {number}");
            assert_eq!(outcome(&result(rig)), Ok(()), "round {number}");
        }
    }
}

fn result(rig: &mut Rig) -> Vec<u8> {
    match rig.client.receive() {
        Said::Result { payload, .. } => payload,
        other => panic!("{other:?} instead of a Result: {rig:?}"),
    }
}

#[test]
fn a_range_serves_ten_thousand_times() {
    // On one kind of machine: it is the same runtime, and the line is slow.
    on_executors(&[None, Some(MachineKind::Microvm)], |rig| {
        let base = rig.reserve(PAGE).unwrap();
        // The first call ever gets a stack, which stays.
        rounds(rig, base, 0..1);
        let before = rig.bytes_free();
        rounds(rig, base, 1..ROUNDS + 1);
        assert_eq!(rig.bytes_free(), before);
        // The code of the last round is no code any more, and its bytes are gone.
        assert_eq!(rig.run_main(base), [0_u8; 0]);
        assert_eq!(rig.client.call_bytes(base, &[]), [0_u8; 0]);
        let log = rig.log();
        assert!(log.contains(&format!("{base} is not in initialized executable memory")), "{log}");
        assert_eq!(rig.read(base, 16), [0; 16]);
        assert_eq!(rig.release(graft_tests::rig::Load::Llvm22, base), Ok(()));
    });
}
