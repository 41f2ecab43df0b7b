//! The line as file descriptors: a socket used both ways, or two pipes.
#![expect(unsafe_code, reason = "descriptor numbers from the command line, poll, and a TCP option std does not have")]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use graft_runtime::{Line, LineError, Patience, Phase};

use super::watch::{self, Room};

/// How long a peer may be silent in the middle of a message.
const STALL: Duration = Duration::from_secs(30);

/// How many bytes an output that has room takes without waiting (pipe(7), `PIPE_BUF`; sockets have more).
const PIECE: usize = 4096;

/// How long a line must be silent to be drained, and how long that may take at most.
const QUIET: Duration = Duration::from_millis(50);
const DRAIN: Duration = Duration::from_secs(2);

/// Two descriptors, which may be the same.
#[derive(Debug)]
pub(crate) struct FdLine {
    input: RawFd,
    output: RawFd,
    /// The owners of both; gone when the line is closed.
    owners: Mutex<Vec<OwnedFd>>,
    is_socket: bool,
}

impl FdLine {
    /// A line over a connected TCP socket.
    pub(crate) fn socket(socket: OwnedFd) -> Self {
        let fd = socket.as_raw_fd();
        watch::begin_line(fd, fd);
        Self { input: fd, output: fd, owners: Mutex::new(vec![socket]), is_socket: true }
    }

    /// A line over two descriptors this process was started with.
    pub(crate) fn pipes(input: RawFd, output: RawFd) -> Result<Self, String> {
        let mut owners = Vec::new();
        for fd in if input == output { vec![input] } else { vec![input, output] } {
            // SAFETY: F_GETFD only asks whether the descriptor is open.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                return Err(format!("descriptor {fd} is not open: {}", io::Error::last_os_error()));
            }
            // SAFETY: it is open, and whoever started this process gave it to us by number.
            owners.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        watch::begin_line(input, output);
        Ok(Self { input, output, owners: Mutex::new(owners), is_socket: false })
    }

    /// Closes both directions: the peer reads the end of the stream.
    pub(crate) fn close(&self) {
        watch::end_line();
        if let Ok(mut owners) = self.owners.lock() {
            owners.clear();
        }
    }

    /// Waits until there is something to read, or the end; `false` when `limit` runs out first.
    fn wait(&self, limit: Duration) -> Result<bool, LineError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match watch::poll(self.input, libc::POLLIN, left) {
                Ok(events) => return Ok(events != 0),
                Err(error) => retry(error)?,
            }
        }
    }

    /// Reads what has come, or waits for more; what was set aside comes first.
    fn read_now(&self, out: &mut [u8]) -> Result<usize, LineError> {
        match watch::take(out) {
            None => return Err(LineError::Closed),
            Some(0) => {}
            Some(count) => return Ok(count),
        }
        loop {
            // SAFETY: the buffer is writable for exactly that many bytes.
            let count = unsafe { libc::read(self.input, out.as_mut_ptr().cast(), out.len()) };
            match usize::try_from(count) {
                Ok(0) => return Err(LineError::Closed),
                Ok(count) => {
                    self.acknowledge();
                    return Ok(count);
                }
                Err(_) => retry(io::Error::last_os_error())?,
            }
        }
    }

    /// Waits until the output takes [`PIECE`] bytes, and sets aside what comes meanwhile: a peer that writes many requests
    /// before it reads an answer waits for us to read.
    fn wait_for_room(&self) -> Result<(), LineError> {
        let mut room = Room::Left;
        loop {
            let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let mut polls = [
                poll(self.output, libc::POLLOUT),
                poll(if room == Room::Left { self.input } else { -1 }, libc::POLLIN),
            ];
            // Nothing but the peer can help when nothing more can be set aside either.
            let millis = if room != Room::Full { -1 } else { i32::try_from(STALL.as_millis()).unwrap_or(i32::MAX) };
            // SAFETY: two valid structures, as the count says.
            match unsafe { libc::poll(polls.as_mut_ptr(), 2, millis) } {
                0 => {
                    return Err(LineError::NotReading { millis: u64::try_from(STALL.as_millis()).unwrap_or(u64::MAX) });
                }
                1.. if polls[0].revents != 0 => return Ok(()),
                1.. => room = watch::take_in(),
                _ => retry(io::Error::last_os_error())?,
            }
        }
    }

    /// Asks TCP to acknowledge at once: LLVM's tools send a message in two writes, and the second waits for that.
    fn acknowledge(&self) {
        if !self.is_socket {
            return;
        }
        let on: libc::c_int = 1;
        let len = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(4);
        // SAFETY: an int of that size. Where the option does not exist things are only slower.
        unsafe { libc::setsockopt(self.input, libc::IPPROTO_TCP, libc::TCP_QUICKACK, (&raw const on).cast(), len) };
    }
}

impl Line for FdLine {
    fn read(&self, out: &mut [u8], patience: Patience) -> Result<usize, LineError> {
        let limit = match patience {
            Patience::Idle => return self.read_now(out),
            Patience::UpTo { millis } => Duration::from_millis(millis),
            Patience::MidMessage => STALL,
        };
        match watch::take(out) {
            None => return Err(LineError::Closed),
            Some(0) => {}
            Some(count) => return Ok(count),
        }
        if self.wait(limit)? {
            return self.read_now(out);
        }
        Err(LineError::Stalled { millis: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) })
    }

    fn write(&self, bytes: &[u8]) -> Result<(), LineError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.wait_for_room()?;
            let piece = rest.get(..PIECE).unwrap_or(rest);
            // SAFETY: the slice is readable for exactly that many bytes. Rust programs ignore SIGPIPE.
            let count = unsafe { libc::write(self.output, piece.as_ptr().cast(), piece.len()) };
            match usize::try_from(count) {
                Ok(count) => rest = rest.get(count..).unwrap_or(&[]),
                Err(_) => retry(io::Error::last_os_error())?,
            }
        }
        Ok(())
    }

    fn enter(&self, phase: Phase) {
        watch::enter(phase);
    }

    fn drain(&self) {
        watch::clear();
        let deadline = Instant::now() + DRAIN;
        let mut waste = [0; 4096];
        while Instant::now() < deadline && self.wait(QUIET) == Ok(true) {
            if self.read_now(&mut waste).is_err() {
                return;
            }
        }
    }
}

/// `Ok` when the call should be tried again.
fn retry(error: io::Error) -> Result<(), LineError> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            Err(LineError::Closed)
        }
        _ => Err(LineError::Os(error.raw_os_error().unwrap_or(0))),
    }
}
