//! Which ring loaded code runs in, and the page through which it reaches the runtime from there.
//!
//! All pages of a session are for its ring: for ring 3 whatever lies in [`layout::LOADED`], for ring 0 no page at all, as
//! ring 0 may not run code of ring 3 (SMEP). The entry page has the same address in both.
#![expect(unsafe_code, reason = "promises that the exported functions may be called from ring 3")]

use core::sync::atomic::{AtomicBool, Ordering};

use graft_arch::machine::bare::cpu::{self, Features};
use graft_arch::machine::checkpoint::{Ring, user};
use graft_arch::machine::paging::{Cache, Frame, FrameStore, MapError, NoFrames, Owner, PageSize};
use graft_protocol::{ExecAddr, ExecRange, Prot};

use super::layout;
use super::memory::Memory;
use crate::exports;

/// Whether loaded code runs in ring 0.
static IN_KERNEL: AtomicBool = AtomicBool::new(false);

/// The ring that loaded code runs in.
pub(super) fn current() -> Ring {
    if IN_KERNEL.load(Ordering::Relaxed) { Ring::Kernel } else { Ring::User }
}

/// Prepares everything for ring 3. Called once, at start.
pub(super) fn set_up(memory: &mut Memory, features: &Features) -> Result<(), MapError> {
    const { assert!(exports::SERVED_COUNT <= user::MOST, "the entry page has no room for them") };
    // SAFETY: these take any arguments and touch nothing beyond the reach of their caller, by their module's rules.
    unsafe { user::set_up(layout::ENTRY_PAGE.start(), exports::served().map(|at| at.0), features) };
    let frame = memory.store.take().ok_or(NoFrames { wanted: 1, free: 0 })?;
    give_to(memory, Ring::User, frame)
}

/// Makes `ring` the one that loaded code runs in, when nothing of it is mapped.
pub(super) fn change(memory: &mut Memory, ring: Ring) {
    let Some(at) = memory.tables.translate(&memory.store, layout::ENTRY_PAGE.start()) else { return };
    let Some(frame) = Frame::new(at).filter(|_| ring != current()) else { return };
    // Its tables stay while the new entry is made, so that no frame is missing: the call stacks' marks have others.
    let unmapped = memory.tables.unmap(&mut memory.store, layout::ENTRY_PAGE, Owner::Elsewhere);
    if let Ok(flush) = unmapped {
        cpu::flush(flush);
        // The tables it takes are those that were just given back.
        let mapped = give_to(memory, ring, frame);
        debug_assert!(mapped.is_ok());
    }
}

/// Maps the entry page, in `frame`, for `ring`, and from now on all loaded code's pages.
fn give_to(memory: &mut Memory, ring: Ring, frame: Frame) -> Result<(), MapError> {
    user::write_entry_page(memory.store.page_mut(frame), ring);
    let reach = if ring == Ring::User { layout::LOADED } else { ExecRange::default() };
    memory.tables.set_user_range(reach);
    exports::set_reach(if ring == Ring::User { layout::LOADED } else { exports::EVERYTHING });
    IN_KERNEL.store(ring == Ring::Kernel, Ordering::Relaxed);
    memory.tables.map(&mut memory.store, layout::ENTRY_PAGE, frame, Prot::ReadExec, Cache::WriteBack, PageSize::Small)
}

/// Where loaded code finds the exported function `name`.
pub(super) fn export(name: &[u8]) -> Option<ExecAddr> {
    user::own_function(name).or_else(|| user::stub(exports::number(name)?))
}
