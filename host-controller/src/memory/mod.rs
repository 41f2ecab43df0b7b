//! Memory of the executor, on the controller's side.
//!
//! A program's memory goes through three values: [`Reserving`] asks for it, [`Room`] is there and empty, [`Loaded`] holds
//! an image. Each step starts a call and hands out what must be waited for, so that steps of different programs (or the
//! next of the same one, such as a call into the image behind [`Memory::initialize`]) share a round trip. A room or an
//! image that is not given back is a mistake that is reported, not forgotten.
//!
//! [`Strategy::Generic`] makes a reservation per program. [`Strategy::Slab`] makes few large ones and hands out parts:
//! it saves calls, and an executor takes frames only when pages are used.

mod batches;
mod calls;
mod duty;
mod slab;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use graft_protocol::call::Reserve;
use graft_protocol::{Dialects, ExecAddr, ExecRange, Expected};
use thiserror::Error;

use self::calls::{Calls, Form, PendingFree, PendingInitialize};
use self::duty::{Duty, Held};
use self::slab::Slabs;
use crate::link::Segment;
use crate::session::{CallError, Caller, Pending};

pub use slab::SlabError;

/// How memory is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// One reservation per program.
    #[default]
    Generic,
    /// Reservations of at least so many bytes, programs in parts of them.
    Slab {
        /// Bytes of a slab.
        size: u64,
    },
}

/// Why memory was not had.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The executor said no.
    #[error("the executor cannot reserve {size} bytes: {text}")]
    Reserve {
        /// Bytes asked for.
        size: u64,
        /// Its words.
        text: String,
    },
    /// What it said cannot be a reservation.
    #[error("the executor reserved {size} bytes at {base}, which is no usable place for pages of {page_size} bytes")]
    BadBase {
        /// Bytes asked for.
        size: u64,
        /// The address it gave.
        base: ExecAddr,
        /// Its page size.
        page_size: u64,
    },
    /// The executor said no to the content.
    #[error("the executor refused the image: {0}")]
    Initialize(String),
    /// The executor did not free what it should.
    #[error("the executor did not free memory: {0}")]
    Free(String),
    /// There is a memory manager's functions and no manager.
    #[error("the executor publishes no memory manager")]
    NoManager,
    /// Slabs need regions.
    #[error(
        "this executor fills reservations as a whole (LLVM 19's names only): slabs need `initialize`; use the generic manager"
    )]
    NoSlabs,
    /// More than an address space.
    #[error("{0} bytes are more than there are addresses")]
    TooMuch(u64),
    /// The book of slabs disagrees.
    #[error(transparent)]
    Slab(#[from] SlabError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The memory manager of a session.
#[derive(Debug)]
pub struct Memory {
    calls: Calls,
    page_size: u64,
    slabs: Option<Slabs>,
    /// Slabs that were asked for, in the order of asking.
    on_their_way: VecDeque<ComingSlab>,
    /// Slabs that were refused while somebody waited for another.
    refused: HashMap<u64, MemoryError>,
    /// How many slabs were ever asked for.
    slabs_asked: u64,
}

/// A slab that was asked for.
#[derive(Debug)]
struct ComingSlab {
    number: u64,
    pending: Pending<Reserve>,
    size: u64,
    /// What of it nobody waits for yet.
    left: u64,
}

/// Where a room lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// A reservation of its own.
    Reservation,
    /// Part of a slab.
    Slab,
}

/// Memory that was asked for.
#[must_use = "what was reserved must be given back"]
#[derive(Debug)]
pub struct Reserving(ReservingState);

#[derive(Debug)]
enum ReservingState {
    Ready(Room),
    Asked {
        pending: Pending<Reserve>,
        size: u64,
        duty: Duty,
    },
    /// Part of a slab that is on its way.
    InSlab {
        size: u64,
        number: u64,
        duty: Duty,
    },
}

impl Reserving {
    /// Leaves what was asked for to the end of the session, which frees everything.
    pub fn leave(self) {
        match self.0 {
            ReservingState::Ready(room) => room.duty.discharge(),
            ReservingState::Asked { duty, .. } | ReservingState::InSlab { duty, .. } => duty.discharge(),
        }
    }
}

/// Reserved memory without content.
#[must_use = "what was reserved must be given back"]
#[derive(Debug)]
pub struct Room {
    range: ExecRange,
    home: Home,
    duty: Duty,
}

impl Room {
    /// Where it is.
    #[must_use]
    pub const fn range(&self) -> ExecRange {
        self.range
    }
}

/// An image on its way into its room.
#[must_use = "what was reserved must be given back"]
#[derive(Debug)]
pub struct Initializing {
    room: Room,
    pending: Vec<PendingInitialize>,
}

impl Initializing {
    /// Whether the image went in a single request.
    #[must_use]
    pub const fn is_one_request(&self) -> bool {
        self.pending.len() == 1
    }
}

/// An image in its room.
#[must_use = "what was loaded must be released"]
#[derive(Debug)]
pub struct Loaded {
    room: Room,
    keys: Vec<ExecAddr>,
    since: Instant,
}

impl Loaded {
    /// When the executor said that it is in place.
    #[must_use]
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// Leaves the memory to the end of the session, which frees everything: it saves asking.
    pub fn leave(self) {
        self.room.duty.discharge();
    }
}

/// Memory on its way back.
#[must_use = "a failure to free shows only here"]
#[derive(Debug)]
pub struct Releasing {
    pending: Option<PendingFree>,
    /// What becomes free in a slab when the answer is good.
    part: Option<ExecRange>,
}

impl Memory {
    /// A manager of the executor's memory.
    ///
    /// # Errors
    /// When the executor does not offer what the strategy needs.
    pub fn new(caller: Caller, strategy: Strategy) -> Result<Self, MemoryError> {
        let page_size = caller.peer().page_size();
        let calls = Calls::new(caller)?;
        let slabs = match strategy {
            Strategy::Generic => None,
            Strategy::Slab { .. } if calls.form == Form::Whole => return Err(MemoryError::NoSlabs),
            Strategy::Slab { size } => Some(Slabs::new(page_size, size)),
        };
        Ok(Self { calls, page_size, slabs, on_their_way: VecDeque::new(), refused: HashMap::new(), slabs_asked: 0 })
    }

    /// Asks for `size` bytes, without waiting.
    ///
    /// # Errors
    /// When the call cannot be sent.
    pub fn reserve(&mut self, size: u64) -> Result<Reserving, MemoryError> {
        let duty = |caller: &Caller| Duty::new(caller.clone(), Held::Asked(size));
        let Some(slabs) = &mut self.slabs else {
            let pending = self.calls.reserve(size)?;
            let duty = duty(&self.calls.caller);
            return Ok(Reserving(ReservingState::Asked { pending, size, duty }));
        };
        if let Some(range) = slabs.take(size) {
            return Ok(Reserving(ReservingState::Ready(self.room_at(range, Home::Slab))));
        }
        let part = slabs.rounded(size).ok_or(MemoryError::TooMuch(size))?;
        let number = match self.on_their_way.iter_mut().find(|coming| coming.left >= part) {
            Some(coming) => {
                coming.left -= part;
                coming.number
            }
            None => self.ask_for_slab(size)?,
        };
        Ok(Reserving(ReservingState::InSlab { size, number, duty: duty(&self.calls.caller) }))
    }

    /// Waits for the memory that was asked for.
    ///
    /// # Errors
    /// When the executor has none, or none that is of use; then it is given back.
    pub fn room(&mut self, reserving: Reserving) -> Result<Room, MemoryError> {
        match reserving.0 {
            ReservingState::Ready(room) => Ok(room),
            ReservingState::Asked { pending, size, duty } => {
                duty.discharge();
                Ok(self.room_at(self.reserved(pending, size)?, Home::Reservation))
            }
            ReservingState::InSlab { size, number, duty } => {
                duty.discharge();
                self.room_in_slab(size, number)
            }
        }
    }

    /// A room of `size` bytes, which slab `number` was asked for.
    fn room_in_slab(&mut self, size: u64, mut number: u64) -> Result<Room, MemoryError> {
        loop {
            if let Some(range) = self.slabs.as_mut().and_then(|slabs| slabs.take(size)) {
                return Ok(self.room_at(range, Home::Slab));
            }
            if let Some(error) = self.refused.remove(&number) {
                return Err(error);
            }
            // None may be on its way any more: somebody else was given the room, or was told of the refusal.
            if self.on_their_way.is_empty() {
                number = self.ask_for_slab(size)?;
            }
            if let Some(coming) = self.on_their_way.pop_front() {
                match self.reserved(coming.pending, coming.size) {
                    Ok(range) => self.slabs.iter_mut().for_each(|slabs| slabs.add(range)),
                    Err(error) => drop(self.refused.insert(coming.number, error)),
                }
            }
        }
    }

    /// Asks for a slab of which `size` bytes are spoken for; returns its number.
    fn ask_for_slab(&mut self, size: u64) -> Result<u64, MemoryError> {
        let Some(slabs) = &self.slabs else { return Err(MemoryError::NoSlabs) };
        let whole = slabs.fresh_size(size).map_err(MemoryError::TooMuch)?;
        let left = whole - slabs.rounded(size).unwrap_or(whole);
        let pending = self.calls.reserve(whole)?;
        self.slabs_asked += 1;
        let number = self.slabs_asked;
        self.on_their_way.push_back(ComingSlab { number, pending, size: whole, left });
        Ok(number)
    }

    /// Where the `size` bytes are that were asked for.
    fn reserved(&self, pending: Pending<Reserve>, size: u64) -> Result<ExecRange, MemoryError> {
        let base = match pending.wait()?.read()? {
            Expected(Ok(base)) => base,
            Expected(Err(text)) => return Err(MemoryError::Reserve { size, text: text.to_string() }),
        };
        match ExecRange::from_len(base, size) {
            Some(range) if !base.is_null() && base.is_aligned(self.page_size) => Ok(range),
            _ => {
                // Its owner may know what to do with it. That it is of no use is what gets reported.
                let _ = self.calls.release(&[base]).map_err(MemoryError::from).and_then(PendingFree::wait);
                Err(MemoryError::BadBase { size, base, page_size: self.page_size })
            }
        }
    }

    /// Sends an image into its room, without waiting. The segments lie in the room, ascending.
    ///
    /// # Errors
    /// When it cannot be sent; the room is given back.
    pub fn initialize(&mut self, room: Room, segments: &[Segment]) -> Result<Initializing, MemoryError> {
        let limit = match self.calls.form {
            Form::Whole => u64::MAX,
            Form::Regions => self.calls.caller.peer().max_message(),
        };
        let mut initializing = Initializing { room, pending: Vec::new() };
        for mut batch in batches::batches(segments, self.page_size, limit) {
            if self.calls.form == Form::Whole {
                calls::begin_at_base(&mut batch, initializing.room.range.start());
            }
            match self.calls.initialize(initializing.room.range.start(), &batch) {
                Ok(pending) => initializing.pending.push(pending),
                Err(error) => {
                    let Initializing { room, pending } = initializing;
                    self.give_up(room, &wait_for_all(pending).0);
                    return Err(error.into());
                }
            }
        }
        Ok(initializing)
    }

    /// Waits until the executor has taken the image.
    ///
    /// # Errors
    /// When it refuses; the room is given back.
    pub fn loaded(&mut self, initializing: Initializing) -> Result<Loaded, MemoryError> {
        let Initializing { room, pending } = initializing;
        match wait_for_all(pending) {
            (keys, Ok(since)) => Ok(Loaded { room, keys, since }),
            (initialized, Err(error)) => {
                match self.calls.form {
                    // LLVM 19's executor has dropped the reservation.
                    Form::Whole => room.duty.discharge(),
                    Form::Regions => self.give_up(room, &initialized),
                }
                Err(error)
            }
        }
    }

    /// Gives an image's memory back, without waiting.
    ///
    /// # Errors
    /// When the call cannot be sent.
    pub fn release(&mut self, loaded: Loaded) -> Result<Releasing, MemoryError> {
        let Loaded { room, keys, .. } = loaded;
        self.free(room, &keys)
    }

    /// Gives an empty room back, without waiting.
    ///
    /// # Errors
    /// When the call cannot be sent.
    pub fn abandon(&mut self, room: Room) -> Result<Releasing, MemoryError> {
        self.free(room, &[])
    }

    /// Waits until memory is given back.
    ///
    /// # Errors
    /// When the executor did not free it.
    pub fn released(&mut self, releasing: Releasing) -> Result<(), MemoryError> {
        let Releasing { pending, part } = releasing;
        pending.map_or(Ok(()), PendingFree::wait)?;
        match (&mut self.slabs, part) {
            (Some(slabs), Some(part)) => Ok(slabs.give_back(part)?),
            _ => Ok(()),
        }
    }

    /// Gives back what the manager itself holds, the slabs, in a session that goes on. Otherwise its end frees them.
    ///
    /// # Errors
    /// When the executor did not free them.
    pub fn close(mut self) -> Result<(), MemoryError> {
        // One that was refused is nothing to give back.
        let coming: Vec<_> = self.on_their_way.drain(..).collect();
        let late = coming.into_iter().filter_map(|slab| self.reserved(slab.pending, slab.size).ok());
        let late: Vec<_> = late.map(|range| range.start()).collect();
        let mut bases = self.slabs.as_mut().map(Slabs::drain).unwrap_or_default();
        bases.extend(late);
        if bases.is_empty() { Ok(()) } else { self.calls.release(&bases)?.wait() }
    }

    fn room_at(&self, range: ExecRange, home: Home) -> Room {
        Room { range, home, duty: Duty::new(self.calls.caller.clone(), Held::Range(range)) }
    }

    fn free(&mut self, room: Room, keys: &[ExecAddr]) -> Result<Releasing, MemoryError> {
        let Room { range, home, duty } = room;
        // Sent or not: when it cannot be sent, asking again is of no use. The session is over, or the executor does not
        // offer to free; the end of the session frees everything.
        duty.discharge();
        let pending = match home {
            Home::Reservation => Some(self.calls.release(&[range.start()])?),
            Home::Slab if keys.is_empty() => None,
            Home::Slab => Some(self.calls.deinitialize(keys)?),
        };
        // LLVM's executors keep the record of a region and refuse to fill its range again.
        let reusable = keys.is_empty() || self.calls.caller.peer().dialects().contains(Dialects::GRAFT);
        Ok(Releasing { pending, part: (home == Home::Slab && reusable).then_some(range) })
    }

    /// Gives memory back whose image was refused; the refusal is what gets reported.
    fn give_up(&mut self, room: Room, keys: &[ExecAddr]) {
        if let Ok(releasing) = self.free(room, keys) {
            let _ = self.released(releasing);
        }
    }
}

/// Waits for every answer, so that what is given back then is not still being filled. Returns the keys of what was
/// filled, and when the last of it was, or the first refusal.
fn wait_for_all(pending: Vec<PendingInitialize>) -> (Vec<ExecAddr>, Result<Instant, MemoryError>) {
    let (mut keys, mut outcome) = (Vec::new(), Ok(Instant::now()));
    for answer in pending.into_iter().map(PendingInitialize::wait) {
        match answer {
            Ok((key, arrived)) => {
                keys.push(key);
                outcome = outcome.map(|_| arrived);
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    (keys, outcome)
}
