//! `cargo verify`: installs what the checks need, builds everything, checks everything, and ends with one line.
//!
//! Plain `cargo verify` needs the stable toolchain alone. Miri runs only on a nightly one, so it has a form of its own,
//! `cargo verify --miri`; `cargo verify --fuzz SECONDS` fuzzes for longer; `cargo verify --install` only installs.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use graft_tests::{install, interop, place, seeds, tools};

/// How long plain `cargo verify` fuzzes each target.
const FUZZ_SECONDS: u64 = 5;

/// The targets of the fuzz workspace.
const FUZZ_TARGETS: &[&str] = &["sps", "message", "session", "object"];

/// What libFuzzer needs of the code it drives, spelled so that the stable compiler does it.
const FUZZ_RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Coverflow-checks -Cdebug-assertions";

/// The `no_std` crates whose host tests run under Miri: those with unsafe code, and the one all others rest on.
const MIRI_CRATES: &[&str] = &["graft-protocol", "graft-arch", "graft-runtime"];

const USAGE: &str = "usage: cargo verify [--install | --miri | --fuzz SECONDS]

  (nothing)        install what is missing, build, lint, test, document, fuzz for seconds
  --install        install what is missing, no more
  --miri           run the host tests of the no_std crates under Miri (installs a nightly toolchain)
  --fuzz SECONDS   fuzz each target for that long";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut checks = Checks::default();
    let done = match arguments[..] {
        [] => everything(&mut checks),
        ["--install"] => install::ensure(install::VERIFY),
        ["--miri"] => miri(&mut checks),
        ["--fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => install::ensure(install::VERIFY).map(|()| fuzz(&mut checks, seconds)),
            Err(_) => return usage(),
        },
        _ => return usage(),
    };
    match done {
        Err(error) => {
            eprintln!("verify: {error}");
            ExitCode::FAILURE
        }
        Ok(()) if arguments == ["--install"] => ExitCode::SUCCESS,
        Ok(()) => checks.sum_up(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn everything(checks: &mut Checks) -> Result<(), String> {
    install::ensure(install::VERIFY)?;
    // What is shown at the end is of this run.
    let _ = fs::remove_file(interop::table_file());
    checks.run("format", place::cargo().args(["fmt", "--all", "--check"]));
    // The image and the hosted executor first: the tests use them.
    checks.run("build the command and the hosted executor", place::cargo().args(place::BUILD_HOST));
    checks.run("build the bare-metal image", place::cargo().args(place::BUILD_IMAGE));
    let lint = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    checks.run("lint the workspace", place::cargo().args(lint));
    let lint = ["clippy", "-p", "graft-runtime", "--target", place::BARE_TARGET, "--", "-D", "warnings"];
    checks.run("lint the runtime on the bare target", place::cargo().args(lint));
    let mut test = place::cargo();
    // What somebody set for a single run by hand must not thin out this one.
    test.env_remove("GRAFT_PROGRAMS").env_remove("GRAFT_TARGET");
    checks.tests("test", test.args(["test", "--workspace", "--no-fail-fast"]));
    checks.table = fs::read_to_string(interop::table_file()).unwrap_or_default();
    let mut doc = place::cargo();
    checks.run("document", doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"));
    fuzz(checks, FUZZ_SECONDS);
    Ok(())
}

fn fuzz(checks: &mut Checks, seconds: u64) {
    let target_dir = place::target_dir().join("fuzz");
    // Cargo compiles build scripts without these flags only when a target is named.
    let target = &tools::host_triple();
    let mut build = place::cargo();
    build.args(["build", "--release", "--bins", "--manifest-path", "fuzz/Cargo.toml", "--target", target]);
    build.env("RUSTFLAGS", FUZZ_RUSTFLAGS).env("CARGO_TARGET_DIR", &target_dir);
    if !checks.run("build the fuzz targets", &mut build) {
        return;
    }
    for name in FUZZ_TARGETS {
        // What the fuzzer finds goes to the first folder; the second is made anew.
        let (corpus, seeded) = (place::scratch("fuzz").join(name), place::scratch("fuzz-seeds").join(name));
        let _ = fs::create_dir_all(&corpus);
        match seeds::plant(name, &seeded) {
            Ok(count) => eprintln!("{count} seeds for {name}"),
            Err(error) => {
                checks.fail(&format!("seed {name}"), &error);
                continue;
            }
        }
        let mut command = Command::new(target_dir.join(target).join("release").join(name));
        command.current_dir(&corpus).args([
            &format!("-max_total_time={seconds}"),
            "-verbosity=0",
            "-print_final_stats=1",
        ]);
        checks.run(&format!("fuzz {name} for {seconds} s"), command.arg(&corpus).arg(&seeded));
    }
}

fn miri(checks: &mut Checks) -> Result<(), String> {
    let nightly = |arguments: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly"]).args(arguments).current_dir(place::root());
        // Those of the stable toolchain that runs us.
        command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC").env_remove("RUSTUP_TOOLCHAIN");
        command.env("CARGO_TARGET_DIR", place::target_dir().join("miri"));
        command
    };
    let there = nightly(&["cargo", "miri", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        let add = "rustup toolchain install nightly --profile minimal --component miri --component rust-src";
        eprintln!("+ {add}");
        let words: Vec<&str> = add.split(' ').collect();
        let status = Command::new(words[0]).args(&words[1..]).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("Miri needs a nightly toolchain, and it could not be installed: run `{add}`"));
        }
    }
    for name in MIRI_CRATES {
        checks.tests(&format!("Miri on {name}"), &mut nightly(&["cargo", "miri", "test", "-p", name, "--lib"]));
    }
    Ok(())
}

/// What was checked so far.
#[derive(Debug, Default)]
struct Checks {
    passed: u64,
    failed: u64,
    lines: Vec<(String, bool, Duration)>,
    /// The interop matrix, when it was run.
    table: String,
}

impl Checks {
    /// Runs one check, which counts as one.
    fn run(&mut self, name: &str, command: &mut Command) -> bool {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let passed = match command.stdin(Stdio::null()).status() {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("cannot start {:?}: {error}", command.get_program());
                false
            }
        };
        self.passed += u64::from(passed);
        self.failed += u64::from(!passed);
        self.lines.push((name.to_owned(), passed, started.elapsed()));
        passed
    }

    /// Counts a check that could not even be begun.
    fn fail(&mut self, name: &str, why: &str) {
        eprintln!("\n== {name}: {why}");
        self.failed += 1;
        self.lines.push((name.to_owned(), false, Duration::ZERO));
    }

    /// Runs a test command, whose tests count one by one.
    fn tests(&mut self, name: &str, command: &mut Command) {
        eprintln!("\n== {name}");
        let started = Instant::now();
        let (mut passed, mut failed) = (0, 0);
        let status = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().and_then(|mut child| {
            for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let line = line?;
                let _ = writeln!(std::io::stdout(), "{line}");
                if let Some((more_passed, more_failed)) = closing_line(&line) {
                    passed += more_passed;
                    failed += more_failed;
                }
            }
            child.wait()
        });
        let success = status.is_ok_and(|status| status.success());
        // A test program that does not compile or dies has no closing line.
        if !success && failed == 0 {
            failed = 1;
        }
        self.passed += passed;
        self.failed += failed;
        self.lines.push((format!("{name}: {passed} passed, {failed} failed"), success, started.elapsed()));
    }

    fn sum_up(&self) -> ExitCode {
        println!("{}", self.table);
        for (name, passed, took) in &self.lines {
            println!("{} {:>7.1} s  {name}", if *passed { "ok    " } else { "FAILED" }, took.as_secs_f64());
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The numbers of `test result: ok. 3 passed; 1 failed; ...`.
fn closing_line(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = counts.split("; ").find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse().ok()
    };
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::closing_line;

    #[test]
    fn closing_lines_of_the_test_harness_are_understood() {
        let line = "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.96s";
        assert_eq!(closing_line(line), Some((4, 1)));
        assert_eq!(closing_line("test interop ... ok"), None);
    }
}
