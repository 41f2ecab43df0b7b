//! Expressions of rules: read and evaluated in one go, as the reference does.

use std::collections::HashMap;

use graft_protocol::ExecAddr;

use super::operand::operand;
use crate::link::{Image, printable};
use crate::report::{LONGEST_INSTRUCTION, decode};

/// What stands between terms. The longer ones come first.
const OPERATORS: [&str; 6] = ["<<", ">>", "+", "-", "&", "|"];

/// How deep expressions may nest.
const MOST_NESTED: usize = 64;

/// The functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// `next_pc(SYMBOL [+ OFFSET])`: the address behind the instruction there.
    NextPc,
    /// `decode_operand(SYMBOL [+ OFFSET], INDEX)`: an operand of the instruction there.
    DecodeOperand,
    /// `stub_addr(FILE, SYMBOL)`
    StubAddr,
    /// `got_addr(FILE, SYMBOL)`
    GotAddr,
    /// `section_addr(FILE, SECTION)`
    SectionAddr,
}

impl Term {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "next_pc" => Self::NextPc,
            "decode_operand" => Self::DecodeOperand,
            "stub_addr" => Self::StubAddr,
            "got_addr" => Self::GotAddr,
            "section_addr" => Self::SectionAddr,
            _ => return None,
        })
    }
}

/// What expressions refer to, by name.
#[derive(Debug)]
pub(super) struct Values<'i> {
    image: &'i Image<'i>,
    symbols: HashMap<&'i [u8], ExecAddr>,
    got: HashMap<String, ExecAddr>,
    stubs: HashMap<String, ExecAddr>,
}

impl<'i> Values<'i> {
    pub(super) fn new(image: &'i Image<'_>) -> Self {
        let mut symbols: HashMap<_, _> = image.external_symbols().collect();
        // What others can see comes last, and wins over what only its own object sees.
        let (exported, local): (Vec<_>, Vec<_>) = image.symbols().into_iter().partition(|symbol| symbol.exported);
        symbols.extend(local.into_iter().chain(exported).map(|symbol| (symbol.name, symbol.range.start())));
        let map = |pairs: Vec<(String, ExecAddr)>| pairs.into_iter().collect();
        Self { image, symbols, got: map(image.got_slots()), stubs: map(image.stubs()) }
    }

    fn symbol(&self, name: &str) -> Result<ExecAddr, String> {
        self.symbols.get(name.as_bytes()).copied().ok_or_else(|| format!("no symbol {name} in the image"))
    }

    /// Checks that `file` is among the inputs, by its last part as the reference does.
    fn has_file(&self, file: &str) -> Result<(), String> {
        let known = self.image.sections().any(|section| is_file(section.file, file));
        if known { Ok(()) } else { Err(format!("no file {file} in the image")) }
    }

    fn section(&self, file: &str, name: &str) -> Result<ExecAddr, String> {
        self.has_file(file)?;
        let mut sections = self.image.sections().filter(|section| is_file(section.file, file));
        let found = sections.find(|section| section.name == name.as_bytes());
        found.map(|section| section.range.start()).ok_or_else(|| format!("no section {name} of {file} in the image"))
    }

    fn load(&self, at: u64, size: usize) -> Result<u64, String> {
        let outside = || format!("{size} bytes at {at:#x} are not in the image");
        let end = at.checked_add(size as u64).ok_or_else(outside)?;
        let holds = |segment: &&crate::link::Segment| segment.addr.0 <= at && end - segment.addr.0 <= segment.size;
        self.image.segments.iter().find(holds).ok_or_else(outside)?;
        // What has no content is zero.
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(self.image.bytes_at(ExecAddr(at), size)).for_each(|(slot, byte)| *slot = *byte);
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Whether `path` (an archive's with the member, `dir/lib.a(member.o)`) is what a rule calls `name`.
fn is_file(path: &str, name: &str) -> bool {
    let member = path.strip_suffix(')').and_then(|path| path.rsplit_once('(')).map(|(_, member)| member);
    let last = |path: &str| path.rsplit('/').next() == Some(name);
    path == name || last(path) || member.is_some_and(last)
}

/// Reads one rule.
#[derive(Debug)]
pub(super) struct Parser<'p> {
    values: &'p Values<'p>,
    rest: &'p str,
    nested: usize,
}

type Value = Result<u64, String>;

impl<'p> Parser<'p> {
    pub(super) const fn new(values: &'p Values<'p>, text: &'p str) -> Self {
        Self { values, rest: text, nested: 0 }
    }

    /// Both sides of the rule.
    pub(super) fn rule(mut self) -> Result<(u64, u64), String> {
        let left = self.whole()?;
        self.expect("=")?;
        let right = self.whole()?;
        self.skip();
        if self.rest.is_empty() { Ok((left, right)) } else { Err(self.unexpected("the end of the rule")) }
    }

    /// Terms and operators, from left to right.
    fn whole(&mut self) -> Value {
        self.nested += 1;
        if self.nested > MOST_NESTED {
            return Err(format!("expressions nest more than {MOST_NESTED} deep"));
        }
        let mut value = self.term()?;
        while let Some(operator) = OPERATORS.into_iter().find(|operator| self.accept(operator)) {
            let other = self.term()?;
            let shift = u32::try_from(other).unwrap_or(u32::MAX);
            value = match operator {
                "+" => value.wrapping_add(other),
                "-" => value.wrapping_sub(other),
                "&" => value & other,
                "|" => value | other,
                "<<" => value.checked_shl(shift).unwrap_or(0),
                _ => value.checked_shr(shift).unwrap_or(0),
            };
        }
        self.nested -= 1;
        Ok(value)
    }

    /// One value, and the bits that are taken of it.
    fn term(&mut self) -> Value {
        self.skip();
        let value = match self.rest.chars().next() {
            Some('(') => {
                self.expect("(")?;
                let value = self.whole()?;
                self.expect(")")?;
                value
            }
            // Its address is all that follows, so that a slice behind it is not of the load.
            Some('*') => return self.load(),
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some(c) if is_name(c) => self.name()?,
            _ => return Err(self.unexpected("a value")),
        };
        if !self.accept("[") {
            return Ok(value);
        }
        let high = self.number()?;
        self.expect(":")?;
        let low = self.number()?;
        self.expect("]")?;
        if high < low || high > 63 {
            return Err(format!("[{high}:{low}] are no bits of a number"));
        }
        Ok(value >> low & u64::MAX >> (63 - (high - low)))
    }

    fn load(&mut self) -> Value {
        self.expect("*")?;
        self.expect("{")?;
        let size = self.number()?;
        self.expect("}")?;
        let size = usize::try_from(size).ok().filter(|size| (1..=8).contains(size));
        let size = size.ok_or_else(|| String::from("a load takes 1 to 8 bytes"))?;
        let at = self.whole()?;
        self.values.load(at, size)
    }

    fn number(&mut self) -> Value {
        self.skip();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
            None => digits.parse(),
        };
        let number = number.map_err(|_| self.unexpected("a number"))?;
        self.rest = rest;
        Ok(number)
    }

    fn name(&mut self) -> Value {
        let name = self.word()?;
        let Some(term) = Term::named(name).filter(|_| self.accept("(")) else {
            return Ok(self.values.symbol(name)?.0);
        };
        let value = match term {
            Term::NextPc => {
                let at = self.place()?;
                let instruction = self.instruction(at)?;
                instruction.next_ip()
            }
            Term::DecodeOperand => {
                let at = self.place()?;
                self.expect(",")?;
                let index = self.number()?;
                let instruction = self.instruction(at)?;
                let value = usize::try_from(index).ok().and_then(|index| operand(&instruction, index));
                let value = value.ok_or_else(|| format!("the instruction at {at} has no operand {index}"))?;
                value.ok_or_else(|| format!("operand {index} of the instruction at {at} is a register"))?
            }
            Term::StubAddr | Term::GotAddr => {
                let file = self.argument(',')?;
                self.values.has_file(file)?;
                let symbol = self.argument(')')?;
                let (map, what) = match term {
                    Term::StubAddr => (&self.values.stubs, "stub"),
                    _ => (&self.values.got, "GOT slot"),
                };
                let found = map.get(&printable(symbol.as_bytes())).copied();
                found.ok_or_else(|| format!("no {what} for {symbol} in the image"))?.0
            }
            Term::SectionAddr => {
                let file = self.argument(',')?;
                let section = self.argument(')')?;
                self.values.section(file, section)?.0
            }
        };
        if matches!(term, Term::NextPc | Term::DecodeOperand) {
            self.expect(")")?;
        }
        Ok(value)
    }

    /// A symbol, perhaps with an offset.
    fn place(&mut self) -> Result<ExecAddr, String> {
        self.skip();
        let name = self.word()?;
        let mut at = self.values.symbol(name)?.0;
        if self.accept("+") {
            at = at.wrapping_add(self.number()?);
        } else if self.accept("-") {
            at = at.wrapping_sub(self.number()?);
        }
        Ok(ExecAddr(at))
    }

    fn instruction(&self, at: ExecAddr) -> Result<iced_x86::Instruction, String> {
        decode(self.values.image.bytes_at(at, LONGEST_INSTRUCTION), at).ok_or_else(|| format!("no instruction at {at}"))
    }

    /// The text up to `end`, which is taken, too.
    fn argument(&mut self, end: char) -> Result<&'p str, String> {
        let (argument, rest) = self.rest.split_once(end).ok_or_else(|| self.unexpected("a name"))?;
        self.rest = rest;
        Ok(argument.trim())
    }

    fn word(&mut self) -> Result<&'p str, String> {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return Err(self.unexpected("a name"));
        }
        self.rest = rest;
        Ok(word)
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn accept(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(self.unexpected(&format!("`{token}`"))) }
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.rest.trim() {
            "" => format!("{wanted} is missing at its end"),
            rest => format!("{wanted} is expected before `{}`", printable(rest.as_bytes())),
        }
    }
}

/// Whether a symbol's name may have it, as the reference reads them.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '.' | '$')
}
