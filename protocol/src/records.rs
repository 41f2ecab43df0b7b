//! The records that wrapper functions take and return.
//!
//! Field order is wire order. Where generations of LLVM differ, each form has its own record; `wrappers.rs` says who
//! uses which.

use crate::addr::{ExecAddr, ExecRange};
use crate::codec::{Blob, BufferTooSmall, Decode, DecodeError, Encode, Reader, Seq, Text, Writer, record};
use crate::fault::{Fault, FaultKind};
use crate::prot::{AllocGroup, AllocGroupError, Lifetime, Prot};

record! {
    /// Asks for address space.
    ReserveArgs {
        /// The memory manager's instance, as published.
        instance: ExecAddr,
        /// Bytes wanted.
        size: u64,
    }
}

record! {
    /// One range of a region: what to copy there and how to protect it.
    Segment<'a> {
        /// Protection and lifetime.
        group: AllocGroup,
        /// Where it begins.
        addr: ExecAddr,
        /// Its length in bytes; what `content` does not cover is zero-filled.
        size: u64,
        /// Its first bytes.
        content: Blob<'a>,
    }
}

record! {
    /// A wrapper function to call inside the executor, with its arguments; address 0 means none.
    WrapperCall<'a> {
        /// The function.
        function: ExecAddr,
        /// Its argument blob.
        args: Blob<'a>,
    }
}

record! {
    /// What to do when a region is initialized, and what undoes it.
    ActionPair<'a> {
        /// Called after the region's content and protections are in place.
        finalize: WrapperCall<'a>,
        /// Called when the region goes, in reverse order.
        dealloc: WrapperCall<'a>,
    }
}

record! {
    /// Asks for segments to be copied, protected, and announced to actions.
    FinalizeArgs<'a> {
        /// The memory manager's instance, as published.
        instance: ExecAddr,
        /// The segments, ascending.
        segments: Seq<'a, Segment<'a>>,
        /// The allocation actions, in order.
        actions: Seq<'a, ActionPair<'a>>,
    }
}

record! {
    /// Names reservations or regions by their addresses.
    AddrsArgs<'a> {
        /// The memory manager's instance, as published.
        instance: ExecAddr,
        /// Bases of reservations, or keys of regions.
        addrs: Seq<'a, ExecAddr>,
    }
}

record! {
    /// Opens a library of the executor; the empty path is the executor itself.
    OpenArgs<'a> {
        /// The dylib manager's instance, as published.
        instance: ExecAddr,
        /// The path.
        path: Text<'a>,
        /// Reserved; 0.
        mode: u64,
    }
}

record! {
    /// A symbol to look for.
    SymbolQuery<'a> {
        /// Its name.
        name: Text<'a>,
        /// Whether a missing one is a failure.
        required: bool,
    }
}

record! {
    /// Looks symbols up (LLVM 19's `lookup`, LLVM 23's `resolve` and `lookup`).
    LookupArgs<'a> {
        /// The dylib manager's instance, as published.
        instance: ExecAddr,
        /// What open returned.
        handle: ExecAddr,
        /// The symbols.
        symbols: Seq<'a, SymbolQuery<'a>>,
    }
}

record! {
    /// Looks symbols up (LLVM 22's `resolve`, which names no instance).
    ResolveArgs<'a> {
        /// What open returned.
        handle: ExecAddr,
        /// The symbols.
        symbols: Seq<'a, SymbolQuery<'a>>,
    }
}

record! {
    /// Where a symbol is (LLVM 19 and 22).
    SymbolDef {
        /// Its address; 0 when it is missing.
        addr: ExecAddr,
        /// LLVM's `JITSymbolFlags`: executors report [`SymbolDef::EXPORTED`].
        flags: u8,
        /// Target flags; 0 on x86-64.
        target_flags: u8,
    }
}

impl SymbolDef {
    /// The flag of an exported symbol.
    pub const EXPORTED: u8 = 0x10;
}

record! {
    /// Runs `int main(int argc, char **argv)`.
    RunMainArgs<'a> {
        /// The function.
        entry: ExecAddr,
        /// The arguments, exactly as `argv` shall hold them.
        args: Seq<'a, Text<'a>>,
    }
}

record! {
    /// Runs `int32_t f(int32_t)`.
    RunIntArgs {
        /// The function.
        function: ExecAddr,
        /// Its argument.
        arg: i32,
    }
}

record! {
    /// A segment of a region in shared memory: its content is already there.
    SharedSegment {
        /// Protection and lifetime.
        group: AllocGroup,
        /// Where it begins.
        addr: ExecAddr,
        /// Its length in bytes.
        size: u64,
    }
}

record! {
    /// Initializes a region in shared memory (host executors only).
    SharedInitializeArgs<'a> {
        /// The mapper's instance, as published.
        instance: ExecAddr,
        /// The reservation's base.
        base: ExecAddr,
        /// The segments.
        segments: Seq<'a, SharedSegment>,
        /// The allocation actions, in order.
        actions: Seq<'a, ActionPair<'a>>,
    }
}

record! {
    /// Runs `main` on Graft's own executor, which can say how the call ended.
    CallMainArgs<'a> {
        /// The function.
        entry: ExecAddr,
        /// The arguments, exactly as `argv` shall hold them.
        args: Seq<'a, Text<'a>>,
        /// The controller's handler tag for console output ([`crate::call::ConsoleOutput`]); null leaves the console where it is.
        console: ExecAddr,
    }
}

/// How a call into loaded code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome<'a> {
    /// It returned this value.
    Returned(i64),
    /// It faulted; the executor goes on.
    Faulted(Fault),
    /// It was never made, for this reason.
    Refused(Text<'a>),
    /// It called `exit` with this value.
    Exited(i64),
}

impl<'a> Decode<'a> for CallOutcome<'a> {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.value::<u8>()? {
            0 => reader.value().map(Self::Returned),
            1 => reader.value().map(Self::Faulted),
            2 => reader.value().map(Self::Refused),
            3 => reader.value().map(Self::Exited),
            other => Err(DecodeError::BadTag(other)),
        }
    }
}

impl Encode for CallOutcome<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        match self {
            Self::Returned(value) => writer.value(&(0_u8, *value)),
            Self::Faulted(fault) => writer.value(&(1_u8, *fault)),
            Self::Refused(text) => writer.value(&(2_u8, *text)),
            Self::Exited(value) => writer.value(&(3_u8, *value)),
        }
    }
}

impl Decode<'_> for Fault {
    const MIN_SIZE: u64 = 33;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (kind, ip, sp) = reader.value()?;
        let (address, code) = reader.value()?;
        Ok(Self { kind: FaultKind(kind), ip, sp, address, code })
    }
}

impl Encode for Fault {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&(self.kind.0, self.ip, self.sp))?;
        writer.value(&(self.address, self.code))
    }
}

impl Decode<'_> for Prot {
    const MIN_SIZE: u64 = 1;

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let group = reader.value::<AllocGroup>()?;
        match group.lifetime {
            Lifetime::Standard => Ok(group.prot),
            Lifetime::Finalize => Err(DecodeError::AllocGroup(AllocGroupError::UndefinedBits(group.bits()))),
        }
    }
}

impl Encode for Prot {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooSmall> {
        writer.value(&self.bits())
    }
}

record! {
    /// A range of physical memory and what it is.
    MemoryRange<'a> {
        /// Physical addresses.
        range: ExecRange,
        /// What it is, in words.
        what: Text<'a>,
    }
}

record! {
    /// A range of virtual memory, its protection and what it is.
    Mapping<'a> {
        /// Virtual addresses.
        range: ExecRange,
        /// What its pages allow.
        prot: Prot,
        /// What it is, in words.
        what: Text<'a>,
    }
}

record! {
    /// What went over the line since the executor started.
    Traffic {
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// Messages received.
        messages_in: u64,
        /// Messages sent.
        messages_out: u64,
        /// Sessions ended.
        sessions: u64,
    }
}

record! {
    /// What Graft's own executor says of itself.
    InfoReply<'a> {
        /// The runtime's version.
        version: Text<'a>,
        /// The machine, in words.
        machine: Text<'a>,
        /// Nanoseconds since the executor started.
        uptime_ns: u64,
        /// Bytes of memory there are for reservations and the executor.
        bytes_total: u64,
        /// Bytes of it not taken.
        bytes_free: u64,
        /// Protections the CPU has and the executor switched on, such as "NX".
        protections: Seq<'a, Text<'a>>,
        /// The physical memory map.
        memory: Seq<'a, MemoryRange<'a>>,
        /// The virtual memory map.
        mappings: Seq<'a, Mapping<'a>>,
        /// Link figures.
        traffic: Traffic,
        /// The newest lines of the executor's log.
        log: Text<'a>,
    }
}
