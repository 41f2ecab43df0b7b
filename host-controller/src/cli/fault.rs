//! A fault of the program, in the program's own names.

use graft::link::{Image, Symbol, printable};
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind};

use super::json::Json;

/// A fault in a program whose symbols are known.
#[derive(Debug)]
pub(crate) struct Located<'f> {
    fault: &'f Fault,
    program: ExecRange,
    /// In address order.
    symbols: Vec<Symbol<'f>>,
}

impl<'f> Located<'f> {
    pub(crate) fn new(fault: &'f Fault, image: &Image<'f>) -> Self {
        Self { fault, program: image.range(), symbols: image.symbols() }
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
        if let Some(place) = self.code_place() {
            fields.push(("symbol", place.into()));
        }
        fields
    }

    /// Where the instruction is. A call of `abort` is named by the address it would return to, which no longer belongs to
    /// the function when the call is the last thing in it.
    fn code_place(&self) -> Option<String> {
        let ip = self.fault.ip;
        let inside = if self.fault.kind == FaultKind::ABORT { ExecAddr(ip.0.saturating_sub(1)) } else { ip };
        self.place_of(ip, inside)
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
        let name = printable(symbol.name);
        let plus = if offset == 0 { String::new() } else { format!("+{offset:#x}") };
        Some(format!("{name}{plus} ({})", symbol.file))
    }
}
