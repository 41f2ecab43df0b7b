//! What a session costs.

use std::sync::atomic::{AtomicU64, Ordering};

/// The wire budget of a session so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The longest chain of calls each of which was sent after the answer to the one before had been taken.
    ///
    /// That is how often the session had to wait for the line's delay at least: calls that are sent without waiting
    /// share a round trip. The Setup is not counted, it comes unasked.
    pub round_trips: u64,
    /// Bytes sent, headers included.
    pub bytes_out: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Bytes received, headers included.
    pub bytes_in: u64,
    /// Messages received.
    pub messages_in: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    bytes_out: AtomicU64,
    messages_out: AtomicU64,
    bytes_in: AtomicU64,
    messages_in: AtomicU64,
}

impl Counters {
    pub(super) fn sent(&self, bytes: usize, messages: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages_out.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        self.messages_in.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, round_trips: u64) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            round_trips,
            bytes_out: of(&self.bytes_out),
            messages_out: of(&self.messages_out),
            bytes_in: of(&self.bytes_in),
            messages_in: of(&self.messages_in),
        }
    }
}
