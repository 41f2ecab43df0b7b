//! From the first Rust instruction to a machine the executor can use: the boot check, the final page tables, the
//! clock. Nothing here allocates, and what is missing is said in plain words.
#![expect(unsafe_code, reason = "switches page tables")]

use graft_arch::machine::bare::clock::Clock;
use graft_arch::machine::bare::cpu::{Features, NoNx};
use graft_arch::machine::bare::{cpu, deadline, interrupts, segments, stacks, trap, uart};
use graft_arch::machine::boot_info::{BootInfo, BootInfoError};
use graft_arch::machine::paging::{Cache, Frame, MapError, NoFrames, Owner, PageSize, Tables};
use graft_protocol::{ExecAddr, ExecRange, Prot};

use core::sync::atomic::Ordering;

use super::exit::{CONSOLE_EXISTS, ExitCode, die};
use super::layout::{self, CallSlot};
use super::memory::{MEMORY, Memory, Store};
use super::{BarePlatform, SerialLine, ring};
use crate::bare::frames::{Frames, words_needed};
use crate::bare::memory_map::{self, PhysicalRange, PhysicalRanges};

/// Less than this beside the image cannot hold a session: tables, messages, one small program.
const LEAST_MEMORY_BYTES: u64 = 1 << 20;

/// A machine that is up.
#[derive(Debug)]
pub struct Machine {
    /// Pages, calls, console, log.
    pub platform: BarePlatform,
    /// The protocol's channel. Nothing was said on it yet.
    pub line: SerialLine,
}

/// What is missing for a start.
enum Missing {
    BootInfo(BootInfoError),
    Nx,
    Uart,
    Memory { usable_bytes: u64 },
    Tables(MapError),
}

/// Brings the machine up. Does not return when something is missing: it says what, and ends the machine.
///
/// # Safety
/// To be called once, by `graft_start`, with what that was given.
pub unsafe fn start(boot: Result<BootInfo, BootInfoError>) -> Machine {
    // SAFETY: once, by the caller's promise.
    match unsafe { try_start(boot) } {
        Ok(machine) => machine,
        Err(missing) => refuse(missing),
    }
}

fn refuse(missing: Missing) -> ! {
    match missing {
        Missing::BootInfo(error) => die(ExitCode::NoBootInfo, format_args!("cannot start: {error}")),
        Missing::Nx => die(
            ExitCode::NoNx,
            format_args!("cannot start: the processor cannot protect data from execution (no NX bit)"),
        ),
        Missing::Uart => {
            die(ExitCode::NoUart, format_args!("cannot start: no serial port (16550 UART) at 0x3f8 for the protocol"))
        }
        Missing::Memory { usable_bytes } => die(
            ExitCode::TooLittleMemory,
            format_args!(
                "cannot start: too little memory: {} KiB usable beside the runtime, at least {} KiB are needed",
                usable_bytes / 1024,
                LEAST_MEMORY_BYTES / 1024
            ),
        ),
        Missing::Tables(error) => {
            die(ExitCode::TooLittleMemory, format_args!("cannot start: building the page tables: {error}"))
        }
    }
}

/// # Safety
/// As for [`start`].
unsafe fn try_start(boot: Result<BootInfo, BootInfoError>) -> Result<Machine, Missing> {
    CONSOLE_EXISTS.store(uart::CONSOLE.set_up(), Ordering::Relaxed);
    // SAFETY: the first and only call.
    let code = unsafe { segments::load() };
    // SAFETY: the first and only call.
    unsafe { trap::load(&code) };
    let boot = boot.map_err(Missing::BootInfo)?;
    let features = Features::detect();
    features.enable().map_err(|NoNx| Missing::Nx)?;
    if !uart::LINE.set_up() {
        return Err(Missing::Uart);
    }
    let apic = if features.has_apic() { interrupts::apic_registers() } else { None };
    set_up_memory(&boot, &features, apic)?;
    interrupts::set_up_pics();
    if apic.is_some() {
        // SAFETY: `set_up_memory` mapped the registers there.
        unsafe { interrupts::connect_apic(layout::APIC.start().0) };
    }
    let clock = Clock::start();
    if apic.is_some() {
        // SAFETY: `set_up_memory` mapped the registers there.
        let number = unsafe { interrupts::apic_number(layout::APIC.start().0) };
        // SAFETY: as above.
        unsafe { deadline::set_up(layout::IO_APIC.start().0, number, &clock) };
    }
    Ok(Machine { platform: BarePlatform::new(features, clock, boot), line: SerialLine::new(clock) })
}

/// Finds the frames, builds the final page tables and switches to them.
fn set_up_memory(boot: &BootInfo, features: &Features, apic: Option<u64>) -> Result<(), Missing> {
    let image = image();
    let mut ranges = memory_map::usable(boot.regions(), image.whole);
    let usable_bytes = ranges.iter().map(|range| range.len()).sum();
    let too_little = Missing::Memory { usable_bytes };
    if usable_bytes < LEAST_MEMORY_BYTES {
        return Err(too_little);
    }
    let Some((bits, frames)) = set_up_frames(&mut ranges) else { return Err(too_little) };
    // SAFETY: the boot page tables map the first 4 GiB as they lie, and frames are taken from the lowest address on.
    let mut store = unsafe { Store::new(frames, 0) };
    let built = build_tables(&mut store, &image, bits, &ranges, features.largest_page, apic);
    let tables = built.map_err(Missing::Tables)?;
    // SAFETY: they map the image with the stack in use, the frame bits, and all frames at the window.
    unsafe { cpu::use_tables(&tables) };
    // SAFETY: mapped there by the tables now in use.
    unsafe { store.move_to(layout::PHYSICAL_WINDOW) };
    let mut memory = Memory { store, tables };
    for slot in (0..layout::MOST_CALLS).filter_map(CallSlot::at) {
        memory.demand_zero(slot.stack()).map_err(|short| Missing::Tables(short.into()))?;
    }
    ring::set_up(&mut memory, features).map_err(Missing::Tables)?;
    if boot.has_word("poison") {
        memory.store.poison();
    }
    *MEMORY.lock() = Some(memory);
    Ok(())
}

/// Sets memory apart for the frames' bits and marks all frames of `ranges` free.
fn set_up_frames(ranges: &mut PhysicalRanges) -> Option<(PhysicalRange, Frames<'static>)> {
    let bytes = words_needed(ranges).checked_mul(8)?.checked_next_multiple_of(Frame::BYTES)?;
    let bits = memory_map::take(ranges, bytes, layout::IDENTITY_END)?;
    let words = bits.start as *mut u64;
    // SAFETY: usable memory that was just set apart, mapped as it lies under the boot page tables and under the final ones;
    // page aligned. Any content is a valid number.
    let words = unsafe { core::slice::from_raw_parts_mut(words, (bits.len() / 8) as usize) };
    Some((bits, Frames::new(words, ranges)?))
}

fn build_tables(
    store: &mut Store,
    image: &Image,
    bits: PhysicalRange,
    ranges: &PhysicalRanges,
    largest: PageSize,
    apic: Option<u64>,
) -> Result<Tables, MapError> {
    let mut tables = Tables::new(store).ok_or(NoFrames { wanted: 1, free: 0 })?;
    let mut map = |virt: u64, physical: PhysicalRange, prot, cache| {
        let range = ExecRange::from_len(ExecAddr(virt), physical.len()).unwrap_or_default();
        let Some(first) = Frame::new(physical.start) else { return Ok(()) };
        tables.map(store, range, first, prot, cache, largest)
    };
    for (part, prot) in [(image.rodata, Prot::Read), (image.text, Prot::ReadExec), (image.data, Prot::ReadWrite)] {
        map(part.start, part, prot, Cache::WriteBack)?;
    }
    map(bits.start, bits, Prot::ReadWrite, Cache::WriteBack)?;
    for range in ranges {
        map(layout::PHYSICAL_WINDOW + range.start, *range, Prot::ReadWrite, Cache::WriteBack)?;
    }
    if let Some(start) = apic {
        let registers = PhysicalRange { start, end: start + Frame::BYTES };
        map(layout::APIC.start().0, registers, Prot::ReadWrite, Cache::Device)?;
        let registers = PhysicalRange { start: deadline::IO_APIC, end: deadline::IO_APIC + Frame::BYTES };
        map(layout::IO_APIC.start().0, registers, Prot::ReadWrite, Cache::Device)?;
    }
    for guard in stacks::guards() {
        let unmapped = tables.unmap(store, guard, Owner::Elsewhere);
        // The tables are not in use yet.
        unmapped?.ignore();
    }
    Ok(tables)
}

/// Where the linker script put the parts of the image.
struct Image {
    whole: PhysicalRange,
    rodata: PhysicalRange,
    text: PhysicalRange,
    data: PhysicalRange,
}

fn image() -> Image {
    unsafe extern "C" {
        safe static graft_image_start: u8;
        safe static graft_rodata_end: u8;
        safe static graft_text_end: u8;
        safe static graft_image_end: u8;
    }
    let address = |symbol: *const u8| symbol.addr() as u64;
    let start = address(&raw const graft_image_start);
    let rodata_end = address(&raw const graft_rodata_end);
    let text_end = address(&raw const graft_text_end);
    let end = address(&raw const graft_image_end);
    Image {
        whole: PhysicalRange { start, end },
        rodata: PhysicalRange { start, end: rodata_end },
        text: PhysicalRange { start: rodata_end, end: text_end },
        data: PhysicalRange { start: text_end, end },
    }
}
