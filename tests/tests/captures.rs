//! Golden tests of the protocol: every message of every recorded dialogue decodes to typed values and encodes back to
//! the same bytes.
//!
//! Calls are typed by the names in the dialogue's own Setup, Results by the call they answer. What does not decode is
//! listed here with the error it gives, and code that was linked into memory, whose argument types the table cannot
//! know, is counted.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use graft_protocol::{
    Blob, Decode, DecodeError, Dialects, Encode, ExecAddr, Expected, FinalizeArgs, LookupArgs, Message, Seq, Setup,
    SymbolDef, Wrapper, WrapperId, call, decode, encode, encoded_len,
};

/// No message of the recordings is larger.
const MESSAGE_LIMIT: u64 = 1 << 20;

/// Messages that do not decode as what they should be: session, index in the dialogue, error.
const MALFORMED: &[(&str, usize, DecodeError)] = &[
    // Two bytes where an instance and a size are due, and the empty Result in which LLVM's executor hides its refusal.
    ("l19-driver-dylib", 21, DecodeError::Underflow { needed: 8, left: 2 }),
    ("l19-driver-dylib", 22, DecodeError::Underflow { needed: 1, left: 0 }),
    // The same of a memory write, whose Result is empty anyway, and of another call.
    ("l23-driver-mem", 25, DecodeError::Underflow { needed: 8, left: 2 }),
    ("l23-driver-mem", 27, DecodeError::Underflow { needed: 8, left: 2 }),
    ("l23-driver-mem", 28, DecodeError::Underflow { needed: 1, left: 0 }),
];

/// Calls of functions that are not in the table, and their answers: session, how many messages.
const OPAQUE: &[(&str, usize)] = &[
    // The functions of the ORC runtime that was linked into memory, and its dispatch of initializers.
    ("bm-l23-clang-repl", 42),
    // One call of a handler by its tag, and the answer.
    ("l19-driver-dispatch", 2),
    ("l22-driver-dispatch", 2),
    ("l23-clang-repl", 42),
];

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Side {
    #[default]
    Controller,
    Executor,
}

/// A dialogue while it is replayed.
#[derive(Default)]
struct Dialogue<'a> {
    rows: HashMap<ExecAddr, WrapperId>,
    /// Calls without an answer yet, by the side that called.
    pending: HashMap<(Side, u64), Pending<'a>>,
    opaque: usize,
    malformed: Vec<(usize, DecodeError)>,
}

#[derive(Clone, Copy)]
struct Pending<'a> {
    row: Option<WrapperId>,
    args: &'a [u8],
}

#[test]
fn every_message_decodes_and_encodes_to_the_same_bytes() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("captures");
    let index = fs::read_to_string(folder.join("index.txt")).unwrap();
    let mut messages = 0;
    let mut malformed = Vec::new();
    let mut opaque = Vec::new();
    for line in index.lines() {
        let (name, order) = line.split_once(' ').unwrap();
        let controller = fs::read(folder.join(format!("{name}.c2e.bin"))).unwrap();
        let executor = fs::read(folder.join(format!("{name}.e2c.bin"))).unwrap();
        let mut left = HashMap::from([(Side::Controller, &controller[..]), (Side::Executor, &executor[..])]);
        let mut dialogue = Dialogue::default();
        for (place, side) in order.chars().enumerate() {
            let side = if side == 'c' { Side::Controller } else { Side::Executor };
            let bytes = left[&side];
            let (message, len) = Message::split(bytes, MESSAGE_LIMIT).unwrap().unwrap();
            assert_eq!(bytes_of(&message), &bytes[..len], "{name} #{place}");
            dialogue.take(name, place, side, message);
            left.insert(side, &bytes[len..]);
            messages += 1;
        }
        assert!(left.values().all(|rest| rest.is_empty()), "{name}: bytes left behind the last message");
        malformed.extend(dialogue.malformed.iter().map(|(place, error)| (name.to_owned(), *place, *error)));
        if dialogue.opaque > 0 {
            opaque.push((name.to_owned(), dialogue.opaque));
        }
    }
    assert_eq!(index.lines().count(), 60);
    assert_eq!(messages, 1246);
    let expected: Vec<_> = MALFORMED.iter().map(|(name, place, error)| ((*name).to_owned(), *place, *error)).collect();
    assert_eq!(malformed, expected);
    let expected: Vec<_> = OPAQUE.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(opaque, expected);
}

impl<'a> Dialogue<'a> {
    fn take(&mut self, name: &str, place: usize, side: Side, message: Message<'a>) {
        match message {
            Message::Setup(setup) => {
                assert!(side == Side::Executor && place == 0, "{name} #{place}: a Setup");
                self.publish(&setup);
            }
            Message::Hangup(_) => {}
            Message::Call { seq_no, target, args } => {
                // The other way the target is the tag of a handler, which only the linked code and its client know.
                let known = (side == Side::Controller).then(|| self.rows.get(&target).copied()).flatten();
                let row = known.map(|row| match row {
                    // Which of the two the caller means shows in the arguments alone.
                    WrapperId::Resolve22 | WrapperId::Resolve
                        if round_trip::<call::Resolve22>(Part::Args, args).is_ok() =>
                    {
                        assert!(round_trip::<call::Resolve>(Part::Args, args).is_err(), "{name} #{place}: ambiguous");
                        WrapperId::Resolve22
                    }
                    WrapperId::Resolve22 => WrapperId::Resolve,
                    other => other,
                });
                self.judge(name, place, row, Part::Args, args);
                if matches!(row, Some(WrapperId::Finalize | WrapperId::Initialize)) {
                    self.actions(name, place, args);
                }
                let earlier = self.pending.insert((side, seq_no), Pending { row, args });
                assert!(earlier.is_none(), "{name} #{place}: call {seq_no} is pending already");
            }
            Message::Result { seq_no, payload } => {
                let caller = if side == Side::Executor { Side::Controller } else { Side::Executor };
                // One dialogue ends with a Result for a call that nobody made.
                let Some(call) = self.pending.remove(&(caller, seq_no)) else { return };
                self.judge(name, place, call.row, Part::Reply, payload);
                if call.row == Some(WrapperId::Lookup) {
                    self.learn(call.args, payload);
                }
            }
        }
    }

    fn publish(&mut self, setup: &Setup<'a>) {
        let has = |row: WrapperId, dialect| {
            row.names().iter().any(|known| known.dialects == dialect && setup.symbol(known.name).is_some())
        };
        let mut dialects = Dialects::empty();
        if has(WrapperId::Finalize, Dialects::LLVM19) {
            dialects |= Dialects::LLVM19;
        }
        if has(WrapperId::Reserve, Dialects::LLVM23) {
            dialects |= Dialects::LLVM23;
        } else if has(WrapperId::Initialize, Dialects::LLVM22.union(Dialects::LLVM23)) {
            dialects |= Dialects::LLVM22;
        }
        assert!(!dialects.is_empty());
        for (name, addr) in setup.symbols {
            if let Some(row) = WrapperId::by_name(name.0, dialects) {
                self.rows.insert(addr, row);
            }
        }
    }

    /// LLVM 19 looks the debugger's function up instead of publishing it.
    fn learn(&mut self, args: &'a [u8], reply: &'a [u8]) {
        let asked: LookupArgs<'_> = decode(args).unwrap();
        let Ok(Expected(Ok(found))) = decode::<Expected<'_, Seq<'_, SymbolDef>>>(reply) else { return };
        for (query, def) in asked.symbols.iter().zip(found) {
            if let Some(row) = WrapperId::by_name(query.name.0, Dialects::LLVM19) {
                self.rows.insert(def.addr, row);
            }
        }
    }

    /// The argument blobs of allocation actions are typed by the function they are for.
    fn actions(&mut self, name: &str, place: usize, args: &'a [u8]) {
        let Ok(request) = decode::<FinalizeArgs<'_>>(args) else { return };
        for pair in request.actions {
            for action in [pair.finalize, pair.dealloc] {
                if let Some(row) = self.rows.get(&action.function).copied() {
                    let Blob(args) = action.args;
                    self.judge(name, place, Some(row), Part::Args, args);
                }
            }
        }
    }

    fn judge(&mut self, name: &str, place: usize, row: Option<WrapperId>, part: Part, bytes: &'a [u8]) {
        let Some(row) = row else {
            self.opaque += 1;
            return;
        };
        match by_row(row, part, bytes) {
            Ok(back) => assert_eq!(back, bytes, "{name} #{place}: {row:?}"),
            Err(error) => self.malformed.push((place, error)),
        }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Args,
    Reply,
}

/// Decodes arguments or result of `W` and encodes them again.
fn round_trip<W: Wrapper>(part: Part, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    match part {
        Part::Args => typed::<W::Args<'_>>(bytes),
        Part::Reply => typed::<W::Reply<'_>>(bytes),
    }
}

fn typed<'a, T: Decode<'a> + Encode>(bytes: &'a [u8]) -> Result<Vec<u8>, DecodeError> {
    decode::<T>(bytes).map(|value| bytes_of(&value))
}

fn bytes_of<T: Encode>(value: &T) -> Vec<u8> {
    let mut out = vec![0; encoded_len(value)];
    encode(value, &mut out).unwrap();
    out
}

fn by_row(row: WrapperId, part: Part, bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    macro_rules! rows {
        ($($row:ident)*) => {
            match row {
                $(WrapperId::$row => round_trip::<call::$row>(part, bytes),)*
            }
        };
    }
    rows! {
        Reserve Finalize Deallocate Initialize Deinitialize Release SharedReserve SharedInitialize SharedDeinitialize
        SharedRelease Open Lookup Resolve22 Resolve RegisterEhFrame DeregisterEhFrame RegisterDebugObject RunAsMain
        RunAsVoidFunction RunAsIntFunction WriteUint8s WriteUint16s WriteUint32s WriteUint64s WritePointers WriteBuffers
        ReadUint8s ReadUint16s ReadUint32s ReadUint64s ReadPointers ReadBuffers ReadStrings CallMain TimeLimit Ring Info
        ConsoleOutput
    }
}
