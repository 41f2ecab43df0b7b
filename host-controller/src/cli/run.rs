//! `graft run`: link, ship, run, exit with the program's code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use graft::launch::{self, Ending, Finished, LaunchError};
use graft::link::{self, Image, Layout, Unwind};
use graft::memory::{Memory, Strategy};
use graft::session::{End, Figures};
use graft::transport::Target;

use super::attach::Attached;
use super::console::Console;
use super::inputs::Files;
use super::report::Report;
use super::{exit, fault};

/// What `graft run` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Objects (.o) and archives (.a, .rlib) to link
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The program's arguments, exactly as `argv` will hold them
    #[arg(last = true, value_name = "ARG")]
    args: Vec<OsString>,
    /// The function to run, called as `main` is
    #[arg(long, value_name = "NAME", default_value = "main")]
    entry: String,
    /// End with code 124 when a call into the program takes longer
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Link against the target and check, but ship and run nothing
    #[arg(long)]
    no_exec: bool,
    /// Print the wire budget: round trips, bytes, times
    #[arg(long)]
    stats: bool,
    /// How memory is reserved
    #[arg(long, value_enum, default_value_t)]
    memory: Manager,
    /// Bytes of a slab, with --memory slab
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    slab_size: u64,
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
    /// The program's arguments.
    pub(super) fn words(&self) -> Vec<&[u8]> {
        self.args.iter().map(|arg| arg.as_bytes()).collect()
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("`{text}` is no time limit: more than 0 seconds, please")),
    }
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    connect: Duration,
    link: Duration,
    run: Duration,
}

/// Runs the command.
pub(crate) fn run(args: &Args, target: &Target, report: Report) -> anyhow::Result<u8> {
    let files = Files::read(&args.inputs)?;
    let inputs = files.inputs();
    let mut times = Times::default();
    let began = Instant::now();
    let objects = link::parse(&inputs)?;
    let options = |page_size| link::Options {
        entry: Some(args.entry.clone()),
        // No executor has an unwinder that would read them.
        unwind: Unwind::Drop,
        page_size,
        ..link::Options::default()
    };
    let expected = options(link::Options::default().page_size);
    let program = link::resolve(&objects, &expected)?;
    let layout = program.layout()?;
    times.link += began.elapsed();

    let console = Console::default();
    let mut attached = Attached::new(target, &console, report)?;
    times.connect = attached.connect_time;
    let page_size = attached.session.peer().page_size();
    let code = if page_size == expected.page_size {
        in_session(args, &layout, &mut attached, &console, &mut times, report)
    } else {
        let actual = options(page_size);
        let program = link::resolve(&objects, &actual)?;
        in_session(args, &program.layout()?, &mut attached, &console, &mut times, report)
    };
    let total = began.elapsed();
    let stuck = matches!(code, Ok(exit::TIMED_OUT));
    let figures = if stuck { attached.give_up() } else { attached.detach() };
    if args.stats {
        stats(&figures, &times, total, report);
    }
    let code = code?;
    console.check()?;
    Ok(code)
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
    let placed = launch::place(session, memory, layout)?;
    times.link += placed.link_time;
    describe(&placed.image, report);
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
            Ok(report_ending(ending, image, &args.entry, report))
        }
        Err(error @ LaunchError::TimedOut(limit)) => {
            times.run = limit;
            let fields = vec![("limit_s", limit.as_secs_f64().into()), ("exit_code", exit::TIMED_OUT.into())];
            report.event("timeout", fields, &error.to_string());
            Ok(exit::TIMED_OUT)
        }
        Err(error) => Err(error),
    }
}

fn report_ending(ending: Ending, image: &Image<'_>, entry: &str, report: Report) -> u8 {
    match ending {
        Ending::Returned(value) | Ending::Exited(value) => {
            let code = exit::of_result(value);
            if report.is_json() || i64::from(code) != value {
                let what = match ending {
                    Ending::Exited(_) => String::from("the program called `exit` with"),
                    _ => format!("`{entry}` returned"),
                };
                let text = format!("{what} {value}, which is exit code {code}");
                report.event("result", vec![("value", value.into()), ("exit_code", code.into())], &text);
            }
            code
        }
        Ending::Faulted(found) => {
            let code = exit::of_fault(found.kind);
            let located = fault::Located::new(&found, image);
            report.event("fault", located.fields(code), &located.describe());
            code
        }
    }
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
    fn time_limits_are_seconds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "x", "1e30", "nan"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
