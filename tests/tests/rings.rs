//! What loaded code in ring 3 of a bare machine cannot do: reach the runtime, or the processor's own state. Each attempt ends
//! in its fault, the next load works, and no memory is missing.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use graft_protocol::{
    AddrsArgs, CallMainArgs, CallOutcome, ExecAddr, Fault, FaultKind, LookupArgs, Prot, Seq, SymbolDef, SymbolQuery,
    Text, call, decode, map_key,
};
use graft_qemu::MachineKind;
use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::raw::{self, bytes_of, expected};
use graft_tests::rig::{Load, PAGE, Rig, on_executors, segment};
use graft_tests::target::Target;
use graft_tests::{objects, place};

const MACHINES: [Option<MachineKind>; 2] = [Some(MachineKind::Microvm), Some(MachineKind::Q35)];

/// Where the image lies: what is read, what runs, and what is written, stacks among it.
const IMAGE: RangeInclusive<u64> = 0x10_0000..=0x1a_0000;
const RUNTIME_TEXT: u64 = 0x11_0000;

/// What only the runtime may reach: the image, all memory at once (page tables are somewhere in it), the heap, the
/// registers of the interrupt controllers.
const RUNTIME: [u64; 7] = [
    0x10_0000,
    RUNTIME_TEXT,
    0x15_0000,
    0xffff_8000_0100_0000,
    0xffff_c000_0000_0000,
    0xffff_e800_0000_0000,
    0xffff_e800_0000_1000,
];

/// Bytes into a stub of the entry page: behind the read of the return address, and the system call itself.
const STUB: u64 = 16;
const PAST_THE_READ: u64 = 4;
const SYSTEM_CALL: u64 = 13;

fn function(rig: &mut Rig, name: &str) -> u64 {
    let handle: ExecAddr = decode(&rig.client.map[map_key::LIBRARY]).unwrap();
    let symbols = [SymbolQuery { name: Text::new(name), required: true }];
    let request = LookupArgs { instance: rig.dylibs(), handle, symbols: Seq::new(&symbols) };
    let reply = rig.client.call::<call::Lookup>(&request);
    let found = expected::<Seq<'_, SymbolDef>>(&reply).unwrap();
    found.iter().next().unwrap().addr.0
}

/// The stubs that call the controller.
fn dispatch_stubs(rig: &mut Rig) -> [u64; 3] {
    let [ours, runtime] = ["graft_dispatch", "__orc_rt_jit_dispatch"].map(|name| function(rig, name));
    [ours, runtime, rig.client.symbol("__llvm_orc_SimpleRemoteEPC_dispatch_fn").0]
}

/// Loads `code`, runs it as `main`, and takes it away again.
fn run(rig: &mut Rig, code: &[u8]) -> Result<i64, Fault> {
    let base = rig.reserve(PAGE).unwrap();
    assert_eq!(rig.initialize(&[segment(Prot::ReadExec, base, code)]), Ok(base));
    let request = CallMainArgs { entry: base, args: Seq::default(), console: ExecAddr::NULL };
    let reply = rig.client.call::<call::CallMain>(&request);
    let outcome = match decode(&reply).unwrap() {
        CallOutcome::Returned(value) | CallOutcome::Exited(value) => Ok(value),
        CallOutcome::Faulted(fault) => Err(fault),
        CallOutcome::Refused(text) => panic!("refused: {text}"),
    };
    rig.release(Load::Llvm22, base).unwrap();
    outcome
}

/// Runs each attempt, which must end as it says, and then a good load.
fn attempt(rig: &mut Rig, what: &str, code: &[u8], ends: impl FnOnce(&Result<i64, Fault>) -> bool) {
    let outcome = run(rig, code);
    assert!(ends(&outcome), "{what}: {outcome:x?}");
    rig.good_load(Load::Llvm22);
}

fn is(outcome: &Result<i64, Fault>, kind: FaultKind) -> bool {
    outcome.as_ref().is_err_and(|fault| fault.kind == kind)
}

/// A page fault at `address`, where something is mapped that is not for ring 3.
fn is_kept_out(outcome: &Result<i64, Fault>, address: u64) -> bool {
    let is_it = |fault: &Fault| fault.address == ExecAddr(address) && fault.code & Fault::PF_PRESENT != 0;
    is(outcome, FaultKind::PAGE_FAULT) && outcome.as_ref().is_err_and(is_it)
}

/// On machines of each kind: `attempts`, between which no memory is lost.
fn on_machines(attempts: impl Fn(&mut Rig)) {
    on_executors(&MACHINES, |rig| {
        // The first calls ever take memory that stays.
        rig.good_load(Load::Llvm22);
        attempts(rig);
        let before = rig.bytes_free();
        attempts(rig);
        assert_eq!(rig.bytes_free(), before);
    });
}

/// `mov register, value`, for the registers up to RDI.
fn set(register: u8, value: u64) -> Vec<u8> {
    [&[0x48, 0xb8 + register][..], &value.to_le_bytes()].concat()
}

const RCX: u8 = 1;
const RDX: u8 = 2;
const RSP: u8 = 4;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// `mov r8, value`.
fn set_r8(value: u64) -> Vec<u8> {
    [&[0x49, 0xb8][..], &value.to_le_bytes()].concat()
}

/// Jumps to `address`.
fn jump(address: u64) -> Vec<u8> {
    // mov r11, address; jmp r11
    [&[0x49, 0xbb][..], &address.to_le_bytes(), &[0x41, 0xff, 0xe3]].concat()
}

/// Calls `address`.
fn call_of(address: u64) -> Vec<u8> {
    // sub rsp, 8; mov r11, address; call r11; add rsp, 8
    [&[0x48, 0x83, 0xec, 8, 0x49, 0xbb][..], &address.to_le_bytes(), &[0x41, 0xff, 0xd3, 0x48, 0x83, 0xc4, 8]].concat()
}

/// Calls `address` and returns 0.
fn call_and_return(address: u64) -> Vec<u8> {
    // ...xor eax, eax; ret
    [&call_of(address)[..], &[0x31, 0xc0, 0xc3]].concat()
}

#[test]
fn the_runtime_is_out_of_reach() {
    on_machines(|rig| {
        for address in RUNTIME {
            // mov eax, [rdi]; mov [rdi], eax; lock inc [rdi]
            for access in [&[0x8b, 0x07][..], &[0x89, 0x07], &[0xf0, 0xff, 0x07]] {
                let code = [&set(RDI, address)[..], access, &[0xc3]].concat();
                attempt(rig, "access", &code, |outcome| is_kept_out(outcome, address));
            }
            attempt(rig, "jump", &jump(address), |outcome| is_kept_out(outcome, address));
            // mov rsp, address + 8; push rax; and as a place to return from.
            let push = [set(RSP, address + 8), vec![0x50]].concat();
            attempt(rig, "push", &push, |outcome| is_kept_out(outcome, address));
            let ret = [set(RSP, address), vec![0xc3]].concat();
            attempt(rig, "ret", &ret, |outcome| is_kept_out(outcome, address));
        }
        let page = function(rig, "puts") & !(PAGE - 1);
        let write = [&set(RDI, page)[..], &[0x89, 0x07, 0xc3]].concat();
        attempt(rig, "write the entry page", &write, |outcome| is_kept_out(outcome, page));
    });
}

#[test]
fn the_runtime_does_not_reach_there_for_loaded_code() {
    on_machines(|rig| {
        let exported = [
            "puts",
            "graft_write",
            "graft_dispatch",
            "memcpy",
            "strlen",
            "free",
            "realloc",
            "graft_set_thread_pointer",
        ]
        .map(|name| function(rig, name));
        let [puts, write, dispatch, memcpy, strlen, free, realloc, thread_pointer] = exported;
        for address in RUNTIME {
            let given = |function: u64| [set(RDI, address), set(RSI, 64), call_and_return(function)].concat();
            for reads in [puts, write, strlen] {
                attempt(rig, "read for me", &given(reads), |outcome| is_kept_out(outcome, address));
            }
            let sent = [set(RDX, address), set(RCX, 64), call_and_return(dispatch)].concat();
            attempt(rig, "send that", &sent, |outcome| is_kept_out(outcome, address));
            let copied = [set(RDI, address), set(RSI, rig.witness.0), set(RDX, 8), call_and_return(memcpy)].concat();
            attempt(rig, "copy there", &copied, |outcome| is_kept_out(outcome, address));
            // What is no block is refused.
            for refuses in [free, realloc] {
                attempt(rig, "give back", &given(refuses), |outcome| *outcome == Ok(0));
            }
            // mov eax, fs:[0]
            let behind =
                [&set(RDI, address)[..], &call_of(thread_pointer), &[0x64, 0x8b, 0x04, 0x25, 0, 0, 0, 0]].concat();
            attempt(rig, "thread pointer", &behind, |outcome| is_kept_out(outcome, address));
        }
        // The end of what there is, and wild ones.
        for address in [0, 8, 0x7fff_ffff_ffff, 0x8000_0000_0000, 0xffff_7fff_ffff_ffff, u64::MAX] {
            let code = [set(RDI, address), set(RSI, u64::MAX), call_and_return(write)].concat();
            attempt(rig, "write from nowhere", &code, |outcome| is(outcome, FaultKind::PAGE_FAULT));
        }
    });
}

#[test]
fn system_calls_lead_where_they_should_or_nowhere() {
    on_machines(|rig| {
        let (puts, exit) = (function(rig, "puts"), function(rig, "exit"));
        let wild = [18, 23, 24, 255, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 61, 1 << 63, u64::MAX];
        for number in wild {
            let code = [set_r8(number), jump(puts + SYSTEM_CALL)].concat();
            attempt(rig, "no such function", &code, |outcome| is(outcome, FaultKind::INVALID_OPCODE));
        }
        // From elsewhere no number is good.
        for number in (0..23).chain(wild) {
            let code = [&set_r8(number)[..], &[0x0f, 0x05, 0xc3]].concat();
            attempt(rig, "own system call", &code, |outcome| is(outcome, FaultKind::INVALID_OPCODE));
        }
        for stack in [0, 8, 0x8000_0000_0000, u64::MAX, RUNTIME_TEXT, 0xffff_8000_0100_0000, 0x1a_0000] {
            let through = [set(RSP, stack), jump(puts)].concat();
            attempt(rig, "wild stack", &through, Result::is_err);
            let past = [set(RSP, stack), set(RDI, 0), jump(puts + PAST_THE_READ)].concat();
            attempt(rig, "wild stack behind the read", &past, |outcome| is(outcome, FaultKind::PAGE_FAULT));
            // The system call needs no stack, the return to ring 3 does not, and the instruction after it does.
            let putchar = function(rig, "graft_uptime_ns");
            let comes_back = [set(RSP, stack), jump(putchar + PAST_THE_READ)].concat();
            attempt(rig, "return to a wild stack", &comes_back, Result::is_err);
            let ends = [set(RSP, stack), set(RDI, 77), jump(exit + PAST_THE_READ)].concat();
            attempt(rig, "exit on a wild stack", &ends, |outcome| *outcome == Ok(77));
        }
        // Past the last stub, up to the end of the page: whatever is there does no harm.
        let page = puts & !(PAGE - 1);
        let dispatch = dispatch_stubs(rig);
        // Calls of the controller would wait for it.
        let calls = |address: &u64| dispatch.contains(&(address & !(STUB - 1)));
        for address in (page..page + PAGE).step_by(61).filter(|address| !calls(address)) {
            let code = [set(RSI, 0), set(RDI, 0), set(RDX, 0), jump(address)].concat();
            attempt(rig, "somewhere in the entry page", &code, |_| true);
        }
    });
}

/// Instructions for the machine alone, each with the fault it ends in.
const PRIVILEGED: &[(&str, &[u8], FaultKind)] = &[
    ("cli", &[0xfa], FaultKind::GENERAL_PROTECTION),
    ("sti", &[0xfb], FaultKind::GENERAL_PROTECTION),
    ("hlt", &[0xf4], FaultKind::GENERAL_PROTECTION),
    ("mov cr0, rax", &[0x0f, 0x22, 0xc0], FaultKind::GENERAL_PROTECTION),
    ("mov rax, cr0", &[0x0f, 0x20, 0xc0], FaultKind::GENERAL_PROTECTION),
    ("mov cr3, rax", &[0x0f, 0x22, 0xd8], FaultKind::GENERAL_PROTECTION),
    ("mov rax, cr3", &[0x0f, 0x20, 0xd8], FaultKind::GENERAL_PROTECTION),
    ("mov cr4, rax", &[0x0f, 0x22, 0xe0], FaultKind::GENERAL_PROTECTION),
    ("mov cr8, rax", &[0x44, 0x0f, 0x22, 0xc0], FaultKind::GENERAL_PROTECTION),
    ("mov dr7, rax", &[0x0f, 0x23, 0xf8], FaultKind::GENERAL_PROTECTION),
    ("mov dr0, rax", &[0x0f, 0x23, 0xc0], FaultKind::GENERAL_PROTECTION),
    ("mov rax, dr6", &[0x0f, 0x21, 0xf0], FaultKind::GENERAL_PROTECTION),
    ("clts", &[0x0f, 0x06], FaultKind::GENERAL_PROTECTION),
    ("lmsw ax", &[0x0f, 0x01, 0xf0], FaultKind::GENERAL_PROTECTION),
    ("wrmsr", &[0x0f, 0x30], FaultKind::GENERAL_PROTECTION),
    ("rdmsr", &[0x0f, 0x32], FaultKind::GENERAL_PROTECTION),
    ("lgdt [rsp]", &[0x0f, 0x01, 0x14, 0x24], FaultKind::GENERAL_PROTECTION),
    ("lidt [rsp]", &[0x0f, 0x01, 0x1c, 0x24], FaultKind::GENERAL_PROTECTION),
    ("lldt ax", &[0x0f, 0x00, 0xd0], FaultKind::GENERAL_PROTECTION),
    ("ltr ax", &[0x0f, 0x00, 0xd8], FaultKind::GENERAL_PROTECTION),
    ("sgdt [rsp]", &[0x0f, 0x01, 0x04, 0x24], FaultKind::GENERAL_PROTECTION),
    ("sidt [rsp]", &[0x0f, 0x01, 0x0c, 0x24], FaultKind::GENERAL_PROTECTION),
    ("sldt eax", &[0x0f, 0x00, 0xc0], FaultKind::GENERAL_PROTECTION),
    ("str eax", &[0x0f, 0x00, 0xc8], FaultKind::GENERAL_PROTECTION),
    ("smsw eax", &[0x0f, 0x01, 0xe0], FaultKind::GENERAL_PROTECTION),
    ("invlpg [rsp]", &[0x0f, 0x01, 0x3c, 0x24], FaultKind::GENERAL_PROTECTION),
    ("invd", &[0x0f, 0x08], FaultKind::GENERAL_PROTECTION),
    ("wbinvd", &[0x0f, 0x09], FaultKind::GENERAL_PROTECTION),
    ("xsetbv", &[0x0f, 0x01, 0xd1], FaultKind::GENERAL_PROTECTION),
    ("swapgs", &[0x0f, 0x01, 0xf8], FaultKind::GENERAL_PROTECTION),
    ("sysretq", &[0x48, 0x0f, 0x07], FaultKind::GENERAL_PROTECTION),
    // A protection fault on Intel's processors; this is one of AMD's, which do not know them in 64-bit mode.
    ("sysenter", &[0x0f, 0x34], FaultKind::INVALID_OPCODE),
    ("sysexit", &[0x0f, 0x35], FaultKind::INVALID_OPCODE),
    ("wrfsbase rax", &[0xf3, 0x48, 0x0f, 0xae, 0xd0], FaultKind::INVALID_OPCODE),
    ("vmcall", &[0x0f, 0x01, 0xc1], FaultKind::INVALID_OPCODE),
    ("in al, dx", &[0xec], FaultKind::GENERAL_PROTECTION),
    ("in eax, 0x60", &[0xe5, 0x60], FaultKind::GENERAL_PROTECTION),
    ("out 0xf4, al", &[0xe6, 0xf4], FaultKind::GENERAL_PROTECTION),
    ("out dx, eax", &[0xef], FaultKind::GENERAL_PROTECTION),
    ("rep insb", &[0xf3, 0x6c], FaultKind::GENERAL_PROTECTION),
    ("rep outsb", &[0xf3, 0x6e], FaultKind::GENERAL_PROTECTION),
    // push 0x3002; popfq; in al, dx: the flags do not give the right to.
    ("popfq with IOPL", &[0x68, 2, 0x30, 0, 0, 0x9d, 0xec], FaultKind::GENERAL_PROTECTION),
    // mov eax, selector; mov ss, eax; and so on.
    ("mov ss, 16", &[0xb8, 16, 0, 0, 0, 0x8e, 0xd0], FaultKind::GENERAL_PROTECTION),
    ("mov ds, 16", &[0xb8, 16, 0, 0, 0, 0x8e, 0xd8], FaultKind::GENERAL_PROTECTION),
    ("mov fs, 40", &[0xb8, 40, 0, 0, 0, 0x8e, 0xe0], FaultKind::GENERAL_PROTECTION),
    ("mov gs, 8", &[0xb8, 8, 0, 0, 0, 0x8e, 0xe8], FaultKind::GENERAL_PROTECTION),
    // push 0x102; popfq; nop
    ("trap flag", &[0x68, 2, 1, 0, 0, 0x9d, 0x90, 0x90], FaultKind::DEBUG),
    ("int3", &[0xcc], FaultKind::BREAKPOINT),
];

#[test]
fn privileged_instructions_fault() {
    on_machines(|rig| {
        for (name, code, kind) in PRIVILEGED {
            attempt(rig, name, code, |outcome| is(outcome, *kind));
        }
        // push 8; push rsp; retfq; and push 16; push rsp; pushfq; push 8; push rsp; iretq: to the code segment of ring 0.
        // Protection faults, but for QEMU, whose processor reads the stack as ring 0 would, and trips over SMAP.
        for returns in [&[0x6a, 8, 0x54, 0x48, 0xcb][..], &[0x6a, 16, 0x54, 0x9c, 0x6a, 8, 0x54, 0x48, 0xcf]] {
            attempt(rig, "return to ring 0", returns, Result::is_err);
        }
    });
}

#[test]
fn interrupts_cannot_be_raised() {
    on_machines(|rig| {
        for vector in 0..=u8::MAX {
            let ends = |outcome: &Result<i64, Fault>| match vector {
                3 => is(outcome, FaultKind::BREAKPOINT),
                // The error code names the vector: eight times its number (SDM 3A §6.13), sixteen times in QEMU.
                _ => {
                    let codes = [8, 16].map(|scale| u64::from(vector) * scale + 2);
                    let names = |fault: &Fault| codes.contains(&fault.code);
                    is(outcome, FaultKind::GENERAL_PROTECTION) && outcome.as_ref().is_err_and(names)
                }
            };
            attempt(rig, &format!("int {vector}"), &[0xcd, vector, 0xc3], ends);
        }
    });
}

#[test]
fn a_stack_pointer_into_the_runtime_does_not_hide_from_the_time_limit() {
    on_executors(&[Some(MachineKind::Microvm)], |rig| {
        const LIMIT_NS: u64 = 30_000_000;
        assert_eq!(rig.client.call::<call::TimeLimit>(&LIMIT_NS), bytes_of(&LIMIT_NS));
        for stack in IMAGE.step_by(0x3000) {
            // mov rsp, stack; jmp self
            let code = [set(RSP, stack + 0x1000), vec![0xeb, 0xfe]].concat();
            attempt(rig, "loop", &code, |outcome| is(outcome, FaultKind::TIMED_OUT));
        }
    });
}

#[test]
fn a_call_starts_with_clean_registers_and_flags() {
    on_machines(|rig| {
        // Fills the x87 and vector registers, the others, and the flags: fld1; pcmpeqd xmm0, xmm0; mov r12 to r15, -1;
        // ldmxcsr; std; ud2
        let fill = [
            &[0xd9, 0xe8, 0x66, 0x0f, 0x76, 0xc0, 0x66, 0x0f, 0x6f, 0xf8][..],
            &[0x49, 0xc7, 0xc4, 0xff, 0xff, 0xff, 0xff, 0x49, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff],
            &[0x68, 0, 0, 0, 0, 0x0f, 0xae, 0x14, 0x24, 0xfd, 0x0f, 0x0b],
        ]
        .concat();
        // or together what must be 0: movq rax, xmm0; movq rcx, xmm7; or rax, rcx; or rax, rbx, rbp, r8 to r15.
        let mut look = vec![0x66, 0x48, 0x0f, 0x7e, 0xc0, 0x66, 0x48, 0x0f, 0x7e, 0xf9];
        for register in [1, 3, 5] {
            look.extend([0x48, 0x09, 0xc0 | register << 3]);
        }
        for register in 0..8 {
            look.extend([0x4c, 0x09, 0xc0 | register << 3]);
        }
        // pushfq; pop rcx; and ecx, 0x47f00 (TF to NT, AC; IF is off); or eax, ecx; ret
        look.extend([0x9c, 0x59, 0x81, 0xe1, 0x00, 0x7f, 0x04, 0x00, 0x48, 0x09, 0xc8, 0xc3]);
        // stmxcsr [rsp - 8]; mov eax, [rsp - 8]; ret
        let mxcsr = [0x0f, 0xae, 0x5c, 0x24, 0xf8, 0x8b, 0x44, 0x24, 0xf8, 0xc3];
        // fnstenv [rsp - 64]; mov eax, [rsp - 56]: the tag word, of empty registers; ret
        let tags = [0xd9, 0x74, 0x24, 0xc0, 0x0f, 0xb7, 0x44, 0x24, 0xc8, 0xc3];
        for (what, code, value) in [("registers", &look[..], 0), ("mxcsr", &mxcsr, 0x1f80), ("x87", &tags, 0xffff)] {
            attempt(rig, "fill", &fill, |outcome| is(outcome, FaultKind::INVALID_OPCODE));
            attempt(rig, what, code, |outcome| *outcome == Ok(value));
        }
    });
}

fn graft(target: &str, ring: &str, object: &Path) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(["run", "-t", target, "--ring", ring]).arg(object);
    child::run(&mut command, Duration::from_secs(60)).unwrap()
}

#[test]
fn a_program_gets_into_ring_0_on_request_alone() {
    let machine = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &machine else { panic!("one of ours") };
    let unit = Unit { source: "privileged.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch("rings")).unwrap();
    // Also after a session that was there.
    for _ in 0..2 {
        let refused = graft(name, "user", &object);
        assert_eq!(refused.end, End::Exit(139), "{}", refused.stderr);
        let why = "the instruction is `cli`: it is privileged, and needs `--ring kernel` on a bare-metal target";
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        let done = graft(name, "kernel", &object);
        assert_eq!((done.end, &done.stdout[..]), (End::Exit(5), &b"in ring 0?\n"[..]), "{}", done.stderr);
    }
}

#[test]
fn where_there_is_no_ring_0_a_program_is_not_run() {
    let unit = Unit { source: "privileged.c", compiler: Compiler::Gcc, flags: "-O1" };
    let object = objects::compile(&unit, &place::scratch("rings-hosted")).unwrap();
    let refused = graft("hosted", "kernel", &object);
    assert_eq!((refused.end, &refused.stdout[..]), (End::Exit(125), &b""[..]), "{}", refused.stderr);
    assert!(refused.stderr.contains("loaded code cannot run in ring 0 there"), "{}", refused.stderr);
}

#[test]
fn the_ring_is_chosen_before_there_is_memory() {
    on_machines(|rig| {
        // The rig has reserved some.
        assert_eq!(rig.client.call::<call::Ring>(&0), [3]);
        attempt(rig, "cli", &[0xfa, 0xc3], |outcome| is(outcome, FaultKind::GENERAL_PROTECTION));
    });
}

#[test]
fn no_system_call_reads_or_writes_the_runtime_for_its_caller() {
    const MARK: &[u8] = b"the mark";
    on_executors(&MACHINES, |rig| {
        let (puts, write) = (function(rig, "puts"), function(rig, "graft_write"));
        let page = puts & !(PAGE - 1);
        let dispatch = dispatch_stubs(rig);
        for number in (1..=24).filter(|number| !dispatch.contains(&(page + number * STUB))) {
            for address in RUNTIME {
                let base = rig.reserve(2 * PAGE).unwrap();
                let data = base.checked_add(PAGE).unwrap();
                let mut pairs = vec![(address, data.0), (address, address)];
                if page + number * STUB != write {
                    // As a length it is only that, and prints all there is.
                    pairs.push((data.0, address));
                }
                let calls = pairs.into_iter().map(|(first, second)| {
                    let arguments = [set(RDI, first), set(RSI, second), set(RDX, MARK.len() as u64)].concat();
                    [&set_r8(number)[..], &arguments, &call_and_return(puts + SYSTEM_CALL)].concat()
                });
                for code in calls {
                    let segments = [segment(Prot::ReadExec, base, &code), segment(Prot::ReadWrite, data, MARK)];
                    assert_eq!(rig.initialize(&segments), Ok(base));
                    let request = CallMainArgs { entry: base, args: Seq::default(), console: ExecAddr::NULL };
                    let reply = rig.client.call::<call::CallMain>(&request);
                    let outcome: CallOutcome<'_> = decode(&reply).unwrap();
                    assert_eq!(rig.read(data, MARK.len() as u64), MARK, "number {number}, {address:#x}: {outcome:x?}");
                    let keys = [base];
                    let request = AddrsArgs { instance: rig.manager(), addrs: Seq::new(&keys) };
                    assert_eq!(raw::outcome(&rig.client.call::<call::Deinitialize>(&request)), Ok(()));
                }
                rig.release(Load::Llvm22, base).unwrap();
            }
        }
        rig.good_load(Load::Llvm22);
    });
}
