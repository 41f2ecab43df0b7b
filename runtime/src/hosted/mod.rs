//! The executor as a Linux process: one session over a socket or two pipes, then it exits.
//!
//! `graft-runtime listen=HOST:PORT` takes one connection, `graft-runtime filedescs=IN,OUT` uses what it inherited, as does
//! `graft-runtime IN OUT` (how LLVM's `lli` starts it): it stands wherever `llvm-jitlink-executor` stands.
//!
//! Loaded code finds the functions of [`graft_runtime::exports`] first and the C library's behind them.

mod deadline;
mod faults;
mod libc_bridge;
mod line;
mod memory;
mod plan;
mod platform;
mod watch;

use std::env;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use graft_runtime::{Ending, Executor, SessionEnd, exports};

use line::FdLine;
use plan::Plan;
use platform::HostedPlatform;

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let plan = match plan::parse(&args) {
        Ok(plan) => plan,
        Err(error) => {
            complain(&error);
            return ExitCode::from(2);
        }
    };
    let status = match run(plan) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error);
            1
        }
    };
    libc_bridge::end_process(status)
}

/// Says what is wrong where no protocol travels.
fn complain(what: &dyn std::fmt::Display) {
    // Without a standard error there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "graft-runtime: {what}");
}

fn run(plan: Plan) -> Result<(), String> {
    let (line, ending) = match plan {
        Plan::Help => {
            // Without a standard output there is nobody to help.
            let _ = std::io::stdout().write_all(plan::USAGE.as_bytes());
            return Ok(());
        }
        Plan::Descriptors { input, output } => (FdLine::pipes(input, output)?, Ending::Controller),
        Plan::Listen { address } => {
            let explain = |error| format!("cannot listen on {address}: {error}");
            let listener = TcpListener::bind(&address).map_err(explain)?;
            if let Ok(address) = listener.local_addr() {
                complain(&format_args!("listening on {address}"));
            }
            let (stream, _) = listener.accept().map_err(explain)?;
            // Small messages must not wait for acknowledgements of earlier ones.
            stream.set_nodelay(true).map_err(explain)?;
            (FdLine::socket(OwnedFd::from(stream)), Ending::CloseFirst)
        }
    };
    let platform = HostedPlatform::new().map_err(|error| format!("cannot set memory up: {error}"))?;
    // Loaded code may call the executor as long as the process lives.
    let executor: &'static Executor<_, _> = Box::leak(Box::new(Executor::new(platform, line)));
    exports::install(executor);
    libc_bridge::redirect_stdout();
    let end = executor.serve_session(ending);
    executor.line().close();
    match end {
        SessionEnd::Hangup | SessionEnd::Closed | SessionEnd::Finished => Ok(()),
        SessionEnd::Line(_) | SessionEnd::Protocol(_) => Err(end.to_string()),
    }
}
