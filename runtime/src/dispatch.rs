//! Calls of the controller by loaded code (`jit_dispatch`): one request out, and serving goes on until its answer comes.

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, Header, Opcode};

use crate::executor::Executor;
use crate::line::Line;
use crate::platform::{Platform, ReturnPair};
use crate::reply::zeroed;

/// LLVM's word for a call that was waiting when the session ended.
const DISCONNECTING: &[u8] = b"disconnecting\0";

/// LLVM's words for a call made after the session ended.
const NOT_AVAILABLE: &[u8] = b"jit_dispatch not available (EPC server shut down)\0";

const NO_MEMORY: &[u8] = b"out of memory in jit_dispatch\0";

impl<P: Platform, L: Line> Executor<P, L> {
    /// Calls the controller's handler `tag` with the `len` bytes at `args`, and returns its answer as the C type of wrapper
    /// function results: up to 8 bytes in the first word, more in memory that the caller frees, or a text that says why
    /// there is none.
    pub(crate) fn call_controller(&self, tag: ExecAddr, args: ExecAddr, len: u64) -> ReturnPair {
        if self.ended().is_some() {
            return self.out_of_band(NOT_AVAILABLE);
        }
        // Copied before anything is served: a request may take the memory of the arguments away.
        let Some(mut message) = self.message_of(args, len) else {
            return self.out_of_band(NO_MEMORY);
        };
        let Some(seq_no) = self.calls.lock().begin() else {
            return self.out_of_band(NO_MEMORY);
        };
        if let Some((head, payload)) = message.split_first_chunk_mut() {
            *head = Header::bytes(Opcode::CALL_WRAPPER, seq_no, tag, payload.len());
        }
        // What was printed before the call is seen before it.
        self.flush_console();
        if self.ended().is_none()
            && let Err(error) = self.channel.send(&message)
        {
            self.end(error.into());
        }
        drop(message);
        match self.serve_until(|calls| calls.take_answer(seq_no)) {
            Some(answer) => self.result_of(&answer),
            None => {
                self.calls.lock().abandon(seq_no);
                self.out_of_band(DISCONNECTING)
            }
        }
    }

    /// Room for a header, and a copy of `len` bytes of loaded memory, which can be read.
    fn message_of(&self, at: ExecAddr, len: u64) -> Option<Vec<u8>> {
        let mut message = zeroed(Header::SIZE.checked_add(usize::try_from(len).ok()?)?)?;
        if let Some(payload) = message.get_mut(Header::SIZE..).filter(|payload| !payload.is_empty()) {
            self.platform.load(at, payload);
        }
        Some(message)
    }

    fn result_of(&self, answer: &[u8]) -> ReturnPair {
        let len = answer.len() as u64;
        let mut inline = [0; 8];
        if let Some(slot) = inline.get_mut(..answer.len()) {
            slot.copy_from_slice(answer);
            return [u64::from_le_bytes(inline), len];
        }
        self.in_session_heap(answer).map_or_else(|| self.out_of_band(NO_MEMORY), |at| [at.0, len])
    }

    /// Size 0 and a C string; without memory for it, an empty result.
    fn out_of_band(&self, text: &[u8]) -> ReturnPair {
        [self.in_session_heap(text).map_or(0, |at| at.0), 0]
    }

    fn in_session_heap(&self, bytes: &[u8]) -> Option<ExecAddr> {
        let at = self.allocate(bytes.len() as u64, 16)?;
        self.platform.store(at, bytes);
        Some(at)
    }
}
