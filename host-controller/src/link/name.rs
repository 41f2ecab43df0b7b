//! Names from object files, made fit to print: they are any bytes, of any length.

use std::fmt::Write as _;

/// How much of a name an error shows; C++ and Rust names of a few hundred bytes are common and are shown whole.
const SHOWN_BYTES: usize = 512;

/// The printable form of `name`: control characters and invalid UTF-8 escaped, the middle of a huge name left out.
#[must_use]
pub fn printable(name: &[u8]) -> String {
    if name.is_empty() {
        return "(no name)".to_owned();
    }
    let mut text = String::with_capacity(name.len().min(SHOWN_BYTES) + 24);
    let shown = name.get(..SHOWN_BYTES).unwrap_or(name);
    for chunk in shown.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    if shown.len() < name.len() {
        let _ = write!(text, "... ({} bytes)", name.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn any_bytes_become_one_short_line() {
        assert_eq!(printable(b"_ZN3foo3barEv"), "_ZN3foo3barEv");
        assert_eq!(printable("größe".as_bytes()), "größe");
        assert_eq!(printable(b"a\nb\x1b\xff"), "a\\nb\\u{1b}\\xff");
        assert_eq!(printable(b""), "(no name)");
        let long = printable(&vec![b'x'; 1 << 20]);
        assert!(long.len() < 600 && long.ends_with("... (1048576 bytes)"));
    }
}
