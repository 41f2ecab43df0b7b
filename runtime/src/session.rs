//! One session: Setup, then requests in order until somebody ends it, then everything it held is freed.

use core::fmt;

use alloc::vec::Vec;

use graft_protocol::{
    Blob, ExecAddr, Instance, Message, MessageError, Opcode, Outcome, Seq, Setup, Text, WrapperId, encode, encoded_len,
    map_key,
};

use crate::calls::Delivery;
use crate::channel::ReceiveError;
use crate::executor::Executor;
use crate::line::{Line, LineError, Patience, Phase};
use crate::platform::{Platform, Ring};
use crate::reply::zeroed;
use crate::text::TextBuf;
use crate::{exports, token};

/// The runtime's version, as `graft info` shows it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The controller hung up.
    Hangup,
    /// The controller closed the line between messages.
    Closed,
    /// The controller has what it came for, and LLVM 19 and 22 wait for us to close (see [`Ending::CloseFirst`]).
    Finished,
    /// The line failed, or ended or stalled inside a message.
    Line(LineError),
    /// The controller broke the protocol.
    Protocol(ProtocolError),
}

impl SessionEnd {
    /// Whether the peer may be there still, and does not know where the next message begins.
    const fn lost_the_boundaries(self) -> bool {
        match self {
            Self::Protocol(_) => true,
            Self::Line(error) => error.leaves_the_line(),
            Self::Hangup | Self::Closed | Self::Finished => false,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hangup => f.write_str("the controller hung up"),
            Self::Closed => f.write_str("the controller closed the line"),
            Self::Finished => f.write_str("the controller is finished"),
            Self::Line(error) => error.fmt(f),
            Self::Protocol(error) => write!(f, "protocol error: {error}"),
        }
    }
}

/// How the controller broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// Bytes that are not a message, or a message above the limit.
    Message(MessageError),
    /// A Setup, which only executors send.
    UnexpectedSetup,
    /// A Result for a call that was never made, or was answered before.
    UnknownResult {
        /// Its sequence number.
        seq_no: u64,
    },
    /// A call with the number of one that is still being served.
    DuplicateCall {
        /// Its sequence number.
        seq_no: u64,
    },
    /// A message within the limit that there is no memory for.
    NoMemory {
        /// Its size in bytes, header included.
        size: u64,
    },
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::UnexpectedSetup => f.write_str("unexpected Setup: only the executor sends one"),
            Self::UnknownResult { seq_no } => write!(f, "no call for sequence number {seq_no}"),
            Self::DuplicateCall { seq_no } => write!(f, "a call of sequence number {seq_no} is under way already"),
            Self::NoMemory { size } => write!(f, "out of memory: no room for a message of {size} bytes"),
        }
    }
}

impl core::error::Error for ProtocolError {}

/// Who closes the line when the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The controller, as it should be.
    Controller,
    /// The executor, once the controller seems finished: LLVM 19's and 22's tools never close a socket they still read
    /// from and wait for ever. Finished is: `run_as_main` was answered, and no initialized region is left or the line
    /// has been quiet for some seconds; or everything that was reserved is released, and the line is quiet for a moment; or
    /// nothing is initialized, and the line is quiet for a minute.
    ///
    /// A controller that called one of Graft's own functions is none of these tools and is left alone.
    CloseFirst,
}

/// How long the line must be quiet before [`Ending::CloseFirst`] takes it for the end (protocol specification, section
/// 14): with nothing reserved any more.
const QUIET_EMPTY_MILLIS: u64 = 200;
/// After `main`, with memory left in place: longer than any controller thinks between `main` and its first release, also
/// on a busy machine.
const QUIET_AFTER_MAIN_MILLIS: u64 = 5_000;
/// With nothing in place and no program run: a controller that failed before it got that far. Others may be linking.
const QUIET_THINKING_MILLIS: u64 = 60_000;

/// How long a deallocation action may take that runs at the end of a session.
const LAST_ACTION_NS: u64 = 1_000_000_000;

impl<P: Platform, L: Line> Executor<P, L> {
    /// Serves one session: sends Setup, serves requests, frees everything, and returns why it ended.
    ///
    /// After an end that lost the message boundaries the line was drained, so that the next session may follow.
    pub fn serve_session(&self, ending: Ending) -> SessionEnd {
        *self.calls.lock() = crate::calls::Calls::new();
        if let Err(end) = self.send_setup() {
            self.end(end);
        }
        let end = loop {
            if let Some(end) = self.ended() {
                break end;
            }
            let finished = ending == Ending::CloseFirst && self.calls.lock().is_main_done();
            if finished && self.memory.lock().is_idle() {
                self.end(SessionEnd::Finished);
                continue;
            }
            let patience = if ending == Ending::CloseFirst && self.has_given_up() {
                Patience::UpTo { millis: QUIET_EMPTY_MILLIS }
            } else if finished {
                Patience::UpTo { millis: QUIET_AFTER_MAIN_MILLIS }
            } else if ending == Ending::CloseFirst && self.may_have_failed() {
                Patience::UpTo { millis: QUIET_THINKING_MILLIS }
            } else {
                Patience::Idle
            };
            match self.serve_next(patience) {
                // Quiet, and not a peer that stopped inside a message.
                Err(SessionEnd::Line(LineError::Stalled { millis })) if patience == (Patience::UpTo { millis }) => {
                    self.end(SessionEnd::Finished);
                }
                Err(end) => self.end(end),
                Ok(()) => {}
            }
        };
        // The deallocation actions of a controller that is gone run as those of one that is there, but not for ever.
        self.channel.line().enter(Phase::Taking);
        self.platform.limit_time(Some(LAST_ACTION_NS));
        self.release_everything();
        self.platform.trim();
        self.platform.use_ring(Some(Ring::User));
        self.platform.limit_time(None);
        self.channel.count_session();
        self.note(format_args!("session ended: {end}"));
        if end.lost_the_boundaries() {
            self.channel.line().drain();
        }
        end
    }

    /// Whether a tool that linked nothing in the end seems to wait for us.
    fn has_given_up(&self) -> bool {
        self.memory.lock().is_used_up() && self.calls.lock().may_be_llvm_tool()
    }

    /// Whether a tool that has nothing in place may be waiting for us, too.
    fn may_have_failed(&self) -> bool {
        self.memory.lock().is_idle() && self.calls.lock().may_be_llvm_tool()
    }

    /// Why the session is over, if it is.
    pub(crate) fn ended(&self) -> Option<SessionEnd> {
        self.calls.lock().end()
    }

    /// Ends the session. A controller that broke the protocol, or whose bytes did not arrive, is told so at
    /// once, even if loaded code is still running.
    pub(crate) fn end(&self, end: SessionEnd) {
        if !self.calls.lock().set_end(end) {
            return;
        }
        self.channel.line().enter(Phase::Over);
        if end.lost_the_boundaries() {
            self.log(format_args!("{end}"));
            let text = TextBuf::of(end);
            let reason = Outcome(Err(text.as_text()));
            let mut payload = [0; 512];
            if let Ok(payload) = encode(&reason, &mut payload) {
                // Whoever does not read any more will not miss it.
                let _ = self.channel.send_parts(Opcode::HANGUP, 0, ExecAddr::NULL, payload);
            }
        }
    }

    /// Waits for one message and does what it asks.
    fn serve_next(&self, patience: Patience) -> Result<(), SessionEnd> {
        let (header, payload) = self.channel.receive(patience).map_err(SessionEnd::from)?;
        if header.opcode() == Opcode::SETUP {
            return Err(SessionEnd::Protocol(ProtocolError::UnexpectedSetup));
        }
        match Message::parse(&header, &payload).map_err(|error| SessionEnd::Protocol(ProtocolError::Message(error)))? {
            Message::Setup(_) => return Err(SessionEnd::Protocol(ProtocolError::UnexpectedSetup)),
            Message::Hangup(reason) => {
                if let Some(Outcome(Err(text))) = reason {
                    self.log(format_args!("the controller hung up: {text}"));
                }
                return Err(SessionEnd::Hangup);
            }
            Message::Result { seq_no, payload } => self.deliver(seq_no, payload)?,
            Message::Call { seq_no, target, args } => {
                if !self.calls.lock().begin_serving(seq_no) {
                    return Err(SessionEnd::Protocol(ProtocolError::DuplicateCall { seq_no }));
                }
                let reply = self.call_wrapper(target, args);
                self.calls.lock().end_serving(seq_no);
                // Results of calls that outlived their session have nobody to go to.
                if self.ended().is_none() {
                    reply.send(seq_no, |message| self.channel.send(message)).map_err(SessionEnd::from)?;
                }
            }
        }
        self.channel.recycle(payload);
        Ok(())
    }

    fn deliver(&self, seq_no: u64, payload: &[u8]) -> Result<(), SessionEnd> {
        let delivery = self.calls.lock().deliver(seq_no, payload);
        match delivery {
            Delivery::Taken => Ok(()),
            Delivery::Unknown => Err(SessionEnd::Protocol(ProtocolError::UnknownResult { seq_no })),
            Delivery::NoMemory => {
                Err(SessionEnd::Protocol(ProtocolError::NoMemory { size: payload.len() as u64 + 32 }))
            }
        }
    }

    /// Goes on serving, from inside a call into loaded code, until `ready` has something; `None` when the session ends.
    pub(crate) fn serve_until<T>(&self, mut ready: impl FnMut(&mut crate::calls::Calls) -> Option<T>) -> Option<T> {
        loop {
            {
                let mut calls = self.calls.lock();
                if let Some(value) = ready(&mut calls) {
                    return Some(value);
                }
                if calls.end().is_some() {
                    return None;
                }
            }
            if let Err(end) = self.serve_next(Patience::Idle) {
                self.end(end);
            }
        }
    }

    /// The executor introduces itself with the names of every dialect, but those of shared memory.
    fn send_setup(&self) -> Result<(), SessionEnd> {
        let no_memory = SessionEnd::Protocol(ProtocolError::NoMemory { size: 0 });
        let mut symbols: Vec<(Text<'_>, ExecAddr)> = Vec::new();
        let mut publish = |name: &'static str, addr: ExecAddr| -> Result<(), SessionEnd> {
            let name = Text::new(name);
            if symbols.iter().any(|(known, _)| *known == name) {
                return Ok(());
            }
            symbols.try_reserve(1).map_err(|_| no_memory)?;
            symbols.push((name, addr));
            Ok(())
        };
        for row in WrapperId::ALL.iter().filter(|row| !is_shared_memory(**row)) {
            row.names().iter().try_for_each(|name| publish(name.name, token::of_wrapper(*row)))?;
        }
        for instance in Instance::ALL.iter().filter(|instance| **instance != Instance::SharedMemoryMapper) {
            let addr = match instance {
                // The one address of Setup that loaded code jumps to.
                Instance::DispatchFunction => {
                    self.platform.export(exports::DISPATCH.as_bytes()).unwrap_or_else(|| token::of_instance(*instance))
                }
                _ => token::of_instance(*instance),
            };
            instance.names().iter().try_for_each(|name| publish(name.name, addr))?;
        }
        let limit = self.channel.limit().to_le_bytes();
        let mut version = [0; 64];
        let version = encode(&Text::new(VERSION), &mut version).unwrap_or(&[]);
        let library = token::SELF_HANDLE.0.to_le_bytes();
        let map = [
            (Text::new(map_key::MAX_MESSAGE), Blob(&limit)),
            (Text::new(map_key::LIBRARY), Blob(&library)),
            (Text::new(map_key::VERSION), Blob(version)),
        ];
        let setup = Message::Setup(Setup {
            triple: Text::new(self.platform.triple()),
            page_size: self.platform.page_size(),
            map: Seq::new(&map),
            symbols: Seq::new(&symbols),
        });
        let mut bytes = zeroed(encoded_len(&setup)).ok_or(no_memory)?;
        let message = encode(&setup, &mut bytes).map_err(|_| no_memory)?;
        self.channel.send(message).map_err(SessionEnd::from)
    }
}

impl From<ReceiveError> for SessionEnd {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Closed => Self::Closed,
            ReceiveError::Line { error, .. } => Self::Line(error),
            ReceiveError::Message(error) => Self::Protocol(ProtocolError::Message(error)),
            ReceiveError::NoMemory { size } => Self::Protocol(ProtocolError::NoMemory { size }),
        }
    }
}

impl From<LineError> for SessionEnd {
    fn from(error: LineError) -> Self {
        Self::Line(error)
    }
}

const fn is_shared_memory(row: WrapperId) -> bool {
    matches!(
        row,
        WrapperId::SharedReserve
            | WrapperId::SharedInitialize
            | WrapperId::SharedDeinitialize
            | WrapperId::SharedRelease
    )
}
