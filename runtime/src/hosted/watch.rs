//! The watch over the line while loaded code runs: a thread looks now and then whether the controller is still there. It
//! sets aside what has come, so that a Hangup among it is found, and signals the thread that runs loaded code.
//!
//! Not by a signal for all that comes: signals cut the waits of programs short (signal(7)), and one that prints is answered
//! all the time.
#![expect(unsafe_code, reason = "descriptors and signals by the system's own interface")]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use graft_runtime::{Phase, has_hangup};

/// The signal that the loaded code is to end.
pub(super) const SIGNAL: i32 = libc::SIGURG;

/// How many bytes are set aside at most: thousands of calls.
const MOST_ASIDE: usize = 256 * 1024;
/// How many are read at once.
const PIECE: usize = 4096;

/// How often to look, and how often to signal what could not be ended where it was.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const AGAIN: Duration = Duration::from_millis(1);
/// How long loaded code may go on after its session, to come to an end by itself.
const AFTER_THE_END: Duration = Duration::from_millis(50);
/// How long a call that nobody waits for may go on in spite of signals, inside the C library, before the process ends.
const GIVE_UP: Duration = Duration::from_secs(2);

static LINE: Mutex<Watched> = Mutex::new(Watched {
    input: -1,
    output: -1,
    phase: Phase::Taking,
    since: None,
    ended: false,
    aside: VecDeque::new(),
    calls: 0,
    begun: 0,
});

/// The call that is to end, and the one that runs, for the signal's handler; [`Watched::begun`] numbers them.
static CONDEMNED: AtomicUsize = AtomicUsize::new(0);
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A call begins and there was none.
static BEGINS: Condvar = Condvar::new();

/// What is known of the line. Held for moments only, and never while loaded code runs on the thread that holds it.
struct Watched {
    /// The two ends; -1 when they are closed.
    input: i32,
    output: i32,
    phase: Phase,
    /// When the session came to its end.
    since: Option<Instant>,
    /// The input has come to its end.
    ended: bool,
    /// What came ahead of being read.
    aside: VecDeque<u8>,
    /// Calls into loaded code on the stack.
    calls: usize,
    /// How many of them ever began.
    begun: usize,
}

fn line() -> MutexGuard<'static, Watched> {
    // Nothing here is left half changed by a panic.
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to watch, for the calling thread: the one that runs loaded code.
pub(super) fn install() -> io::Result<()> {
    line().aside.reserve_exact(MOST_ASIDE);
    // SAFETY: has no conditions.
    let runner = unsafe { libc::gettid() };
    thread::Builder::new().name(String::from("watch")).spawn(move || watch(runner))?;
    Ok(())
}

fn watch(runner: libc::pid_t) {
    // SAFETY: all zeroes is a value of this C structure, filled next.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a valid place.
    unsafe { libc::sigfillset(&raw mut all) };
    // Signals are for the thread that runs loaded code.
    // SAFETY: a valid set; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, ptr::null_mut()) };
    let mut pause = LOOK_EVERY;
    // The call last seen, and since when nobody waits for it.
    let mut unwanted = (0, Instant::now());
    loop {
        let idle = BEGINS.wait_while(line(), |line| line.calls == 0);
        drop(idle.unwrap_or_else(PoisonError::into_inner));
        thread::sleep(pause);
        let mut line = line();
        let is_left = line.calls > 0 && line.is_left();
        let is_last = line.calls > 0 && line.since.is_some();
        if unwanted.0 != line.begun || !(is_left || is_last) {
            unwanted = (line.begun, Instant::now());
        }
        if is_left {
            CONDEMNED.store(line.begun, Ordering::Relaxed);
        }
        drop(line);
        if unwanted.1.elapsed() >= GIVE_UP {
            give_up();
        }
        pause = if is_left { AGAIN } else { LOOK_EVERY };
        if is_left {
            let process = std::process::id();
            // SAFETY: takes numbers only. The handler is there, and decides whether anything is to be done.
            unsafe { libc::syscall(libc::SYS_tgkill, process, runner, SIGNAL) };
        }
    }
}

/// Ends the process: nothing else ends what waits inside the C library, and the session is over.
fn give_up() -> ! {
    const WORDS: &str = "graft-runtime: the session is over and its program does not come back from the C library: ending the process\n";
    // Whoever runs loaded code may be the one that holds the standard error, waiting for a reader.
    if poll(libc::STDERR_FILENO, libc::POLLOUT, Duration::ZERO).is_ok_and(|what| what & libc::POLLOUT != 0) {
        // SAFETY: readable for exactly that many bytes.
        unsafe { libc::write(libc::STDERR_FILENO, WORDS.as_ptr().cast(), WORDS.len()) };
    }
    // SAFETY: has no conditions.
    unsafe { libc::_exit(1) }
}

impl Watched {
    /// Whether loaded code that runs now is to end.
    fn is_left(&mut self) -> bool {
        match self.phase {
            Phase::Taking => false,
            Phase::Over => self.since.is_some_and(|since| since.elapsed() >= AFTER_THE_END),
            Phase::Between => {
                self.take_in();
                self.is_gone() || has_hangup(|ahead| self.aside.get(ahead).copied())
            }
        }
    }

    /// Whether the input has ended and nobody reads the output either. A peer that only closed its sending side waits for
    /// answers; a socket's two sides cannot be told apart.
    fn is_gone(&self) -> bool {
        let unread = || poll(self.output, libc::POLLOUT, Duration::ZERO).is_ok_and(|what| what & libc::POLLERR != 0);
        self.ended && (self.input == self.output || unread())
    }

    fn has_room(&self) -> bool {
        !self.ended && MOST_ASIDE - self.aside.len() >= PIECE
    }

    /// Sets aside what has come, as long as there is room. Does not wait.
    fn take_in(&mut self) {
        let mut piece = [0_u8; PIECE];
        while self.has_room() && poll(self.input, libc::POLLIN, Duration::ZERO).is_ok_and(|what| what != 0) {
            // SAFETY: the buffer is writable for exactly that many bytes. There is something to read, or the end: no waiting.
            let count = unsafe { libc::read(self.input, piece.as_mut_ptr().cast(), piece.len()) };
            match usize::try_from(count) {
                Ok(0) => self.ended = true,
                Ok(count) => self.aside.extend(piece.iter().take(count)),
                // Whoever reads next meets the same.
                Err(_) => return,
            }
        }
    }
}

/// Watches a line whose ends are `input` and `output`.
pub(super) fn begin_line(input: i32, output: i32) {
    let mut line = line();
    (line.input, line.output, line.since) = (input, output, None);
}

/// The line is closed.
pub(super) fn end_line() {
    begin_line(-1, -1);
}

/// The session's phase. Some time after its end, loaded code that still runs is signalled.
pub(super) fn enter(phase: Phase) {
    let mut line = line();
    line.phase = phase;
    if phase == Phase::Over {
        line.since = Some(Instant::now());
    }
}

/// A call into loaded code begins.
pub(super) fn begin_call() {
    let mut line = line();
    line.calls += 1;
    line.begun = line.begun.wrapping_add(1);
    RUNNING.store(line.begun, Ordering::Relaxed);
    if line.calls == 1 {
        BEGINS.notify_one();
    }
}

/// The innermost call has ended.
pub(super) fn end_call() {
    let mut line = line();
    line.calls -= 1;
    // Whatever was decided about it is about nothing any more; those around it are looked at anew.
    line.begun = line.begun.wrapping_add(1);
    RUNNING.store(line.begun, Ordering::Relaxed);
}

/// Whether the call that runs is the one that the signal was sent for.
pub(super) fn is_condemned() -> bool {
    CONDEMNED.load(Ordering::Relaxed) == RUNNING.load(Ordering::Relaxed)
}

/// Moves bytes that were set aside to `out`; `None` when there are none and the input has ended.
pub(super) fn take(out: &mut [u8]) -> Option<usize> {
    let mut line = line();
    let count = line.aside.len().min(out.len());
    out.iter_mut().zip(line.aside.drain(..count)).for_each(|(slot, byte)| *slot = byte);
    (count > 0 || !line.ended).then_some(count)
}

/// Forgets what was set aside.
pub(super) fn clear() {
    line().aside.clear();
}

/// Whether more can be set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Left,
    Full,
    /// Nothing more will come.
    Unneeded,
}

/// Sets aside what has come.
pub(super) fn take_in() -> Room {
    let mut line = line();
    line.take_in();
    match (line.ended, line.has_room()) {
        (true, _) => Room::Unneeded,
        (false, true) => Room::Left,
        (false, false) => Room::Full,
    }
}

/// What poll(2) says of `events` on `fd` within `limit`: 0 when nothing happened. Nothing ever does on -1.
pub(super) fn poll(fd: i32, events: i16, limit: Duration) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let millis = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid structure, as the count says.
    match unsafe { libc::poll(&raw mut poll, 1, millis) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(poll.revents),
    }
}
