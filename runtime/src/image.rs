//! The bare machine's program: bring the machine up, then serve one session after the other, for ever.
//!
//! Words on the kernel command line change that: `poison` fills all free memory with ones first, and `selftest` (with or
//! without `echo`) runs [`bare::self_test`] in place of the executor.
#![expect(unsafe_code, reason = "the symbol that the machine starts with")]

use core::panic::PanicInfo;

extern crate alloc;
use alloc::boxed::Box;

use graft_arch::machine::boot_info::{BootInfo, BootInfoError};
use graft_runtime::{Ending, Executor, bare, exports};

/// Called once, when the machine is in 64-bit mode.
// SAFETY: the name and signature that `graft_arch` declares; no other function has it.
#[unsafe(no_mangle)]
extern "Rust" fn graft_start(boot: Result<BootInfo, BootInfoError>) -> ! {
    // SAFETY: called once, with what came from the entry.
    let machine = unsafe { bare::start(boot) };
    if machine.platform.boot().has_word("selftest") {
        bare::self_test(&machine);
    }
    // Loaded code may call the executor as long as the machine runs.
    let executor: &'static Executor<_, _> = Box::leak(Box::new(Executor::new(machine.platform, machine.line)));
    exports::install(executor);
    loop {
        // Why it ended is in the log.
        let _ = executor.serve_session(Ending::Controller);
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    bare::die(bare::ExitCode::Panic, format_args!("the executor has a bug: {info}"))
}
