//! The loaded program's console: standard output.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graft::session::Caller;

/// Writes console bytes to standard output, unbuffered. When that fails, nobody can see any more what the program does, and
/// the session in which it runs is interrupted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    failure: Option<io::Error>,
    session: Option<Caller>,
}

impl Console {
    /// A sink for the pieces that arrive.
    pub(crate) fn sink(&self) -> impl FnMut(&[u8]) + Send + 'static {
        let console = self.clone();
        move |bytes: &[u8]| {
            let mut state = console.lock();
            if state.failure.is_some() {
                return;
            }
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
                state.failure = Some(error);
                state.session.iter().for_each(Caller::interrupt);
            }
        }
    }

    /// Takes the session to interrupt.
    pub(crate) fn belongs_to(&self, session: Caller) {
        let mut state = self.lock();
        if state.failure.is_some() {
            session.interrupt();
        }
        state.session = Some(session);
    }

    /// Whether output was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().failure.is_some()
    }

    /// Fails when output was lost. A reader that went away on purpose (`| head`) loses nothing it wanted.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.lock().failure.take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("console output is lost: standard output cannot be written"))
            }
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A failure that is not noted is found by the next write.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
