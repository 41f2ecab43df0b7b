//! How a call into loaded code ended badly.
//!
//! A [`Fault`] is a value: the executor makes it from a trap, sends it in the result of the call, and goes on. Numbers on
//! the wire are stable; a new kind takes a new number.

use core::fmt;

use crate::addr::ExecAddr;

/// What a line of the executor's log says that reports a fault: stock controllers are told of it too late to print it, so
/// whoever serves them reads it there.
pub const FAULT_LINE: &str = "loaded code faulted: ";

/// What went wrong. The first 32 numbers are the x86 exception vectors (SDM 3A, table 6-1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FaultKind(pub u8);

impl FaultKind {
    /// `#DE`: division by zero, or a quotient that does not fit.
    pub const DIVIDE_ERROR: Self = Self(0);
    /// `#DB`: single step or hardware breakpoint.
    pub const DEBUG: Self = Self(1);
    /// Non-maskable interrupt.
    pub const NMI: Self = Self(2);
    /// `#BP`: `int3`.
    pub const BREAKPOINT: Self = Self(3);
    /// `#OF`: `into`.
    pub const OVERFLOW: Self = Self(4);
    /// `#BR`: `bound`.
    pub const BOUND_RANGE: Self = Self(5);
    /// `#UD`: not an instruction here.
    pub const INVALID_OPCODE: Self = Self(6);
    /// `#NM`: x87 or SSE used while switched off.
    pub const DEVICE_NOT_AVAILABLE: Self = Self(7);
    /// `#DF`: a fault while delivering a fault.
    pub const DOUBLE_FAULT: Self = Self(8);
    /// `#TS`: bad task state segment.
    pub const INVALID_TSS: Self = Self(10);
    /// `#NP`: segment not present.
    pub const SEGMENT_NOT_PRESENT: Self = Self(11);
    /// `#SS`: stack segment fault, or a non-canonical stack address.
    pub const STACK_SEGMENT: Self = Self(12);
    /// `#GP`: general protection, among others a non-canonical address.
    pub const GENERAL_PROTECTION: Self = Self(13);
    /// `#PF`: page fault; [`Fault::address`] and [`Fault::code`] say which.
    pub const PAGE_FAULT: Self = Self(14);
    /// `#MF`: x87 floating point.
    pub const X87: Self = Self(16);
    /// `#AC`: alignment check.
    pub const ALIGNMENT: Self = Self(17);
    /// `#MC`: machine check.
    pub const MACHINE_CHECK: Self = Self(18);
    /// `#XM`: SIMD floating point.
    pub const SIMD: Self = Self(19);
    /// `#CP`: control-flow protection.
    pub const CONTROL_PROTECTION: Self = Self(21);
    /// An interrupt vector nobody uses was raised; [`Fault::code`] is the vector.
    pub const UNUSED_VECTOR: Self = Self(32);
    /// The loaded code called `abort`, or panicked.
    pub const ABORT: Self = Self(33);
    /// The stack ran into its guard; [`Fault::address`] is the guard address touched.
    pub const STACK_OVERFLOW: Self = Self(34);
    /// A reserved page was touched when no frame was left.
    pub const OUT_OF_MEMORY: Self = Self(35);
    /// The call took longer than its time limit.
    pub const TIMED_OUT: Self = Self(36);

    /// The controller hung up while the call ran.
    pub const CANCELLED: Self = Self(37);

    /// The kind in words, lower case.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::DIVIDE_ERROR => "divide error",
            Self::DEBUG => "debug trap",
            Self::NMI => "non-maskable interrupt",
            Self::BREAKPOINT => "breakpoint",
            Self::OVERFLOW => "overflow trap",
            Self::BOUND_RANGE => "bound range exceeded",
            Self::INVALID_OPCODE => "invalid opcode",
            Self::DEVICE_NOT_AVAILABLE => "floating point unit not available",
            Self::DOUBLE_FAULT => "double fault",
            Self::INVALID_TSS => "invalid task state segment",
            Self::SEGMENT_NOT_PRESENT => "segment not present",
            Self::STACK_SEGMENT => "stack segment fault",
            Self::GENERAL_PROTECTION => "general protection fault",
            Self::PAGE_FAULT => "page fault",
            Self::X87 => "x87 floating-point error",
            Self::ALIGNMENT => "alignment check",
            Self::MACHINE_CHECK => "machine check",
            Self::SIMD => "SIMD floating-point error",
            Self::CONTROL_PROTECTION => "control-flow protection fault",
            Self::UNUSED_VECTOR => "unexpected interrupt",
            Self::ABORT => "abort",
            Self::STACK_OVERFLOW => "stack overflow",
            Self::OUT_OF_MEMORY => "out of memory",
            Self::TIMED_OUT => "time limit exceeded",
            Self::CANCELLED => "cancelled",
            _ => "unknown fault",
        }
    }
}

impl fmt::Debug for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultKind({}: {})", self.0, self.words())
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// One fault of loaded code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// The instruction that faulted (or the one after it, for traps).
    pub ip: ExecAddr,
    /// The stack pointer at that moment.
    pub sp: ExecAddr,
    /// The address accessed, where the kind has one (page fault, stack overflow, out of memory); else null.
    pub address: ExecAddr,
    /// The hardware error code, or the vector of an unused one; else 0.
    pub code: u64,
}

impl Fault {
    /// Page-fault error code bit 0: the page was present, its protection was violated (SDM 3A §4.7).
    pub const PF_PRESENT: u64 = 1;
    /// Page-fault error code bit 1: the access was a write.
    pub const PF_WRITE: u64 = 2;
    /// Page-fault error code bit 4: the access was an instruction fetch.
    pub const PF_FETCH: u64 = 16;
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.kind == FaultKind::PAGE_FAULT {
            let access = match self.code & (Self::PF_WRITE | Self::PF_FETCH) {
                0 => "reading",
                Self::PF_WRITE => "writing",
                _ => "executing",
            };
            let why = if self.code & Self::PF_PRESENT == 0 { "not mapped" } else { "not allowed there" };
            write!(f, " {access} {} ({why})", self.address)?;
        } else if !self.address.is_null() {
            write!(f, " at address {}", self.address)?;
        }
        if self.kind == FaultKind::UNUSED_VECTOR {
            write!(f, " (vector {})", self.code)?;
        }
        write!(f, ", instruction at {}", self.ip)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn page_faults_name_access_and_reason() {
        let fault = Fault {
            kind: FaultKind::PAGE_FAULT,
            ip: ExecAddr(0x1000_0010),
            sp: ExecAddr(0x2000),
            address: ExecAddr(0x8),
            code: Fault::PF_WRITE,
        };
        assert_eq!(fault.to_string(), "page fault writing 0x8 (not mapped), instruction at 0x10000010");
        let exec = Fault { code: Fault::PF_FETCH | Fault::PF_PRESENT, ..fault };
        assert_eq!(exec.to_string(), "page fault executing 0x8 (not allowed there), instruction at 0x10000010");
    }
}
