//! Names from object files, made fit to print: they are any bytes, of any length.

use std::fmt::{self, Write as _};

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

/// How a C++ or Rust programmer wrote `name`, as [`printable`] would show it; `None` when it is not mangled.
#[must_use]
pub fn demangled(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() <= SHOWN_BYTES)?;
    let mut written = Short(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(text) {
        // Without the hash, which tells nobody anything.
        write!(written, "{rust:#}").ok()?;
    } else if text.starts_with("_Z") {
        let cpp = cpp_demangle::Symbol::new(text).ok()?;
        cpp.structured_demangle(&mut written, &cpp_demangle::DemangleOptions::default()).ok()?;
    } else {
        return None;
    }
    Some(printable(written.0.as_bytes()))
}

/// A text that takes only so much: a mangled name may refer to its own parts, and stand for one that fills all memory.
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > 4 * SHOWN_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{demangled, printable};

    #[test]
    fn any_bytes_become_one_short_line() {
        assert_eq!(printable(b"_ZN3foo3barEv"), "_ZN3foo3barEv");
        assert_eq!(printable("größe".as_bytes()), "größe");
        assert_eq!(printable(b"a\nb\x1b\xff"), "a\\nb\\u{1b}\\xff");
        assert_eq!(printable(b""), "(no name)");
        let long = printable(&vec![b'x'; 1 << 20]);
        assert!(long.len() < 600 && long.ends_with("... (1048576 bytes)"));
    }

    #[test]
    fn mangled_names_are_written_as_in_the_source() {
        let text = |name: &str| demangled(name.as_bytes());
        assert_eq!(text("_ZN3foo3barEi").as_deref(), Some("foo::bar(int)"));
        assert_eq!(text("_ZN4core9panicking5panic17h0123456789abcdefE").as_deref(), Some("core::panicking::panic"));
        assert_eq!(text("_RNvC6_123foo3bar").as_deref(), Some("123foo::bar"));
        for plain in ["main", "_Z", "_ZN", "_start", "", "_ZN3fooE\u{1}"] {
            assert_eq!(text(plain), None, "{plain}");
        }
        // Each part is twice the one before.
        let doubled: String = (0..100).map(|n| format!("S{n}_S{n}_E1aI")).collect();
        assert_eq!(demangled(format!("_Z1fI{doubled}").as_bytes()), None);
        // Hostile names cost no more than they are long.
        assert_eq!(demangled(format!("_Z{}", "N".repeat(500)).as_bytes()), None);
        assert_eq!(demangled(&[b'_', b'Z', 0xff]), None);
    }
}
