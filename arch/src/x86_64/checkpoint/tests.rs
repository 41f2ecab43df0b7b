//! The mechanism as an ordinary Linux process sees it: loaded code is played by functions of the test.

extern crate std;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec;
use std::vec::Vec;

use super::*;

/// The chain is one per program: tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stack(Vec<u128>);

impl Stack {
    fn new() -> Self {
        Self(vec![0; 16 * 1024])
    }

    fn top(&self) -> u64 {
        self.0.as_ptr_range().end as u64
    }

    fn holds(&self, addr: u64) -> bool {
        (self.0.as_ptr() as u64..self.top()).contains(&addr)
    }
}

fn run(stack: &Stack, entry: extern "C" fn(u64, u64, u64, u64) -> u64, args: [u64; 4]) -> Result<ReturnPair, Fault> {
    // SAFETY: the entry is a C function of four integers, the stack is this test's own, and tests take turns.
    unsafe { call(stack.top(), entry as usize as u64, args) }
}

fn address_of_a_local() -> u64 {
    let local = 0u8;
    core::hint::black_box(&raw const local) as u64
}

fn fault(code: u64) -> Fault {
    Fault { code, ..aborted(1, 2) }
}

extern "C" fn weigh(a: u64, b: u64, c: u64, d: u64) -> u64 {
    a + 10 * b + 100 * c + 1000 * d
}

#[test]
fn a_call_returns_what_the_function_returns() {
    let _turn = turn();
    let stack = Stack::new();
    assert_eq!(run(&stack, weigh, [1, 2, 3, 4]).unwrap()[0], 4321);
    assert_eq!(depth(), 0);
}

#[test]
fn the_second_return_register_comes_back_too() {
    extern "C" fn wide() -> u128 {
        (7 << 64) | 5
    }
    let _turn = turn();
    let stack = Stack::new();
    // SAFETY: as in `run`; an integer of 128 bits comes back in RAX and RDX.
    let pair = unsafe { call(stack.top(), wide as *const () as u64, [0; 4]) };
    assert_eq!(pair, Ok([5, 7]));
}

#[test]
fn the_function_runs_on_the_stack_given() {
    extern "C" fn probe(_: u64, _: u64, _: u64, _: u64) -> u64 {
        address_of_a_local()
    }
    let _turn = turn();
    let stack = Stack::new();
    assert!(stack.holds(run(&stack, probe, [0; 4]).unwrap()[0]));
}

#[test]
fn abandon_ends_a_call_from_deep_inside() {
    extern "C" fn dig(levels: u64, as_fault: u64, _: u64, _: u64) -> u64 {
        if levels > 0 {
            return dig(levels - 1, as_fault, 0, 0) + 1;
        }
        let outcome = if as_fault == 0 { Ok([42, 43]) } else { Err(fault(9)) };
        // SAFETY: no frame of this test function owns anything.
        unsafe { abandon(outcome) }
    }
    let _turn = turn();
    let stack = Stack::new();
    for _ in 0..3 {
        assert_eq!(run(&stack, dig, [100, 0, 0, 0]), Ok([42, 43]));
        assert_eq!(run(&stack, dig, [100, 1, 0, 0]), Err(fault(9)));
        assert_eq!(depth(), 0);
    }
}

/// What the nested test sees on its way down and up.
#[derive(Default)]
struct Seen {
    outer_stack_top: u64,
    inner: Option<Result<ReturnPair, Fault>>,
    depths: Vec<usize>,
    on_runtime_stack: Vec<bool>,
}

extern "C" fn comes_back_into_the_runtime(seen: u64, _: u64, _: u64, _: u64) -> u64 {
    unsafe extern "C" fn serve(seen: *mut ()) {
        // SAFETY: the argument is the test's `Seen`, which outlives the call and is not otherwise used meanwhile.
        let seen = unsafe { &mut *seen.cast::<Seen>() };
        let outer = seen.outer_stack_top - 16 * 16 * 1024..seen.outer_stack_top;
        seen.on_runtime_stack.push(!outer.contains(&address_of_a_local()));
        seen.depths.push(depth());
        let stack = Stack::new();
        seen.inner = Some(run(&stack, inner, [0; 4]));
        seen.depths.push(depth());
    }
    extern "C" fn inner(_: u64, _: u64, _: u64, _: u64) -> u64 {
        // SAFETY: no frame of this test function owns anything.
        unsafe { abandon(Err(fault(depth() as u64))) }
    }
    // SAFETY: `serve` takes a `Seen`.
    unsafe { on_runtime_stack(serve, seen as *mut ()) };
    77
}

#[test]
fn calls_nest_on_the_runtime_stack() {
    let _turn = turn();
    let stack = Stack::new();
    let mut seen = Seen { outer_stack_top: stack.top(), ..Seen::default() };
    let outcome = run(&stack, comes_back_into_the_runtime, [&raw mut seen as u64, 0, 0, 0]);
    assert_eq!(outcome.map(|pair| pair[0]), Ok(77));
    assert_eq!(seen.inner, Some(Err(fault(2))));
    assert_eq!(seen.depths, [1, 1]);
    assert_eq!(seen.on_runtime_stack, [true]);
    assert_eq!(depth(), 0);
}

#[test]
fn a_fault_on_the_runtime_stack_is_the_runtimes_own() {
    unsafe extern "C" fn fail(found: *mut ()) {
        // SAFETY: nothing was resumed by the time this returns, because there is no place to resume at.
        let place = unsafe { recover(fault(1)) };
        // SAFETY: `found` is a `bool`.
        unsafe { found.cast::<bool>().write(place.is_none()) };
    }
    extern "C" fn ask(found: u64, _: u64, _: u64, _: u64) -> u64 {
        // SAFETY: `fail` takes a `bool`.
        unsafe { on_runtime_stack(fail, found as *mut ()) };
        5
    }
    let _turn = turn();
    let stack = Stack::new();
    let mut found = false;
    assert_eq!(run(&stack, ask, [&raw mut found as u64, 0, 0, 0]).map(|pair| pair[0]), Ok(5));
    assert!(found);
}

#[test]
fn an_interruption_waits_for_the_runtime_to_finish() {
    extern "C" fn work(done: *mut ()) {
        // SAFETY: this is the place of a handler that interrupts the runtime; it goes on where it was.
        let place = unsafe { recover_when_possible(fault(7)) };
        assert_eq!(place, None);
        // SAFETY: a flag of the test, on the stack of the loaded code.
        unsafe { *done.cast::<u64>() = 1 };
    }
    extern "C" fn entry(done: u64, _: u64, _: u64, _: u64) -> u64 {
        // SAFETY: `work` takes what it is given.
        unsafe { on_runtime_stack(work, done as *mut ()) };
        unreachable!("the call is over")
    }
    let _turn = turn();
    let stack = Stack::new();
    let mut done = 0_u64;
    let ended = run(&stack, entry, [(&raw mut done) as u64, 0, 0, 0]);
    assert_eq!((ended, done), (Err(fault(7)), 1));
}

#[test]
fn the_stack_is_given_back_when_the_function_returns() {
    unsafe extern "C" fn nothing(_: *mut ()) {}
    extern "C" fn ask(found: u64, _: u64, _: u64, _: u64) -> u64 {
        // SAFETY: `nothing` takes anything.
        unsafe { on_runtime_stack(nothing, ptr::null_mut()) };
        // SAFETY: not followed by anything but `abandon`, which goes to the same place.
        let place = unsafe { recover(fault(1)) };
        // SAFETY: `found` is a `bool`.
        unsafe { (found as *mut bool).write(place.is_some()) };
        // SAFETY: no frame of this test function owns anything.
        unsafe { abandon(Ok([6, 0])) }
    }
    let _turn = turn();
    let stack = Stack::new();
    let mut found = false;
    assert_eq!(run(&stack, ask, [&raw mut found as u64, 0, 0, 0]), Ok([6, 0]));
    assert!(found);
}

#[test]
fn the_runtime_stack_is_lent_once() {
    unsafe extern "C" fn outer(found: *mut ()) {
        let here = address_of_a_local();
        // SAFETY: `found` is an array of two integers.
        unsafe { on_runtime_stack(inner, found) };
        // SAFETY: as above.
        unsafe { found.cast::<u64>().write(here) };
    }
    unsafe extern "C" fn inner(found: *mut ()) {
        // SAFETY: as above.
        let found = unsafe { &mut *found.cast::<[u64; 2]>() };
        found[1] = address_of_a_local();
    }
    extern "C" fn twice(found: u64, _: u64, _: u64, _: u64) -> u64 {
        // SAFETY: `found` is an array of two integers.
        unsafe { on_runtime_stack(outer, found as *mut ()) };
        0
    }
    let _turn = turn();
    let stack = Stack::new();
    let mut found = [0u64; 2];
    run(&stack, twice, [&raw mut found as u64, 0, 0, 0]).unwrap();
    assert!(found[1] < found[0], "the second use must lie below the first, not on top of it: {found:x?}");
    assert!(!stack.holds(found[0]) && !stack.holds(found[1]));
}

#[test]
fn flags_and_control_words_come_back_clean() {
    extern "C" fn spoil(_: u64, _: u64, _: u64, _: u64) -> u64 {
        let odd_mxcsr = 0x7f80u32;
        let odd_cw = 0x0f7fu16;
        // SAFETY: rounding modes and the direction flag are what this test leaves behind on purpose.
        unsafe {
            core::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", "fld1", "fld1", "std", in(reg) &raw const odd_mxcsr, in(reg) &raw const odd_cw);
        }
        // SAFETY: no frame of this test function owns anything.
        unsafe { abandon(Ok([1, 2])) }
    }
    fn state() -> (u32, u16, u64) {
        let (mut mxcsr, mut cw, flags) = (0u32, 0u16, 0u64);
        let mut flags = flags;
        // SAFETY: stores three registers to locals.
        unsafe {
            core::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", "pushfq", "pop {}", in(reg) &raw mut mxcsr, in(reg) &raw mut cw, out(reg) flags);
        }
        (mxcsr & 0xffc0, cw, flags & 0x400)
    }
    let _turn = turn();
    let stack = Stack::new();
    let before = state();
    assert_eq!(run(&stack, spoil, [0; 4]), Ok([1, 2]));
    assert_eq!(state(), before);
}

#[cfg(target_os = "linux")]
mod traps {
    use super::*;

    extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid context for the time of the handler.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        // SAFETY: the kernel passes valid information for the time of the handler.
        let info = unsafe { &*info };
        // SAFETY: the three signals handled here carry an address.
        let address = unsafe { info.si_addr() } as u64;
        let ip = registers[libc::REG_RIP as usize] as u64;
        let fault = Fault { ip: ExecAddr(ip), address: ExecAddr(address), ..fault(signal as u64) };
        // SAFETY: the context goes on at the place returned; the functions that trap here own nothing.
        let Some(resume) = (unsafe { recover(fault) }) else { std::process::abort() };
        registers[libc::REG_RIP as usize] = resume.ip as i64;
        registers[libc::REG_RSP as usize] = resume.sp as i64;
        registers[libc::REG_EFL as usize] &= !0x4_0500;
    }

    fn with_handler(test: impl FnOnce()) {
        let alternate = vec![0u8; 64 * 1024];
        let stack = libc::stack_t { ss_sp: alternate.as_ptr() as *mut _, ss_flags: 0, ss_size: alternate.len() };
        // SAFETY: the memory outlives its use, which ends below.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
        let signals = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE];
        // SAFETY: all-zero is a valid `sigaction` (no flags, empty mask, default action).
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let old = signals.map(|signal| {
            // SAFETY: as above.
            let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
            // SAFETY: both pointers are valid; the handler is async-signal-safe.
            assert_eq!(unsafe { libc::sigaction(signal, &raw const action, &raw mut old) }, 0);
            (signal, old)
        });
        test();
        for (signal, old) in old {
            // SAFETY: gives back the action found before.
            unsafe { libc::sigaction(signal, &raw const old, ptr::null_mut()) };
        }
        let off = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: ends the use of `alternate`.
        unsafe { libc::sigaltstack(&raw const off, ptr::null_mut()) };
    }

    #[test]
    fn traps_end_the_call_and_the_next_one_works() {
        extern "C" fn misbehave(how: u64, address: u64, _: u64, _: u64) -> u64 {
            match how {
                // SAFETY: reads where nothing is mapped, on purpose.
                0 => unsafe { (address as *const u64).read_volatile() },
                // SAFETY: as above, with the direction flag set and the stack pointer ruined.
                1 => unsafe {
                    core::arch::asm!("std", "mov rsp, {0}", "push rax", in(reg) address, options(noreturn));
                },
                // SAFETY: an invalid opcode, on purpose.
                2 => unsafe { core::arch::asm!("ud2", options(noreturn)) },
                // SAFETY: divides by zero, on purpose.
                _ => unsafe {
                    core::arch::asm!("xor edx, edx", "xor ecx, ecx", "div ecx", options(noreturn));
                },
            }
        }
        let _turn = turn();
        let stack = Stack::new();
        with_handler(|| {
            for (how, signal) in [(0, libc::SIGSEGV), (1, libc::SIGSEGV), (2, libc::SIGILL), (3, libc::SIGFPE)] {
                let fault = run(&stack, misbehave, [how, 0x10, 0, 0]).unwrap_err();
                assert_eq!(fault.code, signal as u64, "way {how}");
                assert_eq!(run(&stack, weigh, [1, 0, 0, 0]).unwrap()[0], 1);
                assert_eq!(depth(), 0);
            }
            assert_eq!(run(&stack, misbehave, [0, 0x18, 0, 0]).unwrap_err().address, ExecAddr(0x18));
        });
    }
}
