//! Segments and the task state: flat code and data segments for ring 0 and ring 3, and a stack for each kind of trap.
//!
//! Loaded code that was let into ring 0 may use the 128 bytes below its stack pointer (the red zone of the
//! psABI, §3.2.2), so that no trap may push there: every vector has a stack of its own (SDM 3A §6.14.5).
#![expect(unsafe_code, reason = "loads segment registers")]

use core::cell::UnsafeCell;

use ::x86_64::VirtAddr;
use ::x86_64::instructions::tables::load_tss;
use ::x86_64::registers::segmentation::{CS, DS, ES, SS, Segment};
use ::x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use ::x86_64::structures::tss::TaskStateSegment;

use super::stacks;

/// Which of the task state's stacks a vector uses, as its gate names it: from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TrapStack {
    DoubleFault = 1,
    Nmi = 2,
    PageFault = 3,
    Exception = 4,
    Interrupt = 5,
}

impl TrapStack {
    /// The stack for `vector`. Page faults have their own, so that a demand-zero page may be touched by any other
    /// handler; so have the three that may interrupt any other.
    pub(super) const fn of(vector: u8) -> Self {
        match vector {
            2 => Self::Nmi,
            // A machine check means as little good as a double fault, and neither comes back.
            8 | 18 => Self::DoubleFault,
            14 => Self::PageFault,
            0..=31 => Self::Exception,
            _ => Self::Interrupt,
        }
    }
}

/// The selectors, in the order that `syscall` and `sysret` demand (SDM 3A §5.8.8); those of ring 3 ask for it.
pub(crate) const KERNEL_CODE: u16 = 8;
pub(crate) const KERNEL_DATA: u16 = 16;
pub(crate) const USER_DATA: u16 = 24 | 3;
pub(crate) const USER_CODE: u16 = 32 | 3;

/// The selector of the code segment: the proof that [`load`] was called.
#[derive(Debug)]
pub struct CodeSelector(pub(super) u16);

struct Segments(UnsafeCell<(TaskStateSegment, GlobalDescriptorTable<7>)>);

// SAFETY: `load` runs once, before anything else could run; afterwards only the processor reads it.
unsafe impl Sync for Segments {}

static SEGMENTS: Segments = Segments(UnsafeCell::new((TaskStateSegment::new(), GlobalDescriptorTable::empty())));

/// Loads the segments and the task state, and returns the code segment's selector, which interrupt gates name. Called
/// once, at start.
///
/// # Safety
/// It must not have been called before.
#[must_use]
pub unsafe fn load() -> CodeSelector {
    // SAFETY: the first and only call, by the caller's promise: nobody else has a reference.
    let (task, table) = unsafe { &mut *SEGMENTS.0.get() };
    let tops = [
        (TrapStack::DoubleFault, stacks::DOUBLE_FAULT.top()),
        (TrapStack::Nmi, stacks::NMI.top()),
        (TrapStack::PageFault, stacks::PAGE_FAULT.top()),
        (TrapStack::Exception, stacks::EXCEPTION.top()),
        (TrapStack::Interrupt, stacks::INTERRUPT.top()),
    ];
    let mut table_of_stacks = [VirtAddr::zero(); 7];
    for (stack, top) in tops {
        if let Some(slot) = table_of_stacks.get_mut(stack as usize - 1) {
            *slot = VirtAddr::new_truncate(top);
        }
    }
    task.interrupt_stack_table = table_of_stacks;
    let code = table.append(Descriptor::kernel_code_segment());
    let data = table.append(Descriptor::kernel_data_segment());
    let user_data = table.append(Descriptor::user_data_segment());
    let user_code = table.append(Descriptor::user_code_segment());
    debug_assert_eq!([code.0, data.0, user_data.0, user_code.0], [KERNEL_CODE, KERNEL_DATA, USER_DATA, USER_CODE]);
    // The task state ends where its bitmap of I/O ports would begin: ring 3 may use none (SDM 1 §19.5.2).
    let state = table.append(Descriptor::tss_segment(task));
    table.load();
    // SAFETY: `code` selects the flat 64-bit code segment just loaded, equal to the one in use.
    unsafe { CS::set_reg(code) };
    // SAFETY: `data` selects the flat data segment just loaded.
    unsafe { SS::set_reg(data) };
    // SAFETY: as above.
    unsafe { DS::set_reg(data) };
    // SAFETY: as above.
    unsafe { ES::set_reg(data) };
    // SAFETY: `state` selects the task state just filled in, which is static.
    unsafe { load_tss(state) };
    CodeSelector(code.0)
}
