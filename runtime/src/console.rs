//! The console of loaded code: batched, in exact order, to the controller that asked for it or to the machine's console.
//!
//! Output travels as calls of the controller that nobody waits for. Their answers pile up on the line while loaded code
//! runs, so only so many may be outstanding: then the executor stops to read some.

use graft_protocol::{Blob, ExecAddr, Opcode, encode};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::Platform;

/// Bytes gathered before they are sent without a newline.
const BATCH: usize = 512;

/// Unanswered console messages before the executor waits for the controller to catch up.
const WINDOW: u64 = 64;

/// Bytes that were not sent yet, and where they go.
#[derive(Debug)]
pub(crate) struct Console {
    /// The controller's handler; null for the machine's console.
    tag: ExecAddr,
    batch: heapless::Vec<u8, BATCH>,
}

impl Console {
    pub(crate) const fn new() -> Self {
        Self { tag: ExecAddr::NULL, batch: heapless::Vec::new() }
    }
}

impl<P: Platform, L: Line> Executor<P, L> {
    /// Sends what loaded code writes from now on to `tag`; returns where it went before.
    pub(crate) fn subscribe_console(&self, tag: ExecAddr) -> ExecAddr {
        self.flush_console();
        core::mem::replace(&mut self.console.lock().tag, tag)
    }

    /// Takes bytes that loaded code writes.
    pub(crate) fn write_console(&self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let full = {
                let mut console = self.console.lock();
                let room = BATCH - console.batch.len();
                let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
                // It fits: `now` is not longer than the room.
                let _ = console.batch.extend_from_slice(now);
                rest = later;
                console.batch.is_full()
            };
            if full {
                self.flush_console();
            }
        }
        if bytes.contains(&b'\n') {
            self.flush_console();
        }
    }

    /// Sends what was gathered.
    pub(crate) fn flush_console(&self) {
        let (tag, batch) = {
            let mut console = self.console.lock();
            (console.tag, core::mem::take(&mut console.batch))
        };
        if batch.is_empty() {
            return;
        }
        if tag.is_null() {
            return self.platform.console(&batch);
        }
        let seq_no = {
            let mut calls = self.calls.lock();
            // Whoever read this console is gone.
            if calls.end().is_some() {
                return;
            }
            calls.begin_console()
        };
        let mut payload = [0; BATCH + 8];
        let payload = encode(&Blob(&batch), &mut payload).unwrap_or(&[]);
        if let Err(error) = self.channel.send_parts(Opcode::CALL_WRAPPER, seq_no, tag, payload) {
            return self.end(error.into());
        }
        if self.calls.lock().console_unanswered() >= WINDOW {
            self.serve_until(|calls| (calls.console_unanswered() <= WINDOW / 2).then_some(()));
        }
    }
}
