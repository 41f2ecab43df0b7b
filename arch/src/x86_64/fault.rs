//! From a trap to a [`Fault`]: which exception it was, and what the numbers the processor left mean.

use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind};

/// What the processor reports about an exception (SDM 3A §6.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// The vector.
    pub vector: u8,
    /// The error code, 0 for vectors without one; [`Trap::SOFTWARE`] when there should be one and is not.
    pub error: u64,
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// CR2: the address of the last page fault.
    pub cr2: u64,
}

impl Trap {
    /// The vector of non-maskable interrupts.
    pub const NMI: u8 = FaultKind::NMI.0;
    /// The vector of debug exceptions.
    pub const DEBUG: u8 = FaultKind::DEBUG.0;
    /// In place of the error code of an exception that was none: an `int` instruction named its vector.
    pub const SOFTWARE: u64 = u64::MAX;
    /// The vector of page faults.
    pub const PAGE_FAULT: u8 = FaultKind::PAGE_FAULT.0;

    /// What the trap means for the loaded code that caused it.
    ///
    /// `guard` is the unmapped range below the stack that the code runs on: a page fault there is a stack overflow.
    #[must_use]
    pub fn classify(self, guard: Option<ExecRange>) -> Fault {
        let mut fault = Fault {
            kind: FaultKind(self.vector),
            ip: ExecAddr(self.ip),
            sp: ExecAddr(self.sp),
            address: ExecAddr::NULL,
            code: self.error,
        };
        if has_no_name(self.vector) || self.error == Self::SOFTWARE {
            fault.kind = FaultKind::UNUSED_VECTOR;
            fault.code = u64::from(self.vector);
        } else if self.vector == Self::PAGE_FAULT {
            fault.address = ExecAddr(self.cr2);
            if guard.is_some_and(|guard| guard.contains(fault.address)) {
                fault.kind = FaultKind::STACK_OVERFLOW;
            }
        }
        fault
    }

    /// The end of code that was interrupted and is not let go on, for a reason that is not its own.
    #[must_use]
    pub fn interrupted(self, kind: FaultKind) -> Fault {
        Fault { kind, code: 0, ..self.classify(None) }
    }

    /// The fault of code that touched a reserved page when no frame was left for it.
    #[must_use]
    pub fn out_of_memory(self) -> Fault {
        Fault { kind: FaultKind::OUT_OF_MEMORY, ..self.classify(None) }
    }
}

/// Whether `vector` is of no exception that could come here: reserved, or for guests of a hypervisor (SDM 3A §6.15; APM 2
/// §8.2), or no exception at all.
const fn has_no_name(vector: u8) -> bool {
    matches!(vector, 9 | 15 | 20 | 22..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAP: Trap = Trap { vector: 14, error: 2, ip: 0x1000, sp: 0x8000, cr2: 0x7fff };

    #[test]
    fn a_page_fault_in_the_guard_is_a_stack_overflow() {
        let guard = ExecRange::new(ExecAddr(0x4000), ExecAddr(0x8000));
        let fault = TRAP.classify(guard);
        assert_eq!((fault.kind, fault.address, fault.code), (FaultKind::STACK_OVERFLOW, ExecAddr(0x7fff), 2));
        assert_eq!(Trap { cr2: 0x8000, ..TRAP }.classify(guard).kind, FaultKind::PAGE_FAULT);
        assert_eq!(TRAP.classify(None).kind, FaultKind::PAGE_FAULT);
        assert_eq!(TRAP.out_of_memory().address, ExecAddr(0x7fff));
    }

    #[test]
    fn the_page_fault_address_belongs_to_page_faults_only() {
        let fault = Trap { vector: 6, error: 0, ..TRAP }.classify(None);
        assert_eq!((fault.kind, fault.address), (FaultKind::INVALID_OPCODE, ExecAddr::NULL));
        assert_eq!((fault.ip, fault.sp), (ExecAddr(0x1000), ExecAddr(0x8000)));
    }

    #[test]
    fn an_exception_that_an_instruction_raised_is_an_unexpected_interrupt() {
        for vector in [8, 10, 11, 12, 13, 14, 17, 21] {
            let fault = Trap { vector, error: Trap::SOFTWARE, ..TRAP }.classify(None);
            assert_eq!((fault.kind, fault.code), (FaultKind::UNUSED_VECTOR, u64::from(vector)));
            assert_eq!(fault.address, ExecAddr::NULL);
        }
    }

    #[test]
    fn every_vector_without_a_name_is_an_unused_one() {
        let is_named = |vector| vector < 32 && FaultKind(vector).words() != FaultKind(u8::MAX).words();
        for vector in 0..=u8::MAX {
            let fault = Trap { vector, error: 0, ..TRAP }.classify(None);
            if is_named(vector) {
                assert_eq!(fault.kind, FaultKind(vector));
            } else {
                assert_eq!((fault.kind, fault.code), (FaultKind::UNUSED_VECTOR, u64::from(vector)));
            }
        }
    }
}
