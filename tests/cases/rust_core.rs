//! A Rust object that needs `core`: formatting, slices with bounds checks, iterators. Its library is an input as well.
#![no_std]

use core::fmt::{self, Write};
use core::panic::PanicInfo;

unsafe extern "C" {
    safe fn putchar(byte: i32) -> i32;
    safe fn abort() -> !;
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| {
            putchar(byte.into());
        });
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Leaf(u16),
    Node { depth: u8, name: &'static str },
}

#[unsafe(no_mangle)]
extern "C" fn main(argc: i32, _argv: *const *const u8) -> i32 {
    let mut kinds = [Kind::Node { depth: 2, name: "root" }, Kind::Leaf(700), Kind::Leaf(7)];
    kinds.sort_unstable();
    for (place, kind) in kinds.iter().enumerate() {
        let _ = writeln!(Console, "{place}: {kind:?}");
    }
    let _ = writeln!(Console, "{:>8.3}|{:<6}|{:#06x}", 2.5f64, "ab", 0xbee);
    let chosen = kinds[usize::try_from(argc).unwrap_or(0)];
    match chosen {
        Kind::Leaf(n) => i32::from(n),
        Kind::Node { depth, .. } => depth.into(),
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    abort()
}
