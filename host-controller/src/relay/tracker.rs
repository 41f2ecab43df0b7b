//! What a client of somebody else's make has done so far, and whether it is finished. Values only: no I/O, no clock.
//!
//! LLVM's controllers of some generations close a TCP connection in a way that neither end notices, and then wait for the
//! executor to close it (protocol specification, section 14). So the relay closes first, once the client cannot want
//! anything any more. Too early spoils the client's exit status; too late costs only time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use graft_protocol::{
    AddrsArgs, ExecAddr, Expected, FinalizeArgs, Message, Outcome, ReserveArgs, Setup, WrapperId, decode, map_key,
};

/// Quiet this long with nothing in place that could run: a client that failed before it ran anything, or that is between
/// two things when it keeps a slab. Those that are finished are silent.
const QUIET_EMPTY: Duration = Duration::from_millis(200);
/// Quiet this long after `main` with memory left in place: a client that does not free. Longer than any client thinks
/// between `main` and its first release, also on a busy machine.
const QUIET_AFTER_MAIN: Duration = Duration::from_secs(5);
/// Quiet this long after a call failed, with nothing in place: a client that gave up.
const QUIET_FAILED: Duration = Duration::from_secs(10);
/// Quiet this long after symbols were looked up, with nothing in place: a client that found out that it cannot link. Others
/// are linking something huge.
const QUIET_LOOKED_UP: Duration = Duration::from_secs(20);
/// Quiet this long with nothing in place and nothing wrong: a client that failed before it asked for anything, or one that
/// was forgotten. Others compile, or wait for their user's next line.
const QUIET_THINKING: Duration = Duration::from_secs(60);
/// The same while somebody else waits to be served.
const QUIET_WANTED: Duration = Duration::from_secs(10);

/// Whether to close now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not while things are as they are.
    Stay,
    /// When nothing happens for so much longer.
    CloseAfter(Duration),
    /// Now, for this reason.
    Close(&'static str),
}

/// A call of the client that is not answered yet.
#[derive(Debug)]
enum Asked {
    Reserve { size: u64 },
    Fill { base: ExecAddr, whole: bool },
    Free { bases: Vec<u64> },
    Deinitialize { keys: Vec<u64> },
    Symbols,
    Main,
    Other,
}

/// The state of a conversation.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// The largest message the executor takes, header included, in bytes; 0 when it does not say.
    limit: u64,
    wrappers: HashMap<ExecAddr, WrapperId>,
    asked: HashMap<u64, Asked>,
    /// Calls of the executor the client has not answered.
    called_back: BTreeSet<u64>,
    /// Sizes of live reservations, by base.
    reservations: BTreeMap<u64, u64>,
    /// Keys of initialized regions.
    regions: BTreeSet<u64>,
    any_call: bool,
    any_lookup: bool,
    any_reservation: bool,
    main_ended: bool,
    /// A call was refused.
    any_failure: bool,
    ours: bool,
}

impl Tracker {
    pub(super) fn new(setup: &Setup<'_>) -> Self {
        let mut wrappers = HashMap::new();
        for id in WrapperId::ALL {
            for name in id.names() {
                // Two rows share a name; which one is meant makes no difference here.
                if let Some(addr) = setup.symbol(name.name) {
                    wrappers.insert(addr, *id);
                }
            }
        }
        let stated = setup.map.iter().find(|(key, _)| key.0 == map_key::MAX_MESSAGE.as_bytes());
        let limit = stated.and_then(|(_, blob)| decode(blob.0).ok()).unwrap_or(0);
        Self { limit, wrappers, ..Self::default() }
    }

    /// The executor's limit, when a message of `size` bytes is above it. Refusing one in the middle costs the executor more
    /// than not to hear it: the rest still comes.
    pub(super) fn limit_below(&self, size: usize) -> Option<u64> {
        (self.limit != 0 && size as u64 > self.limit).then_some(self.limit)
    }

    /// Whether the client has called what only Graft's executors have.
    pub(super) const fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether the client has made a call.
    pub(super) const fn any_call(&self) -> bool {
        self.any_call
    }

    /// The client said `message`.
    pub(super) fn client_says(&mut self, message: &Message<'_>) {
        match message {
            Message::Call { seq_no, target, args } => {
                self.any_call = true;
                let asked = self.ask(*target, args);
                self.asked.insert(*seq_no, asked);
            }
            Message::Result { seq_no, .. } => {
                self.called_back.remove(seq_no);
            }
            Message::Setup(_) | Message::Hangup(_) => {}
        }
    }

    /// The executor said `message`.
    pub(super) fn executor_says(&mut self, message: &Message<'_>) {
        match message {
            Message::Call { seq_no, .. } => {
                self.called_back.insert(*seq_no);
            }
            Message::Result { seq_no, payload } => {
                if let Some(asked) = self.asked.remove(seq_no) {
                    self.answered(asked, payload);
                }
            }
            Message::Setup(_) | Message::Hangup(_) => {}
        }
    }

    /// Whether to close, after nothing was said for `quiet`; `wanted` says that somebody else waits to be served.
    pub(super) fn verdict(&self, quiet: Duration, wanted: bool) -> Verdict {
        if self.ours || !self.asked.is_empty() || !self.called_back.is_empty() {
            return Verdict::Stay;
        }
        if self.main_ended && self.any_reservation && self.reservations.is_empty() && self.regions.is_empty() {
            return Verdict::Close("it ran its program and has freed it");
        }
        let (patience, reason) = if self.main_ended && self.regions.is_empty() {
            // What is still reserved may be a slab that the client is about to fill again.
            (QUIET_EMPTY, "it ran its program, has nothing in place and is silent")
        } else if self.main_ended {
            (QUIET_AFTER_MAIN, "it ran its program and is silent")
        } else if self.any_reservation && self.reservations.is_empty() {
            (QUIET_EMPTY, "it has freed everything and is silent")
        } else if self.regions.is_empty() && self.any_failure {
            (QUIET_FAILED, "a call of it failed, and it is silent")
        } else if self.regions.is_empty() && wanted {
            (QUIET_WANTED, "it has nothing in place and is silent, and another client waits")
        } else if self.regions.is_empty() && self.any_lookup {
            (QUIET_LOOKED_UP, "it looked symbols up, has nothing in place and is silent")
        } else if self.regions.is_empty() {
            (QUIET_THINKING, "it has nothing in place and is silent")
        } else {
            return Verdict::Stay;
        };
        match patience.checked_sub(quiet) {
            Some(left) if !left.is_zero() => Verdict::CloseAfter(left),
            _ => Verdict::Close(reason),
        }
    }

    fn ask(&mut self, target: ExecAddr, args: &[u8]) -> Asked {
        let addrs = || decode::<AddrsArgs<'_>>(args).map(|args| args.addrs.iter().map(|addr| addr.0).collect());
        let fill = |whole| {
            let first =
                decode::<FinalizeArgs<'_>>(args).ok().and_then(|args| args.segments.iter().map(|s| s.addr).min());
            first.map_or(Asked::Other, |base| Asked::Fill { base, whole })
        };
        match self.wrappers.get(&target) {
            Some(WrapperId::Reserve) => {
                decode::<ReserveArgs>(args).map_or(Asked::Other, |args| Asked::Reserve { size: args.size })
            }
            Some(WrapperId::Finalize) => fill(true),
            Some(WrapperId::Initialize) => fill(false),
            Some(WrapperId::Deallocate | WrapperId::Release) => {
                addrs().map_or(Asked::Other, |bases| Asked::Free { bases })
            }
            Some(WrapperId::Deinitialize) => addrs().map_or(Asked::Other, |keys| Asked::Deinitialize { keys }),
            Some(WrapperId::Open | WrapperId::Lookup | WrapperId::Resolve22 | WrapperId::Resolve) => Asked::Symbols,
            Some(WrapperId::RunAsMain) => Asked::Main,
            Some(WrapperId::CallMain | WrapperId::Info) => {
                // Only our own controller makes these calls, and it hangs up when it is finished.
                self.ours = true;
                Asked::Other
            }
            _ => Asked::Other,
        }
    }

    fn answered(&mut self, asked: Asked, payload: &[u8]) {
        match asked {
            Asked::Reserve { size } => {
                self.any_reservation = true;
                match decode::<Expected<'_, ExecAddr>>(payload) {
                    Ok(Expected(Ok(base))) if !base.is_null() => drop(self.reservations.insert(base.0, size)),
                    _ => self.any_failure = true,
                }
            }
            Asked::Fill { base, whole: true } => match decode(payload) {
                Ok(Outcome(Ok(()))) => {
                    self.regions.insert(base.0);
                }
                // LLVM 19's executor drops what it failed to fill.
                _ => {
                    self.reservations.remove(&base.0);
                    self.any_failure = true;
                }
            },
            Asked::Fill { whole: false, .. } => match decode::<Expected<'_, ExecAddr>>(payload) {
                Ok(Expected(Ok(key))) => drop(self.regions.insert(key.0)),
                _ => self.any_failure = true,
            },
            // An Expected begins with whether there is a value.
            Asked::Symbols => {
                self.any_lookup = true;
                self.any_failure |= payload.first() != Some(&1);
            }
            // Also when a failure was reported: dealloc actions may fail, the memory goes in any case.
            Asked::Free { bases } => {
                for base in bases {
                    let size = self.reservations.remove(&base).unwrap_or(1);
                    self.regions.retain(|key| !(base..base.saturating_add(size)).contains(key));
                }
            }
            // Who undoes what was never done has given up.
            Asked::Deinitialize { keys } => {
                self.any_failure |= !matches!(decode(payload), Ok(Outcome(Ok(()))));
                self.regions.retain(|key| !keys.contains(key));
            }
            // Executors answer with nothing to what they cannot decode or refuse, and to a program that ended badly.
            Asked::Main => match decode::<i64>(payload) {
                Ok(_) => self.main_ended = true,
                Err(_) => self.any_failure = true,
            },
            Asked::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use graft_protocol::{AllocGroup, Blob, Encode, Lifetime, Prot, Segment, Seq, Text, encode, encoded_len};

    use super::*;

    const NAMES: [&str; 9] = [
        "__llvm_orc_SimpleExecutorMemoryManager_reserve_wrapper",
        "__llvm_orc_SimpleExecutorMemoryManager_finalize_wrapper",
        "__llvm_orc_SimpleExecutorMemoryManager_deallocate_wrapper",
        "__llvm_orc_SimpleExecutorMemoryManager_initialize_wrapper",
        "__llvm_orc_SimpleExecutorMemoryManager_deinitialize_wrapper",
        "__llvm_orc_SimpleExecutorMemoryManager_release_wrapper",
        "__llvm_orc_bootstrap_run_as_main_wrapper",
        "graft_call_main_wrapper",
        "__llvm_orc_SimpleExecutorDylibManager_lookup_wrapper",
    ];
    const ZERO: Duration = Duration::ZERO;

    fn bytes(value: &dyn Encode) -> Vec<u8> {
        let mut out = vec![0; encoded_len(value)];
        encode(value, &mut out).unwrap();
        out
    }

    struct Talk {
        tracker: Tracker,
        next: u64,
    }

    impl Talk {
        fn new() -> Self {
            let symbols: Vec<_> =
                NAMES.iter().enumerate().map(|(index, name)| (Text::new(name), ExecAddr(index as u64))).collect();
            let setup = Setup { page_size: 4096, symbols: Seq::new(&symbols), ..Setup::default() };
            Self { tracker: Tracker::new(&setup), next: 0 }
        }

        fn ask(&mut self, function: &str, args: &dyn Encode) -> u64 {
            let index = NAMES.iter().position(|name| name.contains(&format!("_{function}_"))).unwrap();
            let (seq_no, target) = (self.next, ExecAddr(index as u64));
            self.next += 1;
            self.tracker.client_says(&Message::Call { seq_no, target, args: &bytes(args) });
            seq_no
        }

        fn answer(&mut self, seq_no: u64, value: &dyn Encode) {
            self.tracker.executor_says(&Message::Result { seq_no, payload: &bytes(value) });
        }

        fn call(&mut self, function: &str, args: &dyn Encode, result: &dyn Encode) {
            let seq_no = self.ask(function, args);
            assert_eq!(self.tracker.verdict(Duration::from_secs(1000), false), Verdict::Stay, "a call is pending");
            self.answer(seq_no, result);
        }

        fn reserve(&mut self, base: u64) {
            let args = ReserveArgs { instance: ExecAddr(1), size: 0x4000 };
            self.call("reserve", &args, &Expected(Ok(ExecAddr(base))));
        }

        fn fill(&mut self, function: &str, key: u64, result: &dyn Encode) {
            let group = AllocGroup { prot: Prot::Read, lifetime: Lifetime::Standard };
            let segment = [Segment { group, addr: ExecAddr(key), size: 0x1000, content: Blob(&[]) }];
            let args = FinalizeArgs { instance: ExecAddr(1), segments: Seq::new(&segment), actions: Seq::default() };
            self.call(function, &args, result);
        }

        fn free(&mut self, function: &str, addrs: &[u64]) {
            let addrs: Vec<_> = addrs.iter().copied().map(ExecAddr).collect();
            self.call(function, &AddrsArgs { instance: ExecAddr(1), addrs: Seq::new(&addrs) }, &Outcome(Ok(())));
        }

        fn main(&mut self) {
            self.call("run_as_main", &0_u64, &0_i64);
        }
    }

    #[test]
    fn a_run_is_over_when_nothing_is_in_place_any_more() {
        let mut talk = Talk::new();
        // LLVM 22 with debugger support: the first reservation is never filled nor released.
        talk.reserve(0x10000);
        talk.reserve(0x20000);
        talk.fill("initialize", 0x21000, &Expected(Ok(ExecAddr(0x21000))));
        assert_eq!(talk.tracker.verdict(Duration::from_secs(1000), false), Verdict::Stay);
        talk.main();
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_AFTER_MAIN));
        talk.free("release", &[0x20000]);
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_EMPTY));
        assert!(matches!(talk.tracker.verdict(QUIET_EMPTY, false), Verdict::Close(_)));
    }

    #[test]
    fn llvm_19s_run_is_over_after_its_last_deallocate() {
        let mut talk = Talk::new();
        for base in [0x10000, 0x20000] {
            talk.reserve(base);
            talk.fill("finalize", base, &Outcome(Ok(())));
        }
        talk.main();
        talk.free("deallocate", &[0x20000]);
        assert!(matches!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(_)));
        talk.free("deallocate", &[0x10000]);
        assert!(matches!(talk.tracker.verdict(ZERO, false), Verdict::Close(_)));
    }

    #[test]
    fn a_slab_client_only_deinitializes() {
        let mut talk = Talk::new();
        talk.reserve(0x10000);
        talk.fill("initialize", 0x10000, &Expected(Ok(ExecAddr(0x10000))));
        talk.main();
        talk.free("deinitialize", &[0x10000]);
        // The slab may be filled again.
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_EMPTY));
        talk.fill("initialize", 0x10000, &Expected(Ok(ExecAddr(0x10000))));
        assert_eq!(talk.tracker.verdict(QUIET_EMPTY, false), Verdict::CloseAfter(QUIET_AFTER_MAIN - QUIET_EMPTY));
        talk.main();
        talk.free("deinitialize", &[0x10000]);
        assert!(matches!(talk.tracker.verdict(QUIET_EMPTY, false), Verdict::Close(_)));
        talk.free("release", &[0x10000]);
        assert!(matches!(talk.tracker.verdict(ZERO, false), Verdict::Close(_)));
    }

    #[test]
    fn a_main_that_was_refused_is_none_that_ended() {
        let mut talk = Talk::new();
        let asked = talk.ask("run_as_main", &0_u64);
        talk.tracker.executor_says(&Message::Result { seq_no: asked, payload: &[] });
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_FAILED));

        let mut talk = Talk::new();
        talk.reserve(0x10000);
        talk.fill("initialize", 0x10000, &Expected(Ok(ExecAddr(0x10000))));
        let asked = talk.ask("run_as_main", &0_u64);
        talk.tracker.executor_says(&Message::Result { seq_no: asked, payload: &[1, 2, 3] });
        assert_eq!(talk.tracker.verdict(QUIET_FAILED, false), Verdict::Stay);
    }

    #[test]
    fn failed_clients_are_recognized_by_their_silence() {
        let mut talk = Talk::new();
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_THINKING));
        talk.reserve(0x10000);
        assert_eq!(talk.tracker.verdict(QUIET_EMPTY, false), Verdict::CloseAfter(QUIET_THINKING - QUIET_EMPTY));
        assert_eq!(talk.tracker.verdict(ZERO, true), Verdict::CloseAfter(QUIET_WANTED));
        assert!(matches!(talk.tracker.verdict(QUIET_WANTED, true), Verdict::Close(_)));
        let mut failing = Talk::new();
        failing.reserve(0x10000);
        failing.call("lookup", &0_u64, &Expected::<ExecAddr>(Err(Text::new("no such symbol"))));
        assert_eq!(failing.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_FAILED));
        let mut looking = Talk::new();
        looking.reserve(0x10000);
        looking.call("lookup", &0_u64, &Expected(Ok(ExecAddr(7))));
        assert_eq!(looking.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_LOOKED_UP));
        let keys = [ExecAddr(0x10000)];
        let undo = AddrsArgs { instance: ExecAddr(1), addrs: Seq::new(&keys) };
        looking.call("deinitialize", &undo, &Outcome(Err(Text::new("not initialized"))));
        assert_eq!(looking.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_FAILED));
        talk.free("release", &[0x10000]);
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_EMPTY));
        assert!(matches!(talk.tracker.verdict(QUIET_EMPTY, false), Verdict::Close(_)));

        let refused = Expected::<ExecAddr>(Err(Text::new("no memory")));
        let mut talk = Talk::new();
        talk.call("reserve", &ReserveArgs { instance: ExecAddr(1), size: 1 }, &refused);
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_EMPTY));

        let mut talk = Talk::new();
        talk.reserve(0x10000);
        talk.fill("finalize", 0x10000, &Outcome(Err(Text::new("bad"))));
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_EMPTY));
    }

    #[test]
    fn our_own_clients_and_pending_callbacks_stay() {
        let mut talk = Talk::new();
        talk.call("call_main", &0_u64, &0_i64);
        assert_eq!(talk.tracker.verdict(Duration::from_secs(1000), false), Verdict::Stay);

        let mut talk = Talk::new();
        talk.tracker.executor_says(&Message::Call { seq_no: 5, target: ExecAddr(1), args: &[] });
        assert_eq!(talk.tracker.verdict(Duration::from_secs(1000), false), Verdict::Stay);
        talk.tracker.client_says(&Message::Result { seq_no: 5, payload: &[] });
        assert_eq!(talk.tracker.verdict(ZERO, false), Verdict::CloseAfter(QUIET_THINKING));
    }
}
