//! The wrapper functions that run loaded code.

use graft_protocol::{CallMainArgs, CallOutcome, ExecAddr, RunIntArgs, RunMainArgs, WrapperId};

use super::parse;
use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::reply::Reply;
use crate::run::{CallError, Way};
use crate::text::TextBuf;

impl<P: Platform, L: Line> Executor<P, L> {
    pub(super) fn call_run(&self, row: WrapperId, args: &[u8]) -> Reply {
        let result = match row {
            WrapperId::CallMain => return self.call_call_main(args),
            WrapperId::RunAsMain => {
                parse::<RunMainArgs<'_>>(args).and_then(|args| self.run_as_main(&args).map_err(TextBuf::of))
            }
            WrapperId::RunAsVoidFunction => {
                parse::<ExecAddr>(args).and_then(|at| self.run_as_void_function(at).map_err(TextBuf::of))
            }
            _ => parse::<RunIntArgs>(args).and_then(|args| self.run_as_int_function(&args).map_err(TextBuf::of)),
        };
        match (result, row) {
            (Ok(value), WrapperId::RunAsMain) => Reply::of(&i64::from(value)),
            (Ok(value), _) => Reply::of(&value),
            (Err(text), _) => self.no_result(format_args!("{row:?}: {text}")),
        }
    }

    fn call_call_main(&self, args: &[u8]) -> Reply {
        let text = match parse::<CallMainArgs<'_>>(args) {
            Ok(args) => match self.call_main(&args) {
                Ok((value, Way::Returned)) => return Reply::of(&CallOutcome::Returned(i64::from(value))),
                Ok((value, Way::Exited)) => return Reply::of(&CallOutcome::Exited(i64::from(value))),
                Err(CallError::Fault(fault)) => return Reply::of(&CallOutcome::Faulted(fault)),
                Err(error) => TextBuf::of(error),
            },
            Err(text) => text,
        };
        Reply::of(&CallOutcome::Refused(text.as_text()))
    }
}
