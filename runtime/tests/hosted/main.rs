//! The hosted executor as a process, with machine code of our own: faults, exports, the C library, the heap.
//!
//! The snippets are assembled into this test and sent from there. `0x1111111111111111` and so on in them are replaced by
//! addresses that are known only then.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
#![expect(unsafe_code, reason = "reads the bytes of the snippets, which lie between labels")]

mod client;

use std::arch::global_asm;

use graft_protocol::{ExecAddr, FaultKind};

use client::{Client, ECHO, End, PAGE};

/// Declares snippets: an accessor to the bytes of each.
macro_rules! snippets {
    ($($name:ident: $($line:literal),+;)*) => {$(
        global_asm!(
            concat!(".globl graft_", stringify!($name), "_start"),
            concat!("graft_", stringify!($name), "_start:"),
            $($line,)+
            concat!(".globl graft_", stringify!($name), "_end"),
            concat!("graft_", stringify!($name), "_end:"),
        );

        fn $name() -> Vec<u8> {
            unsafe extern "C" {
                #[link_name = concat!("graft_", stringify!($name), "_start")]
                static START: u8;
                #[link_name = concat!("graft_", stringify!($name), "_end")]
                static END: u8;
            }
            let (start, end) = (&raw const START, &raw const END);
            // SAFETY: both labels belong to the block of code above, which lies between them.
            unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }.to_vec()
        }
    )*};
}

snippets! {
    returns_argc: "mov eax, edi", "ret";
    first_byte_of_argv_1: "mov rax, [rsi + 8]", "movzx eax, byte ptr [rax]", "ret";
    invalid_opcode: "ud2";
    divides_by_zero: "xor ecx, ecx", "mov eax, 1", "xor edx, edx", "div ecx", "ret";
    writes_to_null: "mov dword ptr [8], 1", "ret";
    writes_to_its_code: "lea rax, [rip]", "mov byte ptr [rax], 0x90", "ret";
    jumps_into_its_data: "lea rax, [rip + 0x1000 - 7]", "jmp rax";
    breakpoint: "int3", "ret";
    non_canonical: "movabs rax, 0x8000000000000000", "mov rax, [rax]", "ret";
    recurses: "2: sub rsp, 1000", "call 2b", "ret";
    recurses_and_calls:
        "2: sub rsp, 8", "mov edi, 16", "movabs rax, 0x1111111111111111", "call rax", "call 2b", "add rsp, 8", "ret";
    smashes_its_stack: "mov rsp, 16", "push rax", "ret";
    leaves_flags: "std", "fldz", "fldz", "fldz", "mov eax, 7", "ret";
    touches_reserved: "movabs rax, 0x1111111111111111", "mov qword ptr [rax], 5", "mov rax, [rax]", "ret";
    calls_with_pointer:
        "sub rsp, 8", "movabs rdi, 0x2222222222222222", "xor eax, eax", "movabs rdx, 0x1111111111111111", "call rdx",
        "add rsp, 8", "ret";
    calls_with_small_number:
        "sub rsp, 8", "mov edi, 9", "movabs rdx, 0x1111111111111111", "call rdx", "ud2";
    prints_in_turn:
        "push rbx", "movabs rbx, 0x2222222222222222",
        "mov rdi, rbx", "movabs rdx, 0x1111111111111111", "call rdx",
        "lea rdi, [rbx + 16]", "mov esi, 42", "xor eax, eax", "movabs rdx, 0x3333333333333333", "call rdx",
        "mov rdi, rbx", "movabs rdx, 0x1111111111111111", "call rdx",
        "xor eax, eax", "pop rbx", "ret";
    dispatches:
        "sub rsp, 8", "xor edi, edi", "mov esi, 0x20000", "movabs rdx, 0x2222222222222222", "mov ecx, 5",
        "movabs rax, 0x1111111111111111", "call rax", "mov eax, eax", "add rsp, 8", "ret";
    duplicates_and_frees:
        "push rbx", "movabs rdi, 0x1111111111111111", "movabs rax, 0x2222222222222222", "call rax",
        "movzx ebx, byte ptr [rax]", "mov rdi, rax", "movabs rax, 0x3333333333333333", "call rax",
        "mov eax, ebx", "pop rbx", "ret";
    allocates_and_frees:
        "push rbx", "push r12", "sub rsp, 8", "mov r12d, 1000",
        "2: mov edi, 100000", "movabs rax, 0x1111111111111111", "call rax", "mov rbx, rax",
        "mov dword ptr [rbx + 99996], 77",
        "mov rdi, rbx", "movabs rax, 0x2222222222222222", "call rax",
        "dec r12d", "jnz 2b", "mov eax, 3", "add rsp, 8", "pop r12", "pop rbx", "ret";
}

/// Replaces the placeholders by values.
fn patched(mut code: Vec<u8>, values: &[u64]) -> Vec<u8> {
    for (index, value) in values.iter().enumerate() {
        let placeholder = [0x11 * (index as u8 + 1); 8];
        let places: Vec<_> = (0..code.len().saturating_sub(7)).filter(|at| code[*at..*at + 8] == placeholder).collect();
        assert!(!places.is_empty(), "no placeholder {index}");
        places.iter().for_each(|at| code[*at..*at + 8].copy_from_slice(&value.to_le_bytes()));
    }
    code
}

/// Loads and runs code that must fault; then code that must not.
fn faults(client: &mut Client, code: &[u8], kind: FaultKind) -> graft_protocol::Fault {
    let at = client.load(code, b"\xc3");
    let End::Faulted(fault) = client.run(at, &[]) else { panic!("{kind}: no fault") };
    assert_eq!(fault.kind, kind);
    let good = client.load(&returns_argc(), b"");
    assert_eq!(client.run(good, &["a", "b"]), End::Returned(2));
    fault
}

#[test]
fn main_runs_with_its_arguments() {
    let mut client = Client::new();
    let at = client.load(&first_byte_of_argv_1(), b"");
    assert!(at < 1 << 31, "code for the small model links");
    assert_eq!(client.run(at, &["", "xyz"]), End::Returned(i64::from(b'x')));
    let at = client.load(&returns_argc(), b"");
    assert_eq!(client.run(at, &[]), End::Returned(0));
    let refused = client.run(at + PAGE, &[]);
    assert_eq!(refused, End::Refused(format!("{:#x} is not in initialized executable memory", at + PAGE)));
    client.finish();
}

#[test]
fn faults_are_values_and_the_next_call_works() {
    let mut client = Client::new();
    let c = &mut client;
    let fault = faults(c, &invalid_opcode(), FaultKind::INVALID_OPCODE);
    assert!(!fault.ip.is_null());
    faults(c, &divides_by_zero(), FaultKind::DIVIDE_ERROR);
    let fault = faults(c, &writes_to_null(), FaultKind::PAGE_FAULT);
    assert_eq!(fault.address, ExecAddr(8));
    assert!(fault.to_string().starts_with("page fault writing 0x8 (not mapped), instruction at "), "{fault}");
    let fault = faults(c, &writes_to_its_code(), FaultKind::PAGE_FAULT);
    assert!(fault.to_string().contains("(not allowed there)"), "{fault}");
    let fault = faults(c, &jumps_into_its_data(), FaultKind::PAGE_FAULT);
    assert!(fault.to_string().starts_with("page fault executing "), "{fault}");
    faults(c, &breakpoint(), FaultKind::BREAKPOINT);
    faults(c, &non_canonical(), FaultKind::GENERAL_PROTECTION);
    faults(c, &recurses(), FaultKind::STACK_OVERFLOW);
    faults(c, &smashes_its_stack(), FaultKind::PAGE_FAULT);
    client.finish();
}

#[test]
fn a_stack_that_runs_out_inside_the_executors_functions_is_the_codes() {
    let mut client = Client::new();
    // Sixteen bytes a level: the last push before the stacks change is the first to find no room.
    for name in ["graft_uptime_ns", "malloc"] {
        let function = client.find(name);
        faults(&mut client, &patched(recurses_and_calls(), &[function]), FaultKind::STACK_OVERFLOW);
    }
    client.finish();
}

#[test]
fn registers_left_in_disorder_stay_with_the_code() {
    let mut client = Client::new();
    let at = client.load(&leaves_flags(), b"");
    for _ in 0..4 {
        assert_eq!(client.run(at, &[]), End::Returned(7));
    }
    client.finish();
}

#[test]
fn reserved_memory_is_zero_and_writable_for_loaded_code() {
    let mut client = Client::new();
    let elsewhere = client.load(b"", b"");
    let at = client.load(&patched(touches_reserved(), &[elsewhere + PAGE]), b"");
    assert_eq!(client.run(at, &[]), End::Returned(5));
    client.finish();
}

#[test]
fn exit_and_abort_end_the_call() {
    let mut client = Client::new();
    for name in ["exit", "_exit", "_Exit"] {
        let exit = client.find(name);
        let at = client.load(&patched(calls_with_small_number(), &[exit]), b"");
        assert_eq!(client.run(at, &[]), End::Exited(9));
    }
    let abort = client.find("abort");
    let fault = faults(&mut client, &patched(calls_with_small_number(), &[abort]), FaultKind::ABORT);
    assert!(fault.ip.0 < 1 << 31, "the caller of abort: {fault}");
    // The C library's own way to it, through a signal.
    let raise = client.find("raise");
    let sigabrt: &[u8] = &[0xbf, 6, 0, 0, 0];
    let mut code = patched(calls_with_small_number(), &[raise]);
    let place = code.windows(5).position(|bytes| bytes == [0xbf, 9, 0, 0, 0]).unwrap();
    code[place..place + 5].copy_from_slice(sigabrt);
    faults(&mut client, &code, FaultKind::ABORT);
    client.finish();
}

#[test]
fn the_console_keeps_the_order_of_puts_and_printf() {
    let mut client = Client::new();
    let (puts, printf) = (client.find("puts"), client.find("printf"));
    let code = prints_in_turn();
    let at = client.load(&vec![0xcc; code.len()], b"");
    // The data lies one page behind the code, so its address is known once the code's is: load a second time, next to it.
    let data = at + 2 * PAGE + PAGE;
    let at = client.load(&patched(code, &[puts, data, printf]), b"by puts\0--------by printf %d\n\0");
    assert_eq!(at + PAGE, data);
    assert_eq!(client.run(at, &[]), End::Returned(0));
    assert_eq!(String::from_utf8_lossy(&client.console), "by puts\nby printf 42\nby puts\n");
    // Nobody asked for the console of the other way to run it.
    let reply = client.call::<graft_protocol::call::RunAsVoidFunction>(&ExecAddr(at));
    assert_eq!(reply, [0; 4]);
    assert_eq!(client.finish(), b"by puts\nby printf 42\nby puts\n");
}

#[test]
fn bad_pointers_given_to_the_executor_are_faults() {
    let mut client = Client::new();
    for name in ["puts", "strlen", "printf"] {
        let function = client.find(name);
        let fault = faults(&mut client, &patched(calls_with_pointer(), &[function, 0x10]), FaultKind::PAGE_FAULT);
        assert_eq!(fault.address.0 & !0xfff, 0, "{fault}");
    }
    client.finish();
}

#[test]
fn the_heap_is_the_executors_and_knows_the_c_librarys() {
    let mut client = Client::new();
    let (malloc, free) = (client.find("malloc"), client.find("free"));
    let at = client.load(&patched(allocates_and_frees(), &[malloc, free]), b"");
    assert_eq!(client.run(at, &[]), End::Returned(3));
    // strdup's block is the C library's; a heap that does not know it could only refuse to free it.
    let (strdup, text) = (client.find("strdup"), client.load(b"", b"text\0") + PAGE);
    let at = client.load(&patched(duplicates_and_frees(), &[text, strdup, free]), b"");
    assert_eq!(client.run(at, &[]), End::Returned(i64::from(b't')));
    client.finish();
}

#[test]
fn loaded_code_calls_the_controller() {
    let mut client = Client::new();
    for name in ["graft_dispatch", "__orc_rt_jit_dispatch", "__llvm_orc_SimpleRemoteEPC_dispatch_fn"] {
        let dispatch = client.find(name);
        let first = client.load(b"", b"\x01\x02\x03\x04\x05");
        let code = patched(dispatches(), &[dispatch, first + PAGE]);
        let at = client.load(&code, b"");
        assert_eq!(client.run(at, &[]), End::Returned(0x0504_0302), "{name}, echoed from {ECHO:#x}");
    }
    client.finish();
}

#[test]
fn a_usage_error_is_one() {
    for args in [&["nonsense"][..], &[], &["listen=nowhere"], &["filedescs=1"]] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_graft-runtime")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage: graft-runtime listen=HOST:PORT"));
    }
    let closed = ["filedescs=77,78"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_graft-runtime")).args(closed).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("descriptor 77 is not open"));
}
