//! Runs that are ended from outside: by Ctrl-C, or because nobody takes the program's output any more. The next program
//! runs.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use graft_protocol::call;
use graft_tests::child::{self, End, Outcome};
use graft_tests::interop::Executor;
use graft_tests::programs::{Compiler, Unit};
use graft_tests::raw::{Client, Said};
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
        // Whoever runs the tests may ignore hang-ups, which is inherited.
        let running = child::spawn(&mut run(&["env", "--default-signal=HUP"], name, &object, "spin")).unwrap();
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

/// An object with `mib` MiB of content, which takes a machine's line many seconds.
fn heavy(mib: usize) -> PathBuf {
    let folder = place::scratch("interrupts-heavy");
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join(format!("heavy{mib}.s"));
    let text = format!(".globl main\nmain: mov heavy(%rip), %eax\nret\n.data\nheavy: .fill {mib} * 1048576, 1, 7\n");
    std::fs::write(&source, text).unwrap();
    let object = source.with_extension("o");
    let mut gcc = Command::new("gcc");
    assert!(child::run(gcc.arg("-c").arg(&source).arg("-o").arg(&object), LIMIT).unwrap().success());
    object
}

#[test]
fn a_client_that_leaves_while_it_loads_is_not_waited_for() {
    let target = Target::start(Executor::Microvm).unwrap();
    let Target::Ours { name, .. } = &target else { panic!("one of ours") };
    let (heavy, object) = (heavy(8), object("interrupts-load"));
    for signal in ["INT", "KILL"] {
        let mut command = Command::new(&place::graft().unwrap().command);
        command.args(["-v", "run", "-t", name]).arg(&heavy).env_remove("GRAFT_TARGET");
        let running = child::spawn(&mut command).unwrap();
        // Said before the first byte of it is sent; the relay then takes all of it long before the line does.
        running.said("linked at", LIMIT).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        running.signal(signal);
        let _ = running.finish(LIMIT);
        let before = Instant::now();
        next_works(name, &object, signal);
        // Half of the minute that the line would take for the rest.
        assert!(before.elapsed() < Duration::from_secs(25), "after {signal}: {:?}", before.elapsed());
    }
    let said = target.machine().map(|machine| machine.stderr()).unwrap_or_default();
    assert!(said.contains("bytes of the last client to take"), "{said}");
}

#[test]
fn a_program_larger_than_a_message_is_loaded_in_parts_and_a_message_above_the_limit_is_refused() {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(["boot", "-t", "qemu:mem=16"]).env("GRAFT_RUNTIME_IMAGE", place::image().unwrap());
    let machine = child::spawn(&mut command).unwrap();
    let said = machine.stdout(1, LIMIT);
    let name = String::from_utf8_lossy(&said).trim_end().to_owned();
    let path = name.strip_prefix("unix:").unwrap();
    let mut client = Client::on_line(UnixStream::connect(path).unwrap());
    let limit: u64 = graft_protocol::decode(&client.map["graft.max_message"]).unwrap();
    let reserve = client.wrapper::<call::Reserve>();
    client.send_call(reserve, &vec![b'z'; usize::try_from(limit).unwrap()]);
    match client.receive() {
        Said::Hangup(Some(why)) => assert!(why.contains(&format!("takes at most {limit}")), "{why}"),
        other => panic!("{other:?} instead of a Hangup that tells why"),
    }
    drop(client);
    let object = object("interrupts-above");
    next_works(&name, &object, "a message above the limit");
    let outcome = child::run(&mut run(&[], &name, &heavy(4), "well"), LIMIT).unwrap();
    assert_eq!(outcome.end, End::Exit(7), "{}", outcome.stderr);
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
