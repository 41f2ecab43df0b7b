//! Faults as signals: what loaded code does wrong becomes a [`Fault`], what the runtime does wrong ends the process.
#![expect(unsafe_code, reason = "signal handlers and the contexts they edit")]

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use graft_arch::machine::checkpoint::{self, Resume};
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind};

use super::deadline;
use super::watch;

/// The signals that processor exceptions become, and the one the C library's `abort` raises.
const SIGNALS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// Bytes of the stack handlers run on: the faulting one may be full.
const ALTERNATE_STACK: usize = 64 * 1024;

/// Flags loaded code may have left set: trap, direction, nested task, alignment check (SDM 1 §3.4.3).
const STRAY_FLAGS: i64 = 0x100 | 0x400 | 0x4000 | 0x4_0000;

static GUARD: Span = Span::new();
static RUNTIME_STACK: Span = Span::new();
/// Where programs lie.
static RESERVABLE: [Span; 4] = [const { Span::new() }; 4];

/// A range that handlers read. The program has one thread, and no fault happens between its two stores.
struct Span(AtomicU64, AtomicU64);

impl Span {
    const fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }

    fn set(&self, range: ExecRange) {
        self.0.store(range.start().0, Ordering::Relaxed);
        self.1.store(range.end().0, Ordering::Relaxed);
    }

    fn range(&self) -> ExecRange {
        let (start, end) = (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed));
        ExecRange::new(ExecAddr(start), ExecAddr(end)).unwrap_or_default()
    }
}

/// A signal handler.
type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Notes where programs may lie.
pub(crate) fn set_reservable(ranges: &[ExecRange]) {
    RESERVABLE.iter().zip(ranges).for_each(|(span, range)| span.set(*range));
}

/// Makes `guard` the guard of the stack loaded code runs on; returns the one before.
pub(crate) fn set_guard(guard: ExecRange) -> ExecRange {
    let before = GUARD.range();
    GUARD.set(guard);
    before
}

/// Takes the signals over. The calling thread is the one that will run loaded code.
pub(crate) fn install() -> io::Result<()> {
    RUNTIME_STACK.set(own_stack()?);
    let memory = Box::leak(vec![0_u8; ALTERNATE_STACK].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: the memory is never freed, and handlers alone use it.
    check(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) })?;
    let faults = SIGNALS.map(|signal| (signal, handle as Handler));
    let watches = [(deadline::SIGNAL, time_is_up as Handler), (watch::SIGNAL, is_left)];
    for (signal, handler) in faults.into_iter().chain(watches) {
        // SAFETY: all zeroes is a value of this C structure: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        // A system call that the timer interrupts goes on.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler has the signature SA_SIGINFO asks for, and only does what a handler may.
        check(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
    }
    Ok(())
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The stack of the calling thread.
fn own_stack() -> io::Result<ExecRange> {
    // SAFETY: all zeroes is a value of this C structure, to be overwritten.
    let mut attributes: libc::pthread_attr_t = unsafe { mem::zeroed() };
    // SAFETY: has no conditions.
    let thread = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread exists, and the structure is ours to fill.
    let result = unsafe { libc::pthread_getattr_np(thread, &raw mut attributes) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    let (mut start, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the attributes were filled just now, and both places are ours.
    unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size) };
    // SAFETY: filled above, and not used any more.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    Ok(ExecRange::from_len(ExecAddr(start.addr() as u64), size as u64).unwrap_or_default())
}

/// The timer's signal: ends the call where nothing that is interrupted could hold a lock.
extern "C" fn time_is_up(_: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !deadline::is_over() {
        return;
    }
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context, ours until the handler returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let mut interrupted = Interrupted::new(context);
    if !interrupted.ends(FaultKind::TIMED_OUT) {
        deadline::miss(interrupted.ip, interrupted.sp);
    }
}

/// The watch's signal: ends the call, where nothing that is interrupted could hold a lock. Else it comes again.
extern "C" fn is_left(_: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if checkpoint::depth() > 0 && watch::is_condemned() {
        // SAFETY: as above.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let _ = Interrupted::new(context).ends(FaultKind::CANCELLED);
    }
}

/// What a signal interrupted.
struct Interrupted<'c> {
    registers: &'c mut [i64],
    ip: ExecAddr,
    sp: ExecAddr,
    in_runtime: bool,
}

impl<'c> Interrupted<'c> {
    fn new(context: &'c mut libc::ucontext_t) -> Self {
        let registers = &mut context.uc_mcontext.gregs;
        let at = |register| ExecAddr(get(registers, register).cast_unsigned());
        let (ip, sp) = (at(libc::REG_RIP), at(libc::REG_RSP));
        Self { registers, ip, sp, in_runtime: RUNTIME_STACK.range().contains(sp) }
    }

    /// Ends the innermost call with a fault of `kind`, at once or when the runtime's work for it is done; `false` when it is
    /// inside the C library, which may hold locks.
    fn ends(&mut self, kind: FaultKind) -> bool {
        if !self.in_runtime && !RESERVABLE.iter().any(|span| span.range().contains(self.ip)) {
            return false;
        }
        let fault = Fault { kind, ip: self.ip, sp: self.sp, address: ExecAddr::NULL, code: 0 };
        // SAFETY: the program's own instruction, or the runtime at work for it, which comes to its end first.
        if let Some(resume) = unsafe { checkpoint::recover_when_possible(fault) } {
            go_on_at(self.registers, resume);
        }
        true
    }
}

extern "C" fn handle(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context, ours until the handler returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let registers = &mut context.uc_mcontext.gregs;
    let fault = describe(signal, registers);
    let resume = if RUNTIME_STACK.range().contains(fault.sp) {
        None
    } else {
        // SAFETY: loaded code was running, or a function of the C library for it, on a stack of its own: the runtime's
        // frames are at rest below the checkpoint. The context goes on there as soon as this returns.
        unsafe { checkpoint::recover(fault) }
    };
    match resume {
        Some(resume) => go_on_at(registers, resume),
        None => {
            // SAFETY: the default action needs no handler. The fault happens again, and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

fn go_on_at(registers: &mut [i64], resume: Resume) {
    let flags = get(registers, libc::REG_EFL) & !STRAY_FLAGS;
    set(registers, libc::REG_RIP, resume.ip.cast_signed());
    set(registers, libc::REG_RSP, resume.sp.cast_signed());
    set(registers, libc::REG_EFL, flags);
}

fn describe(signal: i32, registers: &[i64]) -> Fault {
    let vector = u8::try_from(get(registers, libc::REG_TRAPNO)).unwrap_or(u8::MAX);
    let mut kind = if signal == libc::SIGABRT { FaultKind::ABORT } else { FaultKind(vector) };
    let (mut address, mut code) = (ExecAddr::NULL, 0);
    if kind == FaultKind::PAGE_FAULT {
        address = ExecAddr(get(registers, libc::REG_CR2).cast_unsigned());
        code = get(registers, libc::REG_ERR).cast_unsigned();
        if GUARD.range().contains(address) {
            kind = FaultKind::STACK_OVERFLOW;
        }
    }
    let at = |register| ExecAddr(get(registers, register).cast_unsigned());
    Fault { kind, ip: at(libc::REG_RIP), sp: at(libc::REG_RSP), address, code }
}

fn get(registers: &[i64], index: i32) -> i64 {
    usize::try_from(index).ok().and_then(|index| registers.get(index)).copied().unwrap_or(0)
}

fn set(registers: &mut [i64], index: i32, value: i64) {
    if let Some(slot) = usize::try_from(index).ok().and_then(|index| registers.get_mut(index)) {
        *slot = value;
    }
}
