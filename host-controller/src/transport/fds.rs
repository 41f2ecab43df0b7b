//! Descriptors that were open when this process began, named by numbers on the command line.
#![expect(unsafe_code, reason = "takes ownership of descriptors that are known by number only")]

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use thiserror::Error;

use crate::session::Wire;

/// Why a descriptor cannot be used.
#[derive(Debug, Error)]
pub enum FdsError {
    /// It is not open.
    #[error("descriptor {0} is not open; the program that starts this one must hand it over")]
    NotOpen(RawFd),
    /// It is the console or the error output.
    #[error("descriptor {0} is taken: standard output is the console, standard error the log")]
    Taken(RawFd),
    /// It was opened by this process itself.
    #[error("descriptor {0} was not handed over by the program that started this one")]
    NotInherited(RawFd),
    /// The system refused something.
    #[error("descriptor {0}: {1}")]
    System(RawFd, io::Error),
}

/// The wire that reads descriptor `input` and writes descriptor `output`, which may be the same one. Call it once per
/// number.
///
/// # Errors
/// When a number is not that of a descriptor this process was started with.
pub fn wire(input: RawFd, output: RawFd) -> Result<Wire, FdsError> {
    let reader = File::from(adopt(input)?);
    let writer = match output == input {
        true => reader.try_clone().map_err(|error| FdsError::System(output, error))?,
        false => File::from(adopt(output)?),
    };
    // Reading a pipe ends when the other side closes it, and not before: there is nothing to shut.
    Ok(Wire { reader: Box::new(reader), writer: Box::new(writer), shut: Box::new(|| {}) })
}

fn adopt(number: RawFd) -> Result<OwnedFd, FdsError> {
    if number == libc::STDOUT_FILENO || number == libc::STDERR_FILENO {
        return Err(FdsError::Taken(number));
    }
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(FdsError::NotOpen(number));
    }
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(FdsError::NotInherited(number));
    }
    // Not for the programs we start: the channel ends when this process lets go of it.
    // SAFETY: takes numbers only; the descriptor is open, as just seen.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(FdsError::System(number, io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is open and nothing in this process owns it: whatever the standard library opens is marked
    // close-on-exec from the start, and this one was not until a moment ago; marking it also keeps a second call out.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn inherited(descriptor: &impl AsRawFd) -> RawFd {
        // SAFETY: takes a number only. `dup` leaves the copy without the mark, as an inherited descriptor is.
        unsafe { libc::dup(descriptor.as_raw_fd()) }
    }

    #[test]
    fn inherited_descriptors_become_a_wire_once() {
        let (reader, writer) = io::pipe().unwrap();
        let (input, output) = (inherited(&reader), inherited(&writer));
        let mut wire = wire(input, output).unwrap();
        wire.writer.write_all(b"x").unwrap();
        let mut byte = [0];
        wire.reader.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        assert!(matches!(adopt(input), Err(FdsError::NotInherited(_))));
    }

    #[test]
    fn other_descriptors_are_refused() {
        assert!(matches!(wire(0x7fff_0000, 0), Err(FdsError::NotOpen(_))));
        assert!(matches!(adopt(1), Err(FdsError::Taken(1))));
        let (reader, _writer) = io::pipe().unwrap();
        assert!(matches!(adopt(reader.as_raw_fd()), Err(FdsError::NotInherited(_))));
    }
}
