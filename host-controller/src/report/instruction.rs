//! The instruction at an address.

use graft_protocol::ExecAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// The longest instruction, in bytes (SDM 2A §2.3.11).
pub const LONGEST_INSTRUCTION: usize = 15;

/// The instruction that `bytes` begin with, which lie at `at`; `None` when they are none.
#[must_use]
pub fn decode(bytes: &[u8], at: ExecAddr) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
    decoder.can_decode().then(|| decoder.decode()).filter(|instruction| !instruction.is_invalid())
}
