//! The memory manager's wrapper functions, in both dialects.

use graft_protocol::{AddrsArgs, FinalizeArgs, ReserveArgs, WrapperId};

use super::parse;
use crate::executor::Executor;
use crate::initialize::Rules;
use crate::line::Line;
use crate::platform::Platform;
use crate::release::Words;
use crate::reply::Reply;
use crate::text::TextBuf;

impl<P: Platform, L: Line> Executor<P, L> {
    pub(super) fn call_memory(&self, row: WrapperId, args: &[u8]) -> Reply {
        match row {
            WrapperId::Reserve => {
                Reply::expected(parse::<ReserveArgs>(args).and_then(|args| self.reserve(&args).map_err(TextBuf::of)))
            }
            WrapperId::Initialize => Reply::expected(
                parse::<FinalizeArgs<'_>>(args)
                    .and_then(|args| self.initialize(Rules::Initialize, &args).map_err(TextBuf::of)),
            ),
            WrapperId::Finalize => Reply::outcome(
                parse::<FinalizeArgs<'_>>(args)
                    .and_then(|args| self.initialize(Rules::Finalize, &args).map(|_| ()).map_err(TextBuf::of)),
            ),
            WrapperId::Deinitialize => {
                Reply::outcome(parse::<AddrsArgs<'_>>(args).and_then(|args| self.deinitialize(&args)))
            }
            WrapperId::Deallocate => {
                Reply::outcome(parse::<AddrsArgs<'_>>(args).and_then(|args| self.release(Words::Deallocate, &args)))
            }
            _ => Reply::outcome(parse::<AddrsArgs<'_>>(args).and_then(|args| self.release(Words::Release, &args))),
        }
    }
}
