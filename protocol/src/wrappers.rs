//! The table of wrapper functions: one row each, with the names every dialect publishes it under.
//!
//! A *wrapper function* takes a blob and returns a blob; a row gives both their types, for both sides and both
//! directions. A *dialect* is a generation of LLVM, or Graft's own. Dialects are told apart by the names in Setup, never
//! by a version number. One name stands in two rows: LLVM 23 kept LLVM 22's `resolve` and changed its arguments.

use bitflags::bitflags;

use crate::addr::{ExecAddr, ExecRange};
use crate::codec::{Blob, Decode, Encode, Expected, Outcome, Seq, Text, Void};
use crate::records::{
    AddrsArgs, CallMainArgs, CallOutcome, FinalizeArgs, InfoReply, LookupArgs, OpenArgs, ReserveArgs, ResolveArgs,
    RunIntArgs, RunMainArgs, SharedInitializeArgs, SymbolDef,
};

bitflags! {
    /// Generations of the protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dialects: u8 {
        /// LLVM 19.
        const LLVM19 = 1;
        /// LLVM 22.
        const LLVM22 = 2;
        /// LLVM 23.
        const LLVM23 = 4;
        /// Graft's own additions.
        const GRAFT = 8;
        /// Any generation of LLVM.
        const LLVM = 7;
    }
}

/// A name in Setup, and the generations whose executors publish it with this meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub name: &'static str,
    /// Who publishes it.
    pub dialects: Dialects,
}

/// A row of the table as a type: what a typed call needs to know.
pub trait Wrapper {
    /// The row.
    const ID: WrapperId;
    /// The argument list.
    type Args<'a>: Decode<'a> + Encode;
    /// The result.
    type Reply<'a>: Decode<'a> + Encode;
}

macro_rules! wrappers {
    ($life:lifetime: $(
        $(#[$doc:meta])*
        $row:ident($args:ty) -> $reply:ty { $($dialects:expr => $name:literal,)* }
    )*) => {
        /// A row of the table as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum WrapperId {
            $($(#[$doc])* $row,)*
        }

        impl WrapperId {
            /// All rows.
            pub const ALL: &'static [Self] = &[$(Self::$row,)*];

            /// The names the row is published under; every one stands for the same function.
            #[must_use]
            pub const fn names(self) -> &'static [Name] {
                match self {
                    $(Self::$row => const { &[$(Name { name: $name, dialects: $dialects },)*] },)*
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $row;

            impl Wrapper for $row {
                const ID: WrapperId = WrapperId::$row;
                type Args<$life> = $args;
                type Reply<$life> = $reply;
            }
        )*
    };
}

wrappers! { 'a:
    /// Reserves address space; nothing is copied or protected yet.
    Reserve(ReserveArgs) -> Expected<'a, ExecAddr> {
        Dialects::LLVM => "__llvm_orc_SimpleExecutorMemoryManager_reserve_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_SimpleNativeMemoryMap_reserve",
    }
    /// Copies and protects a whole reservation and runs its finalize actions (LLVM 19).
    Finalize(FinalizeArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM19 => "__llvm_orc_SimpleExecutorMemoryManager_finalize_wrapper",
    }
    /// Runs the dealloc actions of reservations and frees them (LLVM 19).
    Deallocate(AddrsArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM19 => "__llvm_orc_SimpleExecutorMemoryManager_deallocate_wrapper",
    }
    /// Copies and protects a region of a reservation and runs its finalize actions; returns the region's key.
    Initialize(FinalizeArgs<'a>) -> Expected<'a, ExecAddr> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_SimpleExecutorMemoryManager_initialize_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_SimpleNativeMemoryMap_initialize",
    }
    /// Runs the dealloc actions of regions; their reservations stay.
    Deinitialize(AddrsArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_SimpleExecutorMemoryManager_deinitialize_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_SimpleNativeMemoryMap_deinitializeMultiple",
    }
    /// Runs what dealloc actions are left in reservations and frees them.
    Release(AddrsArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_SimpleExecutorMemoryManager_release_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_SimpleNativeMemoryMap_releaseMultiple",
    }
    /// Reserves shared memory; returns its name too (host executors only).
    SharedReserve(ReserveArgs) -> Expected<'a, (ExecAddr, Text<'a>)> {
        Dialects::LLVM => "__llvm_orc_ExecutorSharedMemoryMapperService_Reserve",
    }
    /// Initializes a region of shared memory (host executors only).
    SharedInitialize(SharedInitializeArgs<'a>) -> Expected<'a, ExecAddr> {
        Dialects::LLVM => "__llvm_orc_ExecutorSharedMemoryMapperService_Initialize",
    }
    /// Deinitializes regions of shared memory (host executors only).
    SharedDeinitialize(AddrsArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM => "__llvm_orc_ExecutorSharedMemoryMapperService_Deinitialize",
    }
    /// Frees shared memory (host executors only).
    SharedRelease(AddrsArgs<'a>) -> Outcome<'a> {
        Dialects::LLVM => "__llvm_orc_ExecutorSharedMemoryMapperService_Release",
    }
    /// Opens a library of the executor.
    Open(OpenArgs<'a>) -> Expected<'a, ExecAddr> {
        Dialects::LLVM => "__llvm_orc_SimpleExecutorDylibManager_open_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_NativeDylibManager_load",
    }
    /// Looks symbols up (LLVM 19).
    Lookup(LookupArgs<'a>) -> Expected<'a, Seq<'a, SymbolDef>> {
        Dialects::LLVM19 => "__llvm_orc_SimpleExecutorDylibManager_lookup_wrapper",
    }
    /// Looks symbols up (LLVM 22: no instance, whole definitions).
    Resolve22(ResolveArgs<'a>) -> Expected<'a, Seq<'a, Option<SymbolDef>>> {
        Dialects::LLVM22 => "__llvm_orc_SimpleExecutorDylibManager_resolve_wrapper",
    }
    /// Looks symbols up (LLVM 23: an instance again, plain addresses).
    Resolve(LookupArgs<'a>) -> Expected<'a, Seq<'a, Option<ExecAddr>>> {
        Dialects::LLVM23 => "__llvm_orc_SimpleExecutorDylibManager_resolve_wrapper",
        Dialects::LLVM23 => "orc_rt_ci_sps_NativeDylibManager_lookup",
    }
    /// Announces an `.eh_frame` section to the executor's unwinder.
    RegisterEhFrame(ExecRange) -> Outcome<'a> {
        Dialects::LLVM19 => "llvm_orc_registerEHFrameSectionWrapper",
        Dialects::LLVM22.union(Dialects::LLVM23) => "llvm_orc_registerEHFrameAllocAction",
    }
    /// Takes an `.eh_frame` section back.
    DeregisterEhFrame(ExecRange) -> Outcome<'a> {
        Dialects::LLVM19 => "llvm_orc_deregisterEHFrameSectionWrapper",
        Dialects::LLVM22.union(Dialects::LLVM23) => "llvm_orc_deregisterEHFrameAllocAction",
    }
    /// Announces a debug object to a debugger of the executor; LLVM 19's name is looked up, not published.
    RegisterDebugObject((ExecRange, bool)) -> Outcome<'a> {
        Dialects::LLVM19 => "llvm_orc_registerJITLoaderGDBWrapper",
        Dialects::LLVM22.union(Dialects::LLVM23) => "llvm_orc_registerJITLoaderGDBAllocAction",
    }
    /// Runs `int main(int, char **)`; the result is its value, sign-extended.
    RunAsMain(RunMainArgs<'a>) -> i64 {
        Dialects::LLVM => "__llvm_orc_bootstrap_run_as_main_wrapper",
    }
    /// Runs `int32_t f(void)`, despite its name.
    RunAsVoidFunction(ExecAddr) -> i32 {
        Dialects::LLVM => "__llvm_orc_bootstrap_run_as_void_function_wrapper",
    }
    /// Runs `int32_t f(int32_t)`.
    RunAsIntFunction(RunIntArgs) -> i32 {
        Dialects::LLVM => "__llvm_orc_bootstrap_run_as_int_function_wrapper",
    }
    /// Writes bytes.
    WriteUint8s(Seq<'a, (ExecAddr, u8)>) -> Void {
        Dialects::LLVM => "__llvm_orc_bootstrap_mem_write_uint8s_wrapper",
    }
    /// Writes 16-bit integers.
    WriteUint16s(Seq<'a, (ExecAddr, u16)>) -> Void {
        Dialects::LLVM => "__llvm_orc_bootstrap_mem_write_uint16s_wrapper",
    }
    /// Writes 32-bit integers.
    WriteUint32s(Seq<'a, (ExecAddr, u32)>) -> Void {
        Dialects::LLVM => "__llvm_orc_bootstrap_mem_write_uint32s_wrapper",
    }
    /// Writes 64-bit integers.
    WriteUint64s(Seq<'a, (ExecAddr, u64)>) -> Void {
        Dialects::LLVM => "__llvm_orc_bootstrap_mem_write_uint64s_wrapper",
    }
    /// Writes pointers.
    WritePointers(Seq<'a, (ExecAddr, ExecAddr)>) -> Void {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_write_pointers_wrapper",
    }
    /// Writes runs of bytes.
    WriteBuffers(Seq<'a, (ExecAddr, Blob<'a>)>) -> Void {
        Dialects::LLVM => "__llvm_orc_bootstrap_mem_write_buffers_wrapper",
    }
    /// Reads bytes.
    ReadUint8s(Seq<'a, ExecAddr>) -> Seq<'a, u8> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_uint8s_wrapper",
    }
    /// Reads 16-bit integers.
    ReadUint16s(Seq<'a, ExecAddr>) -> Seq<'a, u16> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_uint16s_wrapper",
    }
    /// Reads 32-bit integers.
    ReadUint32s(Seq<'a, ExecAddr>) -> Seq<'a, u32> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_uint32s_wrapper",
    }
    /// Reads 64-bit integers.
    ReadUint64s(Seq<'a, ExecAddr>) -> Seq<'a, u64> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_uint64s_wrapper",
    }
    /// Reads pointers.
    ReadPointers(Seq<'a, ExecAddr>) -> Seq<'a, ExecAddr> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_pointers_wrapper",
    }
    /// Reads ranges of bytes.
    ReadBuffers(Seq<'a, ExecRange>) -> Seq<'a, Blob<'a>> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_buffers_wrapper",
    }
    /// Reads strings, each up to its NUL.
    ReadStrings(Seq<'a, ExecAddr>) -> Seq<'a, Text<'a>> {
        Dialects::LLVM22.union(Dialects::LLVM23) => "__llvm_orc_bootstrap_mem_read_strings_wrapper",
    }
    /// Runs `main` and says how it ended, its console going to a handler of the controller.
    CallMain(CallMainArgs<'a>) -> CallOutcome<'a> {
        Dialects::GRAFT => "graft_call_main_wrapper",
    }
    /// Limits each later call into loaded code to so many nanoseconds, 0 for no limit, until the end of the session. The
    /// answer is the limit in force: 0 where the machine has no timer for it.
    TimeLimit(u64) -> u64 {
        Dialects::GRAFT => "graft_time_limit_wrapper",
    }
    /// Lets loaded code run in this ring of the processor, 0 or 3, until the end of the session; before anything is
    /// reserved. The answer is the ring in force: 3 where there is no other, or memory is reserved already.
    Ring(u8) -> u8 {
        Dialects::GRAFT => "graft_ring_wrapper",
    }
    /// Describes the executor and its machine.
    Info(Void) -> InfoReply<'a> {
        Dialects::GRAFT => "graft_info_wrapper",
    }
    /// Takes console output of loaded code: a handler of the controller, called by its tag and answered by nothing.
    ConsoleOutput(Blob<'a>) -> Void {}
}

/// A symbol of Setup that is data: its address is only ever echoed, or handed to loaded code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instance {
    /// The first argument of the dispatch function.
    DispatchContext,
    /// The C function through which loaded code calls the controller.
    DispatchFunction,
    /// The dylib manager.
    DylibManager,
    /// The memory manager.
    MemoryManager,
    /// The shared memory mapper (host executors only).
    SharedMemoryMapper,
}

impl Instance {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::DispatchContext,
        Self::DispatchFunction,
        Self::DylibManager,
        Self::MemoryManager,
        Self::SharedMemoryMapper,
    ];

    /// The names it is published under.
    #[must_use]
    pub const fn names(self) -> &'static [Name] {
        const fn all(name: &'static str) -> Name {
            Name { name, dialects: Dialects::LLVM }
        }
        const fn llvm23(name: &'static str) -> Name {
            Name { name, dialects: Dialects::LLVM23 }
        }
        match self {
            Self::DispatchContext => const { &[all("__llvm_orc_SimpleRemoteEPC_dispatch_ctx")] },
            Self::DispatchFunction => const { &[all("__llvm_orc_SimpleRemoteEPC_dispatch_fn")] },
            Self::DylibManager => {
                const {
                    &[
                        all("__llvm_orc_SimpleExecutorDylibManager_Instance"),
                        llvm23("orc_rt_ci_NativeDylibManager_Instance"),
                    ]
                }
            }
            Self::MemoryManager => {
                const {
                    &[
                        all("__llvm_orc_SimpleExecutorMemoryManager_Instance"),
                        llvm23("orc_rt_ci_SimpleNativeMemoryMap_Instance"),
                    ]
                }
            }
            Self::SharedMemoryMapper => const { &[all("__llvm_orc_ExecutorSharedMemoryMapperService_Instance")] },
        }
    }
}

impl WrapperId {
    /// The row an executor of generation `dialects` publishes as `name`.
    #[must_use]
    pub fn by_name(name: &[u8], dialects: Dialects) -> Option<Self> {
        Self::ALL.iter().copied().find(|row| {
            row.names().iter().any(|known| known.name.as_bytes() == name && known.dialects.intersects(dialects))
        })
    }
}

/// A key of Setup's map that Graft's executors send, its value an SPS blob; LLVM's clients ignore them.
pub mod map_key {
    /// The largest message the executor takes, header included: `u64`, in bytes.
    pub const MAX_MESSAGE: &str = "graft.max_message";
    /// The handle that `open` returns for the empty path, the executor itself: `ExecAddr`. It saves asking.
    pub const LIBRARY: &str = "graft.library";
    /// The runtime's version: `Text`.
    pub const VERSION: &str = "graft.version";
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn one_generation_gives_a_name_one_meaning() {
        for dialect in Dialects::all().iter() {
            let names: Vec<_> = WrapperId::ALL
                .iter()
                .flat_map(|row| row.names())
                .chain(Instance::ALL.iter().flat_map(|instance| instance.names()))
                .filter(|name| name.dialects.intersects(dialect))
                .map(|name| name.name)
                .collect();
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{dialect:?}");
        }
    }

    #[test]
    fn the_name_whose_arguments_changed_is_two_rows() {
        let name = b"__llvm_orc_SimpleExecutorDylibManager_resolve_wrapper";
        assert_eq!(WrapperId::by_name(name, Dialects::LLVM22), Some(WrapperId::Resolve22));
        assert_eq!(WrapperId::by_name(name, Dialects::LLVM23), Some(WrapperId::Resolve));
        assert_eq!(WrapperId::by_name(name, Dialects::LLVM19), None);
    }
}
