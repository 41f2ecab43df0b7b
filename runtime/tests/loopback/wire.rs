//! Both ends of a line in memory: the executor's on a thread of its own, the controller's in the test.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use graft_protocol::{
    ActionPair, AddrsArgs, AllocGroup, Blob, Decode, ExecAddr, Expected, FinalizeArgs, Header, Instance, Message,
    Outcome, ReserveArgs, Segment, Seq, Setup, Text, Wrapper, WrapperCall, WrapperId, call, decode, encode,
    encoded_len,
};
use graft_runtime::{Ending, Executor, Line, LineError, Patience, Services, SessionEnd};

use super::fake::Machine;

/// How long a stalled peer is waited for.
const STALL: Duration = Duration::from_millis(50);

/// How much faster than the executor's own its quiet times pass here.
pub(crate) const FASTER: u32 = 20;

#[derive(Default)]
struct Ends {
    to_executor: VecDeque<u8>,
    to_controller: VecDeque<u8>,
    controller_closed: bool,
    executor_done: bool,
}

/// A pipe in each direction.
#[derive(Clone, Default)]
pub(crate) struct Pipes(Arc<(Mutex<Ends>, Condvar)>);

impl std::fmt::Debug for Pipes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pipes")
    }
}

impl Pipes {
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, act: impl FnOnce(&mut Ends)) {
        act(&mut self.lock());
        self.0.1.notify_all();
    }

    fn wait<'a>(&'a self, ends: MutexGuard<'a, Ends>) -> MutexGuard<'a, Ends> {
        self.0.1.wait(ends).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line for Pipes {
    fn read(&self, out: &mut [u8], patience: Patience) -> Result<usize, LineError> {
        let mut ends = self.lock();
        loop {
            if !ends.to_executor.is_empty() {
                let count = out.len().min(ends.to_executor.len());
                out[..count].iter_mut().zip(ends.to_executor.drain(..count)).for_each(|(slot, byte)| *slot = byte);
                return Ok(count);
            }
            if ends.controller_closed {
                return Err(LineError::Closed);
            }
            let limit = match patience {
                Patience::Idle => {
                    ends = self.wait(ends);
                    continue;
                }
                Patience::MidMessage => STALL,
                Patience::UpTo { millis } => Duration::from_millis(millis) / FASTER,
            };
            let (again, timeout) = self.0.1.wait_timeout(ends, limit).unwrap_or_else(PoisonError::into_inner);
            ends = again;
            if timeout.timed_out() && ends.to_executor.is_empty() {
                let millis = match patience {
                    Patience::UpTo { millis } => millis,
                    _ => limit.as_millis() as u64,
                };
                return Err(LineError::Stalled { millis });
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<(), LineError> {
        if self.lock().controller_closed {
            return Err(LineError::Closed);
        }
        self.change(|ends| ends.to_controller.extend(bytes));
        Ok(())
    }

    fn drain(&self) {
        self.lock().to_executor.clear();
    }
}

/// A message in memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Setup { triple: String, symbols: Vec<(String, ExecAddr)>, map: Vec<(String, Vec<u8>)> },
    Hangup(Result<(), String>),
    Result { seq_no: u64, payload: Vec<u8> },
    Call { seq_no: u64, tag: ExecAddr, args: Vec<u8> },
    End,
}

pub(crate) type FakeExecutor = Executor<Machine, Pipes>;

/// The controller's end, and the machine behind the other.
pub(crate) struct Controller {
    pub(crate) machine: Machine,
    /// Kept for the loaded code that calls it, after the thread is done.
    _executor: Arc<FakeExecutor>,
    pipes: Pipes,
    next: u64,
    thread: Option<JoinHandle<Vec<SessionEnd>>>,
    memory: ExecAddr,
    pub(crate) dylibs: ExecAddr,
    pub(crate) symbols: Vec<(String, ExecAddr)>,
    pub(crate) map: Vec<(String, Vec<u8>)>,
}

/// A segment as a test spells it: group bits, address, size, content.
pub(crate) type Spec<'a> = (u8, u64, u64, &'a [u8]);

/// An action as a test spells it: function and argument blob.
pub(crate) type Call<'a> = (u64, &'a [u8]);

impl Controller {
    /// An executor that serves one session, and its Setup taken.
    pub(crate) fn new() -> Self {
        Self::serving(1, Ending::Controller)
    }

    /// An executor that serves that many sessions.
    pub(crate) fn serving(sessions: usize, ending: Ending) -> Self {
        let machine = Machine::new();
        let pipes = Pipes::default();
        let executor = Arc::new(Executor::new(machine.clone(), pipes.clone()));
        let services: Weak<FakeExecutor> = Arc::downgrade(&executor);
        machine.connect(services as Weak<dyn Services + Send>);
        let thread = {
            let (executor, pipes) = (Arc::clone(&executor), pipes.clone());
            std::thread::spawn(move || {
                // A panic must reach the test as an end, not as silence.
                struct Done(Pipes);
                impl Drop for Done {
                    fn drop(&mut self) {
                        self.0.change(|ends| ends.executor_done = true);
                    }
                }
                let _done = Done(pipes);
                (0..sessions).map(|_| executor.serve_session(ending)).collect()
            })
        };
        let mut controller = Self {
            machine,
            _executor: executor,
            pipes,
            next: 0,
            thread: Some(thread),
            memory: ExecAddr::NULL,
            dylibs: ExecAddr::NULL,
            symbols: Vec::new(),
            map: Vec::new(),
        };
        controller.take_setup();
        controller
    }

    pub(crate) fn take_setup(&mut self) {
        match self.receive() {
            Received::Setup { symbols, map, .. } => (self.symbols, self.map) = (symbols, map),
            other => panic!("expected a Setup, got {other:?}"),
        }
        self.memory = self.symbol(Instance::MemoryManager.names()[0].name);
        self.dylibs = self.symbol(Instance::DylibManager.names()[0].name);
    }

    pub(crate) fn symbol(&self, name: &str) -> ExecAddr {
        self.symbols.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name} is not published")).1
    }

    pub(crate) fn address(&self, row: WrapperId) -> u64 {
        self.symbol(row.names()[0].name).0
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.pipes.change(|ends| ends.to_executor.extend(bytes));
    }

    pub(crate) fn send_message(&self, message: &Message<'_>) {
        let mut bytes = vec![0; encoded_len(message)];
        encode(message, &mut bytes).unwrap();
        self.send(&bytes);
    }

    /// Closes the controller's end.
    pub(crate) fn close(&self) {
        self.pipes.change(|ends| ends.controller_closed = true);
    }

    /// Waits for the executor to be done, and says how its sessions ended.
    pub(crate) fn join(&mut self) -> Vec<SessionEnd> {
        match self.thread.take().unwrap().join() {
            Ok(ends) => ends,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Hangs up, and checks that nothing is left of the session.
    pub(crate) fn finish(mut self) {
        self.send_message(&Message::Hangup(Some(Outcome(Ok(())))));
        assert_eq!(self.join(), [SessionEnd::Hangup]);
        assert_eq!(self.machine.state(), super::fake::State::default());
    }

    /// The next message of the executor.
    pub(crate) fn receive(&mut self) -> Received {
        let mut ends = self.pipes.lock();
        loop {
            let bytes = ends.to_controller.make_contiguous();
            if let Some((message, len)) = Message::split(bytes, 1 << 30).unwrap() {
                let received = own(&message);
                ends.to_controller.drain(..len);
                return received;
            }
            if ends.executor_done {
                assert!(ends.to_controller.is_empty(), "half a message");
                return Received::End;
            }
            ends = self.pipes.wait(ends);
        }
    }

    /// Sends a call of any address; returns its number.
    pub(crate) fn start(&mut self, target: u64, args: &[u8]) -> u64 {
        let seq_no = self.next;
        self.next += 1;
        self.send_message(&Message::Call { seq_no, target: ExecAddr(target), args });
        seq_no
    }

    /// Waits for the Result of a call; nothing else may come.
    pub(crate) fn result(&mut self, call: u64) -> Vec<u8> {
        match self.receive() {
            Received::Result { seq_no, payload } if seq_no == call => payload,
            other => panic!("expected the Result of {call}, got {other:?}"),
        }
    }

    pub(crate) fn call_bytes(&mut self, target: u64, args: &[u8]) -> Vec<u8> {
        let call = self.start(target, args);
        self.result(call)
    }

    pub(crate) fn start_row<W: Wrapper>(&mut self, args: &W::Args<'_>) -> u64 {
        let mut bytes = vec![0; encoded_len(args)];
        encode(args, &mut bytes).unwrap();
        self.start(self.address(W::ID), &bytes)
    }

    pub(crate) fn call<W: Wrapper>(&mut self, args: &W::Args<'_>) -> Vec<u8> {
        let call = self.start_row::<W>(args);
        self.result(call)
    }

    pub(crate) fn reserve(&mut self, size: u64) -> Result<u64, String> {
        let payload = self.call::<call::Reserve>(&ReserveArgs { instance: self.memory, size });
        expected::<ExecAddr>(&payload).map(|addr| addr.0)
    }

    pub(crate) fn initialize(
        &mut self,
        segments: &[Spec<'_>],
        actions: &[(Call<'_>, Call<'_>)],
    ) -> Result<u64, String> {
        let (segments, actions) = (segments_of(segments), actions_of(actions));
        let payload = self.call::<call::Initialize>(&self.finalize_args(&segments, &actions));
        expected::<ExecAddr>(&payload).map(|addr| addr.0)
    }

    pub(crate) fn finalize(&mut self, segments: &[Spec<'_>], actions: &[(Call<'_>, Call<'_>)]) -> Result<(), String> {
        let (segments, actions) = (segments_of(segments), actions_of(actions));
        let payload = self.call::<call::Finalize>(&self.finalize_args(&segments, &actions));
        outcome(&payload)
    }

    pub(crate) fn finalize_args<'a>(
        &self,
        segments: &'a [Segment<'a>],
        actions: &'a [ActionPair<'a>],
    ) -> FinalizeArgs<'a> {
        FinalizeArgs { instance: self.memory, segments: Seq::new(segments), actions: Seq::new(actions) }
    }

    fn addrs<W>(&mut self, addrs: &[u64]) -> Result<(), String>
    where
        W: for<'a> Wrapper<Args<'a> = AddrsArgs<'a>>,
    {
        let addrs: Vec<_> = addrs.iter().map(|addr| ExecAddr(*addr)).collect();
        let payload = self.call::<W>(&AddrsArgs { instance: self.memory, addrs: Seq::new(&addrs) });
        outcome(&payload)
    }

    pub(crate) fn release(&mut self, bases: &[u64]) -> Result<(), String> {
        self.addrs::<call::Release>(bases)
    }

    pub(crate) fn deallocate(&mut self, bases: &[u64]) -> Result<(), String> {
        self.addrs::<call::Deallocate>(bases)
    }

    pub(crate) fn deinitialize(&mut self, keys: &[u64]) -> Result<(), String> {
        self.addrs::<call::Deinitialize>(keys)
    }

    /// Reserves a page, makes it `code`, and returns its address.
    pub(crate) fn load(&mut self, code: &[u8]) -> u64 {
        let at = self.reserve(super::fake::PAGE).unwrap();
        self.initialize(&[(5, at, super::fake::PAGE, code)], &[]).unwrap()
    }

    /// Runs `int f(void)` at an address; `None` of an empty answer.
    pub(crate) fn run(&mut self, at: u64) -> Option<i32> {
        let payload = self.call::<call::RunAsVoidFunction>(&ExecAddr(at));
        (!payload.is_empty()).then(|| decode(&payload).unwrap())
    }

    /// A whole good load, run, and release: what must work after everything.
    pub(crate) fn check_good_load(&mut self) {
        let free = self.machine.free_frames();
        let code = self.machine.code(|_, _| Ok([41, 0]));
        let at = self.load(&code);
        assert_eq!(self.run(at), Some(41));
        self.release(&[at]).unwrap();
        assert_eq!(self.machine.free_frames(), free, "frames were lost");
    }
}

pub(crate) fn segments_of<'a>(specs: &[Spec<'a>]) -> Vec<Segment<'a>> {
    let segment = |&(bits, addr, size, content): &Spec<'a>| Segment {
        group: AllocGroup::from_bits(bits).unwrap(),
        addr: ExecAddr(addr),
        size,
        content: Blob(content),
    };
    specs.iter().map(segment).collect()
}

pub(crate) fn actions_of<'a>(pairs: &[(Call<'a>, Call<'a>)]) -> Vec<ActionPair<'a>> {
    let call = |(function, args): Call<'a>| WrapperCall { function: ExecAddr(function), args: Blob(args) };
    pairs.iter().map(|(finalize, dealloc)| ActionPair { finalize: call(*finalize), dealloc: call(*dealloc) }).collect()
}

pub(crate) fn outcome(payload: &[u8]) -> Result<(), String> {
    decode::<Outcome<'_>>(payload).unwrap().0.map_err(|text| text.to_string())
}

pub(crate) fn expected<'a, T: Decode<'a>>(payload: &'a [u8]) -> Result<T, String> {
    decode::<Expected<'a, T>>(payload).unwrap().0.map_err(|text| text.to_string())
}

fn own(message: &Message<'_>) -> Received {
    let text = |text: Text<'_>| text.to_string();
    match message {
        Message::Setup(Setup { triple, symbols, map, page_size }) => {
            assert_eq!(*page_size, super::fake::PAGE);
            Received::Setup {
                triple: text(*triple),
                symbols: symbols.iter().map(|(name, addr)| (text(name), addr)).collect(),
                map: map.iter().map(|(key, blob)| (text(key), blob.0.to_vec())).collect(),
            }
        }
        Message::Hangup(reason) => Received::Hangup(reason.map_or(Ok(()), |outcome| outcome.0.map_err(text))),
        Message::Result { seq_no, payload } => Received::Result { seq_no: *seq_no, payload: payload.to_vec() },
        Message::Call { seq_no, target, args } => Received::Call { seq_no: *seq_no, tag: *target, args: args.to_vec() },
    }
}

/// The bytes of a header.
pub(crate) fn header(size: u64, opcode: u64, seq_no: u64, tag: u64) -> [u8; Header::SIZE] {
    let mut out = [0; Header::SIZE];
    encode(&(size, opcode, seq_no, tag), &mut out).unwrap();
    out
}
