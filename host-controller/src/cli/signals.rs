//! Ends a service in order when it is interrupted.
#![expect(unsafe_code, reason = "waits for signals")]

use std::io;
use std::mem::MaybeUninit;
use std::process;
use std::thread;

/// Calls `stop` on a thread of its own when this process is interrupted, terminated or loses its terminal. When that
/// happens again, the process ends at once.
///
/// Call it before any other thread is started: threads inherit which signals they leave to this one, and a signal that
/// nobody leaves ends the process as usual.
pub(crate) fn on_interrupt(stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: initializes the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialized by the line before.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a valid set and a valid signal number.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: a valid set; the old one is not asked for. Programs we start get a clean mask from the standard library.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    thread::Builder::new().name(String::from("signals")).spawn(move || {
        let next = || {
            let mut signal = 0;
            // SAFETY: a valid set, and a place for the number.
            let error = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
            (error == 0).then_some(signal)
        };
        if next().is_some() {
            stop();
        }
        if let Some(signal) = next() {
            process::exit(128 + signal);
        }
    })?;
    Ok(())
}
