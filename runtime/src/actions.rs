//! Allocation actions: one wrapper call inside the executor, whose result must be an SPS Error.

use graft_protocol::{ExecAddr, Outcome, WrapperId, decode};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::text::TextBuf;
use crate::token;

/// LLVM's words for a result that is no Error, an empty one among them.
const UNDECODABLE: &str = "Could not deserialize result from serialized wrapper function call";

/// Whether a wrapper function of the executor itself may be an allocation action.
///
/// Those that run actions may not: a request could nest itself until the executor's stack ends. Neither may those that
/// run loaded code, which needs no such detour.
pub(crate) const fn can_be_action(row: WrapperId) -> bool {
    !matches!(
        row,
        WrapperId::Finalize
            | WrapperId::Deallocate
            | WrapperId::Initialize
            | WrapperId::Deinitialize
            | WrapperId::Release
            | WrapperId::RunAsMain
            | WrapperId::RunAsVoidFunction
            | WrapperId::RunAsIntFunction
            | WrapperId::CallMain
    )
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Runs one action.
    pub(crate) fn run_action(&self, function: ExecAddr, args: &[u8]) -> Result<(), TextBuf> {
        match token::to_wrapper(function) {
            Some(row) => outcome(self.call_row(row, args).payload()),
            None => outcome(self.run_wrapper(function, args)?.bytes()),
        }
    }
}

fn outcome(bytes: &[u8]) -> Result<(), TextBuf> {
    match decode::<Outcome<'_>>(bytes) {
        Ok(Outcome(Ok(()))) => Ok(()),
        Ok(Outcome(Err(text))) => Err(TextBuf::of(text)),
        Err(_) => Err(TextBuf::of(UNDECODABLE)),
    }
}
