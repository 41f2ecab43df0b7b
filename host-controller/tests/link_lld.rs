//! The linker beside a static one: the same objects at the same addresses must become the same bytes.
//!
//! `ld.lld` is told by a linker script to put every section where we put it; then each section is compared.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use graft::link::{Externals, Image, Input, Options, PlacedSection, parse, resolve};
use graft_protocol::ExecAddr;
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader as _, SectionHeader as _};

const LOW: u64 = 0x1000_0000;
const HIGH: u64 = 0xffff_ffff_8010_0000;

/// What the program needs from outside, within reach.
const EXTERNALS: [(&str, u64); 2] = [("report", 0x0fff_0000), ("table", 0x0fff_8000)];

const MAIN: &str = r#"
extern int helper(int), report(const char *);
extern int table[], shared[8], wide;
static int zeroed[64];
int counter = 3;
const char *const names[] = { "zero", "one", "two" };
int *pointer = &shared[5];
int (*function)(int) = helper;
long distance = (long)&zeroed[3];

static int pick(int n) {
    switch (n) {
    case 0: return counter; case 1: return zeroed[1]; case 2: return shared[2]; case 3: return wide;
    case 4: return 77; case 5: return table[n]; case 6: return -n; default: return n * 3;
    }
}

int main(int argc, char **argv) {
    for (int i = 0; i < 9; i++) zeroed[i] += pick(argc + i);
    report(names[argc % 3]);
    report(argv[0]);
    return function(argc) + *pointer + helper(counter) + (int)distance;
}
"#;

const HELPER: &str = r#"
int shared[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
int wide;
extern int counter;
static int (*const operations[])(int);
__attribute__((noinline)) static int twice(int n) { return n * 2 + counter; }
__attribute__((noinline)) static int thrice(int n) { return n * 3 - shared[n & 7]; }
static int (*const operations[])(int) = { twice, thrice };
int helper(int n) { wide += n; return operations[n & 1](n); }
"#;

/// What is outside for us is an object for the other linker.
const OUTSIDE: &str = r#"
int report(const char *text) { return *text; }
int table[16] = { 1 };
"#;

#[test]
fn gcc_position_independent() {
    for flags in [&["-fPIC"][..], &["-fPIE", "-O2"], &["-fPIC", "-O2", "-fno-plt"], &["-fPIC", "-Os"]] {
        compare("gcc", flags, LOW);
    }
}

#[test]
fn gcc_fixed_position() {
    for flags in
        [&["-fno-pic", "-fno-pie"][..], &["-fno-pic", "-fno-pie", "-O2"], &["-fno-pic", "-mcmodel=large", "-O1"]]
    {
        compare("gcc", flags, LOW);
    }
    compare("gcc", &["-fno-pic", "-fno-pie", "-mcmodel=kernel", "-O2"], HIGH);
}

#[test]
fn clang_position_independent() {
    for flags in [&["-fPIC"][..], &["-fPIE", "-O2"], &["-fPIC", "-O2", "-fno-plt"], &["-fPIC", "-O3"]] {
        compare("clang-19", flags, LOW);
    }
}

#[test]
fn clang_fixed_position() {
    for flags in [&["-fno-pic"][..], &["-fno-pic", "-O2"], &["-fno-pic", "-mcmodel=medium"]] {
        compare("clang-19", flags, LOW);
    }
    compare("clang-19", &["-fno-pic", "-mcmodel=kernel", "-O2"], HIGH);
}

/// Every way a compiler has of reaching thread-local storage: local and shared, defined here and elsewhere.
const THREAD_MAIN: &str = r#"
__thread int first = 3;
static __thread char text[5] = "four";
static __thread long zeroed[9];
extern __thread int there, elsewhere[7];
extern __thread int absent __attribute__((weak));
int plain = 5;
int helper(int), report(const char *);
__attribute__((noinline)) static long sum(void) {
    long all = 0;
    for (int i = 0; i < 9; i++) all += zeroed[i]++;
    return all + text[2];
}
int main(int argc, char **argv) {
    zeroed[argc] = first++;
    there += argc;
    if (argc == 77) return absent;
    return helper(argc) + (int)sum() + elsewhere[argc & 7] + *(&there + 1) + plain + report(argv[0]);
}
"#;

const THREAD_HELPER: &str = r#"
__thread int there = 7;
_Alignas(64) __thread int elsewhere[7];
__thread int *pointer;
extern __thread int first;
__attribute__((noinline)) int *address(void) { return &first; }
int helper(int n) { pointer = &elsewhere[n]; return *pointer + *address() + there; }
"#;

/// The models by hand: instructions that compilers rarely choose, each with several registers.
const THREAD_ASSEMBLY: &str = r#"
asm(".text\n.globl models\nmodels:\n"
    "mov first@gottpoff(%rip), %rax\n mov first@gottpoff(%rip), %r12\n mov there@gottpoff(%rip), %rsp\n"
    "add there@gottpoff(%rip), %rcx\n add first@gottpoff(%rip), %rsp\n add first@gottpoff(%rip), %r12\n"
    "add first@gottpoff(%rip), %r15\n"
    "lea there@tlsdesc(%rip), %rax\n call *there@tlscall(%rax)\n"
    "lea first@tlsdesc(%rip), %rax\n call *first@tlscall(%rax)\n"
    "mov %fs:first@tpoff, %eax\n lea there@tpoff(%rax), %rdx\n movabs $there@tpoff, %rdx\n"
    ".byte 0x66\n lea first@tlsgd(%rip), %rdi\n .value 0x6666\n rex64\n call __tls_get_addr@plt\n"
    ".byte 0x66\n lea there@tlsgd(%rip), %rdi\n .byte 0x66\n rex64\n call *__tls_get_addr@gotpcrel(%rip)\n"
    "lea there@tlsld(%rip), %rdi\n call __tls_get_addr@plt\n lea there@dtpoff(%rax), %rdx\n"
    "lea there@tlsld(%rip), %rdi\n call *__tls_get_addr@gotpcrel(%rip)\n movabs $there@dtpoff, %rdx\n"
    "ret\n");
__thread int there = 7;
__thread char first = 1;
int report(const char *);
int main(int argc, char **argv) { extern void models(void); models(); return report(argv[argc]); }
"#;

#[test]
fn tls_in_all_models_and_descriptors() {
    for compiler in ["gcc", "clang-19"] {
        for flags in [
            &["-fno-pic"][..],
            &["-fPIE", "-O2"],
            &["-fPIC"],
            &["-fPIC", "-O2"],
            &["-fPIC", "-O2", "-fno-plt"],
            &["-fPIC", "-O1", "-ftls-model=local-dynamic"],
            &["-fPIC", "-O2", "-ftls-model=initial-exec"],
            &["-fPIC", "-mtls-dialect=gnu2", "-O1"],
            &["-fPIC", "-mtls-dialect=gnu2", "-O2", "-ftls-model=local-dynamic"],
        ] {
            compare_program(compiler, flags, LOW, &[("main", THREAD_MAIN), ("helper", THREAD_HELPER)]);
        }
    }
    compare_program("gcc", &["-fPIC", "-O1"], LOW, &[("models", THREAD_ASSEMBLY)]);
}

fn compare(compiler: &str, flags: &[&str], base: u64) {
    compare_program(compiler, flags, base, &[("main", MAIN), ("helper", HELPER)]);
}

/// Compiles, links twice, and compares every section with content.
fn compare_program(compiler: &str, flags: &[&str], base: u64, sources: &[(&str, &str)]) {
    let first = sources.first().map_or("", |(name, _)| *name);
    let label = format!("{compiler}{}-{}-{first}", flags.concat(), sources.first().map_or(0, |(_, text)| text.len()));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lld-{}", label.replace('=', "-")));
    fs::create_dir_all(&dir).unwrap();
    let paths: Vec<_> = sources.iter().map(|(name, text)| compile(&dir, compiler, flags, name, text)).collect();
    let files: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let name = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let inputs: Vec<Input<'_>> = paths.iter().zip(&files).map(|(path, file)| Input::new(name(path), file)).collect();
    let externals = EXTERNALS.map(|(name, addr)| (name, ExecAddr(addr.wrapping_add(base - LOW))));
    let known = externals.iter().copied().chain([("graft_set_thread_pointer", ExecAddr(0x0fff_c000))]);
    let options = Options { entry: Some("main".to_owned()), ..Options::default() };
    let objects = parse(&inputs).unwrap();
    let program = resolve(&objects, &options).unwrap();
    let layout = program.layout().unwrap();
    let image = layout.link(ExecAddr(base), &known.collect::<Externals>()).unwrap();
    let outside = compile(&dir, compiler, flags, "outside", OUTSIDE);
    let theirs = link_with_lld(&dir, &paths, &outside, &image, &externals);
    let mut compared = 0;
    for (index, section) in own_sections(&image).enumerate() {
        let Some(expected) = theirs.get(&format!(".s{index}")) else { continue };
        let ours = bytes(&image, section.range.start().0, expected.len());
        let file = Path::new(section.file).file_name().unwrap().display();
        assert_eq!(ours, *expected, "{label}: {file}({}) at {}", section.name.escape_ascii(), section.range);
        compared += expected.len();
    }
    assert!(compared > 100, "{label}: only {compared} bytes compared");
}

/// The sections of the program; the other linker does not have what our own adds.
fn own_sections<'l>(image: &Image<'l>) -> impl Iterator<Item = PlacedSection<'l>> {
    image.sections().filter(|section| !section.file.starts_with("graft("))
}

fn compile(dir: &Path, compiler: &str, flags: &[&str], name: &str, source: &str) -> PathBuf {
    let (input, output) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.o")));
    fs::write(&input, source).unwrap();
    let mut command = Command::new(compiler);
    // Sections of their own, so that a script can tell them apart.
    command.args(["-c", "-ffunction-sections", "-fdata-sections", "-fno-asynchronous-unwind-tables", "-w"]);
    run(command.args(flags).arg(&input).arg("-o").arg(&output), compiler);
    output
}

/// The content of every output section that has some.
fn link_with_lld(
    dir: &Path,
    paths: &[PathBuf],
    outside: &Path,
    image: &Image<'_>,
    externals: &[(&str, ExecAddr)],
) -> HashMap<String, Vec<u8>> {
    let mut places: Vec<(ExecAddr, String)> = vec![(image.got(), ".got : { *(.got .got.plt) }".to_owned())];
    for (index, section) in own_sections(image).enumerate() {
        let content = format!(".s{index} : {{ \"{}\"({}) }}", section.file, section.name.escape_ascii());
        places.push((section.range.start(), content));
    }
    for (name, addr) in externals {
        places.push((*addr, format!(".{name} : {{ \"{}\"(.text.{name} .data.{name}) }}", outside.display())));
    }
    places.sort();
    let mut script = String::from("SECTIONS {\n");
    for (addr, content) in places {
        writeln!(script, ". = {addr}; {content}").unwrap();
    }
    script.push_str("/DISCARD/ : { *(.comment .note* .llvm_addrsig .eh_frame .text .data .bss) }\n}");
    let (script_path, output) = (dir.join("script.ld"), dir.join("lld.elf"));
    fs::write(&script_path, script).unwrap();
    let mut command = Command::new("ld.lld-19");
    command.args(["-static", "--no-pie", "-z", "norelro", "--no-check-sections", "-e", "main", "-T"]).arg(&script_path);
    // -O0: strings stay where the compiler put them.
    run(command.arg("-O0").args(paths).arg(outside).arg("-o").arg(&output), "ld.lld-19");
    let file = fs::read(&output).unwrap();
    let header = elf::FileHeader64::<LE>::parse(&file[..]).unwrap();
    let table = header.sections(LE, &file[..]).unwrap();
    let sections = table.iter().filter(|section| section.sh_type(LE) == elf::SHT_PROGBITS);
    let content = |section: &elf::SectionHeader64<LE>| {
        let name = String::from_utf8(table.section_name(LE, section).unwrap().to_vec()).unwrap();
        (name, section.data(LE, &file[..]).unwrap().to_vec())
    };
    sections.map(content).collect()
}

fn bytes(image: &Image<'_>, addr: u64, len: usize) -> Vec<u8> {
    let holds = |segment: &&graft::link::Segment| segment.addr.0 <= addr && addr < segment.addr.0 + segment.size;
    let segment = image.segments.iter().find(holds).unwrap();
    let start = usize::try_from(addr - segment.addr.0).unwrap();
    segment.content[start..start + len].to_vec()
}

fn run(command: &mut Command, tool: &str) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{tool}: {error}; apt-get install gcc clang-19 lld-19"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
