//! What Graft tells people beyond what happened: where in their program, and what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::{place, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// `-t qemu` where it matters that nothing else is on the target: the hosted executor has its process's C library.
fn graft(words: &[&str], inputs: &[&Path]) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.arg("run").args(words).args(inputs).env_remove("GRAFT_TARGET");
    child::run(&mut command, LIMIT).unwrap()
}

/// Writes `text` and compiles it with `compiler`, which gets the source and the object as its last words.
fn compile(name: &str, text: &str, mut compiler: Command) -> PathBuf {
    let folder = place::scratch("advice").join(name.replace('.', "-"));
    fs::create_dir_all(&folder).unwrap();
    let (source, object) = (folder.join(name), folder.join("source.o"));
    fs::write(&source, text).unwrap();
    let compiled = child::run(compiler.arg("-o").arg(&object).arg(&source), LIMIT).unwrap();
    assert!(compiled.success(), "{}", compiled.stderr);
    object
}

fn gcc(name: &str, text: &str) -> PathBuf {
    let mut gcc = Command::new("gcc");
    gcc.args(["-c", "-O1"]);
    compile(name, text, gcc)
}

#[test]
fn an_abort_is_in_the_function_that_called_it() {
    let text = "#![no_std]\n#![no_main]\nunsafe extern \"C\" { fn abort() -> !; }\n\
                #[panic_handler] fn fail(_: &core::panic::PanicInfo) -> ! { unsafe { abort() } }\n\
                #[unsafe(no_mangle)] pub extern \"C\" fn main(argc: usize) -> i32 { [1, 2, 3][argc + 7] }\n";
    let mut rustc = tools::rustc();
    rustc.args(["--edition=2024", "--crate-type=lib", "--emit=obj", "-Cpanic=abort", "-O"]);
    rustc.args(["--target", place::BARE_TARGET]);
    let object = compile("panics.rs", text, rustc);
    let libraries = tools::rust_libraries(place::BARE_TARGET).unwrap();
    let mut inputs = vec![object];
    for entry in fs::read_dir(libraries).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".rlib") && (name.starts_with("libcore-") || name.starts_with("libcompiler_builtins-")) {
            inputs.push(path);
        }
    }
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    let outcome = graft(&["-t", "hosted"], &inputs);
    assert_eq!(outcome.end, End::Exit(134), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("rust_begin_unwind") || outcome.stderr.contains("fail"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(".L"), "{}", outcome.stderr);
}

#[test]
fn the_last_call_of_a_function_belongs_to_it() {
    // The call is the last instruction of `fail`: what it would return to is `after`.
    let text = "_Noreturn void abort(void); __attribute__((noinline, noclone)) void fail(void) { abort(); }\n\
                __attribute__((noinline)) int after(void) { return 1; } int main(void) { fail(); return after(); }";
    let outcome = graft(&["-t", "hosted"], &[&gcc("last.c", text)]);
    assert_eq!(outcome.end, End::Exit(134), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(" in fail+0x"), "{}", outcome.stderr);
}

#[test]
fn arguments_without_the_separator_are_noticed() {
    let object = gcc("fine.c", "int main(void) { return 0; }");
    let outcome = graft(&["-t", "hosted"], &[&object, Path::new("hello")]);
    assert_eq!(outcome.end, End::Exit(125));
    assert!(outcome.stderr.contains("cannot read `hello`: No such file"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the program's own arguments follow `--`"), "{}", outcome.stderr);
    let outcome = graft(&["-t", "hosted"], &[&object, Path::new("missing.o")]);
    assert!(!outcome.stderr.contains("`--`"), "{}", outcome.stderr);
}

#[test]
fn what_a_missing_symbol_belongs_to_is_said() {
    let text = "int printf(const char *, ...); int main(void) { return printf(\"%d\", 1); }";
    let outcome = graft(&["-t", "qemu"], &[&gcc("wants.c", text)]);
    assert_eq!(outcome.end, End::Exit(125));
    for words in ["undefined symbol: printf", "there is no C library on the target"] {
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
    let text = "void _Unwind_Resume(void); void __cxa_begin_catch(void);\n\
                int main(void) { _Unwind_Resume(); __cxa_begin_catch(); return 0; }";
    let outcome = graft(&["-t", "qemu"], &[&gcc("unwinds.c", text)]);
    for words in ["-fno-exceptions", "-C panic=abort", "no C++ runtime"] {
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
    let outcome = graft(&["-t", "qemu"], &[&gcc("own.c", "int mine(void); int main(void) { return mine(); }")]);
    assert!(!outcome.stderr.contains("note: there is no"), "{}", outcome.stderr);
}

#[test]
fn the_help_lists_functions_that_are_there() {
    let mut command = Command::new(&place::graft().unwrap().command);
    let help = child::run(command.args(["run", "--help"]), LIMIT).unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("machine=microvm|q35"), "{help}");
    let (_, after) = help.split_once("Functions that are there for the program:\n").unwrap();
    let (list, _) = after.split_once("\n\n").unwrap();
    // The first word of a line is its heading, and what stands in brackets or behind a colon describes.
    let names: Vec<String> = list
        .lines()
        .filter(|line| !line.trim().starts_with('('))
        .flat_map(|line| line.trim().split_once(' ').unwrap().1.split(':').next().unwrap().split(", "))
        .map(|name| name.trim().trim_start_matches("also as ").split(['(', ' ']).next().unwrap().to_owned())
        .filter(|name| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty() && name != "length"
        })
        .collect();
    assert!(names.len() >= 18, "{names:?}");
    let declared: String = names.iter().map(|name| format!("void {name}(void);\n")).collect();
    let used: String = names.iter().map(|name| format!("{name}();")).collect();
    let object =
        gcc("all.c", &format!("{declared}int main(void) {{ if (0 == *(volatile int *)8) {{ {used} }} return 0; }}"));
    let outcome = graft(&["-t", "qemu", "--no-exec"], &[&object]);
    assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
}

#[test]
fn a_fault_names_the_function_as_it_is_written_and_the_instruction() {
    let mut gxx = Command::new("g++");
    gxx.args(["-c", "-O1"]);
    let text = "namespace geo { struct P { int *p; __attribute__((noinline)) int area(int k) const { return p[k]; } };\n\
                int missing(int); }\n\
                extern \"C\" int main(int c, char **) { geo::P p{(int *)8}; return p.area(c) MORE; }\n";
    let faulty = compile("faulty.cpp", &text.replace("MORE", ""), gxx);
    let outcome = graft(&["-t", "hosted"], &[&faulty]);
    assert_eq!(outcome.end, End::Exit(139), "{}", outcome.stderr);
    for words in ["page fault reading 0x8", " in geo::P::area(int) const", "the instruction is `mov "] {
        assert!(outcome.stderr.contains(words), "{words:?}: {}", outcome.stderr);
    }
    let mut gxx = Command::new("g++");
    gxx.args(["-c", "-O1"]);
    let wants = compile("wants.cpp", &text.replace("MORE", "+ geo::missing(c)"), gxx);
    let outcome = graft(&["-t", "hosted"], &[&wants]);
    assert_eq!(outcome.end, End::Exit(125), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("undefined symbol: _ZN3geo7missingEi (geo::missing(int))"), "{}", outcome.stderr);
}
