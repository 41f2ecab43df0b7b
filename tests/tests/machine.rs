//! The bare machine by itself: its boot check, its self-test, its line, its rest, and how it dies.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use graft_qemu::{End, Gathered, Machine, MachineKind, Running, SerialPorts};
use graft_tests::place;

const LIMIT: Duration = Duration::from_secs(60);
const KINDS: [MachineKind; 2] = [MachineKind::Microvm, MachineKind::Q35];

/// What the image tells QEMU's debug-exit device.
const NO_LONG_MODE: u8 = 0x10;
const NO_NX: u8 = 0x11;
const TOO_LITTLE_MEMORY: u8 = 0x12;
const NO_UART: u8 = 0x13;
const SELF_TEST_PASSED: u8 = 0x20;
const FAULT: u8 = 0x30;

fn machine(kind: MachineKind, cmdline: &str) -> Machine {
    let mut machine = Machine::new(place::image().unwrap());
    machine.kind = kind;
    machine.cmdline = String::from(cmdline);
    machine.time_limit = Some(LIMIT);
    machine
}

/// Runs a machine to its end; what it said on its log and on its console.
fn run(machine: &Machine) -> (End, String, String) {
    let Running { line: _line, console, log, process } = machine.spawn().unwrap();
    let (console, log) = (Gathered::start(console), Gathered::start(log));
    let end = process.wait_exit(LIMIT * 2).unwrap();
    (end, log.finish(LIMIT), console.finish(LIMIT))
}

fn passes_its_self_test(machine: &Machine) {
    let (end, log, console) = run(machine);
    assert_eq!(end.guest_code(), Some(SELF_TEST_PASSED), "{end}: {log}");
    assert!(log.contains("self-test passed"), "{log}");
    assert!(console.contains("this is the console"), "{console}");
}

#[test]
fn the_self_test_passes_on_every_board() {
    for kind in KINDS {
        passes_its_self_test(&machine(kind, "selftest"));
    }
}

#[test]
fn a_fault_of_the_executor_itself_ends_the_machine() {
    // Loaded code calls a function of ours, which runs out of the executor's own stack.
    for kind in KINDS {
        let (end, log, _) = run(&machine(kind, "selftest overflow"));
        assert_eq!(end.guest_code(), Some(FAULT), "{kind}: {end}, {log}");
        assert!(log.contains("the executor failed: page fault writing "), "{kind}: {log}");
    }
}

#[test]
fn the_machine_works_on_memory_full_of_ones() {
    for kind in KINDS {
        passes_its_self_test(&machine(kind, "poison selftest"));
    }
}

#[test]
fn the_machine_works_with_little_memory_and_with_an_old_processor() {
    let mut small = machine(MachineKind::Microvm, "selftest");
    small.memory_mib = 4;
    passes_its_self_test(&small);
    let mut old = machine(MachineKind::Microvm, "selftest");
    old.cpu = String::from("qemu64,-svm");
    passes_its_self_test(&old);
}

#[test]
fn the_boot_check_says_in_plain_words_what_is_missing() {
    type Change = fn(&mut Machine);
    let cases: [(Change, u8, &str); 4] = [
        (|machine| machine.cpu = String::from("max,-nx"), NO_NX, "cannot protect data from execution (no NX bit)"),
        (|machine| machine.cpu = String::from("qemu32"), NO_LONG_MODE, "the processor has no 64-bit mode"),
        (|machine| machine.memory_mib = 2, TOO_LITTLE_MEMORY, "too little memory"),
        (|machine| machine.serial = SerialPorts::ConsoleOnly, NO_UART, "no serial port (16550 UART) at 0x3f8"),
    ];
    for kind in KINDS {
        for (change, code, words) in cases {
            let mut machine = machine(kind, "");
            change(&mut machine);
            let (end, log, console) = run(&machine);
            assert_eq!(end.guest_code(), Some(code), "{kind}, {words}: {end}, {log}");
            assert!(log.contains(words), "{kind}: {log}");
            assert!(console.contains(words), "{kind}: {console}");
        }
    }
}

/// Bytes without a pattern and without zeroes, as messages of any length that end in a newline.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8 | 1
        })
        .collect();
    bytes.push(b'\n');
    bytes
}

#[test]
fn every_byte_on_the_line_arrives() {
    for kind in KINDS {
        let Running { line, console, log, process } = machine(kind, "selftest echo").spawn().unwrap();
        let (_console, log) = (Gathered::start(console), Gathered::start(log));
        line.set_read_timeout(Some(LIMIT)).unwrap();
        let mut ready = [0];
        (&line).read_exact(&mut ready).unwrap();
        let messages: Vec<Vec<u8>> = [1, 3, 13, 14, 15, 16, 17, 100, 50_000, 2].map(noise).to_vec();
        let sent = messages.concat();
        let writer = send_all(&line, messages);
        let mut heard = vec![0; sent.len()];
        (&line).read_exact(&mut heard).unwrap_or_else(|error| panic!("{kind}: {error}; {}", log.text()));
        writer.join().unwrap();
        assert!(heard == sent, "{kind}: what came back differs");
        (&line).write_all(&[0]).unwrap();
        assert_eq!(process.wait_exit(LIMIT).and_then(End::guest_code), Some(SELF_TEST_PASSED), "{kind}");
    }
}

/// Sends from a thread of its own, with pauses in which the machine falls asleep.
fn send_all(line: &UnixStream, messages: Vec<Vec<u8>>) -> thread::JoinHandle<()> {
    let mut line = line.try_clone().unwrap();
    thread::spawn(move || {
        for message in messages {
            line.write_all(&message).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    })
}

/// One whole message of the protocol: its first eight bytes say how long it is.
fn read_message(mut line: &UnixStream) -> Vec<u8> {
    let mut message = vec![0; 8];
    line.read_exact(&mut message).unwrap();
    let size = u64::from_le_bytes(message.clone().try_into().unwrap());
    message.resize(usize::try_from(size).unwrap(), 0);
    line.read_exact(&mut message[8..]).unwrap();
    message
}

/// Processor time a process has used, in seconds.
fn processor_time(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may hold anything: state is field 3, user and system time are 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
fn an_executor_without_work_rests_and_each_session_gets_a_setup() {
    for kind in KINDS {
        let Running { line, console, log, process } = machine(kind, "poison").spawn().unwrap();
        let (_console, _log) = (Gathered::start(console), Gathered::start(log));
        line.set_read_timeout(Some(LIMIT)).unwrap();
        let setup = read_message(&line);
        for _ in 0..3 {
            let before = processor_time(process.pid());
            thread::sleep(Duration::from_millis(500));
            let used = processor_time(process.pid()) - before;
            assert!(used < 0.1, "{kind}: {used} s of processor time in half a second without work");
            // Hangup: 32 bytes, opcode 1.
            let hangup: Vec<u8> = [32u64, 1, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
            (&line).write_all(&hangup).unwrap();
            assert_eq!(read_message(&line), setup, "{kind}");
        }
    }
}

#[test]
fn a_machine_ends_at_its_time_limit_and_with_its_handle() {
    let mut short = machine(MachineKind::Microvm, "");
    short.time_limit = Some(Duration::from_millis(300));
    let running = short.spawn().unwrap();
    assert_eq!(running.process.wait_exit(LIMIT), Some(End::OutOfTime));
    let running = machine(MachineKind::Microvm, "").spawn().unwrap();
    let pid = running.process.pid();
    assert!(is_alive(pid));
    drop(running);
    assert!(!is_alive(pid));
}

#[test]
fn what_qemu_refuses_is_told_in_its_words() {
    let mut machine = machine(MachineKind::Microvm, "");
    machine.extra_args = vec![OsString::from("-no-such-option")];
    let error = machine.spawn().unwrap_err().to_string();
    assert!(error.contains("-no-such-option: invalid option"), "{error}");
}

/// Set for the process that [`the_machine_dies_with_a_process_that_is_killed`] kills.
const VICTIM: &str = "GRAFT_TESTS_VICTIM";

#[test]
fn the_machine_dies_with_a_process_that_is_killed() {
    if env::var_os(VICTIM).is_some() {
        let running = machine(MachineKind::Microvm, "").spawn().unwrap();
        println!("\nmachine {}", running.process.pid());
        thread::sleep(LIMIT);
        return;
    }
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_machine_dies_with_a_process_that_is_killed", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pid = lines.filter_map(|line| line.strip_prefix("machine ")?.parse().ok()).next();
    // SIGKILL: no destructor runs.
    victim.kill().unwrap();
    victim.wait().unwrap();
    let pid: u32 = pid.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "QEMU (process {pid}) lives on");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the process exists and is not a corpse that waits for its parent.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}
