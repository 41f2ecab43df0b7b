//! The rim: bytes to typed arguments, a service, and its answer back to bytes.
//!
//! Arguments that do not decode, and requests a service refuses, are answered in band where the result type can carry a
//! text. Where it cannot (the memory writes, `run_as_*`), the answer is empty, as LLVM 19's executor answers, and the
//! executor's log has the reason. For a void function a stock controller takes that for success: the protocol leaves
//! nothing better, but ending the session.

mod access;
mod dylib;
mod graft;
mod memory;
mod run;

use core::fmt;

use graft_protocol::{Decode, ExecAddr, ExecRange, WrapperId, decode};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::reply::Reply;
use crate::text::TextBuf;
use crate::token;

impl<P: Platform, L: Line> Executor<P, L> {
    /// Calls whatever `target` stands for: a function of the executor by its token, or one of loaded code.
    pub(crate) fn call_wrapper(&self, target: ExecAddr, args: &[u8]) -> Reply {
        if let Some(row) = token::to_wrapper(target) {
            return self.call_row(row, args);
        }
        match self.run_wrapper(target, args) {
            Ok(blob) => Reply::of_bytes(blob.bytes()),
            Err(text) => self.no_result(format_args!("call of wrapper function {target}: {text}")),
        }
    }

    /// Calls a function of the executor.
    pub(crate) fn call_row(&self, row: WrapperId, args: &[u8]) -> Reply {
        if matches!(row, WrapperId::CallMain | WrapperId::TimeLimit | WrapperId::Ring | WrapperId::Info) {
            self.calls.lock().set_newer_dialect();
        }
        match row {
            WrapperId::Reserve
            | WrapperId::Finalize
            | WrapperId::Deallocate
            | WrapperId::Initialize
            | WrapperId::Deinitialize
            | WrapperId::Release => self.call_memory(row, args),
            WrapperId::Open | WrapperId::Lookup | WrapperId::Resolve22 | WrapperId::Resolve => {
                self.call_dylib(row, args)
            }
            // There is no unwinder and no debugger here, but the ranges must at least be ranges.
            WrapperId::RegisterEhFrame | WrapperId::DeregisterEhFrame => {
                Reply::outcome(parse::<ExecRange>(args).map(|_| ()))
            }
            WrapperId::RegisterDebugObject => Reply::outcome(parse::<(ExecRange, bool)>(args).map(|_| ())),
            WrapperId::RunAsMain | WrapperId::RunAsVoidFunction | WrapperId::RunAsIntFunction | WrapperId::CallMain => {
                self.call_run(row, args)
            }
            WrapperId::WriteUint8s
            | WrapperId::WriteUint16s
            | WrapperId::WriteUint32s
            | WrapperId::WriteUint64s
            | WrapperId::WritePointers
            | WrapperId::WriteBuffers
            | WrapperId::ReadUint8s
            | WrapperId::ReadUint16s
            | WrapperId::ReadUint32s
            | WrapperId::ReadUint64s
            | WrapperId::ReadPointers
            | WrapperId::ReadBuffers
            | WrapperId::ReadStrings => self.call_access(row, args),
            WrapperId::TimeLimit => self.call_time_limit(args),
            WrapperId::Ring => self.call_ring(args),
            WrapperId::Info => self.call_info(args),
            // Not published: shared memory is a matter of executors on the controller's own host, and the console is
            // the controller's to offer.
            WrapperId::SharedReserve
            | WrapperId::SharedInitialize
            | WrapperId::SharedDeinitialize
            | WrapperId::SharedRelease
            | WrapperId::ConsoleOutput => self.no_result(format_args!("{row:?} is not a function of this executor")),
        }
    }

    /// The answer where no text fits; the log gets it.
    fn no_result(&self, why: fmt::Arguments<'_>) -> Reply {
        self.log(why);
        Reply::EMPTY
    }
}

/// The arguments, or the text that refuses them.
fn parse<'a, T: Decode<'a>>(args: &'a [u8]) -> Result<T, TextBuf> {
    decode(args).map_err(|error| TextBuf::of(format_args!("could not deserialize the arguments: {error}")))
}
