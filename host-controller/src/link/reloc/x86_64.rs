//! Relocation types of x86-64 (psABI §4.4), and the instructions that need not go through the GOT (§B.2).

use object::elf;

use super::{Expr, Howto, Operands, Relax};

const I8: (i64, i64) = (i8::MIN as i64, i8::MAX as i64);
const I16: (i64, i64) = (i16::MIN as i64, i16::MAX as i64);
const I32: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);
const U32: (i64, i64) = (0, u32::MAX as i64);
const ALL: (i64, i64) = (i64::MIN, i64::MAX);
/// Small absolute fields hold signed or unsigned values, as the program likes.
const ANY8: (i64, i64) = (i8::MIN as i64, u8::MAX as i64);
const ANY16: (i64, i64) = (i16::MIN as i64, u16::MAX as i64);

const NEARER: &str = "; compile with -fPIC or place the slab nearer";
const LOW: &str = "; compile with -fPIC, or place the slab below 2 GiB";
const LARGE: &str = "; compile with -mcmodel=large";
const BLOCK: &str = "; the thread-local storage is too large or too far";
const SMALL: &str = "; the field is too small for an address";

/// What relocation type `r_type` means, or `None` for one that is not supported.
pub(in crate::link) const fn howto(r_type: u32) -> Option<Howto> {
    use Expr::{Absolute, Branch, GotOffset, GotPcRelative, GotSlot, GotSlotPcRelative, PcRelative, Size};
    use Expr::{BlockPair, Descriptor, DescriptorCall, ThreadModule, ThreadOffset, ThreadPair, ThreadSlot};
    Some(match r_type {
        elf::R_X86_64_NONE => row("NONE", Expr::None, 0, ALL, ""),
        elf::R_X86_64_64 => row("64", Absolute, 8, ALL, ""),
        elf::R_X86_64_PC32 => row("PC32", PcRelative, 4, I32, NEARER),
        elf::R_X86_64_GOT32 => row("GOT32", GotSlot, 4, I32, LARGE),
        elf::R_X86_64_PLT32 => row("PLT32", Branch, 4, I32, NEARER),
        elf::R_X86_64_GOTPCREL => row("GOTPCREL", GotSlotPcRelative, 4, I32, LARGE),
        elf::R_X86_64_32 => row("32", Absolute, 4, U32, LOW),
        elf::R_X86_64_32S => row("32S", Absolute, 4, I32, LOW),
        elf::R_X86_64_16 => row("16", Absolute, 2, ANY16, SMALL),
        elf::R_X86_64_PC16 => row("PC16", PcRelative, 2, I16, SMALL),
        elf::R_X86_64_8 => row("8", Absolute, 1, ANY8, SMALL),
        elf::R_X86_64_PC8 => row("PC8", PcRelative, 1, I8, SMALL),
        elf::R_X86_64_DTPMOD64 => row("DTPMOD64", ThreadModule, 8, ALL, ""),
        // What counts from the block counts from its end, as the sequences do that were rewritten.
        elf::R_X86_64_DTPOFF64 => row("DTPOFF64", ThreadOffset, 8, ALL, ""),
        elf::R_X86_64_TPOFF64 => row("TPOFF64", ThreadOffset, 8, ALL, ""),
        elf::R_X86_64_TLSGD => row("TLSGD", ThreadPair, 4, I32, BLOCK),
        elf::R_X86_64_TLSLD => row("TLSLD", BlockPair, 4, I32, BLOCK),
        elf::R_X86_64_DTPOFF32 => row("DTPOFF32", ThreadOffset, 4, I32, BLOCK),
        elf::R_X86_64_GOTTPOFF => row("GOTTPOFF", ThreadSlot, 4, I32, BLOCK),
        elf::R_X86_64_TPOFF32 => row("TPOFF32", ThreadOffset, 4, I32, BLOCK),
        elf::R_X86_64_PC64 => row("PC64", PcRelative, 8, ALL, ""),
        elf::R_X86_64_GOTOFF64 => row("GOTOFF64", GotOffset, 8, ALL, ""),
        elf::R_X86_64_GOTPC32 => row("GOTPC32", GotPcRelative, 4, I32, LARGE),
        elf::R_X86_64_GOT64 => row("GOT64", GotSlot, 8, ALL, ""),
        elf::R_X86_64_GOTPCREL64 => row("GOTPCREL64", GotSlotPcRelative, 8, ALL, ""),
        elf::R_X86_64_GOTPC64 => row("GOTPC64", GotPcRelative, 8, ALL, ""),
        elf::R_X86_64_GOTPLT64 => row("GOTPLT64", GotSlot, 8, ALL, ""),
        // No lazy binding, and 64 bits reach everything: the function itself serves for its entry in the PLT.
        elf::R_X86_64_PLTOFF64 => row("PLTOFF64", GotOffset, 8, ALL, ""),
        elf::R_X86_64_SIZE32 => row("SIZE32", Size, 4, U32, ""),
        elf::R_X86_64_SIZE64 => row("SIZE64", Size, 8, ALL, ""),
        elf::R_X86_64_GOTPC32_TLSDESC => row("GOTPC32_TLSDESC", Descriptor, 4, I32, BLOCK),
        elf::R_X86_64_TLSDESC_CALL => row("TLSDESC_CALL", DescriptorCall, 2, ALL, ""),
        elf::R_X86_64_GOTPCRELX => relaxed(row("GOTPCRELX", GotSlotPcRelative, 4, I32, LARGE), Relax::Plain),
        elf::R_X86_64_REX_GOTPCRELX => relaxed(row("REX_GOTPCRELX", GotSlotPcRelative, 4, I32, LARGE), Relax::Rex),
        // APX forms of GOTPCRELX: through the GOT is always right.
        43 => row("CODE_4_GOTPCRELX", GotSlotPcRelative, 4, I32, LARGE),
        44 => row("CODE_4_GOTTPOFF", ThreadSlot, 4, I32, BLOCK),
        45 => row("CODE_4_GOTPC32_TLSDESC", Descriptor, 4, I32, BLOCK),
        46 => row("CODE_5_GOTPCRELX", GotSlotPcRelative, 4, I32, LARGE),
        47 => row("CODE_5_GOTTPOFF", ThreadSlot, 4, I32, BLOCK),
        49 => row("CODE_6_GOTPCRELX", GotSlotPcRelative, 4, I32, LARGE),
        50 => row("CODE_6_GOTTPOFF", ThreadSlot, 4, I32, BLOCK),
        _ => return None,
    })
}

const fn row(name: &'static str, expr: Expr, width: usize, range: (i64, i64), hint: &'static str) -> Howto {
    Howto { name, expr, width, range, relax: Relax::No, hint }
}

const fn relaxed(howto: Howto, relax: Relax) -> Howto {
    Howto { relax, ..howto }
}

/// The name of a type that is not supported, when it has one.
pub(in crate::link) const fn unsupported_name(r_type: u32) -> &'static str {
    match r_type {
        elf::R_X86_64_COPY => "COPY",
        elf::R_X86_64_GLOB_DAT => "GLOB_DAT",
        elf::R_X86_64_JUMP_SLOT => "JUMP_SLOT",
        elf::R_X86_64_RELATIVE => "RELATIVE",
        elf::R_X86_64_TLSDESC => "TLSDESC",
        elf::R_X86_64_IRELATIVE => "IRELATIVE",
        elf::R_X86_64_RELATIVE64 => "RELATIVE64",
        48 => "CODE_5_GOTPC32_TLSDESC",
        51 => "CODE_6_GOTPC32_TLSDESC",
        _ => "unknown",
    }
}

/// Whether the 4-byte field at `start` is the target of a call or jump.
///
/// Old assemblers mark these PC32 as they do data. The test cannot mistake an operand for one: what stands before a
/// `%rip`-relative displacement is a ModRM byte with mode 0 and r/m 5, and neither opcode has that form.
pub(super) fn is_branch(input: &[u8], start: usize, addend: i64) -> bool {
    let before = |n: usize| start.checked_sub(n).and_then(|at| input.get(at).copied());
    addend == -4 && matches!((before(2), before(1)), (_, Some(0xe8 | 0xe9)) | (Some(0x0f), Some(0x80..=0x8f)))
}

/// An instruction that can do without the GOT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Call,
    Jump,
    /// `mov slot, reg`
    Load,
    /// `test reg, slot`
    Test,
    /// `op slot, reg`; the operation as the `/digit` of its immediate form.
    Arithmetic(u8),
}

/// The instruction in `input` whose GOT operand is at `start`, with its register and REX prefix.
fn form(relax: Relax, input: &[u8], start: usize, addend: i64) -> Option<(Form, u8, Option<u8>)> {
    // The operand is the last part of the instruction, or there is more behind it and the form is another.
    if addend != -4 {
        return None;
    }
    let before = |n: usize| start.checked_sub(n).and_then(|at| input.get(at).copied());
    let (opcode, modrm) = (before(2)?, before(1)?);
    let rex = match relax {
        Relax::No => return None,
        Relax::Plain => None,
        Relax::Rex => Some(before(3).filter(|rex| rex & 0xf0 == 0x40)?),
    };
    // Behind the escape 0f, the opcodes below mean something else. No assembler asks to rewrite those; to go through the
    // GOT is always right.
    if modrm & 0xc7 != 0x05 || (rex.is_none() && before(3) == Some(0x0f)) {
        return None;
    }
    let register = modrm >> 3 & 7;
    let form = match (opcode, register) {
        (0xff, 2) if rex.is_none() => Form::Call,
        (0xff, 4) if rex.is_none() => Form::Jump,
        (0x8b, _) => Form::Load,
        (0x85, _) => Form::Test,
        // 03 0b 13 1b 23 2b 33 3b: add or adc sbb and sub xor cmp
        (opcode, _) if opcode & 0xc7 == 0x03 => Form::Arithmetic(opcode >> 3),
        _ => return None,
    };
    Some((form, register, rex))
}

/// Whether the instruction needs no GOT slot for a symbol within reach of its displacement.
pub(in crate::link) fn relaxes_when_near(relax: Relax, input: &[u8], start: usize, addend: i64) -> bool {
    matches!(form(relax, input, start, addend), Some((Form::Call | Form::Jump | Form::Load, ..)))
}

/// New bytes for an instruction, up to the end of its field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewrite {
    /// How many bytes before the field they start.
    pub before: usize,
    /// The bytes; as many as reach the end of the field.
    pub bytes: [u8; 7],
}

/// The instruction around the field at `start` without the GOT, when it can do without and every value fits exactly.
pub(super) fn relax(relax: Relax, operands: &Operands, input: &[u8], start: usize) -> Option<Rewrite> {
    let (form, register, rex) = form(relax, input, start, operands.addend)?;
    // With the addend -4, the distance from the end of the instruction.
    let near = operands.symbol.wrapping_sub(operands.place.wrapping_add(4)).cast_signed();
    let displacement = |distance: i64| i32::try_from(distance).ok().map(i32::to_le_bytes);
    let two = |opcode, modrm, [a, b, c, d]: [u8; 4]| match rex {
        Some(rex) => Rewrite { before: 3, bytes: [rex, opcode, modrm, a, b, c, d] },
        None => Rewrite { before: 2, bytes: [opcode, modrm, a, b, c, d, 0] },
    };
    match form {
        // `addr32 call`: the prefix does nothing and fills the byte.
        Form::Call => displacement(near).map(|target| two(0x67, 0xe8, target)),
        Form::Jump => {
            // One byte shorter, with a `nop` behind it: the distance counts from one byte earlier.
            let [a, b, c, d] = displacement(near.wrapping_add(1))?;
            Some(Rewrite { before: 2, bytes: [0xe9, a, b, c, d, 0x90, 0] })
        }
        Form::Load => match displacement(near) {
            Some(distance) => Some(two(0x8d, register << 3 | 0x05, distance)),
            None => immediate(operands.symbol, rex).map(|value| with_immediate(0xc7, 0, register, rex, value)),
        },
        Form::Test => immediate(operands.symbol, rex).map(|value| with_immediate(0xf7, 0, register, rex, value)),
        Form::Arithmetic(digit) => {
            immediate(operands.symbol, rex).map(|value| with_immediate(0x81, digit, register, rex, value))
        }
    }
}

const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_B: u8 = 1;

/// `symbol` as a 32-bit immediate, when the processor makes the same 64-bit (or 32-bit) value of it.
fn immediate(symbol: u64, rex: Option<u8>) -> Option<[u8; 4]> {
    if rex.is_some_and(|rex| rex & REX_W != 0) {
        i32::try_from(symbol.cast_signed()).ok().map(i32::to_le_bytes)
    } else {
        u32::try_from(symbol).ok().map(u32::to_le_bytes)
    }
}

/// `opcode /digit imm32` on the register that was the destination: from ModRM's `reg` field to its `r/m` field.
fn with_immediate(opcode: u8, digit: u8, register: u8, rex: Option<u8>, [a, b, c, d]: [u8; 4]) -> Rewrite {
    let modrm = 0xc0 | digit << 3 | register;
    match rex {
        Some(rex) => {
            let rex = rex & !(REX_R | REX_B) | if rex & REX_R != 0 { REX_B } else { 0 };
            Rewrite { before: 3, bytes: [rex, opcode, modrm, a, b, c, d] }
        }
        None => Rewrite { before: 2, bytes: [opcode, modrm, a, b, c, d, 0] },
    }
}
