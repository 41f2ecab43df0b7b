//! Ends in order when interrupted.
#![expect(unsafe_code, reason = "handles signals")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that come together are one wish: timeout(1) sends its signal twice, to the process and to its group.
const SAME_WISH: Duration = Duration::from_millis(300);

/// The writing end of the pipe to the thread that acts on signals.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Calls `stop` with the signal, on a thread of its own, when this process is interrupted, terminated or loses its terminal.
/// When that happens again, the process ends at once.
///
/// A handler and not a mask with `sigwait`: some waits (those of `serialport`) go with a mask of their own, and a signal
/// that comes meanwhile would end the process. Programs we start get the usual behaviour: `exec` resets handlers.
pub(crate) fn on_interrupt(stop: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    // A handler must not wait, not even while nobody reads.
    // SAFETY: takes numbers only.
    if unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // From now on it belongs to the handler, which may run at any time: it is never closed.
    PIPE.store(writer.into_raw_fd(), Ordering::Release);
    let mut signals = File::from(std::os::fd::OwnedFd::from(reader));
    thread::Builder::new().name(String::from("signals")).spawn(move || {
        let mut signal = [0];
        if signals.read_exact(&mut signal).is_err() {
            return;
        }
        let first = Instant::now();
        stop(i32::from(signal[0]));
        while signals.read_exact(&mut signal).is_ok() {
            if first.elapsed() >= SAME_WISH {
                process::exit(128 + i32::from(signal[0]));
            }
        }
    })?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal)?;
    }
    Ok(())
}

/// Ends the process by `signal`, as if it had not been handled: shells stop their own loops only then.
pub(crate) fn die_of(signal: i32) -> ! {
    // SAFETY: takes numbers only; the default action of a signal may be restored at any time.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: takes a number only.
    unsafe { libc::raise(signal) };
    // It is blocked.
    process::exit(128 + signal);
}

fn handle(signal: i32) -> io::Result<()> {
    // SAFETY: all zeroes is a valid value of this type: no flags, an empty mask, the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a valid number, a valid action and a place for the old one. The handler makes one system call that may be
    // made there (signal-safety(7)) and otherwise only reads an atomic and keeps `errno`.
    if unsafe { libc::sigaction(signal, &raw const action, &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
        // Started with `nohup`: it shall outlive its terminal. (Shells ignore SIGINT for what runs in the background, where
        // it still is the way to end it.)
        // SAFETY: a valid number and an action that was valid a moment ago.
        unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
    }
    Ok(())
}

extern "C" fn on_signal(signal: i32) {
    let number = signal.to_le_bytes();
    // SAFETY: the address of this thread's own variable, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid as just said; whatever was interrupted may be about to read it, so it is put back.
    let before = unsafe { *errno };
    // SAFETY: writes one byte of a local array to a descriptor that is ours and never closed. A full pipe holds enough.
    let _ = unsafe { libc::write(PIPE.load(Ordering::Acquire), number.as_ptr().cast(), 1) };
    // SAFETY: as above.
    unsafe { *errno = before };
}
