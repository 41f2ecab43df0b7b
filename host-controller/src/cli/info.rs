//! `graft info`: what an executor says of itself.

use graft::session::Peer;
use graft::transport::Target;
use graft_protocol::call::Info;
use graft_protocol::{Dialects, InfoReply, Void, WrapperId};

use super::attach::Attached;
use super::console::Console;
use super::json::Json;
use super::report::Report;

/// What `graft info` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: &Args, target: &Target, report: Report) -> anyhow::Result<u8> {
    let console = Console::default();
    let mut attached = Attached::new(target, &console, None, report)?;
    let peer = attached.session.peer().clone();
    let reply = match peer.wrapper(WrapperId::Info) {
        None => None,
        Some(_) => match attached.session.call::<Info>(&Void) {
            Ok(reply) => Some(reply),
            Err(error) => return Err(attached.explain(&error)),
        },
    };
    let info = reply.as_ref().map(|reply| reply.read()).transpose()?;
    if report.is_json() {
        report.event("info", fields(target, &peer, info.as_ref()), "");
    } else {
        console.sink()(describe(target, &peer, info.as_ref()).as_bytes());
    }
    attached.detach();
    console.check()?;
    Ok(0)
}

/// The dialects an executor speaks, in words.
pub(crate) fn dialects(peer: &Peer) -> String {
    let names = [
        (Dialects::LLVM19, "LLVM 19"),
        (Dialects::LLVM22, "LLVM 22"),
        (Dialects::LLVM23, "LLVM 23"),
        (Dialects::GRAFT, "Graft"),
    ];
    let spoken: Vec<_> = names.iter().filter(|(dialect, _)| peer.published().contains(*dialect)).collect();
    spoken.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

fn offered(peer: &Peer) -> (usize, usize) {
    let offered = WrapperId::ALL.iter().filter(|id| peer.wrapper(**id).is_some()).count();
    (offered, peer.symbols().len())
}

/// The description for people, each line with its end.
fn describe(target: &Target, peer: &Peer, info: Option<&InfoReply<'_>>) -> String {
    let (functions, names) = offered(peer);
    let mut lines = vec![
        format!("target       {target}"),
        format!("triple       {}", peer.triple()),
        format!("page size    {} bytes", peer.page_size()),
        format!("dialects     {}", dialects(peer)),
        format!("offers       {functions} wrapper functions under {names} names"),
    ];
    if peer.max_message() != u64::MAX {
        lines.push(format!("messages     up to {} bytes", peer.max_message()));
    }
    let Some(info) = info else {
        lines.push(String::from("(this executor says no more of itself)"));
        return lines.join("\n") + "\n";
    };
    lines.push(format!("runtime      {}", info.version));
    lines.push(format!("machine      {}", info.machine));
    lines.push(format!("up for       {:.3} s", seconds(info.uptime_ns)));
    lines.push(format!("memory       {} of {} bytes free", info.bytes_free, info.bytes_total));
    let protections: Vec<_> = info.protections.iter().map(|name| name.to_string()).collect();
    lines.push(format!("protections  {}", protections.join(" ")));
    let traffic = &info.traffic;
    lines.push(format!(
        "line         {} bytes in {} messages received, {} in {} sent, {} sessions ended",
        traffic.bytes_in, traffic.messages_in, traffic.bytes_out, traffic.messages_out, traffic.sessions
    ));
    lines.push(String::from("physical memory"));
    lines.extend(
        info.memory.iter().map(|memory| {
            format!("  {:#018x}..{:#018x}  {}", memory.range.start().0, memory.range.end().0, memory.what)
        }),
    );
    lines.push(String::from("virtual memory"));
    lines.extend(info.mappings.iter().map(|mapping| {
        let range = mapping.range;
        format!("  {:#018x}..{:#018x}  {}  {}", range.start().0, range.end().0, mapping.prot, mapping.what)
    }));
    lines.push(String::from("log"));
    lines.extend(info.log.to_string().lines().map(|line| format!("  {line}")));
    lines.join("\n") + "\n"
}

#[expect(clippy::cast_precision_loss, reason = "for people, three decimals")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn fields(target: &Target, peer: &Peer, info: Option<&InfoReply<'_>>) -> Vec<(&'static str, Json)> {
    let symbols = peer.symbols();
    let symbols = symbols
        .into_iter()
        .map(|(name, addr)| Json::Object(vec![("name", name.into()), ("address", addr.to_string().into())]));
    let mut fields = vec![
        ("target", target.to_string().into()),
        ("triple", peer.triple().into()),
        ("page_size", peer.page_size().into()),
        ("dialects", dialects(peer).into()),
        ("symbols", Json::List(symbols.collect())),
    ];
    let Some(info) = info else { return fields };
    let memory = info.memory.iter().map(|memory| {
        Json::Object(vec![
            ("start", memory.range.start().to_string().into()),
            ("end", memory.range.end().to_string().into()),
            ("what", memory.what.to_string().into()),
        ])
    });
    let mappings = info.mappings.iter().map(|mapping| {
        Json::Object(vec![
            ("start", mapping.range.start().to_string().into()),
            ("end", mapping.range.end().to_string().into()),
            ("protection", mapping.prot.to_string().into()),
            ("what", mapping.what.to_string().into()),
        ])
    });
    let traffic = Json::Object(vec![
        ("bytes_in", info.traffic.bytes_in.into()),
        ("bytes_out", info.traffic.bytes_out.into()),
        ("messages_in", info.traffic.messages_in.into()),
        ("messages_out", info.traffic.messages_out.into()),
        ("sessions", info.traffic.sessions.into()),
    ]);
    fields.extend([
        ("version", info.version.to_string().into()),
        ("machine", info.machine.to_string().into()),
        ("uptime_s", seconds(info.uptime_ns).into()),
        ("bytes_total", info.bytes_total.into()),
        ("bytes_free", info.bytes_free.into()),
        ("protections", Json::List(info.protections.iter().map(|name| name.to_string().into()).collect())),
        ("memory", Json::List(memory.collect())),
        ("mappings", Json::List(mappings.collect())),
        ("traffic", traffic),
        ("log", info.log.to_string().into()),
    ]);
    fields
}
