//! Calls into code that may never return: a checkpoint is taken, the code runs on a stack of its own, and whatever ends
//! it (its return, a trap, an `exit` from deep inside) resumes at the checkpoint.
//!
//! [`call`] takes the checkpoint. A trap handler ends the innermost call with [`recover`]; a function that loaded code
//! calls ends it with [`abandon`]. [`on_runtime_stack`] lets such a function leave the (small, perhaps nearly full) stack
//! of the loaded code for the runtime's own, which lies idle below the checkpoint; calls may nest there.
//!
//! Checkpoints form one chain per program, as the executor is single-threaded: a static and not a value, because the
//! way back must not depend on a register or a stack that the loaded code had in its hands. No unwinding tables are
//! involved. It is the same code on bare metal and in a Linux process; only the trap handlers differ.
#![expect(unsafe_code, reason = "switches stacks and resumes at checkpoints, which only assembly can say")]

use core::arch::naked_asm;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use graft_protocol::{ExecAddr, Fault, FaultKind};

/// The rings that loaded code can run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// That of the runtime itself.
    Kernel,
    /// Where it reaches only what it was given.
    User,
}

/// What a call left in RAX and RDX.
pub type ReturnPair = [u64; 2];

/// The state of one suspended caller. It lives in the frame of [`call`], so a chain of calls is a chain of frames.
#[repr(C)]
struct Checkpoint {
    /// The caller's stack pointer; its saved registers lie right there.
    sp: u64,
    outer: *mut Self,
    /// [`IDLE`], [`AT_WORK`] or [`CALLED`]: what the stack below `sp` is in use for.
    lent: u64,
    /// What the call returned, when `fault` is none.
    result: ReturnPair,
    fault: Option<Fault>,
    /// The fault to end the call with as soon as the stack is no longer lent.
    due: Option<Fault>,
    /// Where loaded code in ring 3 asked for what it is getting.
    caller: Caller,
}

/// The state of loaded code that made a system call.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Caller {
    /// Behind the system call.
    ip: u64,
    sp: u64,
    /// Where it says that it will return to.
    from: u64,
}

/// Nothing uses the stack below the checkpoint. A fault is the loaded code's, also when its stack runs out on the way here.
const IDLE: u64 = 0;
/// The runtime works there ([`on_runtime_stack`]) and may hold locks: a fault is its own.
const AT_WORK: u64 = 1;
/// A function that loaded code in ring 3 called runs there and looks at what it was given: a fault is the loaded code's.
const CALLED: u64 = 2;

/// The innermost checkpoint, or null while no loaded code runs.
static INNERMOST: AtomicPtr<Checkpoint> = AtomicPtr::new(ptr::null_mut());

/// SSE control: all exceptions masked, round to nearest (SDM 1 §10.2.3). x87 gets the same from `fninit`.
static CLEAN_MXCSR: u32 = 0x1f80;

/// Where a trap handler must make the interrupted context go on, so that the innermost [`call`] returns its fault.
///
/// The handler also clears DF, TF and AC in the flags it resumes with. All other registers may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The instruction pointer to go on at.
    pub ip: u64,
    /// The stack pointer to go on with.
    pub sp: u64,
}

/// Calls the C function at `entry` on the stack that ends at `stack_top`, and returns what it left in RAX and RDX, or
/// the fault that ended it.
///
/// The function starts with the direction flag clear and clean x87 and SSE control words; the caller's are restored.
///
/// # Errors
/// The fault given to [`recover`] or [`abandon`].
///
/// # Safety
/// - `entry` must be code with the C calling convention for at most four integer arguments.
/// - `stack_top` must be a multiple of 16, with memory below it that is writable (or becomes so when touched), not in
///   use by anything else until this returns, and large enough that running out of it traps.
/// - Only one thread of the program may use this module.
#[must_use = "the fault, if any, is the only trace of how the call ended"]
pub unsafe fn call(stack_top: u64, entry: u64, args: [u64; 4]) -> Result<ReturnPair, Fault> {
    let mut checkpoint = Checkpoint::new();
    // SAFETY: `checkpoint` and `args` outlive the call; the entry and its stack are the caller's promise. `enter` puts
    // the callee-saved registers back on every way out, so to the compiler it is an ordinary call.
    unsafe { enter(&raw mut checkpoint, stack_top, entry, &raw const args) };
    checkpoint.outcome()
}

impl Checkpoint {
    fn new() -> Self {
        let outer = INNERMOST.load(Ordering::Relaxed);
        Self { sp: 0, outer, lent: IDLE, result: [0; 2], fault: None, due: None, caller: Caller::default() }
    }

    fn outcome(&self) -> Result<ReturnPair, Fault> {
        self.fault.map_or(Ok(self.result), Err)
    }
}

/// How many calls are on the stack.
#[must_use]
pub fn depth() -> usize {
    let mut depth = 0;
    let mut checkpoint = INNERMOST.load(Ordering::Relaxed).cast_const();
    while !checkpoint.is_null() {
        depth += 1;
        // SAFETY: a checkpoint in the chain lives in the frame of a `call` that has not returned.
        checkpoint = unsafe { (*checkpoint).outer };
    }
    depth
}

/// Whether the runtime is at work on its own stack for the innermost call, or no call is active.
#[must_use]
pub fn is_in_runtime() -> bool {
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
    checkpoint.is_null() || unsafe { (*checkpoint).lent } == AT_WORK
}

/// Ends the innermost call with `fault`: notes it there and says where the interrupted context must go on.
///
/// For trap handlers. `None` when the fault is the runtime's own: no call is active, or the runtime is using its stack for
/// a function that loaded code called ([`on_runtime_stack`]). It may hold locks there, which nobody would give back.
///
/// # Safety
/// The handler must resume at the returned place, at once, if there is one. No lock may be held and no destructor be
/// pending in the frames of functions that loaded code called, until they go to work for the runtime
/// ([`on_runtime_stack`]), whichever stack they are on: they are never run.
#[must_use = "the interrupted context must go on at the place returned"]
pub unsafe fn recover(fault: Fault) -> Option<Resume> {
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    if checkpoint.is_null() {
        return None;
    }
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended. No reference to it: a trap comes
    // between any two instructions of this module.
    let fault = match unsafe { (*checkpoint).lent } {
        AT_WORK => return None,
        // SAFETY: as above.
        CALLED => unsafe { (*checkpoint).caller }.made(fault),
        _ => fault,
    };
    // SAFETY: as above.
    unsafe { (*checkpoint).fault = Some(fault) };
    let ip: unsafe extern "C" fn() -> ! = resume;
    // SAFETY: as above.
    Some(Resume { ip: ip as usize as u64, sp: unsafe { (*checkpoint).sp } })
}

/// As [`recover`], for an interruption that is nobody's fault: while the runtime works for the loaded code, the call ends
/// when that work is done. `None` means to go on; without a call there is nothing to end.
///
/// # Safety
/// As for [`recover`].
#[must_use = "the interrupted context must go on at the place returned"]
pub unsafe fn recover_when_possible(fault: Fault) -> Option<Resume> {
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
    if !checkpoint.is_null() && unsafe { (*checkpoint).lent } == AT_WORK {
        // SAFETY: as above.
        let due = unsafe { &raw mut (*checkpoint).due };
        // SAFETY: as above. The work that is interrupted here reads it only when it is done.
        unsafe { due.write_volatile(Some(fault)) };
    }
    // SAFETY: the caller's promise.
    unsafe { recover(fault) }
}

impl Caller {
    /// The fault in a function that was called from here, as this code's own.
    fn made(self, fault: Fault) -> Fault {
        Fault { ip: ExecAddr(self.ip), sp: ExecAddr(self.sp), ..fault }
    }
}

/// Ends the innermost call with a page fault, as if loaded code had itself read at `address`, which is none of its memory.
///
/// # Safety
/// As for [`abandon`].
pub unsafe fn refuse_read(address: ExecAddr) -> ! {
    let code = Fault::PF_PRESENT;
    let fault = Fault { kind: FaultKind::PAGE_FAULT, address, code, ..aborted(0, 0) };
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
    let caller = if checkpoint.is_null() { Caller::default() } else { unsafe { (*checkpoint).caller } };
    // SAFETY: the caller's promise.
    unsafe { abandon(Err(caller.made(fault))) }
}

/// Ends the innermost call from inside, with a value or with a fault, as `exit` and `abort` do.
///
/// Without an active call there is nowhere to go: then it traps (`ud2`).
///
/// # Safety
/// No lock may be held and no destructor be pending in the frames between the checkpoint and here: they are never run.
pub unsafe fn abandon(outcome: Result<ReturnPair, Fault>) -> ! {
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    if checkpoint.is_null() {
        // SAFETY: raises #UD, which no call can be blamed for; the trap handler ends the program.
        unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
    }
    let (result, fault) = match outcome {
        Ok(pair) => (pair, None),
        Err(fault) => ([0; 2], Some(fault)),
    };
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
    unsafe { (*checkpoint).result = result };
    // SAFETY: as above.
    unsafe { (*checkpoint).fault = fault };
    // SAFETY: a call is active; the caller promises that the frames jumped over own nothing.
    unsafe { resume() }
}

/// The fault of loaded code that gave up by itself: `abort`, a panic. `ip` and `sp` are those of its call to us.
#[must_use]
pub const fn aborted(ip: u64, sp: u64) -> Fault {
    Fault { kind: FaultKind::ABORT, ip: ExecAddr(ip), sp: ExecAddr(sp), address: ExecAddr::NULL, code: 0 }
}

/// The C function `abort`, for loaded code to call: ends the innermost call with the fault [`aborted`] at its caller.
///
/// Callers give their stack up: in the frames between the checkpoint and there, nothing may be locked or owned.
#[unsafe(naked)]
pub extern "C" fn abort_from_caller() -> ! {
    extern "C" fn abort_at(ip: u64, sp: u64) -> ! {
        let checkpoint = INNERMOST.load(Ordering::Relaxed);
        // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
        let is_called = !checkpoint.is_null() && unsafe { (*checkpoint).lent } == CALLED;
        if is_called {
            // SAFETY: as above. The address here is the system call's.
            let Caller { sp, from, .. } = unsafe { (*checkpoint).caller };
            // SAFETY: as below.
            unsafe { abandon(Err(aborted(from, sp.wrapping_add(8)))) }
        }
        // SAFETY: called by loaded code alone, whose frames own nothing of the runtime's.
        unsafe { abandon(Err(aborted(ip, sp))) }
    }
    // The return address is the only trace of the caller. The stack is aligned afresh: this never returns.
    naked_asm!(
        "mov rdi, [rsp]",
        "lea rsi, [rsp + 8]",
        "and rsp, -16",
        "call {abort_at}",
        "ud2",
        abort_at = sym abort_at,
    )
}

/// Runs `f(arg)` on the runtime's own stack, below the innermost checkpoint, and comes back.
///
/// Called there already (or with no call active), it runs `f` right where it is. `f` may use [`call`] again.
///
/// # Safety
/// `f` must be safe to call with `arg`. `f` must not unwind.
pub unsafe fn on_runtime_stack(f: unsafe extern "C" fn(*mut ()), arg: *mut ()) {
    let checkpoint = INNERMOST.load(Ordering::Relaxed);
    // SAFETY: a checkpoint in the chain lives in the frame of a `call` that is suspended.
    let lent = if checkpoint.is_null() { AT_WORK } else { unsafe { (*checkpoint).lent } };
    match lent {
        // SAFETY: the caller's promise.
        AT_WORK => return unsafe { f(arg) },
        // SAFETY: it is called on that stack, and returns as below.
        CALLED => unsafe { go_to_work(checkpoint, f, arg) },
        // SAFETY: the runtime's stack is idle below the checkpoint until the innermost call ends, and `lent` keeps others
        // off it. `f` returns with every call made inside it over, so that this checkpoint is the innermost again.
        _ => unsafe { switch_stack(checkpoint, f, arg) },
    }
    // SAFETY: it is the innermost again, of a `call` that is suspended.
    let due = unsafe { &raw mut (*checkpoint).due };
    // SAFETY: as above. A trap handler may have written it meanwhile.
    if let Some(fault) = unsafe { due.read_volatile() } {
        // SAFETY: on the stack of the loaded code, where by the rule of `recover` no frame owns or locks anything.
        unsafe { abandon(Err(fault)) }
    }
}

/// Saves what [`resume`] restores, and makes the checkpoint in RDI the innermost. The stack pointer first: from the moment
/// the chain names this checkpoint, a trap may resume there.
macro_rules! save_caller {
    () => {
        "push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15
        pushfq
        sub rsp, 8
        stmxcsr [rsp]
        fnstcw [rsp + 4]
        mov [rdi + {sp}], rsp
        mov [rip + {innermost}], rdi"
    };
}

/// Saves the caller, makes `checkpoint` the innermost, and calls `entry` on the other stack.
#[unsafe(naked)]
unsafe extern "C" fn enter(checkpoint: *mut Checkpoint, stack_top: u64, entry: u64, args: *const [u64; 4]) {
    naked_asm!(
        save_caller!(),
        "mov rsp, rsi",
        "fninit",
        "ldmxcsr [rip + {clean_mxcsr}]",
        "cld",
        "mov rax, rdx",
        "mov r11, rcx",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov rcx, [r11 + 24]",
        // A null frame pointer ends the backtrace of the loaded code.
        "xor ebp, ebp",
        "xor ebx, ebx",
        "call rax",
        "mov r8, [rip + {innermost}]",
        "mov [r8 + {result}], rax",
        "mov [r8 + {result} + 8], rdx",
        "jmp {resume}",
        sp = const offset_of!(Checkpoint, sp),
        result = const offset_of!(Checkpoint, result),
        innermost = sym INNERMOST,
        clean_mxcsr = sym CLEAN_MXCSR,
        resume = sym resume,
    )
}

/// Goes back to the innermost checkpoint, which stops being one. Needs no register and no stack.
#[unsafe(naked)]
unsafe extern "C" fn resume() -> ! {
    naked_asm!(
        "mov r8, [rip + {innermost}]",
        "mov rsp, [r8 + {sp}]",
        "mov rax, [r8 + {outer}]",
        "mov [rip + {innermost}], rax",
        "fninit",
        "fldcw [rsp + 4]",
        "ldmxcsr [rsp]",
        "add rsp, 8",
        "popfq",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        sp = const offset_of!(Checkpoint, sp),
        outer = const offset_of!(Checkpoint, outer),
        innermost = sym INNERMOST,
    )
}

/// Calls `f(arg)` on the stack below `checkpoint`, which is lent meanwhile, and comes back to the stack it was called on.
#[unsafe(naked)]
unsafe extern "C" fn switch_stack(checkpoint: *mut Checkpoint, f: unsafe extern "C" fn(*mut ()), arg: *mut ()) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rbx",
        "mov rbx, rdi",
        // Loaded code may have called us with the direction flag set.
        "cld",
        "mov rsp, [rbx + {sp}]",
        "and rsp, -16",
        // From here to the other store a fault is the runtime's own: neither touches the loaded code's stack.
        "mov qword ptr [rbx + {lent}], {at_work}",
        "mov rdi, rdx",
        "call rsi",
        "mov qword ptr [rbx + {lent}], {idle}",
        "lea rsp, [rbp - 8]",
        "pop rbx",
        "pop rbp",
        "ret",
        sp = const offset_of!(Checkpoint, sp),
        lent = const offset_of!(Checkpoint, lent),
        at_work = const AT_WORK,
        idle = const IDLE,
    )
}

/// As [`switch_stack`], for who is on that stack already, at the loaded code's risk and with its memory open (RFLAGS.AC).
#[unsafe(naked)]
unsafe extern "C" fn go_to_work(checkpoint: *mut Checkpoint, f: unsafe extern "C" fn(*mut ()), arg: *mut ()) {
    naked_asm!(
        "push rbx",
        "mov rbx, rdi",
        "pushfq",
        "sub rsp, 8",
        "mov qword ptr [rbx + {lent}], {at_work}",
        "push 2",
        "popfq",
        "mov rdi, rdx",
        "call rsi",
        "mov qword ptr [rbx + {lent}], {called}",
        "add rsp, 8",
        "popfq",
        "pop rbx",
        "ret",
        lent = const offset_of!(Checkpoint, lent),
        at_work = const AT_WORK,
        called = const CALLED,
    )
}

#[cfg(target_os = "none")]
pub mod user;

// Miri does not run assembly.
#[cfg(test)]
#[cfg(not(miri))]
mod tests;
