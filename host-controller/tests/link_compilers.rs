//! The linker on what compilers and archivers really write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use graft::link::{Externals, Image, Input, LinkError, Members, Options, Unwind, parse, resolve, thin_members};
use graft_protocol::{ExecAddr, Prot};

const BASE: ExecAddr = ExecAddr(0x1000_0000);
/// Beyond the reach of any 32-bit field, from the base and from externals.
const FAR: ExecAddr = ExecAddr(0x7f00_0000_0000);

/// A directory of its own for one test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compilers-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Runs `tool` in the directory; every tool this needs comes with the packages named.
    fn run(&self, tool: &str, args: &[&str]) -> String {
        let output = Command::new(tool).args(args).current_dir(&self.0).output();
        let output = output.unwrap_or_else(|error| panic!("{tool}: {error}; apt-get install gcc clang-19 llvm-19"));
        assert!(output.status.success(), "{tool} {args:?}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.0.join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap()
    }

    /// The object that `tool` makes of C source.
    fn compile(&self, tool: &str, flags: &[&str], source: &str) -> Vec<u8> {
        self.write("source.c", source);
        self.run(tool, &[&["-c", "-w", "source.c", "-o", "object.o"], flags].concat());
        self.read("object.o")
    }
}

fn options() -> Options {
    Options { entry: Some("main".to_owned()), ..Options::default() }
}

/// Links at `base` with every external at `outside`, and looks at the image.
fn link<T>(
    inputs: &[Input<'_>],
    options: &Options,
    (base, outside): (ExecAddr, ExecAddr),
    look: impl FnOnce(&Image<'_>, Vec<String>) -> T,
) -> Result<T, LinkError> {
    let objects = parse(inputs)?;
    let program = resolve(&objects, options)?;
    let names: Vec<String> = program.externals().iter().map(|external| external.name.to_owned()).collect();
    let externals: Externals = names.iter().map(|name| (name.clone(), outside)).collect();
    let layout = program.layout()?;
    let image = layout.link(base, &externals)?;
    Ok(look(&image, names))
}

fn error(bytes: &[u8]) -> String {
    let result = link(&[Input::new("x.o", bytes)], &options(), (BASE, BASE), |image, _| format!("{image:?}"));
    result.expect_err("should not link").to_string()
}

fn word(image: &Image<'_>, addr: u64) -> u64 {
    let segment = image.segments.iter().find(|s| s.addr.0 <= addr && addr < s.addr.0 + s.size).unwrap();
    let start = usize::try_from(addr - segment.addr.0).unwrap();
    u64::from_le_bytes(segment.content[start..start + 8].try_into().unwrap())
}

const CALLS: &str = r#"
extern int outside(const char *); extern int data_outside; extern int maybe(void) __attribute__((weak));
static const char *const text[] = { "a", "b" };
int main(int argc, char **argv) {
    if (maybe) maybe();
    return outside(text[argc & 1]) + outside(argv[0]) + data_outside;
}
"#;

#[test]
fn position_independent_code_reaches_everything() {
    let dir = Dir::new("pic");
    for tool in ["gcc", "clang-19"] {
        for flags in [&["-fPIC"][..], &["-fPIC", "-O2"], &["-fPIC", "-O2", "-fno-plt"], &["-mcmodel=large", "-fPIC"]] {
            let object = dir.compile(tool, flags, CALLS);
            for places in [(BASE, ExecAddr(0x2000_0000)), (BASE, FAR), (FAR, BASE)] {
                let names = link(&[Input::new("x.o", &object)], &options(), places, |_, names| names);
                let names = names.unwrap_or_else(|error| panic!("{tool} {flags:?} at {places:?}: {error}"));
                assert_eq!(names.len(), 3, "{names:?}");
            }
        }
    }
}

#[test]
fn fixed_position_code_is_refused_with_the_flag_to_use() {
    let dir = Dir::new("no-pic");
    let object = dir.compile("gcc", &["-fno-pic", "-fno-pie"], CALLS);
    let input = [Input::new("x.o", &object[..])];
    assert!(link(&input, &options(), (BASE, ExecAddr(0x2000_0000)), |_, _| ()).is_ok());
    let error = link(&input, &options(), (FAR, FAR), |_, _| ()).unwrap_err().to_string();
    assert!(error.starts_with("x.o: .text+0x") && error.ends_with("compile with -fPIC, or place the slab below 2 GiB"));
}

#[test]
fn cpp_objects_link_without_a_runtime() {
    let dir = Dir::new("cpp");
    dir.write(
        "source.cc",
        "struct Shape { virtual int area(int n) { return n; } };
         struct Square : Shape { int area(int n) override { return n * n; } };
         template <class T> T largest(T a, T b) { return a > b ? a : b; }
         static int made; struct Maker { Maker() { made = 7; } } maker;
         Square square; Shape *shape = &square;
         extern \"C\" int main(int argc, char **) { return largest(shape->area(argc), made); }",
    );
    for flags in ["-O0", "-O2"] {
        dir.run("clang++-19", &["-c", "-fno-rtti", "-fno-exceptions", flags, "source.cc", "-o", "cc.o"]);
        dir.run(
            "clang++-19",
            &[
                "-c",
                "-fno-rtti",
                "-fno-exceptions",
                flags,
                "-Dmain=other",
                "-Dsquare=s2",
                "-Dshape=s3",
                "-Dmaker=s4",
                "source.cc",
                "-o",
                "cc2.o",
            ],
        );
        let (first, second) = (dir.read("cc.o"), dir.read("cc2.o"));
        let keep = Options { keep: vec!["other".to_owned()], ..options() };
        let inputs = [Input::new("cc.o", &first[..]), Input::new("cc2.o", &second[..])];
        link(&inputs, &keep, (BASE, FAR), |image, names| {
            assert_eq!(names, Vec::<String>::new());
            let vtable = image.address_of("_ZTV6Square").unwrap();
            assert_eq!(word(image, vtable.0 + 16), image.address_of("_ZN6Square4areaEi").unwrap().0);
            let tables = image.symbols().iter().filter(|symbol| symbol.name == b"_ZTV6Square").count();
            assert_eq!(tables, 1, "one copy of what both objects have");
            for one in &image.initializers {
                assert_eq!(word(image, one.slot.0), one.function.0);
            }
        })
        .unwrap();
    }
}

#[test]
fn rust_objects_and_libraries_link() {
    let dir = Dir::new("rust");
    dir.write(
        "source.rs",
        "#![no_std]
         use core::fmt::Write;
         unsafe extern \"C\" { fn console(text: *const u8, len: usize); }
         struct Console;
         impl Write for Console {
             fn write_str(&mut self, text: &str) -> core::fmt::Result {
                 unsafe { console(text.as_ptr(), text.len()) };
                 Ok(())
             }
         }
         #[panic_handler] fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
         #[unsafe(no_mangle)] pub extern \"C\" fn main(argc: i32) -> i32 {
             let _ = write!(Console, \"{argc} {:?} {}\", Some(argc as u8 as char), argc as f64 / 3.0);
             argc
         }",
    );
    let rustc = option_env!("RUSTC").unwrap_or("rustc");
    let sysroot = dir.run(rustc, &["--print", "sysroot"]);
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/lib");
    let rlib = |prefix: &str| {
        let mut files = fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().path());
        let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
        fs::read(files.find(|path| named(path) && path.extension().is_some_and(|ext| ext == "rlib")).unwrap()).unwrap()
    };
    let (core, builtins) = (rlib("libcore-"), rlib("libcompiler_builtins-"));
    for (kind, output) in [("obj", "rust.o"), ("link", "librust.rlib")] {
        let emit = format!("--emit={kind}={output}");
        let target = "--target=x86_64-unknown-linux-gnu";
        dir.run(
            rustc,
            &["--edition=2024", "--crate-type=lib", "-Cpanic=abort", "-O", "-g", target, &emit, "source.rs"],
        );
        let own = dir.read(output);
        let inputs = [
            Input::new(output, &own[..]),
            Input::new("libcore.rlib", &core[..]),
            Input::new("libcompiler_builtins.rlib", &builtins[..]),
        ];
        link(&inputs, &options(), (FAR, BASE), |image, mut names| {
            names.retain(|name| !["memcpy", "memmove", "memset", "memcmp"].contains(&&name[..]));
            assert_eq!(names, ["console"]);
            let content: usize = image.segments.iter().map(|segment| segment.content.len()).sum();
            assert!(content < 100_000, "only what is used: {content} bytes");
            assert_eq!(image.segments.iter().filter(|segment| segment.group.prot == Prot::ReadExec).count(), 1);
        })
        .unwrap();
    }
}

#[test]
fn archives_of_every_tool_give_what_is_needed() {
    let dir = Dir::new("ar");
    for (name, source) in
        [("needed", "int needed(void) { return 1; }"), ("other", "int other(void) { return missing(); }")]
    {
        let object = dir.compile("gcc", &["-fPIC"], source);
        fs::write(dir.0.join(format!("a_rather_long_name_{name}.o")), object).unwrap();
    }
    let main = dir.compile("gcc", &["-fPIC"], "int main(void) { return needed(); }");
    let members = ["a_rather_long_name_needed.o", "a_rather_long_name_other.o"];
    for (tool, mode) in [
        ("ar", &["rc"][..]),
        ("ar", &["rcS"]),
        ("ar", &["rcT"]),
        ("llvm-ar-19", &["--format=bsd", "rc"]),
        ("llvm-ar-19", &["--format=gnu", "rcS"]),
    ] {
        let _ = fs::remove_file(dir.0.join("lib.a"));
        dir.run(tool, &[mode, &["lib.a"], &members].concat());
        let archive = dir.read("lib.a");
        let contents: Vec<(String, Vec<u8>)> =
            thin_members("lib.a", &archive).unwrap().into_iter().map(|path| (path.clone(), dir.read(&path))).collect();
        let mut library = Input::new("lib.a", &archive[..]);
        library.thin = contents.iter().map(|(path, bytes)| (path.clone(), &bytes[..])).collect();
        let inputs = [Input::new("main.o", &main[..]), library.clone()];
        link(&inputs, &options(), (BASE, BASE), |image, names| {
            assert!(names.is_empty(), "{tool} {mode:?}: {names:?}");
            let symbols = image.symbols();
            let needed = symbols.iter().find(|symbol| symbol.name == b"needed").unwrap();
            assert!(needed.function && needed.file.contains("lib.a(a_rather_long_name_needed.o)"), "{needed:?}");
        })
        .unwrap();
        library.members = Members::All;
        let everything = Options { collect: graft::link::Collect::All, ..options() };
        let inputs = [Input::new("main.o", &main[..]), library];
        let names = link(&inputs, &everything, (BASE, BASE), |_, names| names).unwrap();
        assert_eq!(names, ["missing"]);
    }
}

#[test]
fn unwind_tables_stay_consistent_when_functions_are_dropped() {
    let dir = Dir::new("unwind");
    let source =
        "int used(int n) { return n; } int unused(int n) { return n + 1; } int main(int n) { return used(n); }";
    for tool in ["gcc", "clang-19"] {
        let object =
            dir.compile(tool, &["-O0", "-ffunction-sections", "-fPIC", "-fasynchronous-unwind-tables"], source);
        let sizes = [Unwind::Keep, Unwind::Drop].map(|unwind| {
            let options = Options { unwind, ..options() };
            let content =
                |image: &Image<'_>, _| image.segments.iter().map(|segment| segment.content.len()).sum::<usize>();
            link(&[Input::new("x.o", &object)], &options, (BASE, BASE), content).unwrap()
        });
        // A shared record, two of functions, and the terminator.
        assert!((60..160).contains(&(sizes[0] - sizes[1])), "{tool}: {sizes:?}");
    }
}

#[test]
fn what_is_not_supported_yet_is_named() {
    let dir = Dir::new("unsupported");
    let lto = dir.compile("gcc", &["-flto", "-fno-fat-lto-objects"], "int main(void) { return 0; }");
    assert_eq!(error(&lto), "x.o: only GCC's LTO code inside: compile without -flto or with -ffat-lto-objects");
    let bitcode = dir.compile("clang-19", &["-flto"], "int main(void) { return 0; }");
    assert_eq!(error(&bitcode), "x.o: not an ELF file (it is LLVM bitcode: compile without -flto)");
    let i386 = dir.compile("clang-19", &["--target=i386-linux-gnu"], "int main(void) { return 0; }");
    assert_eq!(error(&i386), "x.o: not a 64-bit little-endian ELF file (class 1, data 1)");
    let arm = dir.compile("clang-19", &["--target=aarch64-linux-gnu"], "int main(void) { return 0; }");
    assert_eq!(error(&arm), "x.o: wrong architecture: ELF machine 183, expected 62 (x86-64)");
    dir.write("awx.s", ".section awx,\"awx\",@progbits\n.globl main\nmain: ret\n");
    dir.run("gcc", &["-c", "awx.s", "-o", "awx.o"]);
    assert_eq!(
        error(&dir.read("awx.o")),
        "x.o: section awx: it is writable and executable; no page of an image is both"
    );
}

#[test]
fn real_objects_cut_short_are_refused() {
    let dir = Dir::new("cut");
    let object = dir.compile("gcc", &["-g", "-O2", "-fPIC"], CALLS);
    for end in (0..object.len()).step_by(5) {
        let text = error(&object[..end]);
        assert!(text.starts_with("x.o: "), "{text}");
    }
}

#[test]
fn compact_relocations_give_the_same_image() {
    let dir = Dir::new("crel");
    // References back and forth, so that offsets, symbols, types and addends go up and down.
    let source = "extern int far[]; int near[4]; int f(int); static int g(int x) { return x ? f(x - 1) + near[x & 3] : far[7]; }
        int (*table[])(int) = { g, f, g }; int *inside = &near[3]; long long big[] = { 1, 2, 3 }; long long *last = big + 2;
        int main(void) { return table[near[0] & 1](far[1]) + *inside + (int)*last; }";
    for flags in [&["-O0"][..], &["-O2", "-ffunction-sections"], &["-O1", "-fno-pic"], &["-O1", "-mcmodel=large"]] {
        let plain = dir.compile("clang-19", flags, source);
        let compact = ["-Wa,--allow-experimental-crel,--crel"];
        let packed = dir.compile("clang-19", &[flags, &compact[..]].concat(), source);
        assert!(dir.run("readelf", &["-S", "-W", "object.o"]).contains(".crel"), "{flags:?}");
        let linked = [plain, packed].map(|object| {
            let options = Options { unwind: Unwind::Keep, ..options() };
            link(&[Input::new("x.o", &object)], &options, (BASE, BASE), |image, names| (image.segments.clone(), names))
                .unwrap()
        });
        assert_eq!(linked[0], linked[1], "{flags:?}");
    }
}

#[test]
fn an_unwinder_finds_every_function_in_a_sorted_index_and_nobody_else_pays() {
    let dir = Dir::new("unwind-index");
    let functions = "int a(int n) { return n; } int b(int n) { return a(n) + 1; } int c(int n) { return b(n); }
        int unused(int n) { return n; }";
    let index = "extern const char __GNU_EH_FRAME_HDR[]; const char *table = __GNU_EH_FRAME_HDR;
        int main(int n) { return c(n) + *table; }";
    let flags = ["-O0", "-ffunction-sections", "-fPIC", "-fasynchronous-unwind-tables"];
    for tool in ["gcc", "clang-19"] {
        let object = dir.compile(tool, &flags, &format!("{functions}{index}"));
        let options = Options { unwind: Unwind::IfUsed, ..options() };
        link(&[Input::new("x.o", &object)], &options, (BASE, BASE), |image, _| {
            let start = word(image, image.address_of("table").unwrap().0);
            let half = |addr: u64| i32::from_le_bytes(image.bytes_at(ExecAddr(addr), 4).try_into().unwrap());
            let at = |from: u64, field: u64| from.wrapping_add_signed(half(field).into());
            assert_eq!(image.bytes_at(ExecAddr(start), 4), [1, 0x1b, 0x03, 0x3b], "{tool}");
            assert_eq!(half(start + 8), 4, "{tool}: one record for each function that is there");
            let entries: Vec<(u64, u64)> =
                (0..4).map(|n| start + 12 + 8 * n).map(|entry| (at(start, entry), at(start, entry + 4))).collect();
            let mut expected = ["a", "b", "c", "main"].map(|name| image.address_of(name).unwrap().0);
            expected.sort_unstable();
            assert_eq!(entries.iter().map(|(function, _)| *function).collect::<Vec<_>>(), expected, "{tool}");
            for (function, record) in entries {
                assert_eq!(at(record + 8, record + 8), function, "{tool}: the record is that of the function");
            }
            assert_eq!(half(at(start + 4, start + 4) + 4), 0, "{tool}: the first record is a shared one");
        })
        .unwrap();
        let plain = dir.compile(tool, &flags, &format!("{functions} int main(int n) {{ return c(n); }}"));
        let sizes = [Unwind::IfUsed, Unwind::Drop].map(|unwind| {
            let size = |image: &Image<'_>, _| image.segments.iter().map(|part| part.content.len()).sum::<usize>();
            link(&[Input::new("x.o", &plain)], &Options { unwind, ..options.clone() }, (BASE, BASE), size).unwrap()
        });
        assert_eq!(sizes[0], sizes[1], "{tool}");
    }
}
