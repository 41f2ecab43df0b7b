//! Runs that are ended from outside: by Ctrl-C, or because nobody takes the program's output any more. The next program
//! runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::target::Target;
use graft_tests::{objects, place};

const LIMIT: Duration = Duration::from_secs(60);

fn object(folder: &str) -> PathBuf {
    let unit = Unit { source: "limits.c", compiler: Compiler::Gcc, flags: "-O1" };
    objects::compile(&unit, &place::scratch(folder)).unwrap()
}

/// `graft run` of a program that behaves like `how` says, behind `before`.
fn run(before: &[&str], target: &str, object: &Path, how: &str) -> Command {
    let graft = &place::graft().unwrap().command;
    let mut command = Command::new(before.first().map_or(graft.as_os_str(), |first| first.as_ref()));
    if !before.is_empty() {
        command.args(&before[1..]).arg(graft);
    }
    command.args(["run", "-t", target]).arg(object).args(["--", how]).env_remove("GRAFT_TARGET");
    command
}

fn next_works(target: &str, object: &Path, after: &str) {
    let next = child::run(&mut run(&[], target, object, "well"), LIMIT).unwrap();
    assert_eq!((next.end, &next.stdout[..]), (End::Exit(7), &b"well\n"[..]), "after {after}: {}", next.stderr);
}

fn ends(executor: Executor) {
    let target = Target::start(executor).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let object = object(&format!("interrupts-{executor:?}"));
    // The shell says last how the run ended.
    let shell = |script: &str| child::run(&mut run(&["sh", "-c", script], name, &object, "print"), LIMIT).unwrap();
    let Outcome { stdout, stderr, .. } = shell("{ \"$0\" \"$@\"; echo $? >&2; } | head -n 1");
    assert_eq!((&stdout[..], stderr.as_str()), (&b"print\n"[..], "141\n"), "a reader that has seen enough");
    next_works(name, &object, "a reader that has seen enough");
    let Outcome { end, stderr, .. } = shell("\"$0\" \"$@\" >/dev/full");
    assert_eq!(end, End::Exit(125), "{stderr}");
    assert!(stderr.contains("console output is lost") && stderr.contains("No space left"), "{stderr}");
    next_works(name, &object, "output that cannot be written");
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let running = child::spawn(&mut run(&[], name, &object, "spin")).unwrap();
        assert_eq!(running.stdout(5, LIMIT), b"spin\n", "{}", running.stderr());
        running.signal(signal);
        let outcome = running.finish(LIMIT);
        assert_eq!((outcome.end, outcome.stderr.as_str()), (End::Signal(number), ""), "SIG{signal}");
        next_works(name, &object, signal);
    }
    // Killed at once, it cannot say anything any more.
    let running = child::spawn(&mut run(&[], name, &object, "print")).unwrap();
    assert!(running.stdout(1000, LIMIT).starts_with(b"print\n"), "{}", running.stderr());
    running.signal("KILL");
    assert_eq!(running.finish(LIMIT).end, End::Signal(9));
    next_works(name, &object, "KILL");
    // The same machine served all of them.
    let said = target.machine().map(|machine| machine.stderr()).unwrap_or_default();
    assert!(!said.contains("again"), "{said}");
}

#[test]
fn on_the_hosted_executor() {
    ends(Executor::Hosted);
}

#[test]
fn on_a_machine_that_stays() {
    ends(Executor::Microvm);
}

#[test]
fn on_a_machine_of_its_own() {
    ends(Executor::Q35);
}
