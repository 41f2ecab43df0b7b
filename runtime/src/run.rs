//! Calls into loaded code: which addresses may be entered, how deep, and what comes back.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{
    CallMainArgs, ExecAddr, ExecRange, FAULT_LINE, Fault, FaultKind, RunIntArgs, RunMainArgs, Seq, Text,
};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::{Entry, Platform, ReturnPair};
use crate::ranges::NoRecords;
use crate::reply::zeroed;
use crate::text::TextBuf;

/// The most `argv` may take, strings and pointers, in bytes: a fraction of a stack, where some platforms put it.
const MAX_ARGV: u64 = 128 * 1024;

/// Why a call into loaded code has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The address is not in initialized executable memory.
    NotExecutable { at: ExecAddr },
    /// There are as many calls on the stack as the machine has stacks for.
    TooDeep { limit: usize },
    /// The arguments do not fit the stack.
    TooManyArgs { bytes: u64 },
    /// No memory for the arguments.
    NoRecords(NoRecords),
    /// The call was made, and ended badly.
    Fault(Fault),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExecutable { at } => write!(f, "{at} is not in initialized executable memory"),
            Self::TooDeep { limit } => write!(f, "calls into loaded code are nested {limit} deep, the limit"),
            Self::TooManyArgs { bytes } => {
                write!(f, "the arguments take {bytes} bytes, the limit is {MAX_ARGV} bytes")
            }
            Self::NoRecords(error) => error.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

/// How loaded code left a call without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Returned,
    /// By `exit`, which ends more than the function that was called: the program.
    Exited,
}

/// What a wrapper function of loaded code returned.
#[derive(Debug)]
pub(crate) enum Blob {
    Inline { bytes: [u8; 8], len: usize },
    Copied(Vec<u8>),
}

impl Blob {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, len } => bytes.get(..*len).unwrap_or(bytes),
            Self::Copied(bytes) => bytes,
        }
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Runs `int main(int, char **)`.
    pub(crate) fn run_as_main(&self, args: &RunMainArgs<'_>) -> Result<i32, CallError> {
        let result = self.run_main(args.entry, &args.args);
        self.calls.lock().set_main_done();
        result.map(|(value, _)| value)
    }

    /// Runs `int32_t f(void)`.
    pub(crate) fn run_as_void_function(&self, function: ExecAddr) -> Result<i32, CallError> {
        self.enter(function, Entry::Void).map(|(pair, _)| to_int(pair))
    }

    /// Runs `int32_t f(int32_t)`.
    pub(crate) fn run_as_int_function(&self, args: &RunIntArgs) -> Result<i32, CallError> {
        self.enter(args.function, Entry::Int(args.arg)).map(|(pair, _)| to_int(pair))
    }

    /// Runs `main`, with its console going to the controller if that asks for it.
    pub(crate) fn call_main(&self, args: &CallMainArgs<'_>) -> Result<(i32, Way), CallError> {
        let before = (!args.console.is_null()).then(|| self.subscribe_console(args.console));
        let result = self.run_main(args.entry, &args.args);
        if let Some(before) = before {
            self.subscribe_console(before);
        }
        result
    }

    fn run_main(&self, entry: ExecAddr, args: &Seq<'_, Text<'_>>) -> Result<(i32, Way), CallError> {
        let pointers = args.len().saturating_add(1).saturating_mul(8);
        let bytes = args.iter().map(|arg| arg.0.len() as u64 + 1).fold(pointers, u64::saturating_add);
        if bytes > MAX_ARGV {
            return Err(CallError::TooManyArgs { bytes });
        }
        let mut argv: Vec<&[u8]> = Vec::new();
        let count = usize::try_from(args.len()).unwrap_or(usize::MAX);
        argv.try_reserve_exact(count).map_err(|_| CallError::NoRecords(NoRecords))?;
        argv.extend(args.iter().map(|arg| arg.0));
        self.enter(entry, Entry::Main { args: &argv }).map(|(pair, way)| (to_int(pair), way))
    }

    /// Calls a wrapper function of loaded code and fetches what it returned; `Err` holds what it has to say instead.
    pub(crate) fn run_wrapper(&self, at: ExecAddr, args: &[u8]) -> Result<Blob, TextBuf> {
        let ([data, size], _) = self.enter(at, Entry::Wrapper { args }).map_err(TextBuf::of)?;
        match usize::try_from(size) {
            Ok(0) if data == 0 => Ok(Blob::Inline { bytes: [0; 8], len: 0 }),
            // Size 0 and a pointer: a C string says why there is no result.
            Ok(0) => {
                let text = self.read_c_string(ExecAddr(data));
                self.free(ExecAddr(data));
                Err(text)
            }
            Ok(len @ 1..=8) => Ok(Blob::Inline { bytes: data.to_le_bytes(), len }),
            Ok(len) => {
                let bytes = self.read_result(ExecAddr(data), len);
                self.free(ExecAddr(data));
                bytes.map(Blob::Copied)
            }
            Err(_) => Err(TextBuf::of(format_args!("wrapper function returned a result of {size} bytes"))),
        }
    }

    /// Enters loaded code at `at`, if it may be entered there.
    fn enter(&self, at: ExecAddr, entry: Entry<'_>) -> Result<(ReturnPair, Way), CallError> {
        if !self.memory.lock().is_executable(at) {
            return Err(CallError::NotExecutable { at });
        }
        let limit = self.platform.max_depth();
        if !self.calls.lock().enter(limit) {
            return Err(CallError::TooDeep { limit });
        }
        let result = self.platform.call(at, entry);
        self.flush_console();
        let way = self.calls.lock().leave();
        result.map(|pair| (pair, way)).map_err(|fault| {
            if fault.kind == FaultKind::CANCELLED {
                self.note(format_args!("call of {at} ended because the controller hung up: {fault}"));
            } else {
                self.log(format_args!("{FAULT_LINE}call of {at} ended: {fault}"));
            }
            CallError::Fault(fault)
        })
    }

    /// The out-of-band text a wrapper function returned, as far as it can be read.
    fn read_c_string(&self, at: ExecAddr) -> TextBuf {
        match self.read_string(at, crate::text::MAX_LEN) {
            Ok(bytes) => TextBuf::of(Text(&bytes)),
            Err(error) => TextBuf::of(format_args!("wrapper function failed with a text that cannot be read: {error}")),
        }
    }

    fn read_result(&self, at: ExecAddr, len: usize) -> Result<Vec<u8>, TextBuf> {
        let range = ExecRange::from_len(at, len as u64).unwrap_or_default();
        let limit = self.channel.limit();
        if len as u64 > limit {
            return Err(TextBuf::of(format_args!("wrapper function returned {len} bytes, the limit is {limit} bytes")));
        }
        self.make_readable(range)
            .map_err(|error| TextBuf::of(format_args!("wrapper function returned {len} bytes at {at}: {error}")))?;
        let mut bytes = zeroed(len).ok_or_else(|| TextBuf::of(NoRecords))?;
        self.platform.load(at, &mut bytes);
        Ok(bytes)
    }
}

/// The `int` in RAX.
#[expect(clippy::cast_possible_truncation, reason = "an int is returned in the lower half of RAX (psABI §3.2.3)")]
const fn to_int(pair: ReturnPair) -> i32 {
    let [rax, _] = pair;
    rax as i32
}
