//! What happens at a trap: a demand-zero page is filled, a call into loaded code ends with its fault, and a fault of the
//! executor itself ends the machine.
#![expect(unsafe_code, reason = "resumes at checkpoints; the symbol that the machine calls")]

use graft_arch::machine::bare::deadline::{self, Nmi};
use graft_arch::machine::bare::trap::TrapFrame;
use graft_arch::machine::checkpoint;
use graft_arch::machine::fault::Trap;
use graft_arch::machine::paging::Touch;
use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind};

use super::exit::{ExitCode, die};
use super::layout::CallSlot;
use super::line;
use super::memory::MEMORY;

/// Called for every trap, on a stack of its own.
// SAFETY: the name and signature that `graft_arch` declares; no other function has it.
#[unsafe(no_mangle)]
extern "Rust" fn graft_trap(frame: &mut TrapFrame) {
    let trap = frame.trap();
    if trap.vector == Trap::NMI && watched(frame, trap) {
        return;
    }
    if trap.vector == Trap::DEBUG && (frame.is_in_handler() || checkpoint::is_in_runtime()) {
        // A breakpoint that loaded code set for us, which is gone by now, or a flag it left.
        frame.stop_stepping();
        return;
    }
    let fault = match try_fill(trap) {
        Filled::Yes => return,
        Filled::No => trap.classify(guard()),
        Filled::OutOfFrames => trap.out_of_memory(),
        // Whoever holds the lock is the executor, and would never give it back.
        Filled::Locked => die(ExitCode::Fault, format_args!("the executor failed: {}", trap.classify(None))),
    };
    // SAFETY: the frame goes on at the place returned. The loaded code's own functions and the beginnings of ours that it
    // calls own and lock nothing, on either stack; for what is at work for the executor `recover` returns no place.
    match unsafe { checkpoint::recover(fault) } {
        Some(place) => frame.resume_at(place),
        None => die_of(fault),
    }
}

/// Deals with an interrupt of the timer that watches calls; `false` when it is another's.
fn watched(frame: &mut TrapFrame, trap: Trap) -> bool {
    match deadline::on_nmi() {
        Nmi::Foreign => return false,
        Nmi::Early => {}
        // A handler may hold a lock: it comes to its end first.
        Nmi::Expired | Nmi::Tick if frame.is_in_handler() => deadline::again(),
        Nmi::Expired => end_call(frame, trap.interrupted(FaultKind::TIMED_OUT)),
        Nmi::Tick if line::is_left(checkpoint::is_in_runtime()) => {
            end_call(frame, trap.interrupted(FaultKind::CANCELLED));
        }
        Nmi::Tick => {}
    }
    true
}

fn end_call(frame: &mut TrapFrame, fault: Fault) {
    // SAFETY: as for any trap: the frame goes on at the place returned.
    if let Some(place) = unsafe { checkpoint::recover_when_possible(fault) } {
        frame.resume_at(place);
    }
}

fn die_of(fault: Fault) -> ! {
    die(ExitCode::Fault, format_args!("the executor failed: {fault}, stack at {}", fault.sp))
}

enum Filled {
    Yes,
    No,
    OutOfFrames,
    Locked,
}

fn try_fill(trap: Trap) -> Filled {
    let Some(mut memory) = MEMORY.try_lock() else { return Filled::Locked };
    let is_absent = trap.vector == Trap::PAGE_FAULT && trap.error & Fault::PF_PRESENT == 0;
    let (true, Some(memory)) = (is_absent, memory.as_mut()) else { return Filled::No };
    match memory.touch(ExecAddr(trap.cr2)) {
        Touch::Filled => Filled::Yes,
        Touch::NotDemandZero => Filled::No,
        Touch::OutOfFrames => Filled::OutOfFrames,
    }
}

/// The guard of the innermost call's stack.
fn guard() -> Option<ExecRange> {
    let level = checkpoint::depth().checked_sub(1)?;
    CallSlot::at(level).map(CallSlot::guard)
}
