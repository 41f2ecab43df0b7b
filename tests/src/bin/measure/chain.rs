//! Linking: 200 objects, each calling the next, beside `llvm-jitlink` in the same run.
//!
//! `llvm-jitlink -noexec -show-times` links into its own process and prints the time from the objects in memory to the
//! finished code; ours is taken over the same distance, from bytes in memory to the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use graft::link::{Externals, Input, Options, parse, resolve};
use graft_protocol::ExecAddr;
use graft_tests::{child, place, tools};

use crate::figures::{Aim, Figure, line};

/// How many objects.
const OBJECTS: usize = 200;

/// How many measurements of each.
const RUNS: usize = 15;

pub(crate) fn report() -> Result<(), String> {
    println!("link time per object, {OBJECTS} chained objects");
    let objects = objects()?;
    let files: Vec<Vec<u8>> = objects.iter().map(fs::read).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    // Taken in turns, so that whatever else the machine does falls on all of them.
    let (mut ours, mut llvm19, mut llvm22) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(link(&objects, &files)?);
        llvm19.push(jitlink(&tools::llvm19("llvm-jitlink").map_err(|missing| missing.to_string())?, &objects)?);
        llvm22.push(jitlink(&tools::llvm22("llvm-jitlink").map_err(|missing| missing.to_string())?, &objects)?);
    }
    let per_object = |times: &[f64]| Figure::new(times.iter().map(|time| time * 1e6 / OBJECTS as f64), "us");
    let (llvm19, llvm22) = (per_object(&llvm19), per_object(&llvm22));
    let at_most = llvm19.median().min(llvm22.median()) / 5.0;
    line("graft", &per_object(&ours), Some(Aim { at_most }));
    line("llvm-jitlink 19", &llvm19, None);
    line("llvm-jitlink 22 (a build with assertions)", &llvm22, None);
    Ok(())
}

/// Our link, in seconds.
fn link(names: &[PathBuf], files: &[Vec<u8>]) -> Result<f64, String> {
    let started = Instant::now();
    let inputs: Vec<Input<'_>> =
        names.iter().zip(files).map(|(name, bytes)| Input::new(name.to_string_lossy(), bytes)).collect();
    let objects = parse(&inputs).map_err(|error| error.to_string())?;
    let options = Options { entry: Some("main".to_owned()), ..Options::default() };
    let program = resolve(&objects, &options).map_err(|error| error.to_string())?;
    let layout = program.layout().map_err(|error| error.to_string())?;
    let image = layout.link(ExecAddr(0x1000_0000), &Externals::default()).map_err(|error| error.to_string())?;
    let took = started.elapsed();
    // So that nobody measures a chain that was dropped.
    let code: u64 = image.segments.iter().map(|segment| segment.content.len() as u64).sum();
    if code < OBJECTS as u64 * 16 {
        return Err(format!("the image of {OBJECTS} objects has {code} bytes"));
    }
    Ok(took.as_secs_f64())
}

/// The link phase of `llvm-jitlink`, in seconds, as it reports it.
fn jitlink(program: &Path, objects: &[PathBuf]) -> Result<f64, String> {
    let outcome =
        child::run(Command::new(program).args(["-noexec", "-show-times"]).args(objects), Duration::from_secs(60))?;
    let wall = outcome.stderr.lines().chain(std::str::from_utf8(&outcome.stdout).unwrap_or_default().lines());
    let mut wall = wall.filter(|line| line.ends_with("time to link object files"));
    // user (share) system (share) both (share) wall (share) name: the wall time stands before the last bracket.
    let seconds = wall.next().and_then(|line| line.rsplit_once('(')?.0.split_whitespace().last()?.parse().ok());
    seconds.ok_or_else(|| format!("{} printed no times: {}", program.display(), outcome.stderr))
}

/// Writes and compiles the objects, the one with `main` last.
fn objects() -> Result<Vec<PathBuf>, String> {
    let folder = place::scratch("chain");
    let mut sources = Vec::new();
    for number in 0..OBJECTS {
        let next = number + 1;
        let (declared, called) = if next < OBJECTS {
            (format!("int f{next}(int);"), format!("f{next}(x + 1) ^ {number}"))
        } else {
            (String::new(), "x".to_owned())
        };
        let text = format!(
            "{declared}\nstatic int seen{number}[4];\nint f{number}(int x) {{ seen{number}[x & 3]++; return {called}; }}\n"
        );
        sources.push((format!("f{number}.c"), text));
    }
    sources.push(("main.c".to_owned(), "int f0(int);\nint main(void) { return f0(0) & 0x7f; }\n".to_owned()));
    let mut objects = Vec::new();
    let mut stale = Vec::new();
    for (name, text) in sources {
        let source = folder.join(name);
        let object = source.with_extension("o");
        if fs::read_to_string(&source).ok().as_deref() != Some(&text) || !object.exists() {
            fs::write(&source, text).map_err(|error| format!("cannot write {}: {error}", source.display()))?;
            stale.push(source);
        }
        objects.push(object);
    }
    if !stale.is_empty() {
        let gcc = tools::packaged("gcc", "gcc").map_err(|missing| missing.to_string())?;
        let mut compile = Command::new(gcc);
        let outcome =
            child::run(compile.current_dir(&folder).args(["-O2", "-c"]).args(&stale), Duration::from_secs(120))?;
        if !outcome.success() {
            return Err(format!("gcc: {}", outcome.stderr));
        }
    }
    Ok(objects)
}
