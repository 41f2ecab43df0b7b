//! The dylib manager's wrapper functions. One name stands for two of them, told apart by their arguments.

use alloc::vec::Vec;

use graft_protocol::{
    Decode, Encode, ExecAddr, LookupArgs, OpenArgs, ResolveArgs, Seq, SymbolDef, SymbolQuery, Text, WrapperId, decode,
};

use super::parse;
use crate::dylib::Found;
use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;
use crate::ranges::NoRecords;
use crate::reply::Reply;
use crate::text::TextBuf;

impl<P: Platform, L: Line> Executor<P, L> {
    pub(super) fn call_dylib(&self, row: WrapperId, args: &[u8]) -> Reply {
        match row {
            WrapperId::Open => {
                Reply::expected(parse::<OpenArgs<'_>>(args).and_then(|args| self.open(&args).map_err(TextBuf::of)))
            }
            WrapperId::Lookup => self.lookup_19(args),
            // LLVM 22 has no instance in front. Its reading takes the handle of LLVM 23's form for the number of
            // symbols, which no handle of ours can be: so a request has one reading, or none.
            _ => match decode::<ResolveArgs<'_>>(args) {
                Ok(args) => self.resolve_22(&args),
                Err(_) => self.resolve_23(args),
            },
        }
    }

    fn lookup_19(&self, args: &[u8]) -> Reply {
        let result = parse::<LookupArgs<'_>>(args).and_then(|args| {
            self.look_up(Some(args.instance), args.handle, &args.symbols, |name, found| match found {
                Found::At(addr) => Ok(definition(addr)),
                Found::Missing => Ok(definition(ExecAddr::NULL)),
                Found::RequiredMissing if name.0.is_empty() => {
                    Err(TextBuf::of("Required address for empty symbol \"\""))
                }
                Found::RequiredMissing => Err(TextBuf::of(format_args!("Missing definition for {name}"))),
                Found::Nameless => Ok(SymbolDef { addr: ExecAddr::NULL, flags: 0, target_flags: 0 }),
            })
        });
        sequence(result)
    }

    fn resolve_22(&self, args: &ResolveArgs<'_>) -> Reply {
        sequence(self.look_up(None, args.handle, &args.symbols, |_, found| {
            Ok(match found {
                Found::At(addr) => Some(definition(addr)),
                Found::Missing => Some(definition(ExecAddr::NULL)),
                Found::RequiredMissing | Found::Nameless => None,
            })
        }))
    }

    fn resolve_23(&self, args: &[u8]) -> Reply {
        self.calls.lock().set_newer_dialect();
        let result = parse::<LookupArgs<'_>>(args).and_then(|args| {
            self.look_up(Some(args.instance), args.handle, &args.symbols, |_, found| {
                Ok(match found {
                    Found::At(addr) => Some(addr),
                    Found::Missing => Some(ExecAddr::NULL),
                    Found::RequiredMissing | Found::Nameless => None,
                })
            })
        });
        sequence(result)
    }

    fn look_up<T>(
        &self,
        instance: Option<ExecAddr>,
        handle: ExecAddr,
        symbols: &Seq<'_, SymbolQuery<'_>>,
        mut answer: impl FnMut(Text<'_>, Found) -> Result<T, TextBuf>,
    ) -> Result<Vec<T>, TextBuf> {
        self.check_library(instance, handle).map_err(TextBuf::of)?;
        let mut answers = Vec::new();
        let count = usize::try_from(symbols.len()).unwrap_or(usize::MAX);
        answers.try_reserve_exact(count).map_err(|_| TextBuf::of(NoRecords))?;
        for symbol in symbols.iter() {
            answers.push(answer(symbol.name, self.find_symbol(&symbol))?);
        }
        Ok(answers)
    }
}

const fn definition(addr: ExecAddr) -> SymbolDef {
    SymbolDef { addr, flags: SymbolDef::EXPORTED, target_flags: 0 }
}

fn sequence<T: for<'a> Decode<'a> + Encode + Copy + 'static>(result: Result<Vec<T>, TextBuf>) -> Reply {
    match result {
        Ok(answers) => Reply::expected(Ok(Seq::new(&answers))),
        Err(text) => Reply::expected::<u8>(Err(text)),
    }
}
