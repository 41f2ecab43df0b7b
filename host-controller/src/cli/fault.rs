//! A fault of the program, in the program's own names.

use graft::link::{Image, Segment, Symbol, demangled, printable};
use graft::report::{LONGEST_INSTRUCTION, SourceFrame, decode, source_frames};
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind, Prot};
use iced_x86::{Formatter, GasFormatter, Instruction, Mnemonic};

use super::json::Json;

/// The one-byte breakpoint.
const INT3: u8 = 0xcc;

/// The first page, which is never mapped.
const NULL_PAGE: u64 = 4096;

/// A fault in a program whose symbols are known.
#[derive(Debug)]
pub(crate) struct Located<'f> {
    fault: &'f Fault,
    program: ExecRange,
    /// In address order.
    symbols: Vec<Symbol<'f>>,
    /// The instruction it is about.
    instruction: Option<Instruction>,
    /// What the instruction needs, when that is why it faulted.
    needs: Option<&'static str>,
    /// The part of the program that the address accessed lies in.
    region: Option<Region>,
    /// The source it was compiled from, then the calls that was inlined by.
    source: Vec<SourceFrame>,
}

/// A part of the program, for who accessed it in a way it is not meant for.
#[derive(Debug)]
struct Region {
    /// The section and its file; padding and what the linker made has none.
    section: Option<(String, String)>,
    /// What may be done there.
    may: &'static str,
}

impl<'f> Located<'f> {
    pub(crate) fn new(fault: &'f Fault, image: &Image<'f>) -> Self {
        let instruction = match fault.kind {
            // It is a call, and what follows it says nothing.
            FaultKind::ABORT => None,
            // The one before, if it is the short form.
            FaultKind::BREAKPOINT if image.bytes_at(inside(fault), 1) != [INT3] => None,
            _ => decode(image.bytes_at(inside(fault), LONGEST_INSTRUCTION), inside(fault)),
        };
        let source = source_frames(image, inside(fault));
        let region = region(image, fault.address);
        Self { fault, program: image.range(), symbols: image.symbols(), instruction, needs: None, region, source }
    }

    /// The fault of code that ran in ring 3, where some instructions are refused.
    pub(crate) fn in_ring_3(self) -> Self {
        let is_refused = self.fault.kind == FaultKind::GENERAL_PROTECTION;
        let needs = self.instruction.as_ref().filter(|_| is_refused).and_then(need);
        Self { needs, ..self }
    }

    /// The fault for people: what happened, where, on which address.
    pub(crate) fn describe(&self) -> String {
        let &Self { fault, program, .. } = self;
        let mut text = fault.to_string();
        match self.code_place() {
            Some(place) => text.push_str(&format!(" in {place}")),
            None if program.contains(fault.ip) => {}
            None => text.push_str(", outside the program"),
        }
        for (depth, frame) in self.source.iter().enumerate() {
            let function = frame.function.as_deref().unwrap_or("a function without a name");
            text.push_str(&match depth {
                0 if self.source.len() == 1 => format!("\n  --> {frame}"),
                0 => format!("\n  --> {frame}, in {function}"),
                _ => format!("\n      inlined into {function} at {frame}"),
            });
        }
        if let Some(instruction) = &self.instruction {
            text.push_str(&format!("\n  the instruction is `{}`", written(instruction)));
        }
        if let Some(needs) = self.needs {
            text.push_str(&format!(": {needs}"));
        }
        if let Some(place) = self.address_place() {
            text.push_str(&format!("\n  {} is {place}", fault.address));
        }
        text.push_str(&format!("\n  stack pointer {}, program at {program}", fault.sp));
        text
    }

    /// The fault for programs.
    pub(crate) fn fields(&self, exit_code: u8) -> Vec<(&'static str, Json)> {
        let fault = self.fault;
        let mut fields = vec![
            ("kind", fault.kind.words().into()),
            ("number", fault.kind.0.into()),
            ("instruction", fault.ip.to_string().into()),
            ("stack_pointer", fault.sp.to_string().into()),
            ("address", fault.address.to_string().into()),
            ("code", fault.code.into()),
            ("exit_code", exit_code.into()),
        ];
        if let Some(instruction) = &self.instruction {
            fields.push(("disassembly", written(instruction).into()));
        }
        if let Some(needs) = self.needs {
            fields.push(("needs", needs.into()));
        }
        if let Some(place) = self.code_place() {
            fields.push(("symbol", place.into()));
        }
        if let Some(place) = self.address_place() {
            fields.push(("address_place", place.into()));
        }
        if let Some(first) = self.source.first() {
            fields.extend([("file", first.file.as_str().into()), ("line", first.line.into())]);
            fields.extend(first.column.map(|column| ("column", column.into())));
            fields.push(("source", Json::List(self.source.iter().map(source_fields).collect())));
        }
        fields
    }

    /// Where the instruction is.
    fn code_place(&self) -> Option<String> {
        self.place_of(self.fault.ip, inside(self.fault))
    }

    /// What lies at the address that was accessed.
    fn address_place(&self) -> Option<String> {
        let &Fault { kind, address, .. } = self.fault;
        if kind == FaultKind::PAGE_FAULT && address.0 < NULL_PAGE {
            return Some(match address.0 {
                0 => String::from("the null pointer"),
                offset => format!("{offset} bytes behind the null pointer"),
            });
        }
        if address.is_null() {
            return None;
        }
        let Region { section, may } = self.region.as_ref()?;
        Some(match (self.place_of(address, address), section) {
            (Some(symbol), Some((section, _))) => format!("{symbol}, in `{section}`, which is {may}"),
            (Some(symbol), None) => format!("{symbol}, which is {may}"),
            (None, Some((section, file))) => format!("in `{section}` of {file}, which is {may}"),
            (None, None) => format!("in a part of the program that is {may}"),
        })
    }

    /// `addr` as a distance from the symbol that has `inside`.
    fn place_of(&self, addr: ExecAddr, inside: ExecAddr) -> Option<String> {
        if !self.program.contains(inside) {
            return None;
        }
        let before = self.symbols.iter().take_while(|symbol| symbol.range.start() <= inside);
        // A function that reaches so far; else the innermost of anything that does; else the nearest before that states
        // no size, as assembler code has them, but not a label that compilers make for themselves.
        let reaches = before.clone().filter(|symbol| symbol.range.contains(inside));
        let sizeless = before.filter(|symbol| symbol.range.is_empty() && !symbol.name.starts_with(b".L"));
        let function = reaches.clone().filter(|symbol| symbol.function).last();
        let symbol = function.or_else(|| reaches.last()).or_else(|| sizeless.last())?;
        let offset = addr.checked_offset_from(symbol.range.start())?;
        let name = demangled(symbol.name).unwrap_or_else(|| printable(symbol.name));
        let plus = if offset == 0 { String::new() } else { format!("+{offset:#x}") };
        Some(format!("{name}{plus} ({})", symbol.file))
    }
}

/// An address in the instruction. A call of `abort` is named by the address it would return to, which no longer belongs to
/// the function when the call is the last thing in it; a breakpoint, by the address behind it.
fn inside(fault: &Fault) -> ExecAddr {
    let is_before = matches!(fault.kind, FaultKind::ABORT | FaultKind::BREAKPOINT);
    ExecAddr(fault.ip.0.saturating_sub(u64::from(is_before)))
}

/// The part of the program that `addr` lies in.
fn region(image: &Image<'_>, addr: ExecAddr) -> Option<Region> {
    let holds =
        |segment: &&Segment| ExecRange::from_len(segment.addr, segment.size).is_some_and(|all| all.contains(addr));
    let may = match image.segments.iter().find(holds)?.group.prot {
        Prot::Read => "read-only",
        Prot::ReadWrite => "writable and not executable",
        Prot::ReadExec => "executable and not writable",
    };
    let section = image.sections().find(|section| section.range.contains(addr));
    Some(Region { section: section.map(|section| (printable(section.name), section.file.to_owned())), may })
}

/// One member of the list `source`.
fn source_fields(frame: &SourceFrame) -> Json {
    let mut fields = vec![("file", frame.file.as_str().into()), ("line", frame.line.into())];
    fields.extend(frame.column.map(|column| ("column", column.into())));
    fields.extend(frame.function.as_deref().map(|function| ("function", function.into())));
    Json::Object(fields)
}

/// The instruction as GNU tools write it.
fn written(instruction: &Instruction) -> String {
    let mut text = String::new();
    let mut formatter = GasFormatter::new();
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.options_mut().set_uppercase_hex(false);
    formatter.format(instruction, &mut text);
    text
}

/// What an instruction needs that ring 3 does not have.
fn need(instruction: &Instruction) -> Option<&'static str> {
    // What tells about the descriptor tables is refused by UMIP (SDM 2B, SGDT), though not privileged by birth.
    let tells = matches!(
        instruction.mnemonic(),
        Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Sldt | Mnemonic::Str | Mnemonic::Smsw
    );
    if instruction.is_privileged() || tells {
        return Some("it is privileged, and needs `--ring kernel` on a bare-metal target");
    }
    let raises = instruction.mnemonic() == Mnemonic::Int;
    raises.then_some("raising an interrupt needs `--ring kernel` on a bare-metal target")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_written_as_gnu_tools_do() {
        let text = |bytes: &[u8]| decode(bytes, ExecAddr(0x1000)).as_ref().map(written);
        assert_eq!(text(&[0x8b, 0x04, 0x25, 8, 0, 0, 0]).as_deref(), Some("mov 8,%eax"));
        assert_eq!(text(&[0x0f, 0x0b]).as_deref(), Some("ud2"));
        assert_eq!(text(&[0xeb, 0x0a]).as_deref(), Some("jmp 0x100c"));
        assert_eq!(text(&[0xeb, 0xfe]).as_deref(), Some("jmp 0x1000"));
        assert_eq!((text(&[]), text(&[0x06]), text(&[0x0f])), (None, None, None));
    }

    #[test]
    fn what_ring_3_may_not_do_is_told() {
        let need = |bytes: &[u8]| decode(bytes, ExecAddr(0x1000)).as_ref().and_then(need);
        // cli; hlt; mov rax, cr3; wrmsr; in al, dx; lgdt [rax]; sgdt [rax]
        let privileged: [&[u8]; 7] =
            [&[0xfa], &[0xf4], &[0x0f, 0x20, 0xd8], &[0x0f, 0x30], &[0xec], &[0x0f, 0x01, 0x10], &[0x0f, 0x01, 0x00]];
        for bytes in privileged {
            assert!(need(bytes).is_some_and(|text| text.contains("privileged")), "{bytes:x?}");
        }
        assert!(need(&[0xcd, 0x80]).is_some_and(|text| text.contains("interrupt")));
        assert_eq!(need(&[0x8b, 0x00]), None);
    }
}
