//! The address space of the bare machine.
//!
//! ```text
//! 0x0000_0000_0010_0000  the image and the frame bits, mapped as they lie; nothing at all below
//! 0x0000_0000_0fff_f000  the entry page, where loaded code finds what it may call; from here on ring 3 has access
//! 0x0000_0000_1000_0000  loaded code, up to 2 GiB: code that is not position independent links here
//! 0x0000_0001_0000_0000  loaded code, up to 1 TiB
//! 0x0000_7f00_0000_0000  one slot per nested call: guard, stack, guard, arguments; here ring 3's access ends
//! 0xffff_8000_0000_0000  physical memory, as far as it is ours: read-write
//! 0xffff_c000_0000_0000  the executor's heap: small blocks, then large ones
//! 0xffff_e800_0000_0000  device registers
//! 0xffff_f000_0000_0000  never mapped: tokens of wrapper functions
//! ```

use graft_protocol::{ExecAddr, ExecRange};

use crate::token;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Where loaded code starts.
const LOADED_CODE: u64 = 256 * MIB;
/// The end of what is mapped as it lies.
pub(super) const IDENTITY_END: u64 = LOADED_CODE - 4096;

/// The one page that loaded code and the runtime share.
pub(super) const ENTRY_PAGE: ExecRange = range(IDENTITY_END, 4096);

/// What loaded code in ring 3 has access to, where something is mapped. No page of the runtime borders on it.
pub(super) const LOADED: ExecRange = range(IDENTITY_END, (1 << 47) - IDENTITY_END);

/// Where reservations may be, the first choice first.
pub(super) const RESERVABLE: [ExecRange; 2] =
    [range(LOADED_CODE, 2 * GIB - LOADED_CODE), range(4 * GIB, TIB - 4 * GIB)];

/// What the addresses at `at` are for; `None` where reservations may be.
pub(super) const fn purpose(at: ExecAddr) -> Option<&'static str> {
    let purpose = match at.0 {
        ..IDENTITY_END => "the executor's image and its frame bits",
        IDENTITY_END..LOADED_CODE => "the executor's functions for loaded code",
        LOADED_CODE..CALLS => return None,
        CALLS..PHYSICAL_WINDOW => "stacks and arguments of calls",
        PHYSICAL_WINDOW..HEAP => "physical memory",
        HEAP..DEVICES => "the executor's heap",
        DEVICES.. => "device registers",
    };
    Some(purpose)
}

/// Where the byte at physical address 0 would be.
pub(super) const PHYSICAL_WINDOW: u64 = 0xffff_8000_0000_0000;

const HEAP: u64 = 0xffff_c000_0000_0000;
pub(super) const SMALL_HEAP: ExecRange = range(HEAP, 64 * GIB);
pub(super) const LARGE_HEAP: ExecRange = range(HEAP + TIB, 8 * TIB);

const DEVICES: u64 = 0xffff_e800_0000_0000;
/// Where the local interrupt controller's page is mapped.
pub(super) const APIC: ExecRange = range(DEVICES, 4096);

/// Where the I/O interrupt controller's page is mapped.
pub(super) const IO_APIC: ExecRange = range(DEVICES + 4096, 4096);

// Tokens are told from addresses by being above all of them.
const _: () = assert!(IO_APIC.end().0 <= token::BASE);
const _: () = assert!(RESERVABLE[1].end().0 <= CALLS);

/// How many calls into loaded code may be on the stack at once.
pub(super) const MOST_CALLS: usize = 16;

const CALLS: u64 = 0x7f00_0000_0000;
const CALL_BYTES: u64 = 128 * MIB;
/// A whole entry of a page directory, so that a stack nobody uses costs one mark.
const STACK_BYTES: u64 = 2 * MIB;
const ARGUMENTS_START: u64 = 8 * MIB;

/// The slot of one nested call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallSlot(u64);

impl CallSlot {
    /// The slot of the call with `level` others below it; `None` when there is none that deep.
    pub(super) const fn at(level: usize) -> Option<Self> {
        if level < MOST_CALLS { Some(Self(CALLS + level as u64 * CALL_BYTES)) } else { None }
    }

    /// Unmapped, below the stack. A frame larger than a page must not jump over it.
    pub(super) const fn guard(self) -> ExecRange {
        range(self.0, STACK_BYTES)
    }

    pub(super) const fn stack(self) -> ExecRange {
        range(self.0 + STACK_BYTES, STACK_BYTES)
    }

    /// Room for arguments, mapped as far as they reach.
    pub(super) const fn arguments(self) -> ExecRange {
        range(self.0 + ARGUMENTS_START, CALL_BYTES - ARGUMENTS_START)
    }
}

const fn range(start: u64, len: u64) -> ExecRange {
    match ExecRange::from_len(ExecAddr(start), len) {
        Some(range) => range,
        // Evaluated at compile time for the constants, and no slot is near the end of the address space.
        None => unreachable!(),
    }
}
