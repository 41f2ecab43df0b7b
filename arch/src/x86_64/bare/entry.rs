//! From the loader to 64-bit Rust.
//!
//! PVH and multiboot2 enter alike: 32-bit protected mode, paging off, flat segments, interrupts off, EBX pointing to the
//! loader's data. One stub serves both. It maps the first 4 GiB to themselves, switches to long mode and calls
//! [`start_64`]. What can be checked later is checked later, in Rust; only a processor without long mode must be told
//! here.
#![expect(unsafe_code, reason = "the first instructions")]

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ptr;

use super::stacks;
use crate::x86_64::boot_info::{BootInfo, BootInfoError, Loader, PhysicalMemory};

/// The exit code when the processor has no long mode.
pub const NO_LONG_MODE: u8 = 0x10;

unsafe extern "Rust" {
    fn graft_start(boot: Result<BootInfo, BootInfoError>) -> !;
}

/// What the stub leaves in the first argument.
const LOADER_PVH: u32 = 1;
const LOADER_MULTIBOOT2: u32 = 2;

/// The boot page tables: a root, a table of four 1 GiB entries, and four tables of 2 MiB pages.
const TABLE_BYTES: u32 = 4096;

global_asm!(
    // The multiboot2 header (its specification, section 3.1): must lie in the first 32 KiB of the file.
    ".section .boot.headers, \"a\"",
    ".balign 8",
    ".Lheader:",
    ".long 0xe85250d6",
    ".long 0",
    ".long .Lheader_end - .Lheader",
    ".long -(0xe85250d6 + (.Lheader_end - .Lheader))",
    // Information request, of the memory map.
    ".short 1",
    ".short 0",
    ".long 12",
    ".long 6",
    ".balign 8",
    // The end of the tags.
    ".short 0",
    ".short 0",
    ".long 8",
    ".Lheader_end:",
    // The PVH entry: a note of owner Xen, type XEN_ELFNOTE_PHYS32_ENTRY.
    ".section .note.pvh, \"a\", @note",
    ".balign 4",
    ".long 4",
    ".long 8",
    ".long 18",
    ".asciz \"Xen\"",
    ".quad graft_boot_pvh",
    ".section .boot.text, \"ax\"",
    ".code32",
    ".globl graft_boot_multiboot2",
    "graft_boot_multiboot2:",
    "xor esi, esi",
    "cmp eax, 0x36d76289",
    "jne .Lenter",
    "mov esi, {multiboot2}",
    "jmp .Lenter",
    ".globl graft_boot_pvh",
    "graft_boot_pvh:",
    "mov esi, {pvh}",
    ".Lenter:",
    "cli",
    "cld",
    "mov esp, offset {stack} + {stack_top}",
    "mov edi, ebx",
    // A processor without CPUID cannot change bit 21 of the flags; one with it may still lack long mode (SDM 3A §9.8.5).
    "pushfd",
    "pop eax",
    "mov ecx, eax",
    "xor eax, 0x200000",
    "push eax",
    "popfd",
    "pushfd",
    "pop eax",
    "xor eax, ecx",
    "test eax, 0x200000",
    "jz .Lno_long_mode",
    "mov eax, 0x80000000",
    "cpuid",
    "cmp eax, 0x80000001",
    "jb .Lno_long_mode",
    "mov eax, 0x80000001",
    "cpuid",
    "bt edx, 29",
    "jnc .Lno_long_mode",
    // The root points to the next table, that to the four after it, and these map 2048 pages of 2 MiB.
    "mov ebx, offset {tables}",
    "lea eax, [ebx + {table_bytes} + 3]",
    "mov [ebx], eax",
    "mov ecx, 4",
    "lea edx, [ebx + {table_bytes}]",
    ".Lgigabytes:",
    "add eax, {table_bytes}",
    "mov [edx], eax",
    "add edx, 8",
    "loop .Lgigabytes",
    "lea edx, [ebx + 2 * {table_bytes}]",
    "mov eax, 0x83",
    "mov ecx, 2048",
    ".Lpages:",
    "mov [edx], eax",
    "add eax, 0x200000",
    "add edx, 8",
    "loop .Lpages",
    "mov cr3, ebx",
    // CR4.PAE, then EFER.LME, then CR0: PG, WP, NE, MP, PE on, EM and TS off.
    "mov eax, cr4",
    "or eax, 0x20",
    "mov cr4, eax",
    "mov ecx, 0xc0000080",
    "rdmsr",
    "or eax, 0x100",
    "wrmsr",
    "mov eax, cr0",
    "and eax, 0xfffffff3",
    "or eax, 0x80010023",
    "mov cr0, eax",
    "lgdt [.Lgdt_pointer]",
    "push 8",
    "mov eax, offset .Llong_mode",
    "push eax",
    "retf",
    ".code64",
    ".Llong_mode:",
    "mov eax, 16",
    "mov ds, eax",
    "mov es, eax",
    "mov ss, eax",
    "xor eax, eax",
    "mov fs, eax",
    "mov gs, eax",
    "lea rsp, [{stack} + {stack_top}]",
    "xor ebp, ebp",
    "mov eax, edi",
    "mov edi, esi",
    "mov esi, eax",
    "call {start}",
    "ud2",
    // No long mode: say so on the debug console and the second serial port, which needs no more set-up than QEMU's has.
    ".code32",
    ".Lno_long_mode:",
    "mov ebx, offset .Lmessage",
    ".Lnext_byte:",
    "mov al, [ebx]",
    "test al, al",
    "jz .Lsaid",
    "out 0xe9, al",
    "mov ah, al",
    "mov ecx, 0x10000",
    "mov dx, 0x2fd",
    ".Lbusy:",
    "in al, dx",
    "test al, 0x20",
    "loopz .Lbusy",
    "mov dx, 0x2f8",
    "mov al, ah",
    "out dx, al",
    "inc ebx",
    "jmp .Lnext_byte",
    ".Lsaid:",
    "mov al, {no_long_mode}",
    "out 0xf4, al",
    ".Lstop:",
    "cli",
    "hlt",
    "jmp .Lstop",
    ".code64",
    // Flat 64-bit code and data, with the accessed bit set: the processor need not write here.
    ".section .boot.data, \"a\"",
    ".balign 8",
    ".Lgdt:",
    ".quad 0",
    ".quad 0x00af9b000000ffff",
    ".quad 0x00cf93000000ffff",
    ".Lgdt_pointer:",
    ".short 23",
    ".long .Lgdt",
    ".Lmessage:",
    ".asciz \"graft: cannot start: the processor has no 64-bit mode (long mode)\\n\"",
    ".text",
    multiboot2 = const LOADER_MULTIBOOT2,
    pvh = const LOADER_PVH,
    stack = sym stacks::RUNTIME,
    stack_top = const stacks::RUNTIME_TOP,
    tables = sym BOOT_TABLES,
    table_bytes = const TABLE_BYTES,
    start = sym start_64,
    no_long_mode = const NO_LONG_MODE,
);

#[repr(C, align(4096))]
struct BootTables(UnsafeCell<[u8; 6 * TABLE_BYTES as usize]>);

// SAFETY: only the stub above and the processor touch it.
unsafe impl Sync for BootTables {}

static BOOT_TABLES: BootTables = BootTables(UnsafeCell::new([0; 6 * TABLE_BYTES as usize]));

/// The first Rust: copies what the loader told, and hands over.
extern "C" fn start_64(loader: u32, at: u64) -> ! {
    let loader = match loader {
        LOADER_PVH => Ok(Loader::Pvh),
        LOADER_MULTIBOOT2 => Ok(Loader::Multiboot2),
        _ => Err(BootInfoError::UnknownLoader),
    };
    let boot = loader.and_then(|loader| BootInfo::read(&BootMemory, loader, at));
    // SAFETY: defined by whoever links this crate into an image, with this signature, as the module's text demands.
    unsafe { graft_start(boot) }
}

/// The memory that the boot page tables map: addresses as they are, up to 4 GiB.
struct BootMemory;

impl PhysicalMemory for BootMemory {
    fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let Some(end) = at.checked_add(out.len() as u64) else { return false };
        if at == 0 || end > 1 << 32 {
            return false;
        }
        for (address, slot) in (at..end).zip(out) {
            // SAFETY: mapped readable by the boot page tables, and memory: the loader put its data there. Volatile,
            // because no Rust object lives there.
            *slot = unsafe { ptr::read_volatile(address as *const u8) };
        }
        true
    }
}
