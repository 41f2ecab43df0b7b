//! The operands of an instruction, numbered as LLVM's `MCInst` has them: a destination that is also read counts twice, and
//! a memory operand is base, scale, index, displacement and segment.

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, OpCodeOperandKind, OpKind, Register};

/// The value of operand `index`: `None` when there is no such operand, `Some(None)` for a register.
pub(super) fn operand(instruction: &Instruction, index: usize) -> Option<Option<u64>> {
    operands(instruction).get(index).copied()
}

fn operands(instruction: &Instruction) -> Vec<Option<u64>> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let mut operands = Vec::new();
    for number in 0..instruction.op_count() {
        let kind = instruction.op_kind(number);
        match kind {
            // `add $1, %eax` in its short form does not name the register.
            OpKind::Register if is_implied(instruction, number) => {}
            OpKind::Register => {
                operands.push(None);
                if number == 0 && matches!(info.op0_access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite) {
                    operands.push(None);
                }
            }
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                operands.push(Some(instruction.near_branch_target().wrapping_sub(instruction.next_ip())));
            }
            OpKind::Memory => {
                let scale = u64::from(instruction.memory_index_scale());
                let mut displacement = instruction.memory_displacement64();
                if matches!(instruction.memory_base(), Register::RIP | Register::EIP) {
                    displacement = displacement.wrapping_sub(instruction.next_ip());
                }
                operands.extend([None, Some(scale), None, Some(displacement), None]);
            }
            _ => operands.push(Some(instruction.immediate(number))),
        }
    }
    operands
}

/// Whether the encoding has no bits for the register: the accumulator in front of an immediate.
fn is_implied(instruction: &Instruction, number: u32) -> bool {
    // No ModRM byte: opcode and immediate are all there is, but for prefixes.
    let form = instruction.op_code();
    let implied = [OpCodeOperandKind::al, OpCodeOperandKind::ax, OpCodeOperandKind::eax, OpCodeOperandKind::rax];
    number == 0 && form.op_count() == 2 && implied.contains(&form.op_kind(0))
}

#[cfg(test)]
mod tests {
    use graft_protocol::ExecAddr;

    use super::*;
    use crate::report::decode;

    fn value(bytes: &[u8], index: usize) -> Option<Option<u64>> {
        operand(&decode(bytes, ExecAddr(0x1000)).unwrap(), index)
    }

    #[test]
    fn operands_are_numbered_as_llvm_does() {
        // call +0x10
        assert_eq!(value(&[0xe8, 0x10, 0, 0, 0], 0), Some(Some(0x10)));
        // mov -8(%rip), %rax; mov %eax, 0x20(%rip); lea 4(%rip), %rdi
        assert_eq!(value(&[0x48, 0x8b, 0x05, 0xf8, 0xff, 0xff, 0xff], 4), Some(Some(8_u64.wrapping_neg())));
        assert_eq!(value(&[0x89, 0x05, 0x20, 0, 0, 0], 3), Some(Some(0x20)));
        assert_eq!(value(&[0x48, 0x8d, 0x3d, 4, 0, 0, 0], 4), Some(Some(4)));
        // add 0x30(%rip), %rcx: the destination is read, too; cmp does not write it
        assert_eq!(value(&[0x48, 0x03, 0x0d, 0x30, 0, 0, 0], 5), Some(Some(0x30)));
        assert_eq!(value(&[0x48, 0x3b, 0x0d, 0x30, 0, 0, 0], 4), Some(Some(0x30)));
        // movabs $0x1122334455667788, %rax; mov $-1, %rdi
        assert_eq!(
            value(&[0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11], 1),
            Some(Some(0x1122_3344_5566_7788))
        );
        assert_eq!(value(&[0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff], 1), Some(Some(u64::MAX)));
        // add $0x12345678, %eax: the register is implied; add $5, %ecx: it is not
        assert_eq!(value(&[0x05, 0x78, 0x56, 0x34, 0x12], 0), Some(Some(0x1234_5678)));
        assert_eq!(value(&[0x83, 0xc1, 5], 2), Some(Some(5)));
        // jmp *0x10(%rip)
        assert_eq!(value(&[0xff, 0x25, 0x10, 0, 0, 0], 3), Some(Some(0x10)));
        assert_eq!((value(&[0xc3], 0), value(&[0x89, 0xc8], 1)), (None, Some(None)));
        assert!(decode(&[0x06], ExecAddr(0)).is_none() && decode(&[], ExecAddr(0)).is_none());
    }
}
