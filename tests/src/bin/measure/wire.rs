//! The wire: what one small object costs in messages, round trips and bytes, counted by a relay in the middle.
//!
//! The relay stands between any controller and the hosted executor; a *round trip* is a turn of the controller: it sent
//! something after it had heard something.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use graft_protocol::Header;
use graft_tests::child::{self, End};
use graft_tests::{objects, place, programs, tools};

use crate::figures::{Aim, Figure, line};

/// The object: a `main` that prints four lines.
const PROGRAM: &str = "data/gcc-default";

const RUNS: usize = 10;

/// What one run cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    turns: usize,
    to_executor: usize,
    from_executor: usize,
    messages: usize,
}

pub(crate) fn report() -> Result<(), String> {
    println!("the wire, for one small object that prints four lines (counted by a relay, hosted executor)");
    let found = |tool: Result<PathBuf, tools::Missing>| tool.map_err(|missing| missing.to_string());
    let graft = place::graft()?.command.clone();
    let (jitlink19, jitlink22) = (found(tools::llvm19("llvm-jitlink"))?, found(tools::llvm22("llvm-jitlink"))?);
    let ours = |relay: &str| vec!["run".into(), "-t".into(), format!("tcp:{relay}")];
    let stock = |relay: &str| vec![format!("-oop-executor-connect={relay}")];
    // Taken in turns, so that whatever else the host does falls on all of them.
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for _ in 0..RUNS {
        costs[0].push(cost("graft run", &graft, ours)?);
        costs[1].push(cost("llvm-jitlink 19", &jitlink19, stock)?);
        costs[2].push(cost("llvm-jitlink 22", &jitlink22, stock)?);
    }
    type Part = fn(&Cost) -> usize;
    let table: [(&str, &'static str, Part); 4] = [
        ("round trips", "", |cost| cost.turns),
        ("to the executor", "bytes", |cost| cost.to_executor),
        ("from the executor, with Setup", "bytes", |cost| cost.from_executor),
        ("messages both ways", "", |cost| cost.messages),
    ];
    for (what, unit, of) in table {
        for (name, costs) in ["graft run", "llvm-jitlink 19", "llvm-jitlink 22"].into_iter().zip(&costs) {
            let aim = (what == "round trips" && name == "graft run").then_some(Aim { at_most: 4.0 });
            let figure = Figure::new(costs.iter().map(|cost| of(cost) as f64), unit);
            line(&format!("{what}: {name}"), &figure, aim);
        }
    }
    Ok(())
}

/// Runs the object once through a relay of its own.
fn cost(name: &str, program: &PathBuf, words: impl Fn(&str) -> Vec<String>) -> Result<Cost, String> {
    let small = programs::PROGRAMS.iter().find(|small| small.name == PROGRAM).ok_or("no such program")?;
    let built = objects::built(small)?;
    let running = child::spawn(Command::new(&place::graft()?.hosted).arg("listen=127.0.0.1:0"))?;
    let said = running.said("listening on ", Duration::from_secs(20))?;
    let executor = said.rsplit_once(' ').map_or("", |(_, address)| address).to_owned();
    let relay = Relay::start(executor).map_err(|error| format!("relay: {error}"))?;
    let mut command = Command::new(program);
    let outcome = child::run(command.args(words(&relay.address)).args(&built.inputs), Duration::from_secs(60))?;
    drop(running);
    if outcome.end != End::Exit(small.status) {
        return Err(format!("{name}: {}: {}", outcome.end, outcome.stderr));
    }
    let traffic = relay.traffic.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Cost {
        turns: traffic.turns,
        to_executor: traffic.to_executor.bytes,
        from_executor: traffic.from_executor.bytes,
        messages: traffic.to_executor.messages + traffic.from_executor.messages,
    })
}

#[derive(Debug, Default)]
struct Traffic {
    to_executor: Way,
    from_executor: Way,
    turns: usize,
    heard_since: bool,
}

/// One direction, cut into messages as they pass.
#[derive(Debug, Default)]
struct Way {
    bytes: usize,
    messages: usize,
    head: Vec<u8>,
    left: u64,
}

impl Way {
    /// Counts bytes that pass, and says whether a message began among them.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        self.bytes += bytes.len();
        let mut began = false;
        while !bytes.is_empty() {
            if self.left == 0 {
                let take = (Header::SIZE - self.head.len()).min(bytes.len());
                let (head, rest) = bytes.split_at(take);
                began |= self.head.is_empty();
                self.head.extend_from_slice(head);
                bytes = rest;
                if let Some(size) = self.head.first_chunk::<8>().filter(|_| self.head.len() == Header::SIZE) {
                    self.left = u64::from_le_bytes(*size).saturating_sub(Header::SIZE as u64);
                    self.messages += 1;
                    self.head.clear();
                }
            } else {
                let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= take as u64;
                bytes = &bytes[take..];
            }
        }
        began
    }
}

struct Relay {
    address: String,
    traffic: Arc<Mutex<Traffic>>,
}

impl Relay {
    fn start(executor: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        let traffic = Arc::new(Mutex::new(Traffic::default()));
        let counted = Arc::clone(&traffic);
        thread::spawn(move || -> std::io::Result<()> {
            let (controller, _) = listener.accept()?;
            let executor = TcpStream::connect(executor)?;
            controller.set_nodelay(true)?;
            executor.set_nodelay(true)?;
            let (from, to) = (executor.try_clone()?, controller.try_clone()?);
            let counting = Arc::clone(&counted);
            thread::spawn(move || {
                copy(from, to, |bytes| {
                    let mut traffic = counting.lock().unwrap_or_else(PoisonError::into_inner);
                    traffic.heard_since |= traffic.from_executor.pass(bytes);
                })
            });
            copy(controller, executor, |bytes| {
                let mut traffic = counted.lock().unwrap_or_else(PoisonError::into_inner);
                if traffic.to_executor.pass(bytes) && std::mem::take(&mut traffic.heard_since) {
                    traffic.turns += 1;
                }
            });
            Ok(())
        });
        Ok(Self { address, traffic })
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut passing: impl FnMut(&[u8])) {
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        passing(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
