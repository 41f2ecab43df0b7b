//! Calls of code in ring 3. They end at the same checkpoints as all others; only the ways in and out differ.
//!
//! In goes an `iretq`, with every register cleared. Out leads the *entry page*, the one page that the loaded code shares
//! with the runtime: the function returns to it, and the functions it may call are stubs in it. Each loads a number and
//! makes a system call, which runs the function of that number on the runtime's stack below the checkpoint. Until that goes
//! to work for the runtime (`on_runtime_stack`), a fault in it is the loaded code's: it looks at what it was given.
//! A system call from anywhere else, or of no function, is an invalid instruction.
//!
//! For loaded code in ring 0 the page is filled otherwise: the stubs jump to the functions, so that addresses are the same.
#![expect(unsafe_code, reason = "changes rings, which only assembly can say")]

use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ::x86_64::registers::model_specific::Msr;

use super::{
    AT_WORK, CALLED, Caller, Checkpoint, ExecAddr, Fault, FaultKind, IDLE, INNERMOST, ReturnPair, Ring, abandon,
    aborted, resume,
};
use crate::x86_64::bare::cpu::Features;
use crate::x86_64::bare::segments::{KERNEL_CODE, KERNEL_DATA, USER_CODE, USER_DATA};

/// The bytes of a page.
const PAGE: usize = 4096;
/// The distance of two stubs.
const STUB: usize = 16;
/// The most functions there can be.
pub const MOST: usize = 22;

/// x87 control after `fninit`.
const CLEAN_X87: u32 = 0x037f;

/// RFLAGS.AC: in ring 0, user pages may be touched (SDM 3A §4.6.1).
const ALIGNMENT_CHECK: u64 = 0x4_0000;

/// Where the entry page is.
static ENTRY_PAGE: AtomicU64 = AtomicU64::new(0);
/// The functions by number, less one.
static FUNCTIONS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
static FUNCTION_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether the processor has `xrstor`.
static HAS_XSAVE: AtomicU64 = AtomicU64::new(0);

/// The state of the x87, SSE and AVX registers that code starts with, for `xrstor` and `fxrstor` (SDM 1 §10.5.1, §13.4):
/// nothing but the control words, which [`set_up`] writes; what is not there is initialized.
#[repr(C, align(64))]
struct CleanState([AtomicU32; 144]);

static CLEAN_STATE: CleanState = CleanState([const { AtomicU32::new(0) }; 144]);

// The entry page as ring 3 sees it: the end of the call, a stub for each function, and those functions that need nobody.
global_asm!(
    ".section .rodata.graft_entry_page, \"a\"",
    ".balign 16",
    "graft_entry_page:",
    "xor r8d, r8d",
    "syscall",
    ".set number, 1",
    ".rept {most}",
    ".balign 16, 0xcc",
    // Where the call came from, for reports: the runtime itself touches no stack of loaded code.
    "mov rax, [rsp]",
    "mov r10, rcx",
    ".byte 0x41, 0xb8",
    ".long number",
    "syscall",
    "ret",
    ".set number, number + 1",
    ".endr",
    ".balign 16, 0xcc",
    "graft_entry_memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2:",
    "lea rdi, [rdi + rcx - 1]",
    "lea rsi, [rsi + rcx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "graft_entry_memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "graft_entry_memcmp:",
    "xor ecx, ecx",
    "2:",
    "xor eax, eax",
    "cmp rcx, rdx",
    "je 3f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "jz 2b",
    "3:",
    "ret",
    "graft_entry_strlen:",
    "xor eax, eax",
    "2:",
    "cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3:",
    "ret",
    "graft_entry_page_end:",
    ".text",
    most = const MOST,
);

unsafe extern "C" {
    #[link_name = "graft_entry_page"]
    safe static START: u8;
    #[link_name = "graft_entry_memmove"]
    safe static MEMMOVE: u8;
    #[link_name = "graft_entry_memset"]
    safe static MEMSET: u8;
    #[link_name = "graft_entry_memcmp"]
    safe static MEMCMP: u8;
    #[link_name = "graft_entry_strlen"]
    safe static STRLEN: u8;
    #[link_name = "graft_entry_page_end"]
    safe static END: u8;
}

/// How many bytes into the entry page a part of its template is.
fn offset_of_part(part: *const u8) -> usize {
    part.addr() - (&raw const START).addr()
}

/// Makes `functions` those that loaded code may call through the entry page at `page`, by their numbers from 0 on, and lets
/// system calls in. Called once, at start.
///
/// # Safety
/// Each function must be a C function of at most four integer arguments that does no harm whatever they are, by the rules of
/// [`super::recover`] for frames of the runtime on the stack of the loaded code.
pub unsafe fn set_up(page: ExecAddr, functions: impl Iterator<Item = u64>, features: &Features) {
    ENTRY_PAGE.store(page.0, Ordering::Relaxed);
    HAS_XSAVE.store(u64::from(features.has_xsave()), Ordering::Relaxed);
    let CleanState([x87, _, _, _, _, _, sse, ..]) = &CLEAN_STATE;
    x87.store(CLEAN_X87, Ordering::Relaxed);
    sse.store(super::CLEAN_MXCSR, Ordering::Relaxed);
    for (slot, function) in FUNCTIONS.iter().zip(functions) {
        slot.store(function, Ordering::Relaxed);
        FUNCTION_COUNT.fetch_add(1, Ordering::Relaxed);
    }
    // The selectors for the way in, and for the way out: 16 less than the code's, 8 less than the data's. All flags are
    // cleared on the way in (SDM 3A §5.8.8).
    let selectors = u64::from(KERNEL_CODE) << 32 | u64::from(USER_CODE - 16) << 48;
    let entry: unsafe extern "C" fn() = system_call;
    const EFER: u32 = 0xc000_0080;
    const SYSTEM_CALLS: u64 = 1;
    let registers = [(0xc000_0081, selectors), (0xc000_0082, entry as usize as u64), (0xc000_0084, !2 & 0xffff_ffff)];
    for (register, value) in registers {
        // SAFETY: IA32_STAR, LSTAR and FMASK exist in every processor with long mode; they mean nothing before EFER.SCE.
        unsafe { Msr::new(register).write(value) };
    }
    let mut efer = Msr::new(EFER);
    // SAFETY: reads a register that exists.
    let old = unsafe { efer.read() };
    // SAFETY: one more bit: the entry it opens is complete.
    unsafe { efer.write(old | SYSTEM_CALLS) };
}

/// Writes the entry page for loaded code in `ring`.
pub fn write_entry_page(page: &mut [u8; PAGE], ring: Ring) {
    // What is left traps.
    page.fill(0xcc);
    let len = offset_of_part(&raw const END);
    // SAFETY: the template, which the assembler put into one section from the one symbol to the other.
    let template = unsafe { core::slice::from_raw_parts(&raw const START, len) };
    if let Some(slot) = page.get_mut(..len) {
        slot.copy_from_slice(template);
    }
    if ring == Ring::User {
        return;
    }
    for (stub, function) in page.chunks_exact_mut(STUB).skip(1).zip(&FUNCTIONS) {
        // movabs rax, function; jmp rax
        let [a, b, c, d, e, f, g, h] = function.load(Ordering::Relaxed).to_le_bytes();
        let jump = [0x48, 0xb8, a, b, c, d, e, f, g, h, 0xff, 0xe0];
        if let Some(start) = stub.first_chunk_mut() {
            *start = jump;
        }
    }
}

/// Where loaded code finds the function with this number; `None` when there is no such function.
#[must_use]
pub fn stub(number: usize) -> Option<ExecAddr> {
    let exists = number < FUNCTION_COUNT.load(Ordering::Relaxed);
    exists.then(|| ExecAddr(ENTRY_PAGE.load(Ordering::Relaxed) + ((number + 1) * STUB) as u64))
}

/// Where loaded code finds the function of this name, if it needs nobody.
#[must_use]
pub fn own_function(name: &[u8]) -> Option<ExecAddr> {
    let part = match name {
        b"memcpy" | b"memmove" => &raw const MEMMOVE,
        b"memset" => &raw const MEMSET,
        b"memcmp" => &raw const MEMCMP,
        b"strlen" => &raw const STRLEN,
        _ => return None,
    };
    Some(ExecAddr(ENTRY_PAGE.load(Ordering::Relaxed) + offset_of_part(part) as u64))
}

/// As [`super::call`], in ring 3.
///
/// # Errors
/// As for [`super::call`].
///
/// # Safety
/// As for [`super::call`]; the code, its stack and the entry page must be mapped for ring 3, and nothing else that must stay
/// as it is.
#[must_use = "the fault, if any, is the only trace of how the call ended"]
pub unsafe fn call(stack_top: u64, entry: u64, args: [u64; 4]) -> Result<ReturnPair, Fault> {
    let mut checkpoint = Checkpoint::new();
    let end = ENTRY_PAGE.load(Ordering::Relaxed);
    // SAFETY: as in `super::call`.
    unsafe { enter(&raw mut checkpoint, stack_top, entry, &raw const args, end) };
    checkpoint.outcome()
}

/// Saves the caller, makes `checkpoint` the innermost, and goes to `entry` in ring 3, which returns to `end`.
#[unsafe(naked)]
unsafe extern "C" fn enter(checkpoint: *mut Checkpoint, stack_top: u64, entry: u64, args: *const [u64; 4], end: u64) {
    naked_asm!(
        save_caller!(),
        "mov r9, rdx",
        // The return address. The stack may not be there yet: then a trap fills it, or ends the call.
        "push 0x40002",
        "popfq",
        "mov [rsi - 8], r8",
        "push 2",
        "popfq",
        "cmp byte ptr [rip + {has_xsave}], 0",
        "je 2f",
        "mov eax, -1",
        "mov edx, -1",
        "xrstor [rip + {clean_state}]",
        "jmp 3f",
        "2:",
        "fxrstor [rip + {clean_state}]",
        "3:",
        // The frame to leave by: nothing but the reserved flag is set in the flags.
        "lea rax, [rsi - 8]",
        "push {user_data}",
        "push rax",
        "push 2",
        "push {user_code}",
        "push r9",
        "mov r11, rcx",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov rcx, [r11 + 24]",
        "xor eax, eax",
        "mov ds, eax",
        "mov es, eax",
        // FS stays: its base is the thread pointer, which the loaded code sets.
        "mov gs, eax",
        "xor ebx, ebx",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "iretq",
        sp = const offset_of!(Checkpoint, sp),
        innermost = sym INNERMOST,
        has_xsave = sym HAS_XSAVE,
        clean_state = sym CLEAN_STATE,
        user_data = const USER_DATA,
        user_code = const USER_CODE,
    )
}

/// Where system calls arrive: in ring 0, on the stack of the loaded code, which is left at once.
#[unsafe(naked)]
unsafe extern "C" fn system_call() {
    naked_asm!(
        // Code in ring 3 runs in a call: there is a checkpoint, and its stack is idle.
        "mov r9, [rip + {innermost}]",
        "mov [r9 + {caller_sp}], rsp",
        "mov [r9 + {caller_ip}], rcx",
        "mov rsp, [r9 + {sp}]",
        "and rsp, -16",
        "push rcx",
        "push r11",
        "push r9",
        "sub rsp, 8",
        "sub rcx, [rip + {entry_page}]",
        "cmp rcx, {page}",
        "jae 2f",
        "test r8, r8",
        "jz 3f",
        "cmp r8, [rip + {function_count}]",
        "ja 2f",
        "mov [r9 + {caller_from}], rax",
        "mov qword ptr [r9 + {lent}], {called}",
        // The function may touch the loaded code's memory.
        "push 0x40002",
        "popfq",
        "mov rcx, r10",
        "lea r10, [rip + {functions}]",
        "call [r10 + r8 * 8 - 8]",
        "push 2",
        "popfq",
        "add rsp, 8",
        "pop r9",
        "pop r11",
        "pop rcx",
        "mov qword ptr [r9 + {lent}], {idle}",
        "mov rsp, [r9 + {caller_sp}]",
        "xor edi, edi",
        "xor esi, esi",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        // To the entry page, which is below any address that this could not return to.
        "sysretq",
        "2:",
        "mov rdi, r9",
        "call {refuse}",
        // The function has returned.
        "3:",
        "mov [r9 + {result}], rax",
        "mov [r9 + {result} + 8], rdx",
        "jmp {resume}",
        innermost = sym INNERMOST,
        sp = const offset_of!(Checkpoint, sp),
        lent = const offset_of!(Checkpoint, lent),
        result = const offset_of!(Checkpoint, result),
        caller_ip = const offset_of!(Checkpoint, caller) + offset_of!(Caller, ip),
        caller_sp = const offset_of!(Checkpoint, caller) + offset_of!(Caller, sp),
        caller_from = const offset_of!(Checkpoint, caller) + offset_of!(Caller, from),
        entry_page = sym ENTRY_PAGE,
        page = const PAGE,
        functions = sym FUNCTIONS,
        function_count = sym FUNCTION_COUNT,
        called = const CALLED,
        idle = const IDLE,
        refuse = sym refuse,
        resume = sym resume,
    )
}

/// Ends the call that made a system call it may not make.
unsafe extern "C" fn refuse(checkpoint: *const Checkpoint) -> ! {
    const LEN: u64 = 2;
    // SAFETY: the innermost, which lives in the frame of a `call` that is suspended.
    let Caller { ip, sp, .. } = unsafe { (*checkpoint).caller };
    let fault = Fault { kind: FaultKind::INVALID_OPCODE, ..aborted(ip.wrapping_sub(LEN), sp) };
    // SAFETY: this frame owns nothing, and there is no other.
    unsafe { abandon(Err(fault)) }
}

const _: () = assert!(ALIGNMENT_CHECK | 2 == 0x4_0002);
const _: () = assert!(KERNEL_DATA == KERNEL_CODE + 8 && USER_DATA == USER_CODE - 8);
const _: () = assert!(AT_WORK != CALLED);
