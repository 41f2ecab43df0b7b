//! A fake platform: pages in a map, frames by number, loaded code as closures.
//!
//! It is strict where the real ones cannot be: a store to a page that is not committed, a protection of one, a range
//! outside the arenas fail the test.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind, Prot};
use graft_runtime::{Entry, FrameCount, OutOfFrames, Platform, ReturnPair, Services};

pub(crate) const PAGE: u64 = 4096;

/// Frames of the fake machine: 8 MiB, less where every byte is watched.
pub(crate) const FRAMES: u64 = if cfg!(miri) { 256 } else { 2048 };

/// The two arenas: 2 MiB below 2 GiB, and 64 MiB far above.
pub(crate) const LOW: (u64, u64) = (0x1000_0000, 0x1020_0000);
pub(crate) const HIGH: (u64, u64) = (0x10_0000_0000, 0x10_0400_0000);

const MAGIC: &[u8; 8] = b"CODE\xcc\xcc\xcc\xcc";

/// Loaded code: what it does with the machine, and what it returns.
type Code = Arc<dyn Fn(&Machine, Entry<'_>) -> Result<ReturnPair, Fault> + Send + Sync>;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) bytes: Box<[u8; PAGE as usize]>,
    pub(crate) prot: Prot,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = self.bytes.iter().fold(0_u64, |sum, byte| sum.rotate_left(7) ^ u64::from(*byte));
        write!(f, "{} {sum:#x}", self.prot)
    }
}

/// Everything that must be the same after a refused request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Frames by page address.
    pub(crate) frames: BTreeMap<u64, Frame>,
    /// Mapped ranges, start to end, demand-zero where there is no frame.
    pub(crate) mapped: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Inside {
    state: State,
    codes: Vec<Code>,
    services: Option<Weak<dyn Services + Send>>,
    console: Vec<u8>,
    log: Vec<String>,
    frames: u64,
    depth: usize,
    trims: usize,
    next_protect_fails: bool,
}

/// The machine, shared between the executor's platform and the test.
#[derive(Clone)]
pub(crate) struct Machine {
    inside: Arc<Mutex<Inside>>,
    arenas: [ExecRange; 2],
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        let range = |(start, end)| ExecRange::new(ExecAddr(start), ExecAddr(end)).unwrap();
        let inside = Inside { frames: FRAMES, ..Inside::default() };
        Self { inside: Arc::new(Mutex::new(inside)), arenas: [range(LOW), range(HIGH)] }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn connect(&self, services: Weak<dyn Services + Send>) {
        self.lock().services = Some(services);
    }

    /// Sixteen bytes that do `code` when they are called.
    pub(crate) fn code(
        &self,
        code: impl Fn(&Self, Entry<'_>) -> Result<ReturnPair, Fault> + Send + Sync + 'static,
    ) -> Vec<u8> {
        let mut inside = self.lock();
        let mut bytes = MAGIC.to_vec();
        bytes.extend((inside.codes.len() as u64).to_le_bytes());
        inside.codes.push(Arc::new(code));
        bytes
    }

    /// Calls the executor from inside loaded code.
    pub(crate) fn services(&self) -> Arc<dyn Services + Send> {
        self.lock().services.as_ref().and_then(Weak::upgrade).unwrap()
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state.clone()
    }

    pub(crate) fn free_frames(&self) -> u64 {
        let inside = self.lock();
        inside.frames - inside.state.frames.len() as u64
    }

    pub(crate) fn console(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().console)
    }

    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().log)
    }

    /// Leaves `count` frames free.
    pub(crate) fn limit_free_frames(&self, count: u64) {
        let mut inside = self.lock();
        inside.frames = inside.state.frames.len() as u64 + count;
    }

    pub(crate) fn fail_next_protect(&self) {
        self.lock().next_protect_fails = true;
    }

    pub(crate) fn trims(&self) -> usize {
        self.lock().trims
    }

    /// What loaded code reads at `at`: a fault where nothing is mapped.
    pub(crate) fn peek(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        let inside = self.lock();
        (at..at + len as u64)
            .map(|at| {
                let page = at / PAGE * PAGE;
                match inside.state.frames.get(&page) {
                    Some(frame) => Some(frame.bytes[(at - page) as usize]),
                    None => inside.state.is_mapped(page).then_some(0),
                }
            })
            .collect()
    }

    pub(crate) fn prot(&self, at: u64) -> Option<Prot> {
        let inside = self.lock();
        let page = at / PAGE * PAGE;
        match inside.state.frames.get(&page) {
            Some(frame) => Some(frame.prot),
            None => inside.state.is_mapped(page).then_some(Prot::ReadWrite),
        }
    }

    fn each_page(&self, range: ExecRange) -> impl Iterator<Item = u64> + use<> {
        assert!(self.arenas.iter().any(|arena| arena.encloses(range)), "{range} is outside the arenas");
        assert!(range.start().is_aligned(PAGE) && range.end().is_aligned(PAGE), "{range} is not whole pages");
        (range.start().0..range.end().0).step_by(PAGE as usize)
    }

    /// Calls `act` with each committed page of a range: the bytes on it, and how far into the range they are.
    fn each_part(&self, at: ExecAddr, len: u64, mut act: impl FnMut(Prot, &mut [u8], usize)) {
        let mut inside = self.lock();
        let (mut at, end) = (at.0, at.0 + len);
        let start = at;
        while at < end {
            let page = at / PAGE * PAGE;
            let next = end.min(page + PAGE);
            let frame = inside.state.frames.get_mut(&page).unwrap_or_else(|| panic!("{at:#x} is not committed"));
            act(frame.prot, &mut frame.bytes[(at - page) as usize..(next - page) as usize], (at - start) as usize);
            at = next;
        }
    }
}

impl State {
    fn is_mapped(&self, page: u64) -> bool {
        self.mapped.range(..=page).next_back().is_some_and(|(_, end)| page < *end)
    }

    /// Takes a range out of the mapped ones.
    fn cut(&mut self, range: ExecRange) {
        let (start, end) = (range.start().0, range.end().0);
        let overlapping: Vec<_> =
            self.mapped.range(..end).filter(|(_, e)| **e > start).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in overlapping {
            self.mapped.remove(&s);
            if s < start {
                self.mapped.insert(s, start);
            }
            if e > end {
                self.mapped.insert(end, e);
            }
        }
        self.frames.retain(|page, _| !range.contains(ExecAddr(*page)));
    }

    fn add(&mut self, range: ExecRange) {
        let (mut start, mut end) = (range.start().0, range.end().0);
        if let Some((s, e)) = self.mapped.range(..start).next_back().map(|(s, e)| (*s, *e))
            && e == start
        {
            self.mapped.remove(&s);
            start = s;
        }
        if let Some(e) = self.mapped.remove(&end) {
            end = e;
        }
        self.mapped.insert(start, end);
    }
}

impl Platform for Machine {
    fn triple(&self) -> &'static str {
        "x86_64-unknown-none-elf"
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("a fake machine")
    }

    fn page_size(&self) -> u64 {
        PAGE
    }

    fn reservable(&self) -> &[ExecRange] {
        &self.arenas
    }

    fn frames(&self) -> FrameCount {
        let total = self.lock().frames * PAGE;
        FrameCount { total, free: self.free_frames() * PAGE }
    }

    fn demand_zero(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        drop(self.each_page(range));
        let mut inside = self.lock();
        inside.state.cut(range);
        inside.state.add(range);
        Ok(())
    }

    fn commit(&self, range: ExecRange) -> Result<(), OutOfFrames> {
        for page in self.each_page(range) {
            let free = self.free_frames();
            let mut inside = self.lock();
            assert!(inside.state.is_mapped(page), "commit of {page:#x}, which is not mapped");
            match inside.state.frames.get_mut(&page) {
                Some(frame) => frame.prot = Prot::ReadWrite,
                None if free == 0 => return Err(OutOfFrames { wanted_bytes: range.len(), free_bytes: 0 }),
                None => {
                    let bytes = Box::new([0; PAGE as usize]);
                    inside.state.frames.insert(page, Frame { bytes, prot: Prot::ReadWrite });
                }
            }
        }
        Ok(())
    }

    fn cost(&self, range: ExecRange) -> u64 {
        let missing = |page: &u64| !self.lock().state.frames.contains_key(page);
        self.each_page(range).filter(missing).count() as u64 * PAGE
    }

    fn protect(&self, range: ExecRange, prot: Prot) -> Result<(), OutOfFrames> {
        if std::mem::take(&mut self.lock().next_protect_fails) {
            return Err(OutOfFrames { wanted_bytes: range.len(), free_bytes: 0 });
        }
        for page in self.each_page(range) {
            self.lock().state.frames.get_mut(&page).unwrap_or_else(|| panic!("{page:#x} is not committed")).prot = prot;
        }
        Ok(())
    }

    fn unmap(&self, range: ExecRange) {
        drop(self.each_page(range));
        self.lock().state.cut(range);
    }

    fn store(&self, at: ExecAddr, bytes: &[u8]) {
        self.each_part(at, bytes.len() as u64, |prot, part, offset| {
            assert_eq!(prot, Prot::ReadWrite, "store at {at}");
            part.copy_from_slice(&bytes[offset..offset + part.len()]);
        });
    }

    fn store_zeroes(&self, at: ExecAddr, len: u64) {
        self.each_part(at, len, |prot, part, _| {
            assert_eq!(prot, Prot::ReadWrite, "store at {at}");
            part.fill(0);
        });
    }

    fn load(&self, at: ExecAddr, out: &mut [u8]) {
        self.each_part(at, out.len() as u64, |_, part, offset| out[offset..offset + part.len()].copy_from_slice(part));
    }

    fn call(&self, at: ExecAddr, entry: Entry<'_>) -> Result<ReturnPair, Fault> {
        assert_eq!(self.prot(at.0), Some(Prot::ReadExec), "call of {at}");
        let bytes = self.peek(at.0, 16).unwrap();
        let index = bytes.strip_prefix(MAGIC).map(|index| u64::from_le_bytes(index.try_into().unwrap()));
        let code = {
            let mut inside = self.lock();
            inside.depth += 1;
            assert!(inside.depth <= self.max_depth(), "too deep");
            index.and_then(|index| inside.codes.get(index as usize).cloned())
        };
        let result = match code {
            Some(code) => code(self, entry),
            None => Err(fault(FaultKind::INVALID_OPCODE, at.0, 0)),
        };
        self.lock().depth -= 1;
        result
    }

    fn max_depth(&self) -> usize {
        4
    }

    fn trim(&self) {
        self.lock().trims += 1;
    }

    fn memory_map(&self, visit: &mut dyn FnMut(ExecRange, &str)) {
        visit(ExecRange::from_len(ExecAddr(0), FRAMES * PAGE).unwrap(), "usable");
    }

    fn mappings(&self, visit: &mut dyn FnMut(ExecRange, Prot, &str)) {
        visit(ExecRange::from_len(ExecAddr(0x10_0000), PAGE).unwrap(), Prot::ReadExec, "the executor");
    }

    fn protections(&self, visit: &mut dyn FnMut(&str)) {
        visit("NX");
    }

    fn export(&self, name: &[u8]) -> Option<ExecAddr> {
        match name {
            b"puts" => Some(ExecAddr(0x10_0100)),
            b"__llvm_orc_SimpleRemoteEPC_dispatch_fn" => Some(ExecAddr(0x10_0200)),
            _ => None,
        }
    }

    fn console(&self, bytes: &[u8]) {
        self.lock().console.extend(bytes);
    }

    fn log(&self, line: &str) {
        self.lock().log.push(line.to_owned());
    }

    fn uptime_ns(&self) -> u64 {
        77
    }
}

/// A fault of a kind, at an instruction, about an address.
pub(crate) fn fault(kind: FaultKind, ip: u64, address: u64) -> Fault {
    Fault { kind, ip: ExecAddr(ip), sp: ExecAddr(0x7000), address: ExecAddr(address), code: 0 }
}
