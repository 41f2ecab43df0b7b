//! A fault of the program, in the program's own names.

use graft::link::{Image, Symbol, demangled, printable};
use graft::report::{SourceFrame, source_frames};
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind};
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};

use super::json::Json;

/// The longest instruction, in bytes (SDM 2A §2.3.11).
const LONGEST: usize = 15;

/// A fault in a program whose symbols are known.
#[derive(Debug)]
pub(crate) struct Located<'f> {
    fault: &'f Fault,
    program: ExecRange,
    /// In address order.
    symbols: Vec<Symbol<'f>>,
    /// The instruction it is about, as GNU tools write it.
    instruction: Option<String>,
    /// The source it was compiled from, then the calls that was inlined by.
    source: Vec<SourceFrame>,
}

impl<'f> Located<'f> {
    pub(crate) fn new(fault: &'f Fault, image: &Image<'f>) -> Self {
        // An abort is a call, and what follows it says nothing.
        let known = fault.kind != FaultKind::ABORT;
        let instruction = if known { disassembled(image.bytes_at(fault.ip, LONGEST), fault.ip) } else { None };
        let source = source_frames(image, inside(fault));
        Self { fault, program: image.range(), symbols: image.symbols(), instruction, source }
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
            text.push_str(&format!("\n  the instruction is `{instruction}`"));
        }
        if !fault.address.is_null()
            && fault.address != fault.ip
            && let Some(place) = self.place(fault.address)
        {
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
            fields.push(("disassembly", instruction.as_str().into()));
        }
        if let Some(place) = self.code_place() {
            fields.push(("symbol", place.into()));
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

    /// A place in the program: `symbol+0x10 (file.o)`.
    fn place(&self, addr: ExecAddr) -> Option<String> {
        self.place_of(addr, addr)
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

/// One member of the list `source`.
fn source_fields(frame: &SourceFrame) -> Json {
    let mut fields = vec![("file", frame.file.as_str().into()), ("line", frame.line.into())];
    fields.extend(frame.column.map(|column| ("column", column.into())));
    fields.extend(frame.function.as_deref().map(|function| ("function", function.into())));
    Json::Object(fields)
}

/// The instruction that `bytes` begin with, which lie at `ip`; `None` when they are none.
fn disassembled(bytes: &[u8], ip: ExecAddr) -> Option<String> {
    let mut decoder = Decoder::with_ip(64, bytes, ip.0, DecoderOptions::NONE);
    if !decoder.can_decode() {
        return None;
    }
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let mut text = String::new();
    let mut formatter = GasFormatter::new();
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.format(&instruction, &mut text);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_written_as_gnu_tools_do() {
        let text = |bytes: &[u8]| disassembled(bytes, ExecAddr(0x1000));
        assert_eq!(text(&[0x8b, 0x04, 0x25, 8, 0, 0, 0]).as_deref(), Some("mov 8,%eax"));
        assert_eq!(text(&[0x0f, 0x0b]).as_deref(), Some("ud2"));
        assert_eq!(text(&[0xeb, 0xfe]).as_deref(), Some("jmp 0x1000"));
        assert_eq!((text(&[]), text(&[0x06]), text(&[0x0f])), (None, None, None));
    }
}
