//! The C functions that code loaded into the executor may call, and their addresses by name.
//!
//! Each looks first at the memory it was given, in a frame that owns nothing, so that a bad pointer is the fault of loaded
//! code like any other: on the stack of loaded code with the runtime's own rights, on the runtime's stack for code in ring 3,
//! which made a system call. Only then does it go to work for the runtime ([`Services`]), with bytes that are copied or the
//! address of bytes that can be read. No lock is held and nothing owned while loaded memory is touched.
#![expect(unsafe_code, reason = "C functions take what pointers loaded code gives them, and change stacks")]

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use graft_arch::machine::checkpoint;
use graft_protocol::{ExecAddr, ExecRange};
use spin::Once;

use crate::services::Services;

/// The name under which [`find`] knows the dispatch function, the same as in Setup.
pub(crate) const DISPATCH: &str = "__llvm_orc_SimpleRemoteEPC_dispatch_fn";

/// Bytes copied from loaded memory at a time.
const CHUNK: usize = 256;

/// Memory is readable page by page; this is the smallest page there is.
const PROBE_STEP: usize = 4096;

static SERVICES: Once<&'static dyn Services> = Once::new();

/// Connects the functions to the program's executor, once and for good.
pub fn install(services: &'static dyn Services) {
    SERVICES.call_once(|| services);
}

/// A function by its name.
struct Export(&'static str, *const ());

// SAFETY: the pointer is the address of a function, which is only told.
unsafe impl Sync for Export {}

/// The functions that work for loaded code whatever its rights: each looks at what it is given with that code's reach.
const SERVED: &[Export] = &[
    Export("graft_write", graft_write as *const ()),
    Export("putchar", putchar as *const ()),
    Export("puts", puts as *const ()),
    Export("malloc", malloc as *const ()),
    Export("calloc", calloc as *const ()),
    Export("free", free as *const ()),
    Export("realloc", realloc as *const ()),
    Export("aligned_alloc", aligned_alloc as *const ()),
    Export("abort", checkpoint::abort_from_caller as *const ()),
    Export("exit", exit as *const ()),
    Export("_exit", exit as *const ()),
    Export("_Exit", exit as *const ()),
    // A Linux process has a thread pointer of its own, which its C library relies on.
    #[cfg(target_os = "none")]
    Export("graft_set_thread_pointer", set_thread_pointer as *const ()),
    Export("graft_uptime_ns", graft_uptime_ns as *const ()),
    Export("graft_dispatch", dispatch as *const ()),
    Export("__orc_rt_jit_dispatch", dispatch as *const ()),
    Export(DISPATCH, dispatch as *const ()),
];

/// The functions that need nobody: they do with any address what their caller could do. Never to be lent to code with less
/// rights than the runtime's.
const PLAIN: &[Export] = &[
    Export("memcpy", memcpy as *const ()),
    Export("memmove", memcpy as *const ()),
    Export("memset", memset as *const ()),
    Export("memcmp", memcmp as *const ()),
    Export("strlen", strlen as *const ()),
];

/// The address of the function that loaded code with the runtime's own rights knows by `name`.
#[must_use]
pub fn find(name: &[u8]) -> Option<ExecAddr> {
    let found = SERVED.iter().chain(PLAIN).find(|Export(known, _)| known.as_bytes() == name);
    found.map(|Export(_, function)| ExecAddr(function.addr() as u64))
}

/// How many functions there are that work for loaded code whatever its rights.
pub const SERVED_COUNT: usize = SERVED.len();

/// Which of [`served`] has this name.
#[must_use]
pub fn number(name: &[u8]) -> Option<usize> {
    SERVED.iter().position(|Export(known, _)| known.as_bytes() == name)
}

/// The addresses of the functions that work for loaded code whatever its rights, for who gives it others that lead there.
pub fn served() -> impl Iterator<Item = ExecAddr> {
    SERVED.iter().map(|Export(_, function)| ExecAddr(function.addr() as u64))
}

/// The memory of whoever runs with the runtime's own rights.
pub const EVERYTHING: ExecRange = match ExecRange::from_len(ExecAddr::NULL, u64::MAX) {
    Some(range) => range,
    None => unreachable!(),
};

/// Where the loaded code has its memory: what it names must begin there. Nothing of the runtime's may border on it, because
/// the rest is found out byte by byte.
static REACH: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(u64::MAX)];

/// Lets functions read for loaded code what begins in `reach`, and nothing else.
pub fn set_reach(reach: ExecRange) {
    let [start, end] = &REACH;
    start.store(reach.start().0, Ordering::Relaxed);
    end.store(reach.end().0, Ordering::Relaxed);
}

/// Ends the call into loaded code when what it wants read at `start` is none of its memory.
fn admit(start: *const u8) {
    let [first, end] = REACH.each_ref().map(|bound| bound.load(Ordering::Relaxed));
    let at = start.addr() as u64;
    if !(first..end).contains(&at) {
        // SAFETY: called by loaded code, or for it, whose frames own nothing of the runtime's.
        unsafe { checkpoint::refuse_read(ExecAddr(at)) }
    }
}

/// Runs `service` on the runtime's own stack; `otherwise` when no executor was installed.
fn serve<R>(otherwise: R, service: impl FnOnce(&'static dyn Services) -> R) -> R {
    let Some(services) = SERVICES.get() else { return otherwise };
    let mut service = Some(service);
    let mut result = otherwise;
    let mut run = || {
        if let Some(service) = service.take() {
            result = service(*services);
        }
    };
    call_there(&mut run);
    result
}

fn call_there<F: FnMut()>(run: &mut F) {
    /// Undoes the erasure below.
    unsafe extern "C" fn trampoline<F: FnMut()>(run: *mut ()) {
        // SAFETY: `run` is the pointer made from `&mut F` below, whose owner is suspended until this returns.
        let run = unsafe { &mut *run.cast::<F>() };
        run();
    }
    // SAFETY: the trampoline takes exactly this pointer. A panic in it ends the program: `extern "C"` does not unwind.
    unsafe { checkpoint::on_runtime_stack(trampoline::<F>, ptr::from_mut(run).cast()) };
}

/// Reads a byte of each page of `len` bytes at `start`: a fault happens here, where it is the loaded code's.
fn probe(start: *const u8, len: usize) {
    if len > 0 {
        admit(start);
    }
    let mut at = 0;
    while at < len {
        // SAFETY: a byte that cannot be read ends the call into loaded code, which owns nothing in these frames.
        unsafe { start.wrapping_add(at).read_volatile() };
        at = at.saturating_add(PROBE_STEP);
    }
    if let Some(last) = len.checked_sub(1) {
        // SAFETY: as above.
        unsafe { start.wrapping_add(last).read_volatile() };
    }
}

/// `void graft_write(const char *bytes, size_t len)`: console output.
///
/// # Safety
/// Whatever the pointer is, only the call into loaded code that makes this call may suffer for it.
pub unsafe extern "C" fn graft_write(bytes: *const u8, len: usize) {
    if len > 0 {
        admit(bytes);
    }
    let mut at = 0;
    while at < len {
        let mut chunk = [0; CHUNK];
        let count = CHUNK.min(len - at);
        // SAFETY: `count` bytes fit the chunk. What of the source cannot be read ends the call into loaded code.
        unsafe { ptr::copy(bytes.wrapping_add(at), chunk.as_mut_ptr(), count) };
        serve((), |services| services.write_console(chunk.get(..count).unwrap_or(&[])));
        at += count;
    }
}

/// `int putchar(int byte)`.
extern "C" fn putchar(byte: i32) -> i32 {
    let [low, ..] = byte.to_le_bytes();
    serve((), |services| services.write_console(&[low]));
    i32::from(low)
}

/// `int puts(const char *text)`.
extern "C" fn puts(text: *const u8) -> i32 {
    admit(text);
    let len = strlen(text);
    // SAFETY: the bytes were read just now; the caller of this is loaded code.
    unsafe { graft_write(text, len) };
    putchar(i32::from(b'\n'))
}

/// `void *memcpy(void *to, const void *from, size_t len)`, and `memmove`: the ranges may overlap.
extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: both ranges are the loaded code's word; where they are not mapped its call ends in a fault.
    unsafe { ptr::copy(from, to, len) };
    to
}

/// `void *memset(void *to, int byte, size_t len)`.
extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    let [low, ..] = byte.to_le_bytes();
    // SAFETY: the range is the loaded code's word; where it is not mapped its call ends in a fault.
    unsafe { ptr::write_bytes(to, low, len) };
    to
}

/// `int memcmp(const void *a, const void *b, size_t len)`.
extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for at in 0..len {
        // SAFETY: the loaded code's word, as above. Volatile, so that this loop does not become a call of itself.
        let left = unsafe { a.wrapping_add(at).read_volatile() };
        // SAFETY: as above.
        let right = unsafe { b.wrapping_add(at).read_volatile() };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// `size_t strlen(const char *text)`.
extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the loaded code's word, as above. Volatile, so that this loop does not become a call of itself.
    while unsafe { text.wrapping_add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

/// `void *malloc(size_t size)`.
extern "C" fn malloc(size: usize) -> *mut u8 {
    allocate(size, 1)
}

/// `void *calloc(size_t count, size_t size)`.
extern "C" fn calloc(count: usize, size: usize) -> *mut u8 {
    let Some(len) = count.checked_mul(size) else { return ptr::null_mut() };
    let block = allocate(len, 1);
    if !block.is_null() {
        // SAFETY: a new block of that many bytes.
        unsafe { ptr::write_bytes(block, 0, len) };
    }
    block
}

/// `void *aligned_alloc(size_t align, size_t size)`; null when `align` is no power of two.
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    if align.is_power_of_two() { allocate(size, align) } else { ptr::null_mut() }
}

fn allocate(size: usize, align: usize) -> *mut u8 {
    let block = serve(None, |services| services.allocate(size as u64, align as u64));
    pointer(block.unwrap_or(ExecAddr::NULL))
}

/// `void free(void *block)`.
///
/// # Safety
/// Whatever the pointer is, only the call into loaded code that makes this call may suffer for it.
pub unsafe extern "C" fn free(block: *mut u8) {
    if !block.is_null() {
        serve((), |services| services.free(ExecAddr(block.addr() as u64)));
    }
}

/// `void *realloc(void *block, size_t size)`; null for what is no block.
///
/// # Safety
/// Whatever the pointer is, only the call into loaded code that makes this call may suffer for it.
pub unsafe extern "C" fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        return malloc(size);
    }
    let at = ExecAddr(block.addr() as u64);
    let Some(old) = serve(None, |services| services.block_size(at)) else {
        // Says so in the log.
        // SAFETY: the pointer is only looked up.
        unsafe { free(block) };
        return ptr::null_mut();
    };
    if size as u64 <= old {
        // The block stays what it is: giving less must not fail.
        return block;
    }
    let new = malloc(size);
    if !new.is_null() {
        let len = usize::try_from(old).unwrap_or(size).min(size);
        // SAFETY: both blocks have at least that many bytes, and they are two blocks.
        unsafe { ptr::copy_nonoverlapping(block, new, len) };
        // SAFETY: the pointer is only looked up.
        unsafe { free(block) };
    }
    new
}

/// Whether `block` is a block in use of the heap of loaded code.
#[must_use]
pub fn is_block(block: *const u8) -> bool {
    serve(None, |services| services.block_size(ExecAddr(block.addr() as u64))).is_some()
}

/// `void exit(int value)`: ends the call into loaded code with that value.
extern "C" fn exit(value: i32) -> ! {
    serve((), |services| services.note_exit());
    // SAFETY: nothing is locked or owned in this frame, nor in those of the loaded code as far as the runtime knows.
    unsafe { checkpoint::abandon(Ok([i64::from(value).cast_unsigned(), 0])) }
}

/// `void graft_set_thread_pointer(void *pointer)`: what `%fs` is relative to, until the next call of this.
#[cfg(target_os = "none")]
extern "C" fn set_thread_pointer(pointer: *const u8) {
    serve((), |_| graft_arch::machine::bare::cpu::set_thread_pointer(ExecAddr(pointer.addr() as u64)));
}

/// `uint64_t graft_uptime_ns(void)`: nanoseconds since the executor started.
extern "C" fn graft_uptime_ns() -> u64 {
    serve(0, |services| services.uptime_ns())
}

/// The C type of wrapper function results.
#[repr(C)]
struct WrapperResult {
    data: u64,
    size: u64,
}

/// `CWrapperFunctionResult dispatch(void *context, const void *tag, const char *args, size_t len)`.
///
/// There is one executor, so the context says nothing.
extern "C" fn dispatch(_context: *const u8, tag: *const u8, args: *const u8, len: usize) -> WrapperResult {
    probe(args, len);
    let (tag, args) = (ExecAddr(tag.addr() as u64), ExecAddr(args.addr() as u64));
    let [data, size] = serve([0, 0], |services| services.call_controller(tag, args, len as u64));
    WrapperResult { data, size }
}

#[expect(clippy::cast_possible_truncation, reason = "addresses have the width of a pointer where code runs")]
fn pointer(at: ExecAddr) -> *mut u8 {
    ptr::with_exposed_provenance_mut(at.0 as usize)
}
