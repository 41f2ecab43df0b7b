//! Panics that unwind through frames with destructors, and are caught.
#![no_main]

use std::panic;

unsafe extern "C" {
    safe fn puts(text: *const u8) -> i32;
}

struct Guard(&'static [u8]);

impl Drop for Guard {
    fn drop(&mut self) {
        puts(self.0.as_ptr());
    }
}

#[inline(never)]
fn deep(n: u32) -> u32 {
    let _guard = Guard(b"unwound\0");
    if n == 0 {
        panic::panic_any(40_u32)
    }
    deep(n - 1) + 1
}

#[unsafe(no_mangle)]
extern "C" fn main(argc: i32, _argv: *const *const u8) -> i32 {
    panic::set_hook(Box::new(|_| {}));
    let caught = panic::catch_unwind(|| deep(2)).unwrap_err();
    let value = *caught.downcast_ref::<u32>().unwrap();
    let index = 7 + argc as usize;
    let other = panic::catch_unwind(|| [1_u8, 2, 3].get(index).copied().expect("there is no seventh"));
    (value + u32::from(other.is_err()) + 1) as i32
}
