//! What LLVM 23's controller was recorded saying, said again to our executors: every answer is the recorded one.
//!
//! The recordings were made with an executor of other token addresses, whose reservations began at 512 MiB. Tokens are
//! translated by the names both publish; the reservations are made to land where they were, because the recorded code
//! was linked for there.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use graft_protocol::{
    ActionPair, AddrsArgs, ExecAddr, Expected, FinalizeArgs, LookupArgs, Message, Opcode, OpenArgs, ReserveArgs,
    RunMainArgs, Seq, WrapperCall, WrapperId, decode,
};
use graft_tests::raw::{Client, Said, bytes_of};
use graft_tests::rig::{Rig, on_each_executor};

/// No message of the recordings is larger.
const MESSAGE_LIMIT: u64 = 1 << 20;

/// Where the recorded reservations begin.
const RECORDED_BASE: ExecAddr = ExecAddr(0x2000_0000);

/// The recorded dialogues: name, messages after Setup, what `main` returns.
const DIALOGUES: &[(&str, usize, i64)] =
    &[("bm-l23-lljit-generic", 12, 41), ("bm-l23-lljit-mapper", 10, 43), ("bm-l23-lljit-debug", 14, 41)];

/// One recorded dialogue.
struct Recording {
    controller: Vec<u8>,
    executor: Vec<u8>,
    order: String,
}

impl Recording {
    fn read(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("captures");
        let index = fs::read_to_string(folder.join("index.txt")).unwrap();
        let order = index.lines().find_map(|line| line.split_once(' ').filter(|(known, _)| *known == name)).unwrap().1;
        let bytes = |side: &str| fs::read(folder.join(format!("{name}.{side}.bin"))).unwrap();
        Self { controller: bytes("c2e"), executor: bytes("e2c"), order: order.to_owned() }
    }

    /// The messages in the order they were seen.
    fn messages(&self) -> Vec<Message<'_>> {
        let (mut controller, mut executor) = (&self.controller[..], &self.executor[..]);
        let mut messages = Vec::new();
        for side in self.order.chars() {
            let left = if side == 'c' { &mut controller } else { &mut executor };
            let (message, len) = Message::split(left, MESSAGE_LIMIT).unwrap().unwrap();
            *left = &left[len..];
            messages.push(message);
        }
        messages
    }
}

/// What the recorded executor called something, and what ours calls it.
#[derive(Default)]
struct Translation {
    addresses: HashMap<ExecAddr, ExecAddr>,
    names: HashMap<ExecAddr, String>,
}

impl Translation {
    /// Ours for `recorded`; an address of memory is the same in both.
    fn of(&self, recorded: ExecAddr) -> ExecAddr {
        self.addresses.get(&recorded).copied().unwrap_or(recorded)
    }

    fn learn(&mut self, client: &Client, setup: &graft_protocol::Setup<'_>) {
        for (name, recorded) in setup.symbols {
            let name = String::from_utf8(name.0.to_vec()).unwrap();
            // All that LLVM 23's controllers look for in Setup is there.
            self.addresses.insert(recorded, client.symbol(&name));
            self.names.insert(recorded, name);
        }
    }

    /// The arguments of a call of `row`, with our addresses.
    fn args(&self, row: WrapperId, args: &[u8]) -> Vec<u8> {
        match row {
            WrapperId::Open => {
                let args: OpenArgs<'_> = decode(args).unwrap();
                bytes_of(&OpenArgs { instance: self.known(args.instance), ..args })
            }
            WrapperId::Resolve => {
                let args: LookupArgs<'_> = decode(args).unwrap();
                let (instance, handle) = (self.known(args.instance), self.known(args.handle));
                bytes_of(&LookupArgs { instance, handle, ..args })
            }
            WrapperId::Reserve => {
                let args: ReserveArgs = decode(args).unwrap();
                bytes_of(&ReserveArgs { instance: self.known(args.instance), ..args })
            }
            WrapperId::Initialize => {
                let args: FinalizeArgs<'_> = decode(args).unwrap();
                let actions: Vec<ActionPair<'_>> = args
                    .actions
                    .iter()
                    .map(|pair| ActionPair { finalize: self.action(pair.finalize), dealloc: self.action(pair.dealloc) })
                    .collect();
                let instance = self.known(args.instance);
                bytes_of(&FinalizeArgs { instance, segments: args.segments, actions: Seq::new(&actions) })
            }
            WrapperId::Deinitialize | WrapperId::Release => {
                let args: AddrsArgs<'_> = decode(args).unwrap();
                bytes_of(&AddrsArgs { instance: self.known(args.instance), ..args })
            }
            WrapperId::RunAsMain => {
                let args: RunMainArgs<'_> = decode(args).unwrap();
                bytes_of(&args)
            }
            other => panic!("{other:?} is not in the recordings"),
        }
    }

    fn action<'a>(&self, action: WrapperCall<'a>) -> WrapperCall<'a> {
        WrapperCall { function: self.of(action.function), ..action }
    }

    /// Ours for a token of theirs.
    fn known(&self, recorded: ExecAddr) -> ExecAddr {
        *self.addresses.get(&recorded).unwrap_or_else(|| panic!("{recorded} was given out by nobody"))
    }

    /// Compares our answer with theirs, and learns the handle.
    fn compare(&mut self, row: WrapperId, ours: &[u8], recorded: &[u8], place: &str) {
        match row {
            WrapperId::Open => {
                let handle = |bytes| decode::<Expected<'_, ExecAddr>>(bytes).unwrap().0.unwrap();
                self.addresses.insert(handle(recorded), handle(ours));
            }
            WrapperId::Resolve => {
                // What is missing and not required is absent in the recording, and null as LLVM 23's own executor has
                // it; a controller takes either for a weak symbol that nobody defines.
                let found = |bytes: &[u8]| {
                    let Expected(result) = decode::<Expected<'_, Seq<'_, Option<ExecAddr>>>>(bytes).unwrap();
                    result.unwrap().iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
                };
                assert_eq!(found(ours), found(recorded), "{place}");
            }
            _ => assert_eq!(ours, recorded, "{place}"),
        }
    }
}

/// Makes the next reservation begin where the recorded ones do.
fn fill(rig: &mut Rig) {
    let probe = rig.reserve(0x1000).unwrap();
    rig.release(graft_tests::rig::Load::Llvm22, probe).unwrap();
    let gap = RECORDED_BASE.checked_offset_from(probe).unwrap_or_else(|| panic!("{probe} is too far"));
    assert_eq!(rig.reserve(gap), Ok(probe));
}

fn replay(rig: &mut Rig, name: &str, count: usize, result: i64) {
    let recording = Recording::read(name);
    let messages = recording.messages();
    let mut translation = Translation::default();
    let mut under_way: HashMap<u64, (WrapperId, u64)> = HashMap::new();
    let mut results = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        let words = format!("{name} #{place}");
        match *message {
            Message::Setup(setup) => translation.learn(&rig.client, &setup),
            Message::Call { seq_no, target, args } => {
                let known = &translation.names;
                let published = known.get(&target).unwrap_or_else(|| panic!("{words}: {target} has no name"));
                let row = match WrapperId::by_name(published.as_bytes(), graft_protocol::Dialects::LLVM23) {
                    Some(row) => row,
                    None => panic!("{words}: {published} is not LLVM 23's"),
                };
                let sent = rig.client.send_call(rig.client.symbol(published), &translation.args(row, args));
                assert!(under_way.insert(seq_no, (row, sent)).is_none(), "{words}");
            }
            Message::Result { seq_no, payload } => {
                let (row, sent) = under_way.remove(&seq_no).unwrap();
                let Said::Result { seq_no, payload: ours } = rig.client.receive() else { panic!("{words}") };
                assert_eq!(seq_no, sent, "{words}");
                translation.compare(row, &ours, payload, &format!("{words}: {row:?}"));
                if row == WrapperId::RunAsMain {
                    results.push(decode::<i64>(&ours).unwrap());
                }
            }
            Message::Hangup(_) => panic!("{words}: nobody hangs up in these"),
        }
    }
    assert_eq!(messages.len(), count + 1, "{name}");
    assert_eq!(results, [result], "{name}");
    assert!(under_way.is_empty(), "{name}");
}

#[test]
fn recorded_dialogues_are_answered_as_recorded() {
    on_each_executor(|rig| {
        for (name, count, result) in DIALOGUES {
            rig.outlives(|rig| {
                fill(rig);
                replay(rig, name, *count, *result);
                // One of them leaves its memory reserved.
                rig.client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
            });
        }
        // In a session that goes on, one after another, after which what they released is free again.
        fill(rig);
        for _ in 0..3 {
            for (name, count, result) in DIALOGUES.iter().filter(|(name, ..)| !name.contains("mapper")) {
                replay(rig, name, *count, *result);
            }
        }
    });
}
