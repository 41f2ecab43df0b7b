//! The executor: one controller at a time, one request at a time, over any platform and any line.
//!
//! [`Executor::serve_session`] is the whole life of one session. Everything takes `&self`: while loaded code runs, it may
//! call back (its console, its heap, a call of the controller), and while it waits for the controller the executor goes
//! on serving. So state lies behind locks, and no lock is held while loaded code runs or loaded memory is touched.

use core::fmt;

use graft_protocol::{ExecAddr, ExecRange};
use spin::Mutex;

use crate::calls::Calls;
use crate::channel::Channel;
use crate::console::Console;
use crate::line::Line;
use crate::log::{self, Log};
use crate::memory::Memory;
use crate::platform::Platform;
use crate::session_heap::SessionHeap;

/// The largest message taken, in bytes, header included, when the machine has memory enough.
const MAX_MESSAGE: u64 = 64 << 20;

/// The least, whatever the machine.
const MIN_MESSAGE: u64 = 1 << 20;

/// One executor: it outlives the sessions it serves.
#[derive(Debug)]
pub struct Executor<P, L> {
    pub(crate) platform: P,
    pub(crate) channel: Channel<L>,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) heap: Mutex<SessionHeap>,
    pub(crate) calls: Mutex<Calls>,
    pub(crate) console: Mutex<Console>,
    pub(crate) log: Log,
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// An executor of `platform`'s machine that talks over `line`.
    pub fn new(platform: P, line: L) -> Self {
        // A message is held in memory while its segments are copied out of it: a quarter leaves room for them.
        let limit = (platform.frames().total / 4).clamp(MIN_MESSAGE, MAX_MESSAGE);
        let memory = Memory::new(platform.reservable(), platform.page_size());
        Self {
            channel: Channel::new(line, limit),
            memory: Mutex::new(memory),
            heap: Mutex::new(SessionHeap::new()),
            calls: Mutex::new(Calls::new()),
            console: Mutex::new(Console::new()),
            log: Log::new(),
            platform,
        }
    }

    /// The platform.
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// The line.
    pub const fn line(&self) -> &L {
        self.channel.line()
    }

    /// Writes one line to the executor's own log.
    pub fn log(&self, message: fmt::Arguments<'_>) {
        let line = log::line(message);
        self.log.push(&line);
        self.platform.log(&line);
    }

    /// Keeps one line in the log without showing it: nothing is wrong.
    pub(crate) fn note(&self, message: fmt::Arguments<'_>) {
        self.log.push(&log::line(message));
    }

    /// Whole pages around `range`, which was checked, so that they exist.
    pub(crate) fn pages(&self, range: ExecRange) -> ExecRange {
        range.to_pages(self.platform.page_size()).unwrap_or(range)
    }

    /// How many bytes are left on the page of `addr`.
    pub(crate) fn left_on_page(&self, addr: ExecAddr) -> u64 {
        let page_size = self.platform.page_size();
        page_size - (addr.0 & (page_size - 1))
    }
}
