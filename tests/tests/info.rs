//! `graft info`: everything it says is held to what is known from elsewhere, in words and as JSON.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use graft_protocol::{ExecRange, InfoReply, Prot, Void, call, decode};
use graft_tests::child::{self, End, Outcome, Running};
use graft_tests::programs::{Compiler, Unit};
use graft_tests::rig::{CODE, Load, PAGE, Rig, on_each_executor, segment};
use graft_tests::{objects, place, tools};

const LIMIT: Duration = Duration::from_secs(60);

/// The size of the machine.
const MIB: u64 = 48;

/// A session's last message: a header and success.
const HANGUP_LEN: u64 = 33;
/// The one call of `graft info`: a header.
const INFO_CALL_LEN: u64 = 32;

fn graft(words: &[&str]) -> Command {
    let mut command = Command::new(&place::graft().unwrap().command);
    command.args(words).env_remove("GRAFT_TARGET").env("GRAFT_RUNTIME_IMAGE", place::image().unwrap());
    command
}

fn succeed(words: &[&str]) -> Outcome {
    let outcome = child::run(&mut graft(words), LIMIT).unwrap();
    assert!(outcome.success(), "{words:?}: {}", outcome.stderr);
    outcome
}

fn compile(source: &'static str) -> String {
    let folder: PathBuf = place::scratch("info");
    fs::create_dir_all(&folder).unwrap();
    let object = objects::compile(&Unit { source, compiler: Compiler::Gcc, flags: "-O1" }, &folder).unwrap();
    object.display().to_string()
}

fn booted() -> (Running, String) {
    let machine = child::spawn(&mut graft(&["boot", "-t", &format!("qemu:mem={MIB}")])).unwrap();
    let said = String::from_utf8(machine.stdout(1, LIMIT)).unwrap();
    (machine, said.trim_end().to_owned())
}

/// The description in words: lines with a heading in front, and lists below one.
struct Words(String);

impl Words {
    fn of(target: &str) -> Self {
        let outcome = succeed(&["info", "-t", target]);
        assert_eq!(outcome.stderr, "");
        Self(String::from_utf8(outcome.stdout).unwrap())
    }

    #[track_caller]
    fn after(&self, heading: &str) -> &str {
        let found = self.0.lines().find_map(|line| line.strip_prefix(heading)?.strip_prefix("  "));
        found.unwrap_or_else(|| panic!("no {heading} in {}", self.0)).trim()
    }

    /// The numbers in a line.
    fn numbers(&self, heading: &str) -> Vec<u64> {
        self.after(heading).split([' ', ',']).filter_map(|word| word.parse().ok()).collect()
    }

    /// The lines below a heading.
    fn below(&self, heading: &str) -> Vec<&str> {
        let lines = self.0.lines().skip_while(|line| *line != heading).skip(1);
        lines.map_while(|line| line.strip_prefix("  ")).collect()
    }
}

/// The description as JSON.
struct Json(String);

impl Json {
    fn of(target: &str) -> Self {
        let outcome = succeed(&["info", "--json", "-t", target]);
        assert_eq!(outcome.stdout, b"");
        let event = outcome.stderr.trim_end();
        assert!(event.starts_with("{\"event\":\"info\",") && event.ends_with('}') && !event.contains('\n'), "{event}");
        Self(event.to_owned())
    }

    #[track_caller]
    fn after(&self, key: &str) -> &str {
        self.0.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {}", self.0)).1
    }

    #[track_caller]
    fn number(&self, key: &str) -> u64 {
        let digits = self.after(key).split(|digit: char| !digit.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap_or_else(|_| panic!("{key} is no number in {}", self.0))
    }

    #[track_caller]
    fn text(&self, key: &str) -> &str {
        self.after(key).strip_prefix('"').unwrap().split('"').next().unwrap()
    }

    /// The objects of a list, each as it is written.
    #[track_caller]
    fn list(&self, key: &str) -> Vec<&str> {
        let list = self.after(key).strip_prefix('[').unwrap().split_once(']').unwrap().0;
        list.split("},{").filter(|item| !item.is_empty()).collect()
    }
}

/// Start, end and the rest of a line such as `0x0000000000100000..0x0000000004000000  memory`.
fn range_line(line: &str) -> (u64, u64, &str) {
    let (range, rest) = line.split_once("  ").unwrap();
    let (start, end) = range.split_once("..").unwrap();
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap();
    (number(start), number(end), rest)
}

#[test]
fn a_machine_at_rest_is_described() {
    let since = Instant::now();
    let (_machine, name) = booted();
    let (words, json) = (Words::of(&name), Json::of(&name));
    for (heading, key, expected) in [
        ("target", "target", name.as_str()),
        ("triple", "triple", "x86_64-unknown-none-elf"),
        ("dialects", "dialects", "LLVM 19, LLVM 22, LLVM 23, Graft"),
        ("runtime", "version", env!("CARGO_PKG_VERSION")),
    ] {
        assert_eq!((words.after(heading), json.text(key)), (expected, expected));
    }
    assert!(words.after("machine").contains("QEMU"), "{}", words.0);
    assert_eq!(words.after("machine"), json.text("machine"));
    assert_eq!((words.after("page size"), json.number("page_size")), ("4096 bytes", 4096));
    // `-cpu max` has them all.
    for protection in ["NX", "SMEP", "SMAP", "UMIP", "ring 3", "W^X", "stack guards"] {
        assert!(words.after("protections").contains(protection), "{protection}: {}", words.0);
        assert!(json.list("protections")[0].contains(&format!("\"{protection}\"")), "{protection}: {}", json.0);
    }
    let offers = words.numbers("offers");
    assert_eq!(offers[1], json.list("symbols").len() as u64);
    for name in ["__llvm_orc_bootstrap_run_as_main_wrapper", "orc_rt_ci_sps_SimpleNativeMemoryMap_reserve"] {
        assert!(json.list("symbols").iter().any(|symbol| symbol.contains(name)), "{name}");
    }

    // The memory the machine was given: what is free is below what there is, and both are below that.
    let (free, total) = (words.numbers("memory")[0], words.numbers("memory")[1]);
    assert_eq!((free, total), (json.number("bytes_free"), json.number("bytes_total")));
    assert!(free <= total && total < MIB << 20 && free > (MIB - 4) << 20, "{free} of {total}");
    let physical: Vec<_> = words.below("physical memory").into_iter().map(range_line).collect();
    assert_eq!(physical.iter().filter(|(.., what)| *what == "memory").map(|(_, end, _)| *end).max(), Some(MIB << 20));
    assert!(physical.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{physical:?}");
    assert_eq!(json.list("memory").len(), physical.len());

    // The address space: in order, nothing writable and executable, code in the image and in the entry page alone.
    let mappings: Vec<_> = words.below("virtual memory").into_iter().map(range_line).collect();
    assert!(mappings.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{mappings:?}");
    for (.., what) in &mappings {
        let (prot, what) = what.split_once("  ").unwrap();
        assert!(["R--", "RW-", "R-X"].contains(&prot), "{prot}");
        let may_run =
            what.contains("the executor's image") || what.contains("the executor's functions for loaded code");
        assert!(prot != "R-X" || may_run, "{what}");
    }
    assert_eq!(json.list("mappings").len(), mappings.len());
    for ((start, end, what), object) in mappings.iter().zip(json.list("mappings")) {
        let prot = what.split_once("  ").unwrap().0;
        let expected = format!("\"start\":\"{start:#x}\",\"end\":\"{end:#x}\",\"protection\":\"{prot}\"");
        assert!(object.contains(&expected), "{object} is not {expected}");
    }

    let seconds: f64 = words.after("up for").split(' ').next().unwrap().parse().unwrap();
    assert!(seconds > 0.0 && seconds < since.elapsed().as_secs_f64(), "{seconds}");
}

#[test]
fn what_runs_did_to_a_machine_shows_and_what_they_held_does_not() {
    let (_machine, name) = booted();
    let (ret, misbehave) = (compile("ret.c"), compile("misbehave.c"));
    let run = |inputs: &[&str]| child::run(&mut graft(&[&["run", "-t", &name], inputs].concat()), LIMIT).unwrap();
    // The first call ever gets a stack, which stays.
    assert_eq!(run(&[&ret]).end, End::Exit(41));
    let before = (Words::of(&name), Json::of(&name));
    assert!(before.0.below("log").iter().all(|line| !line.contains("fault")), "{}", before.0.0);

    let stats = run(&["--stats", "--json", &ret]);
    assert_eq!(stats.end, End::Exit(41));
    let stats = Json(stats.stderr);
    let after = Json::of(&name);
    // Traffic is what the run counted on its side, and what describing costs.
    let grown = |key: &str| after.number(key) - before.1.number(key);
    assert_eq!(grown("bytes_in"), HANGUP_LEN + stats.number("bytes_sent") + INFO_CALL_LEN);
    assert_eq!(grown("messages_in"), 2 + stats.number("messages_sent"));
    assert_eq!(grown("sessions"), 2);
    assert!(grown("bytes_out") > stats.number("bytes_received"));
    // Each description is a session, too.
    assert_eq!(*before.0.numbers("line").last().unwrap() + 1, before.1.number("sessions"));
    // Nothing of the program is left.
    assert_eq!(after.number("bytes_free"), before.1.number("bytes_free"));
    assert_eq!(after.list("mappings"), before.1.list("mappings"));

    // A fault stands in the log, with its address and where it happened.
    let fault = run(&[&misbehave, "--", "undefined"]);
    assert_eq!(fault.end, End::Exit(132), "{}", fault.stderr);
    let (_, at) = fault.stderr.split_once("instruction at ").unwrap();
    let at = at.split([' ', ',', '\n']).next().unwrap();
    let (words, json) = (Words::of(&name), Json::of(&name));
    let expected = format!("ended: invalid opcode, instruction at {at}");
    assert_eq!(words.below("log").iter().filter(|line| line.contains(&expected)).count(), 1, "{}", words.0);
    assert!(json.text("log").contains(&expected), "{}", json.0);
    assert_eq!(json.number("bytes_free"), before.1.number("bytes_free"));
    assert_eq!(json.list("mappings").len(), before.0.below("virtual memory").len());
}

#[test]
fn regions_come_and_go_in_the_description() {
    let mappings = |rig: &mut Rig| -> Vec<(ExecRange, Prot)> {
        let reply = rig.client.call::<call::Info>(&Void);
        let info: InfoReply<'_> = decode(&reply).unwrap();
        info.mappings.iter().map(|mapping| (mapping.range, mapping.prot)).collect()
    };
    on_each_executor(|rig| {
        let before = mappings(rig);
        let base = rig.reserve(4 * PAGE).unwrap();
        let reserved = mappings(rig);
        let new: Vec<_> = reserved.iter().filter(|mapping| !before.contains(mapping)).collect();
        assert_eq!(new, [&(ExecRange::from_len(base, 4 * PAGE).unwrap(), Prot::ReadWrite)]);
        let at = |page: u64| base.checked_add(page * PAGE).unwrap();
        let parts = [(Prot::ReadWrite, at(0)), (Prot::ReadExec, at(1)), (Prot::Read, at(3))];
        let segments = parts.map(|(prot, addr)| segment(prot, addr, CODE));
        assert_eq!(rig.initialize(&segments), Ok(base));
        let loaded = mappings(rig);
        let new: Vec<_> = loaded.iter().filter(|mapping| !reserved.contains(mapping)).collect();
        let expected = parts.map(|(prot, addr)| (ExecRange::from_len(addr, PAGE).unwrap(), prot));
        assert_eq!(new, expected.iter().collect::<Vec<_>>());
        assert_eq!(rig.release(Load::Llvm22, base), Ok(()));
        assert_eq!(mappings(rig), before);
    });
}

#[test]
fn executors_that_say_less_are_described_by_their_setup() {
    for (executor, dialect) in [
        (tools::llvm19("llvm-jitlink-executor").unwrap(), "LLVM 19"),
        (tools::llvm22("llvm-jitlink-executor").unwrap(), "LLVM 22"),
    ] {
        let target = format!("exec:{}", executor.display());
        let (words, json) = (Words::of(&target), Json::of(&target));
        assert_eq!((words.after("dialects"), json.text("dialects")), (dialect, dialect));
        assert!(words.0.ends_with("(this executor says no more of itself)\n"), "{}", words.0);
        assert!(words.after("triple").starts_with("x86_64-") && words.after("triple") == json.text("triple"));
        assert!(!json.0.contains("bytes_total"), "{}", json.0);
    }
}
