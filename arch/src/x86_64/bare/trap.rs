//! All 256 vectors: a table of stubs, one common way into Rust, and back by `iretq`.
//!
//! The handler may edit the [`TrapFrame`]: that is how a faulting call is made to resume at its checkpoint. `iretq` also
//! lets non-maskable interrupts in again.
#![expect(unsafe_code, reason = "the interrupt descriptor table and its stubs")]

use core::arch::global_asm;
use core::cell::UnsafeCell;

use ::x86_64::VirtAddr;
use ::x86_64::instructions::tables::lidt;
use ::x86_64::structures::DescriptorTablePointer;

use super::segments::{CodeSelector, KERNEL_CODE, KERNEL_DATA, TrapStack};
use super::{cpu, interrupts, stacks};
use crate::x86_64::checkpoint::Resume;
use crate::x86_64::fault::Trap;

const VECTORS: usize = 256;
const BREAKPOINT: u8 = 3;
/// The distance of two stubs.
const STUB_BYTES: u64 = 16;

/// DF, TF, NT and AC: flags that must not survive into the code that is resumed at a checkpoint.
const UNWANTED_FLAGS: u64 = 0x400 | 0x100 | 0x4000 | 0x4_0000;
/// Traps after every instruction.
const TRAP_FLAG: u64 = 0x100;
/// The interrupt flag.
const INTERRUPT_FLAG: u64 = 0x200;

unsafe extern "Rust" {
    fn graft_trap(frame: &mut TrapFrame);
}

/// The interrupted context, as the stubs push it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TrapFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rbp: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rbx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

impl TrapFrame {
    /// The numbers of the exception.
    #[must_use]
    pub fn trap(&self) -> Trap {
        Trap {
            vector: self.vector as u8,
            error: self.error,
            ip: self.rip,
            sp: self.rsp,
            cr2: if self.vector == u64::from(Trap::PAGE_FAULT) { cpu::fault_address() } else { 0 },
        }
    }

    /// Whether what was interrupted is itself a trap handler, which may hold locks.
    #[must_use]
    pub fn is_in_handler(&self) -> bool {
        // In ring 3 the stack pointer is whatever the code likes.
        !self.is_in_ring_3() && stacks::is_for_traps(self.rsp)
    }

    /// Whether what was interrupted ran in ring 3.
    #[must_use]
    pub const fn is_in_ring_3(&self) -> bool {
        self.cs & 3 == 3
    }

    /// Lets the interrupted code go on without stopping after every instruction.
    pub fn stop_stepping(&mut self) {
        self.rflags &= !TRAP_FLAG;
    }

    /// Makes the interrupted code go on at `place`, with interrupts off.
    pub fn resume_at(&mut self, place: Resume) {
        self.rip = place.ip;
        self.rsp = place.sp;
        self.cs = KERNEL_CODE.into();
        self.ss = KERNEL_DATA.into();
        self.rflags &= !(UNWANTED_FLAGS | INTERRUPT_FLAG);
    }
}

// Every stub leaves the same frame: vectors without an error code push a zero. The pushes are spelled in bytes because
// Intel syntax would read a symbol as a memory operand.
//
// An `int` of privileged code pushes no error code, whatever its vector (SDM 3A §6.4.4). All stacks begin at a multiple of
// 16, so where the frame ends tells the two apart; the missing word becomes one that no processor pushes.
global_asm!(
    ".balign 16",
    "graft_trap_stubs:",
    ".set vector, 0",
    ".rept 256",
    ".balign 16",
    ".if (vector != 8) && ((vector < 10) || (vector > 14)) && (vector != 17) && (vector != 21) && (vector != 29) && (vector != 30)",
    ".byte 0x6a, 0",
    ".byte 0x68",
    ".long vector",
    "jmp graft_trap_common",
    ".else",
    ".byte 0x68",
    ".long vector",
    "jmp graft_trap_with_code",
    ".endif",
    ".set vector, vector + 1",
    ".endr",
    "graft_trap_with_code:",
    "test spl, 8",
    "jnz graft_trap_common",
    "push [rsp]",
    "mov qword ptr [rsp + 8], {software}",
    "graft_trap_common:",
    "push rax",
    // No handler runs into a breakpoint, or is told of a store it watches.
    "xor eax, eax",
    "mov dr7, rax",
    "push rbx",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rbp",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    // DF and AC are the interrupted code's.
    "push 2",
    "popfq",
    "mov rdi, rsp",
    // The processor aligned the stack to 16; five words and the 17 pushed here keep that.
    "call {handle}",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rbp",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rbx",
    "pop rax",
    "add rsp, 16",
    "iretq",
    handle = sym handle,
    software = const Trap::SOFTWARE as i64,
);

unsafe extern "C" {
    #[link_name = "graft_trap_stubs"]
    static STUBS: u8;
}

extern "C" fn handle(frame: &mut TrapFrame) {
    let from_outside = frame.rflags & INTERRUPT_FLAG != 0;
    if from_outside && interrupts::handle(frame.vector as u8) {
        return;
    }
    // SAFETY: defined by whoever links this crate into an image, with this signature.
    unsafe { graft_trap(frame) }
}

/// An interrupt gate (SDM 3A §6.14.1): present, interrupts off inside, for ring 0: `int` with its number is a protection
/// fault in ring 3, except for the breakpoint's.
const fn gate(vector: u8, handler: u64, selector: u16, stack: TrapStack) -> u128 {
    let kind = if vector == BREAKPOINT { 0xee } else { 0x8e };
    let low = (handler & 0xffff)
        | ((selector as u64) << 16)
        | ((stack as u64) << 32)
        | (kind << 40)
        | ((handler >> 16 & 0xffff) << 48);
    ((handler >> 32) as u128) << 64 | low as u128
}

#[repr(C, align(16))]
struct Gates(UnsafeCell<[u128; VECTORS]>);

// SAFETY: `load` runs before any trap can; afterwards only the processor reads it.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates(UnsafeCell::new([0; VECTORS]));

/// Loads the table: from here on every trap reaches `graft_trap`. Called once, at start.
///
/// # Safety
/// It must not have been called before.
pub unsafe fn load(code: &CodeSelector) {
    // SAFETY: the first and only call, by the caller's promise: nobody else has a reference.
    let gates = unsafe { &mut *GATES.0.get() };
    let first_stub = (&raw const STUBS).addr() as u64;
    for (vector, slot) in (0..=u8::MAX).zip(gates.iter_mut()) {
        let stub = first_stub + u64::from(vector) * STUB_BYTES;
        *slot = gate(vector, stub, code.0, TrapStack::of(vector));
    }
    let base = VirtAddr::new_truncate(gates.as_ptr().addr() as u64);
    let pointer = DescriptorTablePointer { limit: (size_of::<[u128; VECTORS]>() - 1) as u16, base };
    // SAFETY: the table is static and complete, and its gates lead to stubs that restore what they interrupt.
    unsafe { lidt(&pointer) };
}
