//! A Rust object without the standard library and without anything of `core` that is not inlined.
#![no_std]

use core::panic::PanicInfo;

unsafe extern "C" {
    safe fn putchar(byte: i32) -> i32;
}

static TABLE: [fn(u32) -> u32; 3] = [|x| x + 1, |x| x * 3, |x| x ^ 0x55];
static mut CALLS: u32 = 0;

trait Speak {
    fn word(&self) -> &'static str;
}
struct Loud;
struct Quiet;
impl Speak for Loud {
    fn word(&self) -> &'static str {
        "GRAFTED"
    }
}
impl Speak for Quiet {
    fn word(&self) -> &'static str {
        "in rust"
    }
}

fn say(speaker: &dyn Speak) {
    for byte in speaker.word().bytes() {
        putchar(byte.into());
    }
    putchar('\n' as i32);
    // SAFETY: one thread, and no reference to it lives.
    unsafe { CALLS += 1 };
}

#[unsafe(no_mangle)]
extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    let speakers: [&dyn Speak; 2] = [&Loud, &Quiet];
    for speaker in speakers {
        say(speaker);
    }
    let value = TABLE.iter().fold(4, |x, f| f(x));
    // SAFETY: as above.
    (value + unsafe { CALLS }) as i32
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
