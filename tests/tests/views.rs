//! What `graft run` shows and writes of a linked program, and the options that say what is linked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::{objects, place, tools};

const LIMIT: Duration = Duration::from_secs(120);

const MAIN: &str = "int puts(const char *); int other(int); extern char device[];
int main(void) { puts(\"here\"); return other(40) + (device == (char *)0xfee00000); }";
const OTHER: &str = "int given(int x) { return x + 1; }";

/// No target in the environment: where one is needed, the words name it.
fn graft(words: &[&str], inputs: &[&Path]) -> Outcome {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.arg("run").args(words).args(inputs).env_remove("GRAFT_TARGET");
    child::run(&mut command, LIMIT).unwrap()
}

fn compile(name: &str, source: &str) -> (PathBuf, PathBuf) {
    let folder = place::scratch("views").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("source.c"), source).unwrap();
    let object = folder.join("source.o");
    let mut gcc = Command::new("gcc");
    gcc.args(["-c", "-O1", "-mcmodel=large"]).arg(folder.join("source.c")).arg("-o").arg(&object);
    assert!(child::run(&mut gcc, LIMIT).unwrap().success());
    (folder, object)
}

#[test]
fn names_left_to_the_target_are_shown_fit_for_people() {
    let declared: String = (0..100).map(|n| format!("void f{n}(void);")).collect();
    let called: String = (0..100).map(|n| format!("f{n}();")).collect();
    let long = "x".repeat(100_000);
    let source = format!("{declared} void {long}(void); int main(void) {{ {called} {long}(); return 0; }}");
    let (_, object) = compile("names", &source);
    let outcome = graft(&["--no-exec"], &[&object]);
    assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("f0, f1, ") && outcome.stderr.ends_with(" and 69 more\n"), "{}", outcome.stderr);
    let outcome = graft(&["--no-exec", "--json"], &[&object]);
    assert!(outcome.stderr.contains("... (100000 bytes)") && outcome.stderr.len() < 5000, "{}", outcome.stderr.len());
}

/// `libother.a` in a folder of its own.
fn library(name: &str) -> PathBuf {
    let (folder, object) = compile(name, OTHER);
    let mut ar = Command::new("ar");
    ar.arg("rcs").arg(folder.join("libother.a")).arg(object);
    assert!(child::run(&mut ar, LIMIT).unwrap().success());
    folder
}

#[test]
fn no_exec_needs_no_target_and_names_what_is_left_to_it() {
    let (_, object) = compile("alone", MAIN);
    let outcome = graft(&["--no-exec", "--slab-address", "0x70000000"], &[&object]);
    assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("linked at 0x70000000.."), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("left to the target: puts, other, device"), "{}", outcome.stderr);
}

#[test]
fn libraries_aliases_and_absolute_symbols_make_one_program() {
    let (_, object) = compile("together", MAIN);
    let folder = library("library");
    let folder = folder.to_str().unwrap();
    let words = ["-t", "hosted", "-L", folder, "-l", "other", "--alias", "other=given", "--abs", "device=0xfee00000"];
    let outcome = graft(&words, &[&object]);
    assert_eq!(outcome.end, End::Exit(42), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, b"here\n");
    let missing = graft(&["--no-exec", "-L", folder, "-l", "nothere"], &[&object]);
    assert_eq!(missing.end, End::Exit(125));
    assert!(missing.stderr.contains(&format!("no libnothere.a for -l nothere in {folder}")), "{}", missing.stderr);
}

#[test]
fn the_whole_archive_is_linked_where_that_is_asked_for() {
    // Nothing needs the member, which defines `main` a second time.
    let (folder, object) = compile("whole", "int main(void) { return 3; }");
    let (_, second) = compile("whole-second", "int more; int main(void) { return 4; }");
    let archive = folder.join("libmore.a");
    assert!(child::run(Command::new("ar").arg("rcs").arg(&archive).arg(second), LIMIT).unwrap().success());
    assert_eq!(graft(&["-t", "hosted"], &[&object, &archive]).end, End::Exit(3));
    let whole = graft(&["-t", "hosted", "--whole-archive"], &[&object, &archive]);
    assert_eq!(whole.end, End::Exit(125));
    assert!(whole.stderr.contains("duplicate symbol: main"), "{}", whole.stderr);
}

#[test]
fn the_map_and_the_elf_file_agree_with_nm() {
    let (folder, object) = compile("map", MAIN);
    let file = folder.join("linked.elf");
    let words = ["--no-exec", "--show-map", "--emit-elf", file.to_str().unwrap()];
    let outcome = graft(&words, &[&object]);
    assert_eq!(outcome.end, End::Exit(0), "{}", outcome.stderr);
    let nm = child::run(Command::new("nm").arg(&file), LIMIT).unwrap();
    let listed = String::from_utf8_lossy(&nm.stdout).into_owned();
    let main = listed.lines().find_map(|line| line.strip_suffix(" T main")).expect("main is a function of the file");
    let address = u64::from_str_radix(main, 16).unwrap();
    let line = outcome.stderr.lines().find(|line| line.starts_with("symbol") && line.contains(" main "));
    assert!(line.is_some_and(|line| line.contains(&format!("{address:#012x}"))), "{}", outcome.stderr);
    let unwritable = graft(&["--no-exec", "--emit-elf", "/nonexistent/x.elf"], &[&object]);
    assert_eq!(unwritable.end, End::Exit(125));
    assert!(unwritable.stderr.contains("cannot write `/nonexistent/x.elf`"), "{}", unwritable.stderr);
}

#[test]
fn rules_hold_here_exactly_when_they_hold_in_llvm_jitlink() {
    let folder = place::scratch("views").join("checks");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (rules, object) = (objects::case("checks.s"), folder.join("checks.o"));
    let mut gcc = Command::new("gcc");
    assert!(child::run(gcc.arg("-c").arg(&rules).arg("-o").arg(&object), LIMIT).unwrap().success());
    let text = fs::read_to_string(&rules).unwrap();
    let lines: Vec<_> = text.lines().collect();
    // As it is, and with each rule made wrong in turn.
    let whole = |line: &&str| line.contains("jitlink-check:") && !line.ends_with('\\');
    let wrong = (0..lines.len()).filter(|at| whole(&lines[*at])).map(|at| {
        let mut lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines[at].push_str(" + 1");
        lines.join("\n")
    });
    let mut versions = vec![text.clone()];
    versions.extend(wrong);
    assert_eq!(versions.len(), 15);
    for (number, version) in versions.iter().enumerate() {
        let file = folder.join("rules");
        fs::write(&file, format!("{version}\n")).unwrap();
        let holds = number == 0;
        for jitlink in [tools::llvm19("llvm-jitlink").unwrap(), tools::llvm22("llvm-jitlink").unwrap()] {
            let mut command = Command::new(jitlink);
            command.args(["-noexec", "-abs", "outer=0x12345"]).arg(format!("-check={}", file.display())).arg(&object);
            let outcome = child::run(&mut command, LIMIT).unwrap();
            assert_eq!(outcome.success(), holds, "{number}: {}", outcome.stderr);
        }
        let check = file.to_str().unwrap();
        let outcome = graft(&["--no-exec", "--abs", "outer=0x12345", "--check", check], &[&object]);
        assert_eq!(outcome.success(), holds, "{number}: {}", outcome.stderr);
        let words = if holds { "all 14 rules hold" } else { "1 of 14 rules do not hold" };
        assert!(outcome.stderr.contains(words), "{number}: {}", outcome.stderr);
    }
    fs::write(folder.join("none"), "nothing to check\n").unwrap();
    let outcome = graft(&["--no-exec", "--check", folder.join("none").to_str().unwrap()], &[&object]);
    assert_eq!(outcome.end, End::Exit(125), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no rules"), "{}", outcome.stderr);
}
