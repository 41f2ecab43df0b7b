//! What a child process must do between `fork` and `exec`: tie its life to ours and let go of our descriptors. And what
//! its parent does until it ends.
#![expect(unsafe_code, reason = "runs system calls between fork and exec, and one that waits")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

/// Makes the program of `command` die (by SIGKILL) when the thread that spawns it dies, and keeps every descriptor of
/// ours but the standard three from it, also those that this process inherited without a close-on-exec mark.
pub(crate) fn tie_to_this_thread(command: &mut Command) {
    let parent = process::id();
    // SAFETY: the closure runs in the child of a process that may have threads: it only makes system calls, and neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(move || before_exec(parent)) };
}

/// Waits until the child `pid` of this process has ended, and leaves it to be reaped.
pub(crate) fn wait_for_end(pid: u32) {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: takes numbers, and a place for its answer. With `WNOWAIT` it changes nothing.
        let done = unsafe { libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
        // Any failure but an interrupted wait means that there is nothing left to wait for.
        if done == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

fn before_exec(parent: u32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: always succeeds and touches no memory.
    let parent_now = unsafe { libc::getppid() };
    if u32::try_from(parent_now) != Ok(parent) {
        // The parent died before it could be watched: nobody would ever end this machine.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    mark_descriptors();
    Ok(())
}

/// Marks every descriptor from 3 up to be closed by `exec`. Not closed here: the pipe on which the parent learns that
/// `exec` failed is among them.
fn mark_descriptors() {
    // SAFETY: takes numbers only; changes nothing but marks in this child's own table.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return;
    }
    // Linux before 5.11: one by one. A descriptor that is not open is an error nobody needs.
    // SAFETY: takes a number only.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for descriptor in 3..i32::try_from(limit).unwrap_or(1024).clamp(64, 65_536) {
        // SAFETY: takes numbers only; changes nothing but a mark in this child's own table.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_child_gets_no_descriptor_of_ours() {
        let (reader, _writer) = io::pipe().unwrap();
        // SAFETY: takes a number only. The copy is as a descriptor one inherits: without a close-on-exec mark.
        let inherited = unsafe { libc::dup(reader.as_raw_fd()) };
        assert!(inherited >= 3);
        let run = |tied| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &format!("test -e /proc/self/fd/{inherited}")]);
            if tied {
                tie_to_this_thread(&mut command);
            }
            command.status().unwrap().success()
        };
        assert!(run(false), "the test must see a descriptor that is there");
        assert!(!run(true));
        // SAFETY: closes this test's own copy.
        unsafe { libc::close(inherited) };
    }
}
