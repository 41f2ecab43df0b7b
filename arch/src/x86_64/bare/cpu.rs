//! Processor features and control registers.
#![expect(unsafe_code, reason = "writes control registers")]

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;

use ::x86_64::instructions::tlb;
use ::x86_64::registers::control::{Cr2, Cr3, Cr3Flags, Cr4, Cr4Flags, Efer, EferFlags};
use ::x86_64::registers::model_specific::FsBase;
use ::x86_64::registers::xcontrol::{XCr0, XCr0Flags};
use ::x86_64::structures::paging::PhysFrame;
use ::x86_64::{PhysAddr, VirtAddr};
use graft_protocol::{ExecAddr, ExecRange};

use crate::x86_64::paging::{Flush, Frame, PageSize, Tables};

/// Above this many pages, dropping everything is cheaper than page by page.
const MOST_SINGLE_FLUSHES: u64 = 64;

/// What the processor can do (SDM 2A, CPUID).
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Pages can be made not executable.
    pub nx: bool,
    /// The largest page.
    pub largest_page: PageSize,
    smep: bool,
    smap: bool,
    umip: bool,
    xsave: bool,
    apic: bool,
    brand: [u8; 48],
}

impl Features {
    /// Asks the processor.
    #[must_use]
    pub fn detect() -> Self {
        let largest = cpuid(0, 0)[0];
        let basic = cpuid(1, 0);
        let structured = if largest >= 7 { cpuid(7, 0) } else { [0; 4] };
        let largest_extended = cpuid(0x8000_0000, 0)[0];
        let extended = cpuid(0x8000_0001, 0);
        let mut brand = [0; 48];
        if largest_extended >= 0x8000_0004 {
            let registers = (0x8000_0002..=0x8000_0004).flat_map(|leaf| cpuid(leaf, 0));
            for (chunk, register) in brand.chunks_exact_mut(4).zip(registers) {
                chunk.copy_from_slice(&register.to_le_bytes());
            }
        }
        Self {
            nx: bit(extended[3], 20),
            largest_page: if bit(extended[3], 26) { PageSize::OneGib } else { PageSize::TwoMib },
            smep: bit(structured[1], 7),
            smap: bit(structured[1], 20),
            umip: bit(structured[2], 2),
            xsave: bit(basic[2], 26),
            apic: bit(basic[3], 9),
            brand,
        }
    }

    /// Whether there is a local interrupt controller.
    #[must_use]
    pub const fn has_apic(&self) -> bool {
        self.apic
    }

    /// Whether there is `xrstor`.
    #[must_use]
    pub const fn has_xsave(&self) -> bool {
        self.xsave
    }

    /// The processor's name, or nothing when it does not tell.
    #[must_use]
    pub fn brand(&self) -> &str {
        let until = self.brand.iter().position(|byte| *byte == 0).unwrap_or(self.brand.len());
        let bytes = self.brand.get(..until).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default().trim()
    }

    /// Names what [`Self::enable`] switches on.
    pub fn protections(&self) -> impl Iterator<Item = &'static str> {
        let all = [(self.nx, "NX"), (self.smep, "SMEP"), (self.smap, "SMAP"), (self.umip, "UMIP")];
        all.into_iter().filter_map(|(on, name)| on.then_some(name))
    }

    /// Switches on what protects, and what code compiled for this processor may use: NX, SMEP, SMAP, UMIP, SSE, AVX.
    ///
    /// # Errors
    /// When the processor has no NX: nothing was changed then.
    pub fn enable(&self) -> Result<(), NoNx> {
        if !self.nx {
            return Err(NoNx);
        }
        // SAFETY: NX exists (checked); the boot page tables do not use bit 63, so no mapping changes its meaning.
        unsafe { Efer::update(|efer| efer.insert(EferFlags::NO_EXECUTE_ENABLE)) };
        let mut cr4 = Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE;
        cr4.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, self.smep);
        cr4.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, self.smap);
        cr4.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, self.umip);
        cr4.set(Cr4Flags::OSXSAVE, self.xsave);
        // SAFETY: each bit is set only where CPUID has it (SSE is part of x86-64). Whoever touches user pages
        // sets RFLAGS.AC for it.
        unsafe { Cr4::update(|old| old.insert(cr4)) };
        if self.xsave {
            let offered = cpuid(0xd, 0)[0];
            let mut state = XCr0Flags::X87 | XCr0Flags::SSE;
            let avx512 = XCr0Flags::OPMASK | XCr0Flags::ZMM_HI256 | XCr0Flags::HI16_ZMM;
            for group in [XCr0Flags::AVX, avx512] {
                let bits = group.bits();
                if u64::from(offered) & bits == bits {
                    state |= group;
                }
            }
            // SAFETY: CR4.OSXSAVE is set and the processor offers each of these components.
            unsafe { XCr0::write(state) };
        }
        Ok(())
    }
}

/// The processor cannot make pages not executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNx;

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = __cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

const fn bit(register: u32, number: u32) -> bool {
    register >> number & 1 != 0
}

/// Makes `tables` the ones the processor uses.
///
/// # Safety
/// They must map the running code, its stack and everything it will touch, where it expects them, and live as long as
/// they are in use. Everything reachable under other tables only is gone.
pub unsafe fn use_tables(tables: &Tables) {
    let root = PhysFrame::containing_address(PhysAddr::new_truncate(tables.root().address()));
    // SAFETY: the caller's promise.
    unsafe { Cr3::write(root, Cr3Flags::empty()) };
}

/// Carries out a flush.
pub fn flush(duty: Flush) {
    if let Some(range) = duty.into_range() {
        flush_range(range);
    }
}

fn flush_range(range: ExecRange) {
    let pages = range.len().div_ceil(Frame::BYTES);
    if pages > MOST_SINGLE_FLUSHES {
        // No page is global, so that this drops all translations (SDM 3A §4.10.4.1).
        tlb::flush_all();
        return;
    }
    for page in 0..=pages {
        let address = range.start().0.saturating_add(page * Frame::BYTES);
        // SAFETY: `invlpg` only drops a cached translation; the next access walks the tables again. No `nomem`: the
        // table stores before it must be complete.
        unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
    }
}

/// Sets what `%fs` is relative to in loaded code; the executor uses it for nothing. An address that loaded code cannot
/// have changes nothing.
pub fn set_thread_pointer(address: ExecAddr) {
    // The register takes canonical addresses only (SDM 2B, WRMSR).
    if let Ok(address) = VirtAddr::try_new(address.0) {
        FsBase::write(address);
    }
}

/// Switches breakpoints off that loaded code may have left in the debug registers.
pub fn clear_breakpoints() {
    /// All off; bit 10 is always set (SDM 3B §18.2.4).
    const OFF: u64 = 0x400;
    let control: u64;
    // SAFETY: reading DR7 changes nothing.
    unsafe { asm!("mov {}, dr7", out(reg) control, options(nomem, nostack, preserves_flags)) };
    if control != OFF {
        // SAFETY: without breakpoints the processor does what it always does.
        unsafe { asm!("mov dr7, {}", in(reg) OFF, options(nomem, nostack, preserves_flags)) };
    }
}

/// Runs `act`, which may touch pages that are for ring 3, too (RFLAGS.AC; SDM 3A §4.6.1).
pub fn with_user_pages<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: sets a flag that means nothing else in ring 0, and nothing at all without SMAP. No `nomem`: what `act` does
    // stays between the two.
    unsafe { asm!("push 0x40002", "popfq") };
    let result = act();
    // SAFETY: as above. All other flags are clear in the runtime.
    unsafe { asm!("push 2", "popfq") };
    result
}

/// The address of the last page fault.
pub(super) fn fault_address() -> u64 {
    Cr2::read_raw()
}

/// The time-stamp counter.
pub(super) fn timestamp() -> u64 {
    // SAFETY: reads a counter; CR4.TSD is clear, and ring 0 may read it anyway.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Stops the processor for ever.
pub(super) fn halt() -> ! {
    loop {
        // SAFETY: with interrupts off only a non-maskable one goes on, to the next turn of the loop.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Lets interrupts in and waits for the next, which ends the wait even when it came just before.
pub(super) fn wait_for_interrupt() {
    // SAFETY: `sti` takes effect after the instruction that follows it (SDM 2B, STI), so no interrupt falls between the
    // two. The handlers keep every register. No `nomem`: they change device state this code polls.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}
