//! Token addresses: what Setup publishes for wrapper functions and instances.
//!
//! A controller only echoes such an address: as the target of a call, as an instance, in an allocation action. So it
//! need not be memory, and it is better not: the top bits make it a value no reservation has, no pointer has, and no
//! sequence can have as its length, which is how the two argument lists of `resolve` are told apart.

use graft_protocol::{ExecAddr, Instance, WrapperId};

/// Above every address a reservation may have, and no address of the machine.
pub(crate) const BASE: u64 = 0xffff_f000_0000_0000;
const STRIDE: u64 = 16;
const INSTANCES: u64 = BASE + 0x1_0000;
const HANDLES: u64 = BASE + 0x2_0000;

/// The handle of the executor itself, which `open` returns for the empty path.
pub(crate) const SELF_HANDLE: ExecAddr = ExecAddr(HANDLES);

/// The address published for a row; rows that share a name share it.
pub(crate) fn of_wrapper(row: WrapperId) -> ExecAddr {
    let row = if row == WrapperId::Resolve22 { WrapperId::Resolve } else { row };
    ExecAddr(BASE + STRIDE * (1 + row as u64))
}

/// The row published at `addr`. `Resolve` stands for both its forms.
pub(crate) fn to_wrapper(addr: ExecAddr) -> Option<WrapperId> {
    WrapperId::ALL.iter().copied().find(|row| of_wrapper(*row) == addr && *row != WrapperId::Resolve22)
}

/// The address published for an instance.
pub(crate) const fn of_instance(instance: Instance) -> ExecAddr {
    ExecAddr(INSTANCES + STRIDE * (1 + instance as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_rows() {
        for row in WrapperId::ALL {
            let back = to_wrapper(of_wrapper(*row)).unwrap();
            assert!(back == *row || (*row, back) == (WrapperId::Resolve22, WrapperId::Resolve));
        }
        assert_eq!(to_wrapper(ExecAddr(BASE)), None);
        assert_eq!(to_wrapper(SELF_HANDLE), None);
        assert_eq!(to_wrapper(of_instance(Instance::MemoryManager)), None);
    }
}
