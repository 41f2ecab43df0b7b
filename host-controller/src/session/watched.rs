//! Writes that notice when the other side takes nothing in.
//!
//! A write to a full line waits for as long as the other side sleeps, and a line of any kind has no limit of its own. What
//! is too long for any buffer is written in pieces while another thread watches; it shuts the wire when nothing moves, which
//! ends the write.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Bytes that fit the buffers of a fresh line of any kind, and the pieces in which more is written.
const PIECE: usize = 16 << 10;

/// Bytes per second of the slowest line that is thought of, a serial one at 115,200 bits per second, and some slower.
const SLOWEST: u32 = 10_000;

/// How long `len` bytes may be on their way.
pub(super) fn time_on_the_slowest_line(len: usize) -> Duration {
    Duration::from_secs_f64(len as f64 / f64::from(SLOWEST))
}

/// Why bytes were not written.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The line refused them.
    Failed(io::Error),
    /// Nothing was taken in for so long.
    Stuck(Duration),
}

/// The writing side of a wire.
pub(super) struct Watched {
    writer: Box<dyn Write + Send>,
    /// More went over it than all buffers are sure to hold.
    is_filled: bool,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("is_filled", &self.is_filled).finish_non_exhaustive()
    }
}

impl Watched {
    pub(super) const fn new(writer: Box<dyn Write + Send>) -> Self {
        Self { writer, is_filled: false }
    }

    /// Writes all of `bytes`; when nothing of them moves for `patience`, `shut` is called, which must end the write.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        patience: Duration,
        shut: &(dyn Fn() + Send + Sync),
    ) -> Result<(), WriteError> {
        self.is_filled |= bytes.len() > PIECE;
        if !self.is_filled {
            return self.writer.write_all(bytes).and_then(|()| self.writer.flush()).map_err(WriteError::Failed);
        }
        let limit = patience.saturating_add(time_on_the_slowest_line(PIECE));
        let is_stuck = AtomicBool::new(false);
        let written = thread::scope(|scope| {
            let (moved, moves) = mpsc::channel();
            let watch = || {
                let moves = moves;
                loop {
                    match moves.recv_timeout(limit) {
                        Ok(()) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                        Err(RecvTimeoutError::Timeout) => {
                            is_stuck.store(true, Ordering::Relaxed);
                            shut();
                            break;
                        }
                    }
                }
            };
            // Without a thread to watch it the write is as good as without a limit.
            let _ = thread::Builder::new().name(String::from("session watch")).spawn_scoped(scope, watch);
            for piece in bytes.chunks(PIECE) {
                self.writer.write_all(piece)?;
                // Nobody listens when there is no thread.
                let _ = moved.send(());
            }
            self.writer.flush()
        });
        written.map_err(|error| match is_stuck.load(Ordering::Relaxed) {
            true => WriteError::Stuck(limit),
            false => WriteError::Failed(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_write_that_nobody_takes_in_ends_and_a_slow_one_does_not() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let handle = ours.try_clone().unwrap();
        let shut = move || drop(handle.shutdown(Shutdown::Both));
        let mut writer = Watched::new(Box::new(ours));
        let large = vec![7; 1 << 20];
        let slow = thread::spawn(move || {
            let mut taken = vec![0; 1 << 20];
            for part in taken.chunks_mut(128 << 10) {
                thread::sleep(Duration::from_millis(30));
                theirs.read_exact(part).unwrap();
            }
            theirs
        });
        // The whole takes longer than the patience; every piece is allowed the time it may take as well.
        writer.write(&large, Duration::from_millis(50), &shut).unwrap();
        let theirs = slow.join().unwrap();
        let began = Instant::now();
        let stuck = writer.write(&large, Duration::from_millis(50), &shut);
        assert!(matches!(stuck, Err(WriteError::Stuck(_))), "{stuck:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        drop(theirs);
        assert!(matches!(writer.write(b"small", Duration::from_millis(50), &shut), Err(WriteError::Failed(_))));
    }
}
