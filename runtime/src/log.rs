//! The executor's own log: the newest lines, kept for whoever asks (`graft info`).

use core::fmt::{self, Write as _};

use spin::Mutex;

/// Bytes of log kept.
pub(crate) const CAPACITY: usize = 8 * 1024;

/// The longest line; the rest of it is cut.
pub(crate) const MAX_LINE: usize = 512;

/// One line under construction.
pub(crate) type Line = heapless::String<MAX_LINE>;

/// A ring of bytes that forgets its oldest lines.
#[derive(Debug)]
pub(crate) struct Log(Mutex<Ring>);

#[derive(Debug)]
struct Ring {
    bytes: [u8; CAPACITY],
    /// Where the next byte goes.
    at: usize,
    /// Whether `at` went around once.
    full: bool,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Ring { bytes: [0; CAPACITY], at: 0, full: false }))
    }

    /// Keeps one line.
    pub(crate) fn push(&self, line: &str) {
        let mut ring = self.0.lock();
        line.bytes().chain([b'\n']).for_each(|byte| ring.push(byte));
    }

    /// Copies the kept lines, oldest first, to the front of `out`, and returns how many bytes they are.
    pub(crate) fn copy(&self, out: &mut [u8; CAPACITY]) -> usize {
        let ring = self.0.lock();
        let (newer, older) = ring.bytes.split_at(ring.at);
        let kept = older.iter().filter(|_| ring.full).chain(newer);
        // Once the ring went around, its first line has lost its beginning.
        let mut whole = !ring.full;
        let mut len = 0;
        for byte in kept {
            if whole && let Some(slot) = out.get_mut(len) {
                *slot = *byte;
                len += 1;
            }
            whole |= *byte == b'\n';
        }
        len
    }
}

impl Ring {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.at) {
            *slot = byte;
        }
        self.at += 1;
        if self.at == CAPACITY {
            self.at = 0;
            self.full = true;
        }
    }
}

/// The text of `message`, cut to one line.
pub(crate) fn line(message: fmt::Arguments<'_>) -> Line {
    struct Cut(Line);
    impl fmt::Write for Cut {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            s.chars().try_for_each(|c| self.0.push(if c == '\n' { ' ' } else { c }).map_err(|_| fmt::Error))
        }
    }
    let mut line = Cut(Line::new());
    // A line that was cut is still a line.
    let _ = line.write_fmt(message);
    line.0
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::String;

    use super::*;

    fn kept(log: &Log) -> String {
        let mut out = [0; CAPACITY];
        let len = log.copy(&mut out);
        String::from_utf8(out[..len].to_vec()).unwrap()
    }

    #[test]
    fn the_newest_lines_stay() {
        let log = Log::new();
        log.push("one");
        log.push("two");
        assert_eq!(kept(&log), "one\ntwo\n");
        for number in 0..2000 {
            log.push(&line(format_args!("line number {number}")));
        }
        let text = kept(&log);
        assert!(text.starts_with("line number ") && text.ends_with("line number 1999\n"), "{text}");
        assert!(text.len() > CAPACITY - 32);
    }

    #[test]
    fn a_line_has_no_newline_and_an_end() {
        assert_eq!(line(format_args!("a\nb")).as_str(), "a b");
        let long = std::format!("{:2000}", 1);
        assert_eq!(line(format_args!("{long}")).len(), MAX_LINE);
    }
}
