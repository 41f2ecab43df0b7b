//! One relocation: what it computes, and the one place that stores it.
//!
//! A table per ISA ([`x86_64`]) says what a type means; [`apply`] computes, checks the range and the bounds, and stores.

pub(super) mod thread;
pub(super) mod x86_64;

/// What a relocation computes. In psABI letters: S symbol, A addend, P place, G slot in the GOT, GOT its start, Z size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    /// Nothing.
    None,
    /// `S + A`
    Absolute,
    /// `S + A - P`
    PcRelative,
    /// `S + A - P` of a call or jump, through a stub when that is out of range.
    Branch,
    /// `G + A`, from the start of the GOT.
    GotSlot,
    /// `G + GOT + A - P`
    GotSlotPcRelative,
    /// `GOT + A - P`
    GotPcRelative,
    /// `S + A - GOT`
    GotOffset,
    /// `Z + A`
    Size,
    /// `S + A - TP`, the offset from the thread pointer.
    ThreadOffset,
    /// The number of the only module there is.
    ThreadModule,
    /// `G + GOT + A - P`, of a slot that holds the offset from the thread pointer.
    ThreadSlot,
    /// The same, of the pair of slots that `__tls_get_addr` is given.
    ThreadPair,
    /// The same for the whole block: what other relocations count from.
    BlockPair,
    /// The address of a descriptor. There are none: the instruction is always rewritten.
    Descriptor,
    /// Marks the call through a descriptor.
    DescriptorCall,
}

impl Expr {
    /// Whether it is for thread-local symbols, and for no others.
    pub(super) const fn is_thread_local(self) -> bool {
        matches!(
            self,
            Self::ThreadOffset
                | Self::ThreadModule
                | Self::ThreadSlot
                | Self::ThreadPair
                | Self::BlockPair
                | Self::Descriptor
                | Self::DescriptorCall
        )
    }
}

/// What a relocation type means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Howto {
    /// As in the psABI, without its prefix.
    pub name: &'static str,
    pub expr: Expr,
    /// Of the field, in bytes.
    pub width: usize,
    /// The smallest and the largest value that fit. Addresses wrap at 64 bits, so a value is its two's complement.
    pub range: (i64, i64),
    /// How an instruction that goes through the GOT may be rewritten.
    pub relax: Relax,
    /// What to do when the value is out of range.
    pub hint: &'static str,
}

/// How an instruction that goes through the GOT may be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relax {
    /// Not at all.
    No,
    /// Two bytes before the field: opcode and ModRM.
    Plain,
    /// Three: REX, opcode and ModRM.
    Rex,
}

/// The addresses a relocation computes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    /// S
    pub symbol: u64,
    /// A
    pub addend: i64,
    /// P
    pub place: u64,
    /// GOT
    pub got: u64,
    /// G + GOT, when the symbol has a slot.
    pub slot: Option<u64>,
    /// A stub that jumps to the symbol, when it has one and [`may_use_stub`] allows it.
    pub stub: Option<u64>,
    /// Z
    pub size: u64,
    /// TP
    pub thread: u64,
    /// Whether the relocation behind this one is the call that belongs to the same sequence.
    pub with_call: WithCall,
}

/// Whether a thread-local sequence has its call where it can be rewritten with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithCall {
    Yes,
    No,
}

/// Why a relocation is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApplyError {
    /// The field is not in the section.
    Bounds,
    /// The value is beyond the limit.
    Range { value: i64, limit: i64 },
    /// A slot of the GOT is needed, and the layout has none.
    NoSlot,
}

/// Applies one relocation to the bytes `output` of a section, which started as `input`.
///
/// Decisions about instructions look at `input`: what other relocations stored must not influence them, and the layout
/// decided from the same bytes.
pub(super) fn apply(
    howto: &Howto,
    operands: &Operands,
    offset: u64,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), ApplyError> {
    let start = usize::try_from(offset).map_err(|_| ApplyError::Bounds)?;
    let end = start.checked_add(howto.width).ok_or(ApplyError::Bounds)?;
    if end > output.len() || end > input.len() {
        return Err(ApplyError::Bounds);
    }
    if let Some(rewrite) = x86_64::relax(howto.relax, operands, input, start) {
        let field = start.checked_sub(rewrite.before).and_then(|start| output.get_mut(start..end));
        let field = field.ok_or(ApplyError::Bounds)?;
        let bytes = rewrite.bytes.get(..field.len()).ok_or(ApplyError::Bounds)?;
        field.copy_from_slice(bytes);
        return Ok(());
    }
    if howto.expr.is_thread_local()
        && let Some(rewrite) = thread::relax(howto.expr, operands.with_call, input, start)
    {
        let value = operands.symbol.wrapping_add_signed(operands.addend).wrapping_sub(operands.thread);
        return rewrite.store(howto, value, start, output);
    }
    let slot = || operands.slot.ok_or(ApplyError::NoSlot);
    let add = |base: u64| base.wrapping_add_signed(operands.addend);
    let pc = |target: u64| add(target).wrapping_sub(operands.place);
    let value = match howto.expr {
        Expr::None => return Ok(()),
        Expr::Absolute => add(operands.symbol),
        Expr::PcRelative | Expr::Branch => match (operands.stub, in_range(howto, pc(operands.symbol))) {
            (Some(stub), Err(_)) => pc(stub),
            _ => pc(operands.symbol),
        },
        Expr::GotSlot => add(slot()?).wrapping_sub(operands.got),
        Expr::GotSlotPcRelative => pc(slot()?),
        Expr::GotPcRelative => pc(operands.got),
        Expr::GotOffset => add(operands.symbol).wrapping_sub(operands.got),
        Expr::Size => add(operands.size),
        Expr::ThreadOffset => add(operands.symbol).wrapping_sub(operands.thread),
        Expr::ThreadModule => thread::MODULE,
        Expr::ThreadSlot | Expr::ThreadPair | Expr::BlockPair => pc(slot()?),
        Expr::Descriptor | Expr::DescriptorCall => return Err(ApplyError::NoSlot),
    };
    let value = in_range(howto, value)?;
    let field = output.get_mut(start..end).ok_or(ApplyError::Bounds)?;
    // The range was checked: the bytes left out only repeat the sign.
    for (byte, value) in field.iter_mut().zip(value.to_le_bytes()) {
        *byte = value;
    }
    Ok(())
}

/// Whether the field at `start` may lead to a stub for its target instead: it is the target of a call or jump.
///
/// In code, an addend other than -4 asks for a place behind the function's start, where its stub has nothing to offer. In
/// data it may as well be the distance to where the value counts from, as in tables of relative pointers.
pub(super) fn may_use_stub(howto: &Howto, is_code: bool, input: &[u8], start: usize, addend: i64) -> bool {
    match howto.expr {
        Expr::Branch => addend == -4 || !is_code,
        Expr::PcRelative => howto.width == 4 && x86_64::is_branch(input, start, addend),
        _ => false,
    }
}

pub(super) fn in_range(howto: &Howto, value: u64) -> Result<i64, ApplyError> {
    let value = value.cast_signed();
    let (min, max) = howto.range;
    if value < min {
        Err(ApplyError::Range { value, limit: min })
    } else if value > max {
        Err(ApplyError::Range { value, limit: max })
    } else {
        Ok(value)
    }
}
