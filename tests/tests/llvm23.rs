//! What LLVM 23's controller was recorded saying, said again to our executors: every answer is the recorded one.
//!
//! The recordings were made with an executor of other token addresses, whose reservations began at 512 MiB. Tokens are
//! translated by the names both publish; the reservations are made to land where they were, because the recorded code
//! was linked for there.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use graft_protocol::{
    ActionPair, AddrsArgs, Blob, ExecAddr, Expected, FinalizeArgs, LookupArgs, Message, Opcode, OpenArgs, Prot,
    ReserveArgs, RunMainArgs, Segment, Seq, SymbolQuery, Text, WrapperCall, WrapperId, decode,
};
use graft_tests::raw::{Client, Said, bytes_of};
use graft_tests::rig::{CODE, Load, PAGE, Rig, on_each_executor, segment};

/// No message of the recordings is larger.
const MESSAGE_LIMIT: u64 = 1 << 20;

/// Where the recorded reservations begin.
const RECORDED_BASE: ExecAddr = ExecAddr(0x2000_0000);

/// The recorded dialogues: name, messages after Setup, what `main` returns.
const DIALOGUES: &[(&str, usize, i64)] =
    &[("bm-l23-lljit-generic", 12, 41), ("bm-l23-lljit-mapper", 10, 43), ("bm-l23-lljit-debug", 14, 41)];

/// The session of `clang-repl`, and its messages after Setup. Its `main` is a library that is opened, updated for each
/// statement, and closed; each update calls back, and whole loads happen meanwhile.
const CLANG_REPL: (&str, usize) = ("bm-l23-clang-repl", 134);

/// Where the recorded executor had the function through which loaded code calls the controller. The recorded code was
/// linked to call it there.
const RECORDED_DISPATCH: ExecAddr = ExecAddr(0x41f4_8000);

/// A function of the recorded executor that prints, and the one of ours with the same argument (which adds a newline).
const RECORDED_PUTS: (&str, &str) = ("kputs", "puts");

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
    /// Functions that were looked up and lie elsewhere in ours.
    functions: Vec<(ExecAddr, ExecAddr)>,
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
                let symbols: Vec<SymbolQuery<'_>> = args
                    .symbols
                    .iter()
                    .map(|query| match query.name {
                        name if name == Text::new(RECORDED_PUTS.0) => {
                            SymbolQuery { name: Text::new(RECORDED_PUTS.1), ..query }
                        }
                        _ => query,
                    })
                    .collect();
                bytes_of(&LookupArgs { instance, handle, symbols: Seq::new(&symbols) })
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
                let contents: Vec<Vec<u8>> =
                    args.segments.iter().map(|segment| self.linked(segment.content.0)).collect();
                let segments: Vec<Segment<'_>> = args
                    .segments
                    .iter()
                    .zip(&contents)
                    .map(|(segment, content)| Segment { content: Blob(content), ..segment })
                    .collect();
                let instance = self.known(args.instance);
                bytes_of(&FinalizeArgs { instance, segments: Seq::new(&segments), actions: Seq::new(&actions) })
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

    /// Recorded bytes with the functions of ours that were looked up in place of theirs.
    fn linked(&self, content: &[u8]) -> Vec<u8> {
        let mut content = content.to_vec();
        for (recorded, ours) in &self.functions {
            for at in 0..content.len().saturating_sub(7) {
                if content[at..at + 8] == recorded.0.to_le_bytes() {
                    content[at..at + 8].copy_from_slice(&ours.0.to_le_bytes());
                }
            }
        }
        content
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
                for (ours, recorded) in found(ours).into_iter().zip(found(recorded)) {
                    assert_eq!(ours == ExecAddr::NULL, recorded == ExecAddr::NULL, "{place}");
                    self.functions.extend((ours != recorded).then_some((recorded, ours)));
                }
                assert_eq!(found(ours).len(), found(recorded).len(), "{place}");
            }
            _ => assert_eq!(ours, recorded, "{place}"),
        }
    }
}

/// Makes the next reservation begin where the recorded ones do: takes everything below, in ever smaller pieces.
fn fill(rig: &mut Rig) {
    for size in (0..=16).rev().map(|shift| PAGE << shift) {
        loop {
            let piece = rig.reserve(size).unwrap();
            if piece.checked_add(size).unwrap() > RECORDED_BASE {
                rig.release(Load::Llvm22, piece).unwrap();
                break;
            }
        }
    }
}

/// Makes a call within a call that waits for the controller: what the executor takes for that, it keeps, and later
/// reservations are where they would be without.
fn nest(rig: &mut Rig) {
    let dispatch = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_fn");
    let context = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_ctx");
    // sub $8, %rsp; movabs $context, %rdi; xor %esi, %esi; xor %edx, %edx; xor %ecx, %ecx
    // movabs $dispatch, %rax; call *%rax; add $8, %rsp; xor %eax, %eax; ret
    let code = [
        &[0x48, 0x83, 0xec, 8, 0x48, 0xbf][..],
        &context.0.to_le_bytes(),
        &[0x31, 0xf6, 0x31, 0xd2, 0x31, 0xc9, 0x48, 0xb8],
        &dispatch.0.to_le_bytes(),
        &[0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0x31, 0xc0, 0xc3],
    ]
    .concat();
    let base = rig.reserve(2 * PAGE).unwrap();
    let inner = base.checked_add(PAGE).unwrap();
    let segments = [segment(Prot::ReadExec, base, &code), segment(Prot::ReadExec, inner, CODE)];
    assert_eq!(rig.initialize(&segments), Ok(base));
    let args = bytes_of(&RunMainArgs { entry: base, args: Seq::default() });
    let outer = rig.client.send_call(rig.client.symbol("__llvm_orc_bootstrap_run_as_main_wrapper"), &args);
    let Said::Call { seq_no, .. } = rig.client.receive() else { panic!("no call; {}", rig.log()) };
    assert_eq!(rig.run_main(inner), 41_i64.to_le_bytes());
    // More than fits a register: it goes to the heap of loaded code.
    rig.client.send(Opcode::RESULT, seq_no, ExecAddr::NULL, &[0; 100]);
    assert_eq!(rig.client.receive(), Said::Result { seq_no: outer, payload: 0_i64.to_le_bytes().to_vec() });
    assert_eq!(rig.release(Load::Llvm22, base), Ok(()));
}

/// Puts a way to our dispatch function where the recorded code calls theirs. It replaces their context by ours, too, which
/// the code passes on.
fn lead_to_dispatch(rig: &mut Rig) {
    let dispatch = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_fn");
    let context = rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_ctx");
    // movabs $context, %rdi; movabs $dispatch, %rax; jmp *%rax
    let code =
        [&[0x48, 0xbf][..], &context.0.to_le_bytes(), &[0x48, 0xb8], &dispatch.0.to_le_bytes(), &[0xff, 0xe0]].concat();
    let gap = RECORDED_DISPATCH.checked_offset_from(RECORDED_BASE).unwrap();
    assert_eq!(rig.reserve(gap), Ok(RECORDED_BASE));
    assert_eq!(rig.reserve(PAGE), Ok(RECORDED_DISPATCH));
    assert_eq!(rig.initialize(&[segment(Prot::ReadExec, RECORDED_DISPATCH, &code)]), Ok(RECORDED_DISPATCH));
    assert_eq!(rig.release(Load::Llvm22, RECORDED_BASE), Ok(()));
}

/// Says what the recorded controller said, expects what the recorded executor said, and returns what `main` returned.
fn replay(rig: &mut Rig, name: &str, count: usize) -> Vec<i64> {
    let recording = Recording::read(name);
    let messages = recording.messages();
    let mut translation = Translation::default();
    // Calls without an answer yet: theirs by the recorded number, with ours; functions of the loaded code have no row.
    let mut under_way: HashMap<u64, (Option<WrapperId>, u64)> = HashMap::new();
    let mut called_back: HashMap<u64, u64> = HashMap::new();
    let mut results = Vec::new();
    for (place, (side, message)) in recording.order.chars().zip(&messages).enumerate() {
        let words = format!("{name} #{place}");
        match (side, *message) {
            (_, Message::Setup(setup)) => translation.learn(&rig.client, &setup),
            ('c', Message::Call { seq_no, target, args }) => {
                let (row, sent) = match translation.names.get(&target) {
                    Some(published) => {
                        let row = WrapperId::by_name(published.as_bytes(), graft_protocol::Dialects::LLVM23);
                        let row = row.unwrap_or_else(|| panic!("{words}: {published} is not LLVM 23's"));
                        let args = translation.args(row, args);
                        (Some(row), rig.client.send_call(rig.client.symbol(published), &args))
                    }
                    None => (None, rig.client.send_call(target, args)),
                };
                assert!(under_way.insert(seq_no, (row, sent)).is_none(), "{words}");
            }
            ('c', Message::Result { seq_no, payload }) => {
                let ours = called_back.remove(&seq_no).unwrap();
                rig.client.send(Opcode::RESULT, ours, ExecAddr::NULL, payload);
            }
            (_, Message::Call { seq_no, target, args }) => match rig.client.receive() {
                Said::Call { seq_no: ours, tag, args: said } => {
                    assert_eq!((tag, &said[..]), (target, args), "{words}");
                    assert!(called_back.insert(seq_no, ours).is_none(), "{words}");
                }
                other => panic!("{words}: {other:?} instead of a call; {}", rig.log()),
            },
            (_, Message::Result { seq_no, payload }) => {
                let (row, sent) = under_way.remove(&seq_no).unwrap();
                let Said::Result { seq_no, payload: ours } = rig.client.receive() else { panic!("{words}") };
                assert_eq!(seq_no, sent, "{words}");
                match row {
                    Some(row) => translation.compare(row, &ours, payload, &format!("{words}: {row:?}")),
                    None => assert_eq!(ours, payload, "{words}"),
                }
                if row == Some(WrapperId::RunAsMain) {
                    results.push(decode::<i64>(&ours).unwrap());
                }
            }
            (_, Message::Hangup(_)) => panic!("{words}: nobody hangs up in these"),
        }
    }
    assert_eq!(messages.len(), count + 1, "{name}");
    assert!(under_way.is_empty() && called_back.is_empty(), "{name}");
    results
}

#[test]
fn recorded_dialogues_are_answered_as_recorded() {
    on_each_executor(|rig| {
        for (name, count, result) in DIALOGUES {
            rig.outlives(|rig| {
                fill(rig);
                assert_eq!(replay(rig, name, *count), [*result], "{name}");
                // One of them leaves its memory reserved.
                rig.client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
            });
        }
        // In a session that goes on, one after another, after which what they released is free again.
        fill(rig);
        for _ in 0..3 {
            for (name, count, result) in DIALOGUES.iter().filter(|(name, ..)| !name.contains("mapper")) {
                assert_eq!(replay(rig, name, *count), [*result], "{name}");
            }
        }
    });
}

/// The whole session is said again, with these differences. Tokens, the handle and what is looked up are ours. A page with
/// a jump lies where the recorded executor had its dispatch function, because the recorded code calls it there. What the
/// recorded executor called `kputs` is our `puts`, and one statement so ends its line twice. Nothing is left
/// out but how the recorded line ended, in a closed pipe: here a Hangup ends it.
#[test]
fn a_session_of_clang_repl_is_answered_as_recorded() {
    on_each_executor(|rig| {
        let (name, count) = CLANG_REPL;
        rig.outlives(|rig| {
            nest(rig);
            fill(rig);
            lead_to_dispatch(rig);
            let free = rig.bytes_free();
            // What it released is free again: a second time, in the same session, it lands in the same places.
            for _ in 0..2 {
                assert_eq!(replay(rig, name, count), [0_i64; 0]);
                let left = free - rig.bytes_free();
                assert!(left <= 16 * PAGE, "{left} bytes are gone");
            }
            rig.client.send(Opcode::HANGUP, 0, ExecAddr::NULL, &[0]);
        });
    });
}
