//! `cargo measure linkers`: whole links of large sets, beside other linkers in the same run.
//!
//! Ours is `graft run --no-exec`, from starting the command to its end: every byte relocated, in memory. Static linkers
//! write a file meanwhile; `llvm-jitlink -noexec` links into its own process. A tool that takes longer than [`LIMIT`] is
//! stopped and said so; one that is not here is left out, by name.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use graft_tests::{child, place, tools};

use crate::figures::{Figure, line};

/// How many measurements of each.
const RUNS: usize = 10;

/// How long one link may take.
const LIMIT: Duration = Duration::from_secs(20);

/// What takes longer is measured once: no noise hides it.
const SLOW: Duration = Duration::from_secs(5);

/// Functions, and globals, of the large object.
const FUNCTIONS: usize = 20_000;

/// A linker and how it is called.
struct Linker {
    name: &'static str,
    program: Option<PathBuf>,
    before: &'static [&'static str],
}

pub(crate) fn report() -> Result<(), String> {
    let linkers = linkers()?;
    for (name, objects) in sets()? {
        let bytes: u64 = objects.iter().filter_map(|object| fs::metadata(object).ok()).map(|data| data.len()).sum();
        println!("{name}, {:.1} MB", bytes as f64 / 1e6);
        let mut times = vec![Vec::new(); linkers.len()];
        let mut failed: Vec<Option<String>> = vec![None; linkers.len()];
        // Taken in turns, so that whatever else the machine does falls on all of them.
        for _ in 0..RUNS {
            for (place, linker) in linkers.iter().enumerate() {
                if failed[place].is_none() && times[place].last().is_none_or(|last| *last < SLOW) {
                    match link(linker, &objects) {
                        Ok(took) => times[place].push(took),
                        Err(error) => failed[place] = Some(error),
                    }
                }
            }
        }
        for ((linker, times), failed) in linkers.iter().zip(times).zip(failed) {
            match failed {
                Some(error) => println!("  {:<58} {error}", linker.name),
                None => line(linker.name, &Figure::of_times(times), None),
            }
        }
    }
    Ok(())
}

fn linkers() -> Result<Vec<Linker>, String> {
    let missing = |missing: tools::Missing| missing.to_string();
    Ok(vec![
        Linker {
            name: "graft run --no-exec",
            program: Some(place::graft()?.command.clone()),
            before: &["run", "--no-exec"],
        },
        Linker {
            name: "ld.lld 19, one thread",
            program: Some(tools::llvm19("ld.lld").map_err(missing)?),
            before: &["--threads=1", "--entry=main", "--output=linked"],
        },
        Linker { name: "wild", program: tools::in_path("wild"), before: &["--entry=main", "-o", "linked"] },
        Linker { name: "mold", program: tools::in_path("mold"), before: &["--entry=main", "--output=linked"] },
        Linker { name: "GNU ld", program: tools::in_path("ld"), before: &["--entry=main", "--output=linked"] },
        Linker {
            name: "llvm-jitlink 19 -noexec",
            program: Some(tools::llvm19("llvm-jitlink").map_err(missing)?),
            before: &["-noexec"],
        },
        Linker {
            name: "llvm-jitlink 22 -noexec (a build with assertions)",
            program: Some(tools::llvm22("llvm-jitlink").map_err(missing)?),
            before: &["-noexec"],
        },
    ])
}

/// One link, from the start of the program to its end.
fn link(linker: &Linker, objects: &[PathBuf]) -> Result<Duration, String> {
    let program = linker.program.as_ref().ok_or("not installed here")?;
    let mut command = Command::new(program);
    command.args(linker.before).args(objects).current_dir(place::scratch("linkers")).env_remove("GRAFT_TARGET");
    let began = Instant::now();
    let outcome = child::run(&mut command, LIMIT)?;
    let took = began.elapsed();
    match outcome.end {
        child::End::TimeOut => Err(format!("stopped after {} s", LIMIT.as_secs())),
        _ if outcome.success() => Ok(took),
        end => Err(format!("{end}: {}", outcome.stderr.lines().next().unwrap_or_default())),
    }
}

fn sets() -> Result<Vec<(String, Vec<PathBuf>)>, String> {
    let mut sets = Vec::new();
    for count in [200, 2000] {
        sets.push((format!("{count} chained objects"), chain(count)?));
    }
    let large = large();
    let flags: [(&str, &[&str]); 2] = [("one section", &[]), ("sections", &["-ffunction-sections", "-fdata-sections"])];
    for (name, flags) in flags {
        let folder = place::scratch("linkers").join(format!("large-{}", name.replace(' ', "-")));
        let sources = [("large.c".to_owned(), large.clone())];
        let objects = compile(&folder, "gcc", &sources, flags)?;
        sets.push((format!("{FUNCTIONS} functions and globals, {name}"), objects));
    }
    let folder = place::scratch("linkers").join("templates");
    sets.push(("a C++ template set of 40 objects".to_owned(), compile(&folder, "g++", &templates(), &[])?));
    Ok(sets)
}

/// Objects that each call the next.
fn chain(count: usize) -> Result<Vec<PathBuf>, String> {
    let link = |number: usize| {
        let next = number + 1;
        let (declared, called) = match next < count {
            true => (format!("int f{next}(int);\n"), format!("f{next}(x + 1) ^ {number}")),
            false => (String::new(), "x".to_owned()),
        };
        let entry = if number == 0 { "int main(void) { return f0(0) & 0x7f; }\n" } else { "" };
        format!("{declared}static int seen[4];\nint f{number}(int x) {{ seen[x & 3]++; return {called}; }}\n{entry}")
    };
    let sources: Vec<_> = (0..count).map(|number| (format!("f{number}.c"), link(number))).collect();
    compile(&place::scratch("linkers").join(format!("chain-{count}")), "gcc", &sources, &[])
}

/// Many functions and globals, all of them reachable from main.
fn large() -> String {
    let mut text = String::new();
    for number in 0..FUNCTIONS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "int g{number} = {number};\nint f{number}(int x) {{ return g{number} += x; }}");
    }
    let names: Vec<_> = (0..FUNCTIONS).map(|number| format!("f{number}")).collect();
    let _ = writeln!(text, "int (*const all[])(int) = {{ {} }};", names.join(", "));
    let _ = writeln!(text, "int main(int argc, char **argv) {{ return all[argc](1) & 0x7f; }}");
    text
}

/// Objects that instantiate the same templates, most of which a linker drops again.
fn templates() -> Vec<(String, String)> {
    let header = "template <int N> struct Tower { static int level(int x) { return Tower<N - 1>::level(x + N) ^ N; } };\n\
                  template <> struct Tower<0> { static int level(int x) { return x; } };\n\
                  template <typename T, int N> __attribute__((noinline)) T fold(T x) { return x * N + Tower<N % 50 + 1>::level(N); }\n";
    let source = |number: usize| {
        let mut text = header.to_owned();
        let _ = writeln!(text, "int use{number}(int x) {{ int sum = 0;");
        for n in 0..200 {
            let _ = writeln!(text, "sum += fold<int, {n}>(x) + (int)fold<long, {}>(x);", n + number % 7);
        }
        let _ = writeln!(text, "return sum; }}");
        if number == 0 {
            let declared: String = (1..40).map(|other| format!("int use{other}(int); ")).collect();
            let called: String = (0..40).map(|other| format!(" + use{other}(argc)")).collect();
            let _ = writeln!(text, "{declared}\nint main(int argc, char **) {{ return (0{called}) & 0x7f; }}");
        }
        text
    };
    (0..40).map(|number| (format!("t{number}.cpp"), source(number))).collect()
}

/// Writes sources and compiles those that are new.
fn compile(
    folder: &Path,
    compiler: &'static str,
    sources: &[(String, String)],
    flags: &[&str],
) -> Result<Vec<PathBuf>, String> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let (mut objects, mut stale) = (Vec::new(), Vec::new());
    for (name, text) in sources {
        let source = folder.join(name);
        let object = source.with_extension("o");
        if fs::read_to_string(&source).ok().as_deref() != Some(text) || !object.exists() {
            fs::write(&source, text).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
            stale.push(source);
        }
        objects.push(object);
    }
    let program = tools::packaged(compiler, compiler).map_err(|missing| missing.to_string())?;
    for some in stale.chunks(100) {
        let mut command = Command::new(&program);
        command.current_dir(folder).args(["-O1", "-c"]).args(flags).args(some);
        let outcome = child::run(&mut command, Duration::from_secs(300))?;
        if !outcome.success() {
            return Err(format!("{compiler}: {}", outcome.stderr));
        }
    }
    Ok(objects)
}
