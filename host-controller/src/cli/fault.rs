//! A fault of the program, in the program's own names.

use graft::link::{Image, Symbol};
use graft_protocol::{ExecAddr, ExecRange, Fault};

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
        match self.place(fault.ip) {
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
        if let Some(place) = self.place(fault.ip) {
            fields.push(("symbol", place.into()));
        }
        fields
    }

    /// A place in the program: `symbol+0x10 (file.o)`.
    fn place(&self, addr: ExecAddr) -> Option<String> {
        if !self.program.contains(addr) {
            return None;
        }
        let before = self.symbols.iter().take_while(|symbol| symbol.range.start() <= addr);
        // The innermost that says it reaches so far; else the nearest before, which may state no size (assembler labels).
        let inside = before.clone().filter(|symbol| symbol.range.contains(addr)).last();
        let symbol = inside.or_else(|| before.filter(|symbol| symbol.range.is_empty()).last())?;
        let offset = addr.checked_offset_from(symbol.range.start())?;
        let name = String::from_utf8_lossy(symbol.name);
        let plus = if offset == 0 { String::new() } else { format!("+{offset:#x}") };
        Some(format!("{name}{plus} ({})", symbol.file))
    }
}
