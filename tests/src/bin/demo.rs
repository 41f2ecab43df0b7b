//! `cargo demo`: installs what is missing, boots the runtime in QEMU, links the example programs into it and runs them.
//!
//! What it does is what a user would type: `graft boot` once, then `graft run` for each program. The figures are the ones
//! `graft run --stats` reports.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use graft_tests::child::{self, End};
use graft_tests::interop::Executor;
use graft_tests::target::Target;
use graft_tests::{install, objects, place, tools};

const LIMIT: Duration = Duration::from_secs(60);

struct Example {
    source: &'static str,
    what: &'static str,
    args: &'static [&'static str],
    status: i32,
}

#[rustfmt::skip] // one row, one line: it is a table
const EXAMPLES: &[Example] = &[
    Example { source: "ret.c", what: "a result", args: &[], status: 41 },
    Example { source: "args.c", what: "its arguments", args: &["graft", "says", "hello"], status: 3 },
    Example { source: "data.c", what: "data, zero-fill, constants, pointers between them", args: &[], status: 48 },
    Example { source: "heap.c", what: "the runtime's heap and memory functions", args: &[], status: 241 },
    Example { source: "rust.rs", what: "Rust without the standard library", args: &[], status: 92 },
    Example { source: "misbehave.c", what: "an instruction that does not exist", args: &["undefined"], status: 132 },
    Example { source: "misbehave.c", what: "a write to its own code", args: &["write-code"], status: 139 },
    Example { source: "ret.c", what: "the first one again: the machine survived", args: &[], status: 41 },
];

fn main() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<(), String> {
    install::ensure(install::DEMO)?;
    let cc = c_compiler()?;
    println!("building the command and the runtime");
    let graft = place::graft()?;
    let image = place::image()?;
    let size = std::fs::metadata(image).map_err(|error| error.to_string())?.len();
    println!("booting the runtime ({} KiB) in QEMU: graft boot", size / 1024);
    let started = Instant::now();
    let machine = Target::start(Executor::Microvm)?;
    let Target::Ours { name, .. } = &machine else { return Err("no machine".to_owned()) };
    println!("up after {} ms at {name}\n", started.elapsed().as_millis());
    let mut wrong = 0;
    for example in EXAMPLES {
        wrong += usize::from(!show(&graft.command, name, &cc, example)?);
    }
    match wrong {
        0 => {
            println!("{} programs ran as they should.", EXAMPLES.len());
            Ok(())
        }
        wrong => Err(format!("{wrong} programs did not end as they should")),
    }
}

/// Compiles and runs one, and says whether it ended as it should.
fn show(graft: &Path, target: &str, cc: &Path, example: &Example) -> Result<bool, String> {
    let object = compile(cc, example.source)?;
    let mut command = Command::new(graft);
    command.args(["run", "--json", "--stats", "-t", target]).arg(&object);
    if !example.args.is_empty() {
        command.arg("--").args(example.args);
    }
    println!("{}: {}", example.source, example.what);
    let outcome = child::run(&mut command, LIMIT)?;
    for line in String::from_utf8_lossy(&outcome.stdout).lines() {
        println!("    {line}");
    }
    let event = |name: &str| {
        let start = format!("{{\"event\":\"{name}\"");
        outcome.stderr.lines().find(|line| line.starts_with(&start))
    };
    if let Some(kind) = event("fault").and_then(|fault| field(fault, "kind")) {
        println!("    ended in a fault: {}", kind.trim_matches('"'));
    }
    let Some(stats) = event("stats") else {
        return Err(format!("`graft run` gave no figures: {}, {}", outcome.end, outcome.stderr));
    };
    let figure = |name| field(stats, name).unwrap_or("?");
    println!(
        "    {}; {} round trips, {} bytes sent, {} received; {} ms in all: connect {}, link {}, wire {}, run {}\n",
        outcome.end,
        figure("round_trips"),
        figure("bytes_sent"),
        figure("bytes_received"),
        outcome.took.as_millis(),
        figure("connect_ms"),
        figure("link_ms"),
        figure("wire_ms"),
        figure("run_ms"),
    );
    let right = outcome.end == End::Exit(example.status);
    if !right {
        eprintln!("demo: {} must end with {}: {}", example.source, example.status, outcome.stderr);
    }
    Ok(right)
}

/// A field of one of `graft`'s own events, which are flat objects without spaces.
fn field<'a>(event: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = event.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}']).next()
}

/// Whatever C compiler there is.
fn c_compiler() -> Result<PathBuf, String> {
    let named = env::var("CC").ok().filter(|name| !name.is_empty());
    let names = named.iter().map(String::as_str).chain(["cc", "gcc", "clang", "clang-19"]);
    names.clone().find_map(tools::in_path).ok_or_else(|| {
        let names: Vec<&str> = names.collect();
        format!("no C compiler (looked for {}): `apt-get install gcc`", names.join(", "))
    })
}

fn compile(cc: &Path, source: &str) -> Result<PathBuf, String> {
    let object = place::scratch("demo").join(source).with_extension("o");
    let mut command = if source.ends_with(".rs") {
        let mut rustc = tools::rustc();
        rustc.args(["--edition=2024", "--emit=obj", "--crate-type=lib", "-Cpanic=abort", "-O"]);
        rustc.args(["--target", place::BARE_TARGET]);
        rustc
    } else {
        let mut command = Command::new(cc);
        command.args(["-O2", "-c"]);
        command
    };
    let outcome = child::run(command.arg(objects::case(source)).arg("-o").arg(&object), LIMIT)?;
    if outcome.success() { Ok(object) } else { Err(format!("{command:?}: {}", outcome.stderr)) }
}
