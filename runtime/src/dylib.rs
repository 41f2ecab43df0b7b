//! The executor as a library: the one handle there is, and the names it resolves.

use core::fmt;

use graft_protocol::{Dialects, ExecAddr, Instance, OpenArgs, SymbolQuery, Text, WrapperId};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::token;

/// What became of one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    At(ExecAddr),
    Missing,
    /// Missing, or without a name, and the request insists.
    RequiredMissing,
    /// Without a name, and the request does not insist.
    Nameless,
}

/// Why a library was not opened or searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DylibError<'a> {
    WrongInstance { found: ExecAddr },
    Mode { mode: u64 },
    NoSuchLibrary { path: Text<'a> },
    NoSuchHandle { handle: ExecAddr },
}

impl fmt::Display for DylibError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongInstance { found } => write!(f, "{found} is not the dylib manager's instance"),
            Self::Mode { mode } => write!(f, "open: non-zero mode bits not yet supported (mode {mode:#x})"),
            Self::NoSuchLibrary { path } => {
                write!(f, "{path}: this executor has no libraries but itself (the empty path)")
            }
            Self::NoSuchHandle { handle } => write!(f, "{handle} is not a handle that open returned"),
        }
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Opens the executor itself.
    pub(crate) fn open<'a>(&self, args: &OpenArgs<'a>) -> Result<ExecAddr, DylibError<'a>> {
        check_instance(args.instance)?;
        if args.mode != 0 {
            return Err(DylibError::Mode { mode: args.mode });
        }
        if !args.path.0.is_empty() {
            return Err(DylibError::NoSuchLibrary { path: args.path });
        }
        Ok(token::SELF_HANDLE)
    }

    /// Judges the first arguments of a lookup; LLVM 22's has no instance.
    pub(crate) fn check_library(
        &self,
        instance: Option<ExecAddr>,
        handle: ExecAddr,
    ) -> Result<(), DylibError<'static>> {
        instance.map_or(Ok(()), check_instance)?;
        if handle == token::SELF_HANDLE { Ok(()) } else { Err(DylibError::NoSuchHandle { handle }) }
    }

    /// Looks one symbol up: what the platform exports, then the executor's own wrapper functions.
    pub(crate) fn find_symbol(&self, symbol: &SymbolQuery<'_>) -> Found {
        let name = symbol.name.0;
        let found = if name.is_empty() { None } else { self.platform.export(name).or_else(|| own_symbol(name)) };
        match found {
            Some(addr) => Found::At(addr),
            None if symbol.required => Found::RequiredMissing,
            None if name.is_empty() => Found::Nameless,
            None => Found::Missing,
        }
    }
}

/// Names of Setup can be looked up as well; LLVM 19 does so for its debugger hook, which it does not expect in Setup.
fn own_symbol(name: &[u8]) -> Option<ExecAddr> {
    // How an ORC runtime in loaded code knows the dispatch context.
    if name == b"__orc_rt_jit_dispatch_ctx" {
        return Some(token::of_instance(Instance::DispatchContext));
    }
    WrapperId::by_name(name, Dialects::all()).map(token::of_wrapper)
}

fn check_instance(found: ExecAddr) -> Result<(), DylibError<'static>> {
    if found == token::of_instance(Instance::DylibManager) { Ok(()) } else { Err(DylibError::WrongInstance { found }) }
}
