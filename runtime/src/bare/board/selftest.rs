//! The machine's own test, behind the word `selftest` on the kernel command line: memory, protections, faults, the line.
//!
//! It plays the executor's part with a few bytes of code, speaks on the log, and ends the machine with its verdict. With
//! the word `echo` besides, it first sends back what comes on the line, until a zero byte; with `overflow`, it fails itself
//! in a function that loaded code called, which must end the machine as a fault of the executor.

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange, Fault, FaultKind, Prot};

use core::hint::black_box;

use super::{BarePlatform, ExitCode, Machine, die, ring};
use crate::exports;
use crate::line::{Line, Patience};
use crate::platform::{Entry, Platform, ReturnPair};
use crate::services::Services;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Runs all checks and ends the machine.
pub fn run(machine: &Machine) -> ! {
    let platform = &machine.platform;
    exports::install(&Played);
    if platform.boot().has_word("overflow") {
        let ended = overflow_ourselves(platform);
        die(ExitCode::SelfTestFailed, format_args!("self-test failed: the executor's own fault was taken: {ended:?}"));
    }
    let free = platform.frames().free;
    for (name, check) in CHECKS {
        platform.log(name);
        if let Err(why) = check(platform) {
            die(ExitCode::SelfTestFailed, format_args!("self-test failed: {name}: {why:?}"));
        }
    }
    platform.trim();
    // The heap keeps what it grew by; the checks leave nothing in it but that.
    let lost = free.saturating_sub(platform.frames().free);
    if lost > MIB / 4 {
        die(ExitCode::SelfTestFailed, format_args!("self-test failed: {lost} bytes of memory were lost"));
    }
    platform.console(b"self-test: this is the console\n");
    if platform.boot().has_word("echo") {
        echo(machine);
    }
    let micros = platform.uptime_ns() / 1000;
    die(ExitCode::SelfTestPassed, format_args!("self-test passed, {micros} us after start"))
}

/// What came instead of what should have.
#[derive(Debug)]
#[expect(dead_code, reason = "read by `Debug` alone")]
enum Wrong {
    Memory,
    Value(u64),
    Fault(Fault),
    Frames { before: u64, after: u64 },
}

type Check = fn(&BarePlatform) -> Result<(), Wrong>;

const CHECKS: &[(&str, Check)] = &[
    ("calls return and get their arguments", calls),
    ("faults end the call and the next one works", faults),
    ("a stack that runs out in our functions is the loaded code's", overflow_in_an_export),
    ("pages are protected", protections),
    ("reserved pages are zero when touched", reserved_pages),
    ("mapping and unmapping loses no frame", cycles),
    ("the heap gives large blocks back", heap),
    ("running out of memory is a fault", out_of_memory),
];

/// The executor, as far as the checks need one.
struct Played;

impl Services for Played {
    fn write_console(&self, _bytes: &[u8]) {}

    fn allocate(&self, _size: u64, _align: u64) -> Option<ExecAddr> {
        None
    }

    fn block_size(&self, _at: ExecAddr) -> Option<u64> {
        None
    }

    fn free(&self, _at: ExecAddr) {
        recurse(0);
    }

    fn call_controller(&self, _tag: ExecAddr, _args: ExecAddr, _len: u64) -> ReturnPair {
        [0, 0]
    }

    fn note_exit(&self) {}

    fn uptime_ns(&self) -> u64 {
        1
    }
}

/// Overflows the executor's own stack.
fn recurse(depth: u64) -> u64 {
    if black_box(depth) == u64::MAX { 0 } else { recurse(depth + 1).wrapping_add(black_box(1)) }
}

/// Calls the exported function `name` with a small number.
fn calling(name: &str) -> Result<[u8; 20], Wrong> {
    // sub rsp, 8; mov edi, 16; movabs rax, name; call rax
    let mut code = [0x48, 0x83, 0xec, 8, 0xbf, 16, 0, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff];
    let at = ring::export(name.as_bytes()).ok_or(Wrong::Memory)?;
    if let Some(slot) = code.get_mut(11..19) {
        slot.copy_from_slice(&at.0.to_le_bytes());
    }
    Ok(code)
}

fn overflow_ourselves(platform: &BarePlatform) -> Result<Result<u64, Fault>, Wrong> {
    let mut code = [0; 22];
    if let Some((front, back)) = code.split_first_chunk_mut() {
        *front = calling("free")?;
        back.copy_from_slice(&[0xd0, 0xc3]);
    }
    run_code(platform, &code, Entry::Void)
}

/// The loaded code's stack runs out just where one of our functions leaves it.
fn overflow_in_an_export(platform: &BarePlatform) -> Result<(), Wrong> {
    let mut code = [0; 28];
    if let Some((front, back)) = code.split_first_chunk_mut() {
        *front = calling("graft_uptime_ns")?;
        // ...call rax; call the start; ud2
        back.copy_from_slice(&[0xd0, 0xe8, 0xe6, 0xff, 0xff, 0xff, 0x0f, 0x0b]);
    }
    match run_code(platform, &code, Entry::Void)? {
        Err(fault) if fault.kind == FaultKind::STACK_OVERFLOW => {}
        Err(fault) => return Err(Wrong::Fault(fault)),
        Ok(value) => return Err(Wrong::Value(value)),
    }
    // call rax; add rsp, 8; ret
    let mut code = [0; 26];
    if let Some((front, back)) = code.split_first_chunk_mut() {
        *front = calling("graft_uptime_ns")?;
        back.copy_from_slice(&[0xd0, 0x48, 0x83, 0xc4, 8, 0xc3]);
    }
    expect_value(run_code(platform, &code, Entry::Void)?, 1)
}

const CODE: ExecAddr = ExecAddr(0x1000_0000);
const DATA: u64 = CODE.0 + 16 * PAGE;

/// Runs `code` as a function of one `int`.
fn run_code(platform: &BarePlatform, code: &[u8], entry: Entry<'_>) -> Result<Result<u64, Fault>, Wrong> {
    let range = pages(CODE.0, 1)?;
    platform.commit(range).map_err(|_| Wrong::Memory)?;
    platform.store(CODE, code);
    platform.protect(range, Prot::ReadExec).map_err(|_| Wrong::Memory)?;
    let outcome = platform.call(CODE, entry).map(|[rax, _]| rax);
    platform.unmap(range);
    Ok(outcome)
}

fn pages(start: u64, count: u64) -> Result<ExecRange, Wrong> {
    ExecRange::from_len(ExecAddr(start), count * PAGE).ok_or(Wrong::Memory)
}

fn expect_value(outcome: Result<u64, Fault>, wanted: u64) -> Result<(), Wrong> {
    match outcome {
        Ok(value) if value == wanted => Ok(()),
        Ok(value) => Err(Wrong::Value(value)),
        Err(fault) => Err(Wrong::Fault(fault)),
    }
}

fn expect_fault(outcome: Result<u64, Fault>, kind: FaultKind, address: u64) -> Result<(), Wrong> {
    match outcome {
        Err(fault) if fault.kind == kind && fault.address == ExecAddr(address) => Ok(()),
        Err(fault) => Err(Wrong::Fault(fault)),
        Ok(value) => Err(Wrong::Value(value)),
    }
}

fn calls(platform: &BarePlatform) -> Result<(), Wrong> {
    // lea eax, [rdi + 1]; ret
    let increment = [0x8d, 0x47, 0x01, 0xc3];
    expect_value(run_code(platform, &increment, Entry::Int(41))?, 42)?;
    // mov rax, [rsi + 8 * rdi]; test rax, rax; jnz +6; mov rax, [rsi + 8]; mov eax, [rax]; ret
    let main = [0x48, 0x8b, 0x04, 0xfe, 0x48, 0x85, 0xc0, 0x75, 0x06, 0x48, 0x8b, 0x46, 0x08, 0x8b, 0x00, 0xc3];
    let args: &[&[u8]] = &[b"first", b"two", b""];
    expect_value(run_code(platform, &main, Entry::Main { args })?, u64::from(u32::from_le_bytes(*b"two\0")))?;
    // mov eax, [rdi]; add eax, esi; ret
    let wrapper = [0x8b, 0x07, 0x01, 0xf0, 0xc3];
    expect_value(run_code(platform, &wrapper, Entry::Wrapper { args: &[1, 2, 0, 0, 9] })?, 0x206)?;
    // pxor xmm0, xmm0; cvttsd2si eax, xmm0; ret
    let sse = [0x66, 0x0f, 0xef, 0xc0, 0xf2, 0x0f, 0x2c, 0xc0, 0xc3];
    expect_value(run_code(platform, &sse, Entry::Void)?, 0)
}

fn faults(platform: &BarePlatform) -> Result<(), Wrong> {
    let run = |code: &[u8]| run_code(platform, code, Entry::Int(0x18));
    // mov eax, [rdi]
    expect_fault(run(&[0x8b, 0x07])?, FaultKind::PAGE_FAULT, 0x18)?;
    // std; ud2
    expect_fault(run(&[0xfd, 0x0f, 0x0b])?, FaultKind::INVALID_OPCODE, 0)?;
    // xor ecx, ecx; div ecx
    expect_fault(run(&[0x31, 0xc9, 0xf7, 0xf1])?, FaultKind::DIVIDE_ERROR, 0)?;
    // int3; int 0x80; mov rax, [the first non-canonical address]
    expect_fault(run(&[0xcc])?, FaultKind::BREAKPOINT, 0)?;
    expect_fault(run(&[0xcd, 0x80])?, FaultKind::GENERAL_PROTECTION, 0)?;
    let far = [0x48, 0xa1, 0, 0, 0, 0, 0, 0x80, 0, 0];
    expect_fault(run(&far)?, FaultKind::GENERAL_PROTECTION, 0)?;
    // mov rsp, rdi; push rax: the stack pointer itself is ruined.
    expect_fault(run(&[0x48, 0x89, 0xfc, 0x50])?, FaultKind::PAGE_FAULT, 0x10)?;
    // push rax; jmp -3
    match run(&[0x50, 0xeb, 0xfd])? {
        Err(fault) if fault.kind == FaultKind::STACK_OVERFLOW => {}
        Err(fault) => return Err(Wrong::Fault(fault)),
        Ok(value) => return Err(Wrong::Value(value)),
    }
    expect_value(run(&[0x8d, 0x47, 0x01, 0xc3])?, 0x19)
}

fn protections(platform: &BarePlatform) -> Result<(), Wrong> {
    // mov [rip - 6], eax: writes to itself.
    let outcome = run_code(platform, &[0x89, 0x05, 0xfa, 0xff, 0xff, 0xff], Entry::Void)?;
    expect_fault(outcome, FaultKind::PAGE_FAULT, CODE.0)?;
    let data = pages(DATA, 1)?;
    platform.commit(data).map_err(|_| Wrong::Memory)?;
    platform.store(data.start(), &[0xc3]);
    expect_fault(platform.call(data.start(), Entry::Void).map(|[rax, _]| rax), FaultKind::PAGE_FAULT, DATA)?;
    platform.protect(data, Prot::Read).map_err(|_| Wrong::Memory)?;
    // mov [rdi], eax; ret
    let outcome = run_code(platform, &[0x89, 0x07, 0xc3], Entry::Int(DATA as i32))?;
    expect_fault(outcome, FaultKind::PAGE_FAULT, DATA)?;
    platform.unmap(data);
    // mov eax, [rdi]; ret
    let outcome = run_code(platform, &[0x8b, 0x07, 0xc3], Entry::Int(DATA as i32))?;
    expect_fault(outcome, FaultKind::PAGE_FAULT, DATA)
}

fn reserved_pages(platform: &BarePlatform) -> Result<(), Wrong> {
    let gigabyte = pages(0x2000_0000, 1024 * MIB / PAGE)?;
    let before = platform.frames().free;
    platform.demand_zero(gigabyte).map_err(|_| Wrong::Memory)?;
    // mov eax, [rdi]; inc dword ptr [rdi]; add eax, [rdi]; ret
    let touch = [0x8b, 0x07, 0xff, 0x07, 0x03, 0x07, 0xc3];
    for offset in [0, 8 * PAGE + 4, 700 * MIB, 1024 * MIB - 4] {
        let at = (gigabyte.start().0 + offset) as i32;
        expect_value(run_code(platform, &touch, Entry::Int(at))?, 1)?;
        expect_value(run_code(platform, &touch, Entry::Int(at))?, 3)?;
    }
    platform.unmap(gigabyte);
    platform.trim();
    expect_frames(platform, before)
}

fn expect_frames(platform: &BarePlatform, before: u64) -> Result<(), Wrong> {
    let after = platform.frames().free;
    if before == after { Ok(()) } else { Err(Wrong::Frames { before, after }) }
}

fn cycles(platform: &BarePlatform) -> Result<(), Wrong> {
    let before = platform.frames().free;
    for cycle in 0..1000 {
        let range = pages(DATA + cycle % 50 * MIB, 1 + cycle % 7)?;
        platform.demand_zero(range).map_err(|_| Wrong::Memory)?;
        platform.commit(range).map_err(|_| Wrong::Memory)?;
        platform.protect(range, Prot::ReadExec).map_err(|_| Wrong::Memory)?;
        platform.unmap(range);
    }
    expect_frames(platform, before)
}

fn heap(platform: &BarePlatform) -> Result<(), Wrong> {
    let before = platform.frames().free;
    let mut block: Vec<u8> = Vec::new();
    let some = (before / 4) as usize;
    block.try_reserve_exact(some).map_err(|_| Wrong::Memory)?;
    if platform.frames().free > before - some as u64 {
        return Err(Wrong::Frames { before, after: platform.frames().free });
    }
    block.resize(some, 0xff);
    let mut too_much: Vec<u8> = Vec::new();
    if too_much.try_reserve_exact(before as usize).is_ok() {
        return Err(Wrong::Value(too_much.capacity() as u64));
    }
    drop(block);
    expect_frames(platform, before)
}

fn out_of_memory(platform: &BarePlatform) -> Result<(), Wrong> {
    let before = platform.frames().free;
    let reserved = pages(1 << 40 >> 1, 2 * before / PAGE)?;
    platform.demand_zero(reserved).map_err(|_| Wrong::Memory)?;
    if platform.commit(reserved).is_ok() {
        return Err(Wrong::Memory);
    }
    // mov edi, 1; shl rdi, 39; inc byte ptr [rdi]; add rdi, 4096; jmp -9
    let code = [0xbf, 1, 0, 0, 0, 0x48, 0xc1, 0xe7, 39, 0xfe, 0x07, 0x48, 0x81, 0xc7, 0, 0x10, 0, 0, 0xeb, 0xf5];
    match run_code(platform, &code, Entry::Void)? {
        Err(fault) if fault.kind == FaultKind::OUT_OF_MEMORY && reserved.contains(fault.address) => {}
        Err(fault) => return Err(Wrong::Fault(fault)),
        Ok(value) => return Err(Wrong::Value(value)),
    }
    platform.unmap(reserved);
    platform.trim();
    expect_frames(platform, before)
}

fn echo(machine: &Machine) {
    let mut bytes = [0; 512];
    let mut patience = Patience::Idle;
    // The peer stays silent until it hears this.
    let _ = machine.line.write(b"!");
    while let Ok(count) = machine.line.read(&mut bytes, patience) {
        let heard = bytes.get(..count).unwrap_or_default();
        let _ = machine.line.write(heard);
        if heard.contains(&0) {
            return;
        }
        // Every newline ends a message: then it may take its time.
        patience = if heard.ends_with(b"\n") { Patience::Idle } else { Patience::MidMessage };
    }
    die(ExitCode::SelfTestFailed, format_args!("self-test failed: the line was lost"));
}
