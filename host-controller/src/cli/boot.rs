//! `graft boot`: boots the runtime in QEMU and keeps it.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use graft::relay::{Listener, Relay};
use graft::transport::Target;

use super::console::Console;
use super::own_folder::OwnFolder;
use super::report::Report;
use super::serve::{hooks, host_and_port, reach};
use super::signals;

/// What `graft boot` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The machine: microvm or q35
    #[arg(long, value_name = "M")]
    machine: Option<String>,
    /// Where clients come to: unix:PATH or tcp:HOST:PORT [default: a Unix socket in a directory of its own]
    #[arg(long, value_name = "WHERE", value_parser = place)]
    listen: Option<Place>,
}

#[derive(Clone, Debug)]
enum Place {
    Unix(PathBuf),
    Tcp(String, u16),
}

fn place(text: &str) -> Result<Place, String> {
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => Ok(Place::Unix(PathBuf::from(path))),
        Some(("tcp", address)) => host_and_port(address).map(|(host, port)| Place::Tcp(host, port)),
        _ => Err(format!("`{text}` is no place for clients: unix:PATH or tcp:HOST:PORT, please")),
    }
}

impl Args {
    /// The machine to boot: `target` when the user names one, else the usual one; `--machine` changes its board.
    pub(crate) fn target(&self, target: Option<Target>) -> anyhow::Result<Target> {
        let target = target.unwrap_or_else(|| Target::Qemu(Default::default()));
        match (target, &self.machine) {
            (Target::Qemu(mut machine), Some(kind)) => {
                let setting: Target = format!("qemu:machine={kind}").parse()?;
                if let Target::Qemu(named) = setting {
                    machine.machine = named.machine;
                }
                Ok(Target::Qemu(machine))
            }
            (target @ (Target::Qemu(_) | Target::Hosted), None) => Ok(target),
            (target, _) => anyhow::bail!("{target} cannot be booted: a qemu target can"),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, target: &Target, report: Report) -> anyhow::Result<u8> {
    let console = Console::default();
    let mut relay = Relay::new(reach(target, report), hooks(&console, report));
    let stopper = relay.stopper();
    signals::on_interrupt(move |_| stopper.stop())?;
    let mut own = None;
    let (listener, at) = match &args.listen {
        Some(Place::Tcp(host, port)) => (Listener::tcp(host, *port), format!("{host}:{port}")),
        Some(Place::Unix(path)) => (Listener::unix(path), path.display().to_string()),
        None => {
            let socket = own.insert(OwnFolder::create()?).socket();
            (Listener::unix(&socket), socket.display().to_string())
        }
    };
    let listener = listener.with_context(|| format!("cannot listen at {at}"))?;
    relay.prepare()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", listener.target()).and_then(|()| out.flush()).context("cannot print the target")?;
    drop(out);
    report.detail(&format!("{target} is up; end it with an interrupt"));
    relay.serve(&listener, false)?;
    drop(listener);
    drop(own);
    console.check()?;
    Ok(0)
}
