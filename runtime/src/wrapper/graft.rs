//! What the executor says of itself.

use alloc::vec::Vec;

use graft_protocol::{ExecRange, InfoReply, Mapping, MemoryRange, Prot, Seq, Text, Void};

use super::parse;
use crate::executor::Executor;
use crate::line::Line;
use crate::log;
use crate::memory::Owner;
use crate::platform::{Platform, Ring};
use crate::reply::{Reply, zeroed};
use crate::session::VERSION;
use crate::text::TextBuf;

/// Words for a range; the rest of longer ones is cut.
type Words = heapless::String<48>;

impl<P: Platform, L: Line> Executor<P, L> {
    pub(super) fn call_time_limit(&self, args: &[u8]) -> Reply {
        match parse::<u64>(args) {
            Ok(limit) => Reply::of(&self.platform.limit_time((limit != 0).then_some(limit)).unwrap_or(0)),
            Err(text) => self.no_result(format_args!("TimeLimit: {text}")),
        }
    }

    pub(super) fn call_ring(&self, args: &[u8]) -> Reply {
        match parse::<u8>(args) {
            Ok(number) => Reply::of(&self.use_ring(number)),
            Err(text) => self.no_result(format_args!("Ring: {text}")),
        }
    }

    /// Lets loaded code run in this ring, if there is such a one and the session has no memory yet; the ring in force.
    fn use_ring(&self, number: u8) -> u8 {
        const KERNEL: u8 = 0;
        const USER: u8 = 3;
        let wanted = if number == KERNEL { Ring::Kernel } else { Ring::User };
        // What is there is mapped for the ring in force.
        let may_change = self.memory.lock().is_untouched();
        let ring = self.platform.use_ring(may_change.then_some(wanted));
        if ring == Ring::Kernel { KERNEL } else { USER }
    }

    pub(super) fn call_info(&self, args: &[u8]) -> Reply {
        if let Err(text) = parse::<Void>(args) {
            return self.no_result(format_args!("Info: {text}"));
        }
        let mut machine = TextBuf::new();
        // A description that was cut still describes.
        let _ = self.platform.describe(&mut machine);
        let mut protections: Vec<Words> = Vec::new();
        self.platform.protections(&mut |name| add(&mut protections, words(name)));
        let protections: Vec<Text<'_>> = borrowed(&protections, |name| Text::new(name));
        let mut memory: Vec<(ExecRange, Words)> = Vec::new();
        self.platform.memory_map(&mut |range, what| add(&mut memory, (range, words(what))));
        let memory: Vec<MemoryRange<'_>> =
            borrowed(&memory, |(range, what)| MemoryRange { range: *range, what: Text::new(what) });
        let mut mapped: Vec<(ExecRange, Prot, Words)> = Vec::new();
        self.platform.mappings(&mut |range, prot, what| add(&mut mapped, (range, prot, words(what))));
        self.reserved_mappings(&mut mapped);
        let mappings: Vec<Mapping<'_>> =
            borrowed(&mapped, |(range, prot, what)| Mapping { range: *range, prot: *prot, what: Text::new(what) });
        let frames = self.platform.frames();
        let Some(mut lines) = zeroed(log::CAPACITY) else { return Reply::EMPTY };
        let kept = lines.first_chunk_mut().map_or(0, |out| self.log.copy(out));
        Reply::of(&InfoReply {
            version: Text::new(VERSION),
            machine: machine.as_text(),
            uptime_ns: self.platform.uptime_ns(),
            bytes_total: frames.total,
            bytes_free: frames.free,
            protections: Seq::new(&protections),
            memory: Seq::new(&memory),
            mappings: Seq::new(&mappings),
            traffic: self.channel.traffic(),
            log: Text(lines.get(..kept).unwrap_or(&[])),
        })
    }

    fn reserved_mappings(&self, out: &mut Vec<(ExecRange, Prot, Words)>) {
        let memory = self.memory.lock();
        for (range, reservation) in memory.iter() {
            let what = match reservation.owner {
                Owner::Controller => "reserved",
                Owner::Heap => "heap of loaded code",
            };
            add(out, (range, Prot::ReadWrite, words(what)));
            for run in reservation.regions().iter().flat_map(|region| &region.runs) {
                add(out, (run.pages, run.prot, words("initialized")));
            }
        }
    }
}

/// Adds an element, or leaves it out when memory is short: a shorter list still informs.
fn add<T>(list: &mut Vec<T>, element: T) {
    if list.try_reserve(1).is_ok() {
        list.push(element);
    }
}

fn borrowed<'a, T, U>(list: &'a [T], view: impl Fn(&'a T) -> U) -> Vec<U> {
    let mut out = Vec::new();
    list.iter().for_each(|element| add(&mut out, view(element)));
    out
}

fn words(text: &str) -> Words {
    let mut words = Words::new();
    // Stops where the room does.
    let _ = text.chars().try_for_each(|c| words.push(c));
    words
}
