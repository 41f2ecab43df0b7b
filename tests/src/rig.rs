//! An executor with something in it that must survive whatever a test does, and the load that must work after.

use std::sync::Arc;
use std::time::Duration;

use graft_protocol::{
    AddrsArgs, AllocGroup, Blob, ExecAddr, ExecRange, FinalizeArgs, InfoReply, Lifetime, Prot, ReserveArgs,
    RunMainArgs, Segment, Seq, Void, call, decode,
};
use graft_qemu::{Gathered, Machine, MachineKind};

use crate::place;
use crate::raw::{Client, Said, expected, outcome};

/// The page size of every executor there is.
pub const PAGE: u64 = 4096;

/// `mov eax, 41; ret`.
pub const CODE: &[u8] = &[0xb8, 41, 0, 0, 0, 0xc3];

/// What the witness holds.
const PATTERN: &[u8] = b"what a refused request must not touch";

/// The protection `prot`, until release.
#[must_use]
pub const fn group(prot: Prot) -> AllocGroup {
    AllocGroup { prot, lifetime: Lifetime::Standard }
}

/// One whole page with `content` in front.
#[must_use]
pub const fn segment(prot: Prot, addr: ExecAddr, content: &[u8]) -> Segment<'_> {
    Segment { group: group(prot), addr, size: PAGE, content: Blob(content) }
}

/// Runs `test` against the hosted executor and against a machine of each kind; on one of them loaded code runs in ring 3, on
/// the other in ring 0.
pub fn on_each_executor(test: impl Fn(&mut Rig)) {
    on_executors(&[None, Some(MachineKind::Microvm)], &test);
    eprintln!("on Q35, in ring 0");
    test(&mut Rig::on_machine(MachineKind::Q35, Ring::Kernel));
}

/// Runs `test` against executors: machines, or the hosted executor where there is none.
pub fn on_executors(kinds: &[Option<MachineKind>], test: impl Fn(&mut Rig)) {
    for kind in kinds {
        // Which of them it was shows when it fails.
        eprintln!("on {}", kind.map_or("the hosted executor".to_owned(), |kind| format!("{kind:?}")));
        let mut rig = kind.map_or_else(Rig::hosted, |kind| Rig::on_machine(kind, Ring::User));
        test(&mut rig);
    }
}

/// Which generation's memory service a load goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Finalize and deallocate.
    Llvm19,
    /// Initialize, deinitialize and release.
    Llvm22,
}

/// The ring that loaded code runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    Kernel,
    User,
}

/// An executor with a witness in it.
pub struct Rig {
    /// The session with it.
    pub client: Client,
    machine: Option<(Arc<Gathered>, graft_qemu::Running)>,
    ring: Ring,
    /// An initialized page, readable and writable.
    pub witness: ExecAddr,
    /// Four reserved pages that are not initialized.
    pub reserved: ExecAddr,
}

/// What must not change.
#[derive(Debug)]
struct State {
    witness: Vec<u8>,
    bytes_free: u64,
    mappings: Vec<(ExecRange, Prot)>,
}

impl Rig {
    /// The hosted executor, in a process of its own.
    #[must_use]
    pub fn hosted() -> Self {
        Self::over(Client::hosted())
    }

    /// An executor that was reached.
    #[must_use]
    pub fn over(client: Client) -> Self {
        Self::on(client, None, Ring::User)
    }

    fn on_machine(kind: MachineKind, ring: Ring) -> Self {
        let mut machine = Machine::new(place::image().unwrap_or_else(|error| panic!("{error}")));
        machine.kind = kind;
        machine.time_limit = Some(Duration::from_secs(300));
        let running = machine.spawn().unwrap_or_else(|error| panic!("{error}"));
        let log = Arc::new(Gathered::start(running.log.try_clone().unwrap()));
        let client = Client::on_line(running.line.try_clone().unwrap());
        Self::on(client, Some((log, running)), ring)
    }

    fn on(client: Client, machine: Option<(Arc<Gathered>, graft_qemu::Running)>, ring: Ring) -> Self {
        let mut rig = Self { client, machine, ring, witness: ExecAddr::NULL, reserved: ExecAddr::NULL };
        rig.furnish();
        rig
    }

    fn furnish(&mut self) {
        if self.ring == Ring::Kernel {
            assert_eq!(self.client.call::<call::Ring>(&0), [0]);
        }
        self.witness = self.reserve(PAGE).unwrap();
        let witness = segment(Prot::ReadWrite, self.witness, PATTERN);
        assert_eq!(self.initialize(&[witness]), Ok(self.witness));
        self.reserved = self.reserve(4 * PAGE).unwrap();
    }

    /// The memory manager's instance.
    #[must_use]
    pub fn manager(&self) -> ExecAddr {
        self.client.symbol("__llvm_orc_SimpleExecutorMemoryManager_Instance")
    }

    /// The dylib manager's instance.
    #[must_use]
    pub fn dylibs(&self) -> ExecAddr {
        self.client.symbol("__llvm_orc_SimpleExecutorDylibManager_Instance")
    }

    /// Reserves `size` bytes, or says why not.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    pub fn reserve(&mut self, size: u64) -> Result<ExecAddr, String> {
        let instance = self.manager();
        expected(&self.client.call::<call::Reserve>(&ReserveArgs { instance, size }))
    }

    /// Initializes a region, as LLVM 22 does.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    pub fn initialize(&mut self, segments: &[Segment<'_>]) -> Result<ExecAddr, String> {
        let instance = self.manager();
        let request = FinalizeArgs { instance, segments: Seq::new(segments), actions: Seq::default() };
        expected(&self.client.call::<call::Initialize>(&request))
    }

    /// Initializes a region, as LLVM 19 does.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    pub fn finalize(&mut self, segments: &[Segment<'_>]) -> Result<(), String> {
        let instance = self.manager();
        let request = FinalizeArgs { instance, segments: Seq::new(segments), actions: Seq::default() };
        outcome(&self.client.call::<call::Finalize>(&request))
    }

    /// Frees a reservation.
    ///
    /// # Errors
    ///
    /// The text of the refusal.
    pub fn release(&mut self, load: Load, base: ExecAddr) -> Result<(), String> {
        let bases = [base];
        let request = AddrsArgs { instance: self.manager(), addrs: Seq::new(&bases) };
        outcome(&match load {
            Load::Llvm19 => self.client.call::<call::Deallocate>(&request),
            Load::Llvm22 => self.client.call::<call::Release>(&request),
        })
    }

    /// Runs `main` without arguments and returns the bytes of the answer.
    pub fn run_main(&mut self, entry: ExecAddr) -> Vec<u8> {
        self.client.call::<call::RunAsMain>(&RunMainArgs { entry, args: Seq::default() })
    }

    /// The `len` bytes at `addr`.
    ///
    /// # Panics
    ///
    /// Panics when they cannot be read.
    pub fn read(&mut self, addr: ExecAddr, len: u64) -> Vec<u8> {
        let range = ExecRange::from_len(addr, len).unwrap();
        let reply = self.client.call::<call::ReadBuffers>(&Seq::new(&[range]));
        let buffers: Seq<'_, Blob<'_>> = decode(&reply).unwrap_or_else(|error| panic!("reading {range}: {error}"));
        buffers.iter().next().unwrap().0.to_vec()
    }

    /// The load every test ends with: reserve, fill, run, release, in either dialect.
    ///
    /// # Panics
    ///
    /// Panics when it does not work.
    pub fn good_load(&mut self, load: Load) {
        let base = self.reserve(2 * PAGE).unwrap();
        let code = base.checked_add(PAGE).unwrap();
        let segments = [segment(Prot::ReadWrite, base, b"data"), segment(Prot::ReadExec, code, CODE)];
        match load {
            Load::Llvm19 => assert_eq!(self.finalize(&segments), Ok(())),
            Load::Llvm22 => assert_eq!(self.initialize(&segments), Ok(base)),
        }
        assert_eq!(self.run_main(code), 41_i64.to_le_bytes());
        assert_eq!(self.release(load, base), Ok(()));
    }

    /// Makes a request that must change nothing, and the loads that must work after it.
    ///
    /// # Panics
    ///
    /// Panics when it changes something.
    pub fn refuses(&mut self, mut request: impl FnMut(&mut Self)) {
        // The first call ever gets a stack, which stays.
        self.good_loads();
        let before = self.state();
        for _ in 0..2 {
            request(self);
            self.is_as(&before);
            self.good_loads();
            self.is_as(&before);
        }
    }

    /// Makes a request that must end the session with a reason that contains `reason`; the next session must work.
    ///
    /// # Panics
    ///
    /// Panics when it does not, or the reason is another.
    pub fn ends_session(&mut self, reason: &str, request: impl FnOnce(&mut Self)) {
        // The first call ever gets a stack, which stays.
        self.good_loads();
        let before = self.state();
        request(self);
        match self.client.receive() {
            Said::Hangup(Some(text)) => assert!(text.contains(reason), "{text:?} says nothing of {reason:?}"),
            other => panic!("{other:?} instead of a Hangup that tells why"),
        }
        self.next_session(&before);
    }

    /// Does something during which the session ends and the executor begins the next one, or dies as it should: after it,
    /// everything is as it was before the session.
    ///
    /// # Panics
    ///
    /// Panics when it is not.
    pub fn outlives(&mut self, request: impl FnOnce(&mut Self)) {
        self.good_loads();
        let before = self.state();
        request(self);
        self.next_session(&before);
    }

    fn next_session(&mut self, before: &State) {
        self.begins_anew();
        // Another process may get other addresses; on a machine everything is as it was.
        if self.machine.is_some() {
            self.is_as(before);
        }
    }

    /// Takes the Setup of the next session, and sees it work.
    ///
    /// # Panics
    ///
    /// Panics when none comes next, or it does not.
    pub fn begins_anew(&mut self) {
        if self.machine.is_some() {
            assert_eq!(self.client.receive(), Said::Setup);
        } else {
            assert_eq!(self.client.receive(), Said::Closed);
            self.client = Client::hosted();
        }
        self.furnish();
        self.good_loads();
    }

    /// Whether the executor is a machine, whose line outlives its sessions.
    #[must_use]
    pub const fn is_machine(&self) -> bool {
        self.machine.is_some()
    }

    /// How many bytes of memory are not taken.
    pub fn bytes_free(&mut self) -> u64 {
        self.state().bytes_free
    }

    /// The newest lines of the executor's log.
    ///
    /// # Panics
    ///
    /// Panics when the executor does not say.
    pub fn log(&mut self) -> String {
        let reply = self.client.call::<call::Info>(&Void);
        let info: InfoReply<'_> = decode(&reply).unwrap();
        String::from_utf8_lossy(info.log.0).into_owned()
    }

    fn is_as(&mut self, before: &State) {
        let now = self.state();
        assert_eq!(now.witness, before.witness);
        assert_eq!(now.mappings, before.mappings);
        assert_eq!(now.bytes_free, before.bytes_free);
    }

    fn good_loads(&mut self) {
        self.good_load(Load::Llvm22);
        self.good_load(Load::Llvm19);
    }

    fn state(&mut self) -> State {
        let witness = self.read(self.witness, PAGE);
        let reply = self.client.call::<call::Info>(&Void);
        let info: InfoReply<'_> = decode(&reply).unwrap();
        let mappings = info.mappings.iter().map(|mapping| (mapping.range, mapping.prot)).collect();
        State { witness, bytes_free: info.bytes_free, mappings }
    }
}

impl std::fmt::Debug for Rig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let log = self.machine.as_ref().map(|(log, _)| log.text());
        f.debug_struct("Rig").field("client", &self.client).field("log", &log).finish_non_exhaustive()
    }
}
