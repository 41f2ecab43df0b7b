//! Reads a channel nobody else wants, so that it never stops the guest, and keeps what was said last.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much is kept.
const KEPT_BYTES: usize = 64 * 1024;

/// What a channel has said; a thread of its own reads on until the other end closes.
#[derive(Clone, Debug)]
pub struct Gathered(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<u8>,
    closed: bool,
}

impl Gathered {
    /// Starts to read `channel`.
    #[must_use]
    pub fn start(mut channel: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let ours = Self(Arc::clone(&shared));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = match channel.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(_) => break,
                };
                shared.keep(&buffer[..count]);
            }
            shared.lock().closed = true;
            shared.changed.notify_all();
        });
        ours
    }

    /// What was said so far, or its end when it was very much.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().kept).into_owned()
    }

    /// Waits until the text contains `wanted`, the channel closes, or `limit` has passed; says whether it is there.
    #[must_use]
    pub fn wait_for(&self, wanted: &str, limit: Duration) -> bool {
        let found = |state: &State| String::from_utf8_lossy(&state.kept).contains(wanted);
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        loop {
            if found(&state) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.closed || left.is_zero() {
                return false;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the other end has closed, or `limit` has passed, and returns the text.
    #[must_use]
    pub fn finish(&self, limit: Duration) -> String {
        let state = self.0.lock();
        let waited = self.0.changed.wait_timeout_while(state, limit, |state| !state.closed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.text()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.kept.extend_from_slice(bytes);
        let surplus = state.kept.len().saturating_sub(KEPT_BYTES);
        state.kept.drain(..surplus);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        let text = "x".repeat(KEPT_BYTES) + "end";
        let gathered = Gathered::start(std::io::Cursor::new(text));
        assert!(gathered.wait_for("end", LIMIT));
        assert_eq!(gathered.finish(LIMIT).len(), KEPT_BYTES);
        assert!(!gathered.wait_for("more", LIMIT));
    }
}
