//! `graft serve`: a target for controllers of anybody's make.

use std::sync::{Arc, Mutex, PoisonError};

use graft::relay::{Closing, Hooks, Listener, Reach, Relay};
use graft::transport::{Target, fds};

use super::artifact;
use super::console::Console;
use super::report::Report;
use super::signals;

/// What `graft serve` takes.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("where").required(true).args(["listen", "fds"])))]
pub(crate) struct Args {
    /// Serve whoever connects to this TCP address, one after another
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    listen: Option<(String, u16)>,
    /// Serve the program that started this one, over two open descriptors
    #[arg(long, value_name = "IN,OUT", value_parser = descriptors)]
    fds: Option<(i32, i32)>,
    /// End after the first client
    #[arg(long, requires = "listen")]
    once: bool,
}

impl Args {
    /// What a controller means that starts us as its executor: `filedescs=IN,OUT`, or two numbers.
    pub(crate) fn of_executor(words: &[String]) -> Option<Self> {
        let fds = match words {
            [word] => descriptors(word.strip_prefix("filedescs=")?).ok()?,
            [input, output] => (input.parse().ok()?, output.parse().ok()?),
            _ => return None,
        };
        Some(Self { listen: None, fds: Some(fds), once: false })
    }
}

pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let bad = || format!("`{text}` is no address: HOST:PORT, please (port 0: any that is free)");
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err(bad()) } else { Ok((host.to_owned(), port.parse().map_err(|_| bad())?)) }
}

fn descriptors(text: &str) -> Result<(i32, i32), String> {
    let bad = || format!("`{text}` is no pair of descriptors: IN,OUT, please");
    let (input, output) = text.split_once(',').ok_or_else(bad)?;
    let number = |text: &str| text.parse().ok().filter(|number| *number >= 0).ok_or_else(bad);
    Ok((number(input)?, number(output)?))
}

/// Runs the command.
pub(crate) fn run(args: &Args, target: &Target, report: Report) -> anyhow::Result<u8> {
    // First of all: whatever is opened later gets other numbers.
    let wire = args.fds.map(|(input, output)| fds::wire(input, output)).transpose()?;
    let console = Console::default();
    let mut relay = Relay::new(reach(target, report), hooks(&console, report));
    match (wire, &args.listen) {
        (Some(wire), _) => relay.serve_one(wire, Closing::Client)?,
        (None, Some((host, port))) => {
            let stopper = relay.stopper();
            signals::on_interrupt(move |_| stopper.stop())?;
            let listener = Listener::tcp(host, *port)
                .map_err(|error| anyhow::anyhow!("cannot listen at {host}:{port}: {error}"))?;
            relay.prepare()?;
            let at = listener.target();
            report.event("listening", vec![("target", at.as_str().into())], &format!("serving {target} at {at}"));
            relay.serve(&listener, args.once)?;
        }
        (None, None) => anyhow::bail!("neither an address nor descriptors to serve at"),
    }
    console.check()?;
    Ok(0)
}

/// How a relay reaches `target`.
pub(crate) fn reach(target: &Target, report: Report) -> Reach {
    let (name, is_ours, target) = (target.to_string(), target.is_ours(), target.clone());
    let connect = move || artifact::connect(&target, report).map_err(|error| format!("{error:#}").into());
    Reach { target: name, is_ours, connect: Box::new(connect) }
}

/// What a relay's sights become: the program's console is standard output, the rest reports.
pub(crate) fn hooks(console: &Console, report: Report) -> Hooks {
    let sink = Mutex::new(console.sink());
    Hooks {
        console: Arc::new(move |bytes| (sink.lock().unwrap_or_else(PoisonError::into_inner))(bytes)),
        log: Arc::new(move |line| report.log(line)),
        // Stock controllers are told too late to print it.
        fault: Arc::new(move |line| report.event("fault", vec![("line", line.into())], line)),
        note: Arc::new(move |text| report.note(text)),
        detail: Arc::new(move |text| report.detail(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_are_started_in_two_ways() {
        let fds = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| String::from(*word)).collect();
            Args::of_executor(&words).and_then(|args| args.fds)
        };
        assert_eq!(fds(&["filedescs=5,6"]), Some((5, 6)));
        assert_eq!(fds(&["5", "6"]), Some((5, 6)));
        for other in [&["filedescs=5"][..], &["5"], &["run", "6"], &["5", "6", "7"], &["listen=a:1"], &[]] {
            assert_eq!(fds(other), None, "{other:?}");
        }
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(host_and_port("[::1]:80"), Ok((String::from("::1"), 80)));
        assert_eq!(host_and_port("localhost:0"), Ok((String::from("localhost"), 0)));
        for bad in ["localhost", ":80", "a:b", "a:70000"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}
