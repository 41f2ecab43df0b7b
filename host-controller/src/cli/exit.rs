//! Exit codes.

use graft_protocol::FaultKind;

/// The program did not end in time.
pub(crate) const TIMED_OUT: u8 = 124;
/// Graft could not do its job.
pub(crate) const FAILED: u8 = 125;

/// What follows the help text.
pub(crate) const HELP: &str = "\
Exit codes:
  the program's own result, modulo 256 (standard error says so when that changes it)
  124  a call into the program did not end within --timeout
  125  Graft could not do its job: link error, no target, protocol error, usage
  132  the program ended in an illegal instruction
  133  ... a breakpoint or debug trap
  134  ... a panic or abort
  135  ... an alignment, bus or stack segment fault
  136  ... an arithmetic fault
  137  ... the machine's memory being used up
  139  ... a page or protection fault, stack overflow or any other fault
  141  standard output was closed by its reader, and the program ended for it

The program's console is standard output; everything else is on standard error.";

const SIGNALS: u8 = 128;

/// The exit code for a program whose result is `value`.
pub(crate) fn of_result(value: i64) -> u8 {
    value.to_le_bytes()[0]
}

/// The exit code for a process that a signal ended.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNALS.checked_add(signal)).unwrap_or(FAILED)
}

/// The exit code for a fault, after the signal a shell would show.
pub(crate) const fn of_fault(kind: FaultKind) -> u8 {
    const SIGINT: u8 = 2;
    const SIGILL: u8 = 4;
    const SIGTRAP: u8 = 5;
    const SIGABRT: u8 = 6;
    const SIGBUS: u8 = 7;
    const SIGFPE: u8 = 8;
    const SIGKILL: u8 = 9;
    const SIGSEGV: u8 = 11;
    let signal = match kind {
        FaultKind::TIMED_OUT => return TIMED_OUT,
        FaultKind::CANCELLED => SIGINT,
        FaultKind::INVALID_OPCODE => SIGILL,
        FaultKind::BREAKPOINT | FaultKind::DEBUG => SIGTRAP,
        FaultKind::ABORT => SIGABRT,
        FaultKind::ALIGNMENT | FaultKind::STACK_SEGMENT | FaultKind::MACHINE_CHECK => SIGBUS,
        FaultKind::DIVIDE_ERROR | FaultKind::X87 | FaultKind::SIMD | FaultKind::OVERFLOW => SIGFPE,
        FaultKind::OUT_OF_MEMORY => SIGKILL,
        _ => SIGSEGV,
    };
    SIGNALS + signal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_taken_modulo_256() {
        for (value, code) in [(0, 0), (41, 41), (255, 255), (256, 0), (-1, 255), (-256, 0), (i64::MIN, 0), (300, 44)] {
            assert_eq!(of_result(value), code, "{value}");
        }
    }

    #[test]
    fn faults_have_a_shells_signal_numbers() {
        for (kind, code) in [
            (FaultKind::INVALID_OPCODE, 132),
            (FaultKind::ABORT, 134),
            (FaultKind::ALIGNMENT, 135),
            (FaultKind::DIVIDE_ERROR, 136),
            (FaultKind::PAGE_FAULT, 139),
            (FaultKind::GENERAL_PROTECTION, 139),
            (FaultKind::STACK_OVERFLOW, 139),
            (FaultKind(200), 139),
        ] {
            assert_eq!(of_fault(kind), code, "{kind}");
        }
        assert_eq!((of_signal(11), of_signal(-1), of_signal(1000)), (139, 125, 125));
    }
}
