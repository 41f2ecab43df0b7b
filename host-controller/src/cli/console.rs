//! The loaded program's console: standard output.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Writes console bytes to standard output, unbuffered, and remembers when that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console {
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl Console {
    /// A sink for the pieces that arrive.
    pub(crate) fn sink(&self) -> impl FnMut(&[u8]) + Send + 'static {
        let failure = Arc::clone(&self.failure);
        move |bytes: &[u8]| {
            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
            if failure.is_some() {
                return;
            }
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
                *failure = Some(error);
            }
        }
    }

    /// Fails when console output was lost. A reader that went away on purpose (`| head`) loses nothing it wanted.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(anyhow::Error::new(error).context("console output is lost: standard output cannot be written"))
            }
            _ => Ok(()),
        }
    }
}
