//! Code sequences for thread-local symbols, rewritten for the one module of a static program (psABI §11.1.2).
//!
//! All become the last of the four models, local-exec: an offset from the thread pointer, known here. What is not one
//! of the sequences that compilers emit is left as it is and finds its offset through the GOT.

use object::elf;

use super::{ApplyError, Expr, Howto, WithCall, in_range};

/// The number `__tls_get_addr` is given for the program.
pub(in crate::link) const MODULE: u64 = 1;

/// New bytes for a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewrite {
    /// How many bytes before the field it starts.
    before: usize,
    bytes: [u8; LONGEST],
    len: usize,
    /// Where the offset from the thread pointer goes: its place among the bytes.
    offset: Option<usize>,
}

/// Of a sequence, in bytes.
const LONGEST: usize = 22;

/// `mov %fs:0, %rax`
const LOAD: [u8; 9] = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];

/// `lea 0(%rax), %rax`
const ADD: [u8; 7] = [0x48, 0x8d, 0x80, 0, 0, 0, 0];

/// How far behind the first field of a sequence the field of its call lies, when the bytes around are those of a call
/// with a relocation of this type.
pub(in crate::link) fn call_field(expr: Expr, input: &[u8], start: usize, call_type: u32) -> Option<usize> {
    let behind = input.get(start.checked_add(4)?..)?;
    let prefixed = start.checked_sub(4).and_then(|at| input.get(at..at + 4)) == Some(&[0x66, 0x48, 0x8d, 0x3d]);
    let plain = start.checked_sub(3).and_then(|at| input.get(at..at + 3)) == Some(&[0x48, 0x8d, 0x3d]);
    let direct = matches!(call_type, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32);
    let indirect = matches!(call_type, elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX);
    let distance = match (expr, behind) {
        (Expr::ThreadPair, [0x66, 0x66, 0x48, 0xe8, ..]) if prefixed && direct => 8,
        (Expr::ThreadPair, [0x66, 0x48, 0xff, 0x15, ..]) if prefixed && indirect => 8,
        (Expr::BlockPair, [0xe8, ..]) if plain && direct => 5,
        (Expr::BlockPair, [0xff, 0x15, ..]) if plain && indirect => 6,
        // The large code model: `movabs`, `add` of the GOT's address, `call *%rax`.
        (
            Expr::ThreadPair | Expr::BlockPair,
            [0x48, 0xb8, _, _, _, _, _, _, _, _, rex, 0x01, modrm, 0xff, 0xd0, ..],
        ) if plain && call_type == elf::R_X86_64_PLTOFF64 && matches!((rex, modrm), (0x48, 0xd8) | (0x4c, 0xf8)) => 6,
        _ => return None,
    };
    // The call's own field.
    let width = if call_type == elf::R_X86_64_PLTOFF64 { 8 } else { 4 };
    (behind.len() >= distance - 4 + width).then_some(distance)
}

/// The sequence around the field at `start` without a call and without the GOT, when it is one.
pub(super) fn relax(expr: Expr, with_call: WithCall, input: &[u8], start: usize) -> Option<Rewrite> {
    match expr {
        Expr::ThreadPair | Expr::BlockPair if with_call == WithCall::Yes => call(expr, input, start),
        Expr::ThreadSlot => slot(input, start),
        Expr::Descriptor => descriptor(input, start),
        // `call *(%rax)`, and the same with a prefix for 32-bit addresses.
        Expr::DescriptorCall => match input.get(start..)? {
            [0xff, 0x10, ..] => Some(rewrite(0, &[&[0x66, 0x90]], None)),
            [0x67, 0xff, 0x10, ..] => Some(rewrite(0, &[&[0x0f, 0x1f, 0x00]], None)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether the instruction at a field finds its symbol without the GOT.
pub(in crate::link) fn is_relaxed(expr: Expr, with_call: WithCall, input: &[u8], start: usize) -> bool {
    relax(expr, with_call, input, start).is_some()
}

fn call(expr: Expr, input: &[u8], start: usize) -> Option<Rewrite> {
    let large = input.get(start.checked_add(4)?..)?.starts_with(&[0x48, 0xb8]);
    let indirect = input.get(start.checked_add(4)?..)?.starts_with(&[0xff]);
    Some(match (expr, large) {
        (Expr::ThreadPair, false) => rewrite(4, &[&LOAD, &ADD], Some(12)),
        (Expr::ThreadPair, true) => rewrite(3, &[&LOAD, &ADD, &[0x66, 0x0f, 0x1f, 0x44, 0, 0]], Some(12)),
        (_, true) => rewrite(3, &[&[0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], &LOAD], None),
        (_, false) if indirect => rewrite(3, &[&[0x66; 4], &LOAD], None),
        (_, false) => rewrite(3, &[&[0x66; 3], &LOAD], None),
    })
}

/// An instruction that loads the offset, or adds it.
fn slot(input: &[u8], start: usize) -> Option<Rewrite> {
    let before = |count| start.checked_sub(count).and_then(|at| input.get(at..start));
    if let Some(&[0xd5, payload, opcode, modrm]) = before(4)
        && let Some(prefix) = swapped(payload)
        && modrm & 0xc7 == 0x05
    {
        let register = modrm >> 3 & 7;
        return match opcode {
            0x8b => Some(rewrite(4, &[&[0xd5, prefix, 0xc7, 0xc0 | register], &[0; 4]], Some(4))),
            0x03 => Some(rewrite(4, &[&[0xd5, prefix, 0x81, 0xc0 | register], &[0; 4]], Some(4))),
            _ => None,
        };
    }
    let [rex @ (0x48 | 0x4c), opcode, modrm] = *before(3)?.first_chunk::<3>()? else { return None };
    if modrm & 0xc7 != 0x05 {
        return None;
    }
    let high = rex >> 2 & 1;
    let register = modrm >> 3 & 7;
    let bytes = match (opcode, register) {
        (0x8b, _) => [0x48 | high, 0xc7, 0xc0 | register],
        // %rsp and %r12 cannot be a base without one byte more.
        (0x03, 4) => [0x48 | high, 0x81, 0xc4],
        (0x03, _) => [rex | high, 0x8d, 0x80 | register << 3 | register],
        _ => return None,
    };
    Some(rewrite(3, &[&bytes, &[0; 4]], Some(3)))
}

/// `lea x@tlsdesc(%rip), %reg`
fn descriptor(input: &[u8], start: usize) -> Option<Rewrite> {
    let before = |count| start.checked_sub(count).and_then(|at| input.get(at..start));
    if let Some(&[0xd5, payload, 0x8d, modrm]) = before(4)
        && let Some(prefix) = swapped(payload)
        && modrm & 0xc7 == 0x05
    {
        return Some(rewrite(4, &[&[0xd5, prefix, 0xc7, 0xc0 | modrm >> 3 & 7], &[0; 4]], Some(4)));
    }
    let [rex, 0x8d, modrm] = *before(3)?.first_chunk::<3>()? else { return None };
    if rex & 0xfb != 0x48 || modrm & 0xc7 != 0x05 {
        return None;
    }
    Some(rewrite(3, &[&[0x48 | rex >> 2 & 1, 0xc7, 0xc0 | modrm >> 3 & 7], &[0; 4]], Some(3)))
}

/// The second byte of a REX2 prefix with its register moved from ModRM's `reg` field to its `r/m` field; `None` for other
/// opcode maps and other widths than 64 bits.
fn swapped(payload: u8) -> Option<u8> {
    const MAP: u8 = 0x80;
    const WIDE: u8 = 8;
    const REG: u8 = 0x44;
    (payload & (MAP | WIDE) == WIDE).then_some(WIDE | (payload & REG) >> 2)
}

fn rewrite(before: usize, parts: &[&[u8]], offset: Option<usize>) -> Rewrite {
    let mut bytes = [0; LONGEST];
    let mut len = 0;
    for (to, from) in bytes.iter_mut().zip(parts.iter().flat_map(|part| part.iter())) {
        *to = *from;
        len += 1;
    }
    Rewrite { before, bytes, len, offset }
}

impl Rewrite {
    /// Stores the sequence over the field at `start`; `value` is the offset as if it were relative to the field's end.
    pub(super) fn store(
        mut self,
        howto: &Howto,
        value: u64,
        start: usize,
        output: &mut [u8],
    ) -> Result<(), ApplyError> {
        if let Some(field) = self.offset.and_then(|at| self.bytes.get_mut(at..at + 4)) {
            // The field counted from the end of the instruction, four bytes on.
            let value = in_range(howto, value.wrapping_add(4))?;
            field.copy_from_slice(value.to_le_bytes().first_chunk::<4>().ok_or(ApplyError::Bounds)?);
        }
        let from = start.checked_sub(self.before).ok_or(ApplyError::Bounds)?;
        let output = output.get_mut(from..).and_then(|output| output.get_mut(..self.len)).ok_or(ApplyError::Bounds)?;
        output.copy_from_slice(self.bytes.get(..self.len).ok_or(ApplyError::Bounds)?);
        Ok(())
    }
}
