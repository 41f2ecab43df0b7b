//! `graft run`: link, ship, run, exit with the program's code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use graft::launch::{self, Ending, Finished, KernelRing, LaunchError};
use graft::link::{self, Externals, Image, Layout, printable};
use graft::memory::{Memory, Strategy};
use graft::session::{End, Figures};
use graft::transport::Target;
use graft_protocol::{ExecAddr, Fault, FaultKind};

use super::attach::Attached;
use super::console::Console;
use super::json::Json;
use super::link_args::{LinkArgs, slab_address};
use super::report::Report;
use super::{exit, fault, link_args, map, rules, signals};

/// What `graft run` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// The program's arguments, exactly as `argv` will hold them
    #[arg(last = true, value_name = "ARG")]
    args: Vec<OsString>,
    /// End with code 124 when a call into the program takes longer
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Where the program runs in the processor of a bare-metal target
    #[arg(long, value_enum, default_value_t)]
    ring: Ring,
    /// Link and check, but ship and run nothing: against the target when one is named (-t, GRAFT_TARGET), else alone, where
    /// names left to the target are taken on trust
    #[arg(long)]
    no_exec: bool,
    /// Where --no-exec links to when no target is named
    #[arg(long, value_name = "ADDRESS", value_parser = slab_address, default_value = "0x10000000")]
    slab_address: ExecAddr,
    /// Show where every section, symbol, GOT slot and stub lies
    #[arg(long)]
    show_map: bool,
    /// Hold what was linked against the rules in FILE, in the language of llvm-jitlink's -check
    #[arg(long, value_name = "FILE")]
    check: Vec<PathBuf>,
    /// Write what was linked, with its symbols, as an ELF file at its final addresses, for gdb and objdump
    #[arg(long, value_name = "FILE")]
    emit_elf: Option<PathBuf>,
    /// Print the wire budget: round trips, bytes, times
    #[arg(long)]
    stats: bool,
    /// How memory is reserved
    #[arg(long, value_enum, default_value_t)]
    memory: Manager,
    /// Bytes of a slab, with --memory slab; K, M and G stand for their powers of 1024
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1M")]
    slab_size: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Ring {
    /// Ring 3: the program reaches only what it was given
    #[default]
    User,
    /// Ring 0: privileged instructions and port I/O work, and nothing keeps the program from the machine
    Kernel,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Manager {
    /// One reservation for the program
    #[default]
    Generic,
    /// A part of a larger reservation
    Slab,
}

impl Args {
    /// Whether a target is needed.
    pub(super) fn runs(&self) -> bool {
        !self.no_exec
    }

    /// Shows and writes what was asked for of the linked image.
    fn views(&self, image: &Image<'_>, report: Report) -> anyhow::Result<()> {
        if self.show_map {
            map::show(image, report);
        }
        if let Some(path) = &self.emit_elf {
            link_args::write(path, &image.to_elf()?)?;
        }
        self.check.iter().try_for_each(|path| rules::check(image, path, report))
    }

    /// The program's arguments.
    pub(super) fn words(&self) -> Vec<&[u8]> {
        self.args.iter().map(|arg| arg.as_bytes()).collect()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) => Err(format!("`{text}` is no time limit: more than 0 seconds, please")),
        Err(_) => Err(format!("`{text}` is no time limit: seconds above 0 and below {:e}, please", u64::MAX as f64)),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("`{text}` is no size: a number of bytes, or with K, M or G"))
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    connect: Duration,
    link: Duration,
    run: Duration,
}

/// Runs the command.
/// Without a target it links for itself, which only --no-exec asks for.
pub(crate) fn run(args: &Args, target: Option<&Target>, report: Report) -> anyhow::Result<u8> {
    if let Some(path) = args.emit_elf.as_deref().filter(|path| args.link.has_input(path)) {
        anyhow::bail!("`{}` is an input and would be overwritten: give --emit-elf another file", path.display());
    }
    let files = args.link.read()?;
    let inputs = files.inputs();
    let mut times = Times::default();
    let began = Instant::now();
    let objects = link::parse(&inputs)?;
    let expected = args.link.options(link::Options::default().page_size);
    let program = link::resolve(&objects, &expected)?;
    let layout = program.layout()?;
    times.link += began.elapsed();
    let Some(target) = target else {
        let image = layout.link(args.slab_address, &stand_ins(&layout, args.slab_address))?;
        times.link = began.elapsed();
        args.views(&image, report)?;
        alone(&layout, &image, times.link, report);
        return Ok(0);
    };

    let console = Console::default();
    let patience = args.timeout.map(|limit| limit.saturating_add(launch::GRACE));
    let mut attached = Attached::new(target, &console, patience, report)?;
    times.connect = attached.connect_time;
    console.belongs_to(attached.session.caller());
    let signal = Arc::new(AtomicI32::new(0));
    let (caller, caught) = (attached.session.caller(), Arc::clone(&signal));
    signals::on_interrupt(move |signal| {
        caught.store(signal, Ordering::Relaxed);
        caller.interrupt();
    })?;
    let page_size = attached.session.peer().page_size();
    let code = if page_size == expected.page_size {
        in_session(args, &layout, &mut attached, &console, &mut times, report)
    } else {
        let actual = args.link.options(page_size);
        let program = link::resolve(&objects, &actual)?;
        in_session(args, &program.layout()?, &mut attached, &console, &mut times, report)
    };
    let total = began.elapsed();
    let lost = console.is_lost();
    let signal = signal.load(Ordering::Relaxed);
    let figures = if lost || signal != 0 { attached.give_up() } else { attached.detach() };
    if args.stats {
        stats(&figures, &times, total, report);
    }
    match code {
        Err(_) if signal != 0 => signals::die_of(signal),
        Err(error) if !lost => Err(error),
        // It was interrupted for that.
        Err(_) => console.check().map(|()| exit::of_signal(libc::SIGPIPE)),
        Ok(code) => console.check().map(|()| code),
    }
}

/// Everything that needs the executor; `layout` suits its pages.
fn in_session(
    args: &Args,
    layout: &Layout<'_>,
    attached: &mut Attached,
    console: &Console,
    times: &mut Times,
    report: Report,
) -> anyhow::Result<u8> {
    let strategy = match args.memory {
        Manager::Generic => Strategy::Generic,
        Manager::Slab => Strategy::Slab { size: args.slab_size },
    };
    let mut memory = Memory::new(attached.session.caller(), strategy)?;
    launch::subscribe(&attached.session, console.sink());
    match place_and_execute(args, layout, attached, &mut memory, times, report) {
        Ok(code) => Ok(code),
        Err(error) => {
            let Some(error) = error.call() else { return Err(error.into()) };
            if matches!(error.end(), Some(End::Closed | End::Broken(_)))
                && let Some(signal) = attached.signal()
            {
                let text = format!("the executor's process was killed by signal {signal} while the program ran in it");
                let code = exit::of_signal(signal);
                report.event("crash", vec![("signal", i64::from(signal).into()), ("exit_code", code.into())], &text);
                return Ok(code);
            }
            Err(attached.explain(error))
        }
    }
}

fn place_and_execute(
    args: &Args,
    layout: &Layout<'_>,
    attached: &Attached,
    memory: &mut Memory,
    times: &mut Times,
    report: Report,
) -> Result<u8, LaunchError> {
    let session = &attached.session;
    let asked = if args.ring == Ring::Kernel { Some(KernelRing::ask(session)?) } else { None };
    let placed = launch::place(session, memory, layout)?;
    if let Err(error) = asked.map_or(Ok(()), KernelRing::check) {
        // Nothing was run yet.
        let releasing = memory.abandon(placed.room)?;
        memory.released(releasing)?;
        return Err(error);
    }
    times.link += placed.link_time;
    describe(&placed.image, report);
    if let Err(error) = args.views(&placed.image, report) {
        let releasing = memory.abandon(placed.room)?;
        memory.released(releasing)?;
        return Ok(report.exit_code(Err(error)));
    }
    if args.no_exec {
        let releasing = memory.abandon(placed.room)?;
        memory.released(releasing)?;
        return Ok(0);
    }
    let words = args.words();
    let image = &placed.image;
    match launch::execute(session, memory, placed.room, image, &words, args.timeout) {
        Ok(Finished { ending, run_time, loaded }) => {
            times.run = run_time;
            // The session ends next.
            loaded.leave();
            if let (Ending::Faulted(Fault { kind: FaultKind::TIMED_OUT, .. }), Some(limit)) = (ending, args.timeout) {
                report_time_out(limit, report);
            }
            Ok(report_ending(ending, image, args, report))
        }
        Err(LaunchError::TimedOut(limit)) => {
            // The executor cannot end it.
            attached.note_lost();
            times.run = limit;
            report_time_out(limit, report);
            Ok(exit::TIMED_OUT)
        }
        Err(silent @ LaunchError::Silent(limit)) => {
            attached.note_lost();
            times.run = limit;
            let (target, code) = (attached.target(), exit::TIMED_OUT);
            let fields = vec![
                ("limit_s", limit.as_secs_f64().into()),
                ("exit_code", code.into()),
                ("silent_target", target.into()),
            ];
            report.event("timeout", fields, &format!("{target} does not answer: {silent}"));
            Ok(exit::TIMED_OUT)
        }
        Err(error) => Err(error),
    }
}

fn report_time_out(limit: Duration, report: Report) {
    let fields = vec![("limit_s", limit.as_secs_f64().into()), ("exit_code", exit::TIMED_OUT.into())];
    report.event("timeout", fields, &LaunchError::TimedOut(limit).to_string());
}

fn report_ending(ending: Ending, image: &Image<'_>, args: &Args, report: Report) -> u8 {
    match ending {
        Ending::Returned(value) | Ending::Exited(value) => {
            let code = exit::of_result(value);
            if report.is_json() || i64::from(code) != value {
                let what = match ending {
                    Ending::Exited(_) => String::from("the program called `exit` with"),
                    _ => format!("`{}` returned", args.link.entry),
                };
                let text = format!("{what} {value}, which is exit code {code}");
                report.event("result", vec![("value", value.into()), ("exit_code", code.into())], &text);
            }
            code
        }
        Ending::Faulted(found) => {
            let code = exit::of_fault(found.kind);
            let located = fault::Located::new(&found, image);
            let located = if args.ring == Ring::User { located.in_ring_3() } else { located };
            report.event("fault", located.fields(code), &located.describe());
            code
        }
    }
}

/// An address for each name that the target would be asked for: below the image, so that all of them are in reach of it.
fn stand_ins(layout: &Layout<'_>, base: ExecAddr) -> Externals {
    let names = layout.externals().iter().map(|external| external.name);
    names.zip(1_u64..).map(|(name, number)| (name, ExecAddr(base.0.wrapping_sub(16 * number)))).collect()
}

/// How many names of externals a person is shown.
const MOST_NAMES: usize = 32;

/// What came of linking without a target.
fn alone(layout: &Layout<'_>, image: &Image<'_>, took: Duration, report: Report) {
    let names: Vec<_> = layout.externals().iter().map(|external| printable(external.name.as_bytes())).collect();
    let left = match names.split_at_checked(MOST_NAMES) {
        Some((first, rest)) if !rest.is_empty() => format!("{} and {} more", first.join(", "), rest.len()),
        _ if names.is_empty() => String::from("nothing"),
        _ => names.join(", "),
    };
    let text = format!("linked at {} in {:.3} ms; left to the target: {left}", image.range(), took.as_secs_f64() * 1e3);
    let fields = vec![
        ("range", image.range().to_string().into()),
        ("link_ms", (took.as_secs_f64() * 1e3).into()),
        ("externals", Json::List(names.iter().map(|name| name.as_str().into()).collect())),
    ];
    report.event("linked", fields, &text);
}

fn describe(image: &Image<'_>, report: Report) {
    let content: usize = image.segments.iter().map(|segment| segment.content.len()).sum();
    let entry = image.entry.unwrap_or_default();
    report.detail(&format!(
        "linked at {}: {} segments, {content} bytes of content, entry {entry}",
        image.range(),
        image.segments.len()
    ));
}

fn stats(figures: &Figures, times: &Times, total: Duration, report: Report) {
    let wire = total.saturating_sub(times.connect).saturating_sub(times.link).saturating_sub(times.run);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let Figures { round_trips, bytes_out, messages_out, bytes_in, messages_in } = *figures;
    let text = format!(
        "stats: {round_trips} round trips; {bytes_out} bytes sent in {messages_out} messages, {bytes_in} bytes received \
         in {messages_in}; connect {:.3} ms, compile 0.000 ms, link {:.3} ms, wire {:.3} ms, run {:.3} ms",
        ms(times.connect),
        ms(times.link),
        ms(wire),
        ms(times.run),
    );
    let fields = vec![
        ("round_trips", round_trips.into()),
        ("bytes_sent", bytes_out.into()),
        ("messages_sent", messages_out.into()),
        ("bytes_received", bytes_in.into()),
        ("messages_received", messages_in.into()),
        ("connect_ms", ms(times.connect).into()),
        ("compile_ms", 0.0.into()),
        ("link_ms", ms(times.link).into()),
        ("wire_ms", ms(wire).into()),
        ("run_ms", ms(times.run).into()),
    ];
    report.event("stats", fields, &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!((bytes("10"), bytes("4K"), bytes("1M"), bytes("2G")), (Ok(10), Ok(4096), Ok(1 << 20), Ok(2 << 30)));
        for bad in ["0", "", "M", "-1", "1T", "1.5M", "99999999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_limits_are_seconds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for (bad, words) in
            [("0", "more than 0"), ("x", "no number"), ("-1", "above 0"), ("1e30", "below 1.8"), ("inf", "below")]
        {
            assert!(seconds(bad).unwrap_err().contains(words), "{bad}: {:?}", seconds(bad));
        }
    }
}
