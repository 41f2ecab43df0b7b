//! How sessions and calls end badly.

use std::time::Duration;

use graft_protocol::{DecodeError, WrapperId};
use thiserror::Error;

use super::PeerError;

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum End {
    /// The executor hung up without a reason.
    #[error("the executor ended the session")]
    HungUp,
    /// The executor hung up and said why.
    #[error("the executor ended the session: {0}")]
    HungUpBecause(String),
    /// The stream ended between messages, without a Hangup.
    #[error("the executor closed the connection: it ended, was killed, or was reset")]
    Closed,
    /// The stream broke, or what came was no message.
    #[error("the connection to the executor broke: {0}")]
    Broken(String),
    /// It stopped taking in a message.
    #[error("the executor does not answer: it took in nothing for {} ms", .0.as_millis())]
    Stuck(Duration),
    /// A message that is fine in itself and has no place where it came.
    #[error("the executor broke the protocol: {0}")]
    OutOfPlace(String),
    /// The executor introduced itself a second time: it was reset in the middle.
    #[error("the executor restarted in the middle of the session")]
    Restarted,
    /// This side ended the session.
    #[error("the session was ended on this side")]
    Here,
}

/// Why a session did not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// Nothing came.
    #[error("connected, but the executor did not introduce itself within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The session was over before it began.
    #[error(transparent)]
    Ended(#[from] End),
    /// The executor cannot be worked with.
    #[error(transparent)]
    Unusable(#[from] PeerError),
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The executor does not have the function.
    #[error("the executor does not offer {wrapper:?} (none of: {})", names(*.wrapper))]
    NotOffered {
        /// The function.
        wrapper: WrapperId,
    },
    /// The executor does not take messages that large.
    #[error("a call of {wrapper:?} takes a message of {size} bytes; the executor takes at most {limit}")]
    TooLarge {
        /// The function.
        wrapper: WrapperId,
        /// Bytes of the message.
        size: u64,
        /// The executor's limit.
        limit: u64,
    },
    /// The session ended first.
    #[error("{end} (a call of {wrapper:?} was unanswered)")]
    Ended {
        /// The function.
        wrapper: WrapperId,
        /// Why.
        end: End,
    },
    /// The executor did not answer in time.
    #[error("the executor did not answer a call of {wrapper:?} within {} ms", .waited.as_millis())]
    TimedOut {
        /// The function.
        wrapper: WrapperId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// This side does not want the answer any more.
    #[error("interrupted while a call of {wrapper:?} was unanswered")]
    Interrupted {
        /// The function.
        wrapper: WrapperId,
    },
    /// An empty result where there should be one: LLVM's executors say so that they could not read the arguments.
    #[error("the executor answered a call of {wrapper:?} with nothing: it could not make sense of the call")]
    Empty {
        /// The function.
        wrapper: WrapperId,
    },
    /// The result is not of its type.
    #[error("the executor's answer to {wrapper:?} makes no sense: {error}")]
    BadReply {
        /// The function.
        wrapper: WrapperId,
        /// What is wrong with it.
        error: DecodeError,
    },
}

impl CallError {
    /// Whether the executor is there and silent.
    #[must_use]
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Ended { end: End::Stuck(_), .. })
    }

    /// Why the session is over, when that is the reason.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        match self {
            Self::Ended { end, .. } => Some(end),
            _ => None,
        }
    }
}

fn names(wrapper: WrapperId) -> String {
    let names: Vec<_> = wrapper.names().iter().map(|name| name.name).collect();
    names.join(", ")
}
