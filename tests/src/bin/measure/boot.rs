//! Booting: from starting QEMU to the executor's Setup in our hands, on both machines.

use std::time::{Duration, Instant};

use graft_qemu::{Gathered, Machine, MachineKind};
use graft_tests::place;
use graft_tests::raw::Client;

use crate::figures::{Aim, Figure, line};

const RUNS: usize = 15;

pub(crate) fn report() -> Result<(), String> {
    println!("boot to Setup: from starting QEMU to the executor's first message");
    for kind in [MachineKind::Microvm, MachineKind::Q35] {
        let times: Vec<Duration> = (0..RUNS).map(|_| boot(kind)).collect::<Result<_, _>>()?;
        let aim = (kind == MachineKind::Microvm).then_some(Aim { at_most: 60.0 });
        line(kind.name(), &Figure::of_times(times), aim);
    }
    Ok(())
}

fn boot(kind: MachineKind) -> Result<Duration, String> {
    let mut machine = Machine::new(place::image()?);
    machine.kind = kind;
    machine.time_limit = Some(Duration::from_secs(60));
    let started = Instant::now();
    let running = machine.spawn().map_err(|error| error.to_string())?;
    let log = Gathered::start(running.log.try_clone().map_err(|error| error.to_string())?);
    let client = Client::on_line(running.line.try_clone().map_err(|error| error.to_string())?);
    let took = started.elapsed();
    drop(client);
    drop(running);
    drop(log);
    Ok(took)
}
