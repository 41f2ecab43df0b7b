//! Reports of faults, on objects with debug information as compilers write it.

use std::fs;
use std::path::Path;
use std::process::Command;

use graft::link::{Externals, Image, Input, Options, parse, resolve};
use graft::report::{SourceFrame, source_frames};
use graft_protocol::ExecAddr;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _};

const BASE: ExecAddr = ExecAddr(0x1000_0000);

/// Line 3 is inlined into line 5 at -O1; sections of its own, so that addresses are relative to several.
const SOURCE: &str = "\
int zero;
__attribute__((always_inline))
static inline int read(volatile int *p) { return *p; }
__attribute__((noinline)) int far(volatile int *p) {
    return read(p)
        + 1;
}
int unused(volatile int *p) { return read(p) + 2; }
int main(void) {
    return far((int *)8);
}
";

/// The bytes of the object that `tool` makes of `source`, written as `name`.
fn compile(folder: &str, tool: &str, flags: &[&str], (name, source): (&str, &str)) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{folder}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name), source).unwrap();
    let mut command = Command::new(tool);
    command.args(["-c", name, "-o", "object.o"]).args(flags).current_dir(&folder);
    let output = command.output().unwrap_or_else(|error| panic!("{tool}: {error}; apt-get install g++ clang-19"));
    assert!(output.status.success(), "{tool} {flags:?}\n{}", String::from_utf8_lossy(&output.stderr));
    fs::read(folder.join("object.o")).unwrap()
}

/// Links `files` and looks at the image; `None` when they do not link.
fn link<T>(files: &[Vec<u8>], look: impl FnOnce(&Image<'_>) -> T) -> Option<T> {
    let inputs: Vec<_> = files.iter().enumerate().map(|(n, bytes)| Input::new(format!("{n}.o"), bytes)).collect();
    let objects = parse(&inputs).ok()?;
    let options = Options { entry: Some("main".to_owned()), ..Options::default() };
    let program = resolve(&objects, &options).ok()?;
    let layout = program.layout().ok()?;
    Some(look(&layout.link(BASE, &Externals::default()).ok()?))
}

/// The source of every byte of a function, each place once, in order.
fn of_function(image: &Image<'_>, name: &str) -> Vec<Vec<SourceFrame>> {
    let symbol = image.symbols().into_iter().find(|symbol| symbol.name == name.as_bytes()).unwrap();
    let range = symbol.range;
    let mut all: Vec<_> = (range.start().0..range.end().0).map(|at| source_frames(image, ExecAddr(at))).collect();
    all.dedup();
    all
}

fn lines(frames: &[SourceFrame]) -> Vec<(Option<&str>, u32)> {
    frames.iter().map(|frame| (frame.function.as_deref(), frame.line)).collect()
}

#[test]
fn an_address_has_the_lines_of_the_functions_inlined_there() {
    let sectioned = ["-ffunction-sections", "-fdata-sections"];
    for (tool, flags) in [
        ("gcc", &["-g", "-O1"][..]),
        ("gcc", &["-gdwarf-4", "-O1"]),
        ("gcc", &["-g3", "-O1"]),
        ("gcc", &["-g", "-O1", "-fdebug-types-section"]),
        ("gcc", &["-g", "-O1", "-gz"]),
        ("clang-19", &["-g", "-O1"]),
        ("clang-19", &["-gdwarf-4", "-O1"]),
        ("clang-19", &["-gline-tables-only", "-O1"]),
        ("clang-19", &["-g", "-O1", "-Wa,--crel,--allow-experimental-crel"]),
    ] {
        let folder = format!("inlined-{tool}-{}", flags.concat().replace(['=', ','], "-"));
        let object = compile(&folder, tool, &[flags, &sectioned].concat(), ("source.c", SOURCE));
        let found = link(&[object], |image| {
            assert!(image.symbols().iter().all(|symbol| symbol.name != b"unused"), "it is not part of the program");
            of_function(image, "far")
        });
        let found = found.unwrap();
        let inlined = [(Some("read"), 3), (Some("far"), 5)];
        assert!(found.iter().any(|frames| lines(frames) == inlined), "{folder}: {found:?}");
        for frame in found.iter().flatten() {
            assert!(frame.file.ends_with(&format!("report-{folder}/source.c")), "{folder}: {frame:?}");
        }
    }
}

#[test]
fn each_of_two_copies_of_a_function_has_its_own_objects_lines() {
    let inline = |line: &str| format!("{line}inline int twice(int n) {{ return n * 2; }}\n");
    let flags = ["-g", "-O0"];
    let main = inline("") + "int other(int); extern \"C\" int main() { return twice(1) + other(2); }\n";
    let other = inline("\n\n\n") + "int other(int n) { return twice(n); }\n";
    let files = [
        compile("copies", "g++", &flags, ("main.cpp", &main)),
        compile("copies", "g++", &flags, ("other.cpp", &other)),
    ];
    link(&files, |image| {
        for (name, file, written, line) in [
            ("_Z5twicei", "main.cpp", "twice", 1),
            ("main", "main.cpp", "main", 2),
            ("_Z5otheri", "other.cpp", "other", 5),
        ] {
            let found = of_function(image, name);
            let first = &found[0];
            assert_eq!(lines(first).first().map(|(_, line)| *line), Some(line), "{name}: {found:?}");
            assert!(first[0].file.ends_with(file), "{name}: {first:?}");
            assert!(first[0].function.as_deref().is_some_and(|name| name.starts_with(written)), "{first:?}");
        }
    })
    .unwrap();
}

#[test]
fn without_debug_information_or_outside_nothing_is_said() {
    let object = compile("without", "gcc", &["-O1"], ("source.c", SOURCE));
    link(&[object], |image| assert_eq!(of_function(image, "main"), [vec![]])).unwrap();
    let object = compile("outside", "gcc", &["-O1", "-g"], ("source.c", SOURCE));
    link(&[object], |image| {
        for addr in [ExecAddr(0), ExecAddr(BASE.0 - 1), image.range().end(), ExecAddr(u64::MAX)] {
            assert_eq!(source_frames(image, addr), []);
        }
    })
    .unwrap();
}

#[test]
fn broken_debug_information_is_survived_and_fails_no_link() {
    for flag in ["-gz=none", "-gz"] {
        let sound = compile(&format!("broken{flag}"), "gcc", &["-O1", "-g", flag], ("source.c", SOURCE));
        let debug = debug_bytes(&sound);
        assert!(debug.len() > 1000);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
        };
        for _ in 0..1000 {
            let mut broken = sound.clone();
            for _ in 0..=random(8) {
                broken[debug[random(debug.len())]] = u8::try_from(random(256)).unwrap();
            }
            link(&[broken], |image| image.entry.map(|entry| source_frames(image, entry))).expect("links as before");
        }
    }
}

/// Where in the file the debug sections and their relocations are.
fn debug_bytes(object: &[u8]) -> Vec<usize> {
    let file: ElfFile64<'_> = ElfFile64::parse(object).unwrap();
    let of_debug = file.sections().filter(|section| section.name().unwrap().contains(".debug_"));
    let ranges = of_debug.filter_map(|section| section.file_range());
    ranges.flat_map(|(start, size)| start..start + size).map(|at| usize::try_from(at).unwrap()).collect()
}
