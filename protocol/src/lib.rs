//! What Graft's controller and executor say to each other: LLVM ORC's SimpleRemoteEPC, in every generation it is spoken.
//!
//! # The wire
//!
//! A reliable, ordered byte stream in each direction. A [`Message`] is a [`Header`] of 32 bytes (size with the header,
//! opcode, sequence number, tag; little-endian `u64` each) and a payload. The executor speaks first, with one
//! [`Setup`]: its triple, its page size, and the addresses of the [wrapper functions](WrapperId) it offers. From then on
//! either side may call the other: a `CallWrapper` carries a sequence number of the caller's choice and is answered by a
//! `Result` with the same number, in any order. Either side ends the session with a `Hangup`, or by closing.
//!
//! Arguments and results are in SPS (see [`Reader`] and [`Writer`]): integers little-endian, sequences and strings with a
//! 64-bit count in front, an [`Outcome`] is one byte 0 or a byte 1 and a text, an [`Expected`] the other way round.
//!
//! # What this crate is not
//!
//! It does no I/O, allocates nothing and has no unsafe code. Every byte of a peer is judged here and nowhere else:
//! sizes, counts and strings against the reader's limits, opcodes in all 64 bits, numbers where there should be none,
//! names that come twice, bytes left over.

#![no_std]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![warn(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod addr;
mod codec;
mod fault;
mod message;
mod opcode;
mod prot;
mod records;
mod wrappers;

pub use addr::{ExecAddr, ExecRange};
pub use codec::{Blob, BufferTooSmall, Decode, DecodeError, Encode, Expected, Limits, Outcome, Reader, Seq, SeqIter};
pub use codec::{Text, Void, Writer, decode, decode_with, encode, encoded_len};
pub use fault::{FAULT_LINE, Fault, FaultKind};
pub use message::{Header, Message, MessageError, Setup};
pub use opcode::Opcode;
pub use prot::{AllocGroup, AllocGroupError, Lifetime, Prot};
pub use records::{
    ActionPair, AddrsArgs, CallMainArgs, CallOutcome, FinalizeArgs, InfoReply, LookupArgs, Mapping, MemoryRange,
    OpenArgs, ReserveArgs, ResolveArgs, RunIntArgs, RunMainArgs, Segment, SharedInitializeArgs, SharedSegment,
    SymbolDef, SymbolQuery, Traffic, WrapperCall,
};
pub use wrappers::{Dialects, Instance, Name, Wrapper, WrapperId, map_key};

/// The rows of the table of wrapper functions as types, for typed calls: `session.call::<call::Reserve>(args)`.
pub mod call {
    pub use crate::wrappers::{
        CallMain, ConsoleOutput, Deallocate, Deinitialize, DeregisterEhFrame, Finalize, Info, Initialize, Lookup, Open,
        ReadBuffers, ReadPointers, ReadStrings, ReadUint8s, ReadUint16s, ReadUint32s, ReadUint64s, RegisterDebugObject,
        RegisterEhFrame, Release, Reserve, Resolve, Resolve22, Ring, RunAsIntFunction, RunAsMain, RunAsVoidFunction,
        SharedDeinitialize, SharedInitialize, SharedRelease, SharedReserve, TimeLimit, WriteBuffers, WritePointers,
        WriteUint8s, WriteUint16s, WriteUint32s, WriteUint64s,
    };
}
