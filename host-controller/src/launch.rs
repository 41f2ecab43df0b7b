//! Loads a linked program into an executor and runs it, in whatever dialect the executor speaks.
//!
//! [`place`] finds room and addresses, [`execute`] ships the image and runs it. An executor of our own answers in order
//! and refuses to run what is not in place, so the image and the call travel together: reserving and looking up take one
//! or two round trips, all the rest one. LLVM's executors take a call at a time.

use std::time::{Duration, Instant};

use graft_protocol::call::{
    CallMain, ConsoleOutput, Lookup, Open, Resolve, Resolve22, Ring, RunAsMain, RunAsVoidFunction, TimeLimit,
};
use graft_protocol::{
    Blob, CallMainArgs, CallOutcome, ExecAddr, Fault, Instance, LookupArgs, OpenArgs, ResolveArgs, RunMainArgs, Seq,
    SymbolQuery, Text, Wrapper, WrapperId,
};
use thiserror::Error;

use crate::link::{Externals, Image, Layout, RelocateError};
use crate::memory::{Loaded, Memory, MemoryError, Room};
use crate::session::{CallError, Caller, Pending, Reply};

/// The handler tag console output goes to. Tags are the controller's to choose; this one is no address of loaded code.
const CONSOLE: ExecAddr = ExecAddr(0xffff_f000_6772_6166);

/// Why a program was not run to its end.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The program does not link against the executor's symbols at the executor's addresses.
    #[error(transparent)]
    Link(#[from] RelocateError),
    /// The executor gave no memory, or did not take the image.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The executor has no symbols to look up.
    #[error("the executor publishes no dylib manager, and the program needs symbols from it")]
    NoDylibManager,
    /// The executor refused to look symbols up.
    #[error("the executor cannot look symbols up: {0}")]
    Lookup(String),
    /// The executor answered for fewer or more symbols than it was asked for.
    #[error("the executor was asked for {asked} symbols and answered for {answered}")]
    LookupCount {
        /// Symbols asked for.
        asked: usize,
        /// Symbols answered for.
        answered: u64,
    },
    /// The executor lets no loaded code into ring 0.
    #[error(
        "loaded code cannot run in ring 0 there: only Graft's bare-metal executor has that; run it without --ring kernel"
    )]
    NoKernelRing,
    /// The image has no bytes.
    #[error("the program has nothing to load: its entry is an absolute symbol, and nothing else was needed")]
    NothingToLoad,
    /// The image has no entry.
    #[error("the program has no entry")]
    NoEntry,
    /// The executor did not make the call.
    #[error("the executor refused to run the program: {0}")]
    Refused(String),
    /// A call into the program took too long; it may still be running.
    #[error("the program did not end within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The same, and the executor is silent, which ends such a call by itself.
    #[error("the program did not end within {} s, and the executor did not end it", .0.as_secs_f64())]
    Silent(Duration),
}

impl LaunchError {
    /// The call that failed, when that is the reason, whatever it was for.
    #[must_use]
    pub const fn call(&self) -> Option<&CallError> {
        match self {
            Self::Call(error) | Self::Memory(MemoryError::Call(error)) => Some(error),
            _ => None,
        }
    }
}

/// A program at its addresses, not shipped yet.
#[derive(Debug)]
pub struct Placed<'l> {
    /// Where it goes.
    pub room: Room,
    /// Its bytes.
    pub image: Image<'l>,
    /// The time spent on relocating.
    pub link_time: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its entry returned.
    Returned(i64),
    /// It called `exit`, in whatever function of it.
    Exited(i64),
    /// It faulted; the executor goes on.
    Faulted(Fault),
}

/// A program that ran.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub ending: Ending,
    /// The time from the moment the image was in place to the end of the last call, as seen from here.
    pub run_time: Duration,
    /// Its memory.
    pub loaded: Loaded,
}

/// Asks for the console of the programs that run in this session, in pieces and in order. LLVM's executors do not send
/// it; with them it stays where the executor's own output goes.
pub fn subscribe(caller: &Caller, mut sink: impl FnMut(&[u8]) + Send + 'static) {
    caller.on_output::<ConsoleOutput>(CONSOLE, move |Blob(bytes)| sink(bytes));
}

/// A session whose loaded code is to run in ring 0.
#[derive(Debug)]
#[must_use = "nobody knows yet whether it does"]
pub struct KernelRing(Pending<Ring>);

impl KernelRing {
    /// Asks for it, before the session has any memory. It travels with what is asked for next.
    ///
    /// # Errors
    /// When the executor is none of Graft's, or the session is over.
    pub fn ask(caller: &Caller) -> Result<Self, LaunchError> {
        if caller.peer().wrapper(WrapperId::Ring).is_none() {
            return Err(LaunchError::NoKernelRing);
        }
        Ok(Self(caller.start::<Ring>(&0)?))
    }

    /// Whether it was granted.
    ///
    /// # Errors
    /// When it was not: loaded code would run as it always does.
    pub fn check(self) -> Result<(), LaunchError> {
        if self.0.wait()?.read()? == 0 { Ok(()) } else { Err(LaunchError::NoKernelRing) }
    }
}

/// Reserves memory for a program, looks its externals up, and links it for where it goes.
///
/// # Errors
/// When there is no room, or the program does not link there. Nothing stays reserved.
pub fn place<'l>(caller: &Caller, memory: &mut Memory, layout: &'l Layout<'_>) -> Result<Placed<'l>, LaunchError> {
    if layout.reservation() == 0 {
        return Err(LaunchError::NothingToLoad);
    }
    let reserving = memory.reserve(layout.reservation())?;
    let externals = look_up(caller, layout);
    if let Err(LaunchError::Call(error)) = &externals
        && error.is_silence()
    {
        // Whoever does not answer the one call does not answer the other.
        reserving.leave();
        return Err(error.clone().into());
    }
    let room = memory.room(reserving)?;
    let began = Instant::now();
    let image = externals.and_then(|externals| Ok(layout.link(room.range().start(), &externals)?));
    match image {
        Ok(image) => Ok(Placed { room, image, link_time: began.elapsed() }),
        Err(error) => {
            // The link's failure is what gets reported.
            if let Ok(releasing) = memory.abandon(room) {
                let _ = memory.released(releasing);
            }
            Err(error)
        }
    }
}

fn look_up(caller: &Caller, layout: &Layout<'_>) -> Result<Externals, LaunchError> {
    let mut found = Externals::default();
    let names: Vec<_> = layout.externals().iter().map(|external| external.name).collect();
    if names.is_empty() {
        return Ok(found);
    }
    let peer = caller.peer();
    let instance = peer.instance(Instance::DylibManager).ok_or(LaunchError::NoDylibManager)?;
    let handle = match peer.library() {
        Some(handle) => handle,
        None => {
            let reply = caller.call::<Open>(&OpenArgs { instance, path: Text::new(""), mode: 0 })?;
            reply.read()?.0.map_err(refused)?
        }
    };
    // None is required: a missing one is the link's to report, with its referrers.
    let queries: Vec<_> = names.iter().map(|name| SymbolQuery { name: Text::new(name), required: false }).collect();
    let symbols = Seq::new(&queries);
    let mut take = |answered: u64, addrs: &mut dyn Iterator<Item = ExecAddr>| {
        if answered != names.len() as u64 {
            return Err(LaunchError::LookupCount { asked: names.len(), answered });
        }
        names.iter().zip(addrs).for_each(|(name, addr)| found.insert(*name, addr));
        Ok(())
    };
    if peer.wrapper(WrapperId::Resolve).is_some() {
        let reply = caller.call::<Resolve>(&LookupArgs { instance, handle, symbols })?;
        let found = reply.read()?.0.map_err(refused)?;
        take(found.len(), &mut found.iter().map(Option::unwrap_or_default))?;
    } else if peer.wrapper(WrapperId::Resolve22).is_some() {
        let reply = caller.call::<Resolve22>(&ResolveArgs { handle, symbols })?;
        let found = reply.read()?.0.map_err(refused)?;
        take(found.len(), &mut found.iter().map(|def| def.map(|def| def.addr).unwrap_or_default()))?;
    } else {
        let reply = caller.call::<Lookup>(&LookupArgs { instance, handle, symbols })?;
        let found = reply.read()?.0.map_err(refused)?;
        take(found.len(), &mut found.iter().map(|def| def.addr))?;
    }
    Ok(found)
}

fn refused(text: Text<'_>) -> LaunchError {
    LaunchError::Lookup(text.to_string())
}

/// Ships a placed program into its room and runs its initializers, its entry with `args` (exactly what `argv` will hold)
/// and its finalizers. No single call into it may take longer than `limit`.
///
/// # Errors
/// When it could not be run, or did not end in time; its memory is freed or left to the end of the session. After
/// [`LaunchError::TimedOut`] and [`LaunchError::Silent`] the session must be given up: the executor is busy with the program.
pub fn execute(
    caller: &Caller,
    memory: &mut Memory,
    room: Room,
    image: &Image<'_>,
    args: &[&[u8]],
    limit: Option<Duration>,
) -> Result<Finished, LaunchError> {
    let args: Vec<_> = args.iter().map(|arg| Text(arg)).collect();
    let runner = Runner { caller, args: &args, limit, patience: patience(caller, limit)? };
    let Some(entry) = image.entry else {
        let releasing = memory.abandon(room)?;
        memory.released(releasing)?;
        return Err(LaunchError::NoEntry);
    };
    let initializing = memory.initialize(room, &image.segments)?;
    // Only what cannot run before the whole image is in place may be sent ahead: one request is taken as a whole or not
    // at all, and then our executor refuses the call, too. Freeing is never sent ahead: while the program waits for its
    // console or for a handler of ours, the executor serves what has arrived.
    let alone = image.initializers.is_empty() && image.finalizers.is_empty() && initializing.is_one_request();
    let ahead = alone && caller.peer().wrapper(WrapperId::CallMain).is_some();
    let main = ahead.then(|| runner.start(entry)).transpose();
    let loaded = memory.loaded(initializing)?;
    let before = image.initializers.iter().map(|function| function.function);
    let after = image.finalizers.iter().map(|function| function.function);
    let called = match main {
        // It could not even be sent.
        Err(error) => Err(error.into()),
        Ok(Some(main)) => runner.wait(main).and_then(|reply| Ok((ending(&reply)?, reply.arrived()))),
        Ok(None) => runner.sequence(before, entry, after).map(|ending| (ending, Instant::now())),
    };
    match called {
        Ok((ending, ended)) => {
            let run_time = ended.saturating_duration_since(loaded.since());
            Ok(Finished { ending, run_time, loaded })
        }
        Err(error) => {
            loaded.leave();
            Err(error)
        }
    }
}

/// How much longer than its limit a call may stay unanswered when the executor itself ends it in time.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long to wait for a call that is limited to `limit`. An executor of ours is told of the limit and keeps it.
fn patience(caller: &Caller, limit: Option<Duration>) -> Result<Option<Duration>, CallError> {
    let Some(limit) = limit else { return Ok(None) };
    if caller.peer().wrapper(WrapperId::TimeLimit).is_none() {
        return Ok(Some(limit));
    }
    // Nobody waits for the answer: without a timer over there the wait here ends the run.
    drop(caller.start::<TimeLimit>(&u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))?);
    Ok(limit.checked_add(GRACE))
}

/// Makes calls into a program.
struct Runner<'r> {
    caller: &'r Caller,
    args: &'r [Text<'r>],
    limit: Option<Duration>,
    /// How long a call is waited for.
    patience: Option<Duration>,
}

impl Runner<'_> {
    fn start(&self, entry: ExecAddr) -> Result<Pending<CallMain>, CallError> {
        self.caller.start::<CallMain>(&CallMainArgs { entry, args: Seq::new(self.args), console: CONSOLE })
    }

    fn wait<W: Wrapper>(&self, pending: Pending<W>) -> Result<Reply<W>, LaunchError> {
        let deadline = self.patience.and_then(|patience| Instant::now().checked_add(patience));
        pending.wait_until(deadline).map_err(|error| match (error, self.limit) {
            (CallError::TimedOut { .. }, Some(limit)) if self.patience > self.limit => LaunchError::Silent(limit),
            (CallError::TimedOut { .. }, Some(limit)) => LaunchError::TimedOut(limit),
            (error, _) => LaunchError::Call(error),
        })
    }

    /// Calls everything in order. A fault ends the sequence, and so does an `exit` outside of the entry, as far as the
    /// executor tells it from a return; LLVM's executors do not know `exit`. After an `exit` in the entry the finalizers
    /// run, as C has it.
    fn sequence(
        &self,
        before: impl Iterator<Item = ExecAddr>,
        entry: ExecAddr,
        after: impl Iterator<Item = ExecAddr>,
    ) -> Result<Ending, LaunchError> {
        for function in before {
            if let ended @ (Ending::Faulted(_) | Ending::Exited(_)) = self.function(function)? {
                return Ok(ended);
            }
        }
        let ending = self.main(entry)?;
        if let Ending::Faulted(_) = ending {
            return Ok(ending);
        }
        for function in after {
            if let ended @ (Ending::Faulted(_) | Ending::Exited(_)) = self.function(function)? {
                return Ok(ended);
            }
        }
        Ok(ending)
    }

    fn main(&self, entry: ExecAddr) -> Result<Ending, LaunchError> {
        if self.caller.peer().wrapper(WrapperId::CallMain).is_some() {
            return ending(&self.wait(self.start(entry)?)?);
        }
        let pending = self.caller.start::<RunAsMain>(&RunMainArgs { entry, args: Seq::new(self.args) })?;
        Ok(Ending::Returned(self.wait(pending)?.read()?))
    }

    /// Calls an initializer or a finalizer: what it returns means nothing, how it ends does. Where there is a choice it is
    /// called as `main` is: C libraries pass initializers the same arguments, and its console goes the same way.
    fn function(&self, function: ExecAddr) -> Result<Ending, LaunchError> {
        if self.caller.peer().wrapper(WrapperId::CallMain).is_some() {
            return ending(&self.wait(self.start(function)?)?);
        }
        let pending = self.caller.start::<RunAsVoidFunction>(&function)?;
        Ok(Ending::Returned(self.wait(pending)?.read()?.into()))
    }
}

fn ending(reply: &Reply<CallMain>) -> Result<Ending, LaunchError> {
    match reply.read()? {
        CallOutcome::Returned(value) => Ok(Ending::Returned(value)),
        CallOutcome::Exited(value) => Ok(Ending::Exited(value)),
        CallOutcome::Faulted(fault) => Ok(Ending::Faulted(fault)),
        CallOutcome::Refused(text) => Err(LaunchError::Refused(text.to_string())),
    }
}
