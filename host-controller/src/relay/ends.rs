//! The two ends of a relay: threads that read and write, so that the relay itself never waits for either.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::session::{DEFAULT_LIMIT, MessageReader, WholeMessage, Wire};

/// Which end an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Executor,
}

/// What an end did.
#[derive(Debug)]
pub(super) enum Heard {
    Message(WholeMessage),
    /// It closed between messages.
    Closed,
    /// It broke, in these words.
    Broken(String),
}

/// What the relay waits for.
#[derive(Debug)]
pub(super) enum Event {
    /// A client is there.
    Client(Wire),
    /// An end was heard; `number` tells it from those before it.
    Heard { side: Side, number: u64, heard: Heard },
    /// Enough.
    Stop,
}

/// One end.
pub(super) struct Endpoint {
    pub(super) number: u64,
    outbox: Option<Sender<WholeMessage>>,
    /// Says how writing ended.
    written: Receiver<Option<String>>,
    /// Bytes sent and not written yet.
    owed: Arc<AtomicU64>,
    /// When some were written last, in milliseconds since the heartbeat began.
    wrote_at: Arc<AtomicU64>,
    shut: Box<dyn Fn() + Send + Sync>,
    heard: Arc<Heartbeat>,
}

/// How much is written at once, in bytes: so often is it known how far writing has come.
const PIECE: usize = 64 << 10;

fn millis_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// When bytes came last, whether or not they were a whole message.
#[derive(Debug)]
struct Heartbeat {
    began: Instant,
    /// Milliseconds since `began`.
    at: AtomicU64,
    /// A message has begun and is not whole.
    inside: AtomicBool,
}

/// A stream that notes when bytes come.
struct Noting {
    stream: Box<dyn Read + Send>,
    heard: Arc<Heartbeat>,
}

impl Read for Noting {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stream.read(out)?;
        self.heard.at.store(millis_since(self.heard.began), Ordering::Relaxed);
        self.heard.inside.store(count > 0, Ordering::Release);
        Ok(count)
    }
}

impl Endpoint {
    /// Starts to read and write `wire`.
    pub(super) fn start(wire: Wire, side: Side, number: u64, events: Sender<Event>) -> std::io::Result<Self> {
        let Wire { reader, mut writer, shut } = wire;
        let (outbox, to_write) = mpsc::channel::<WholeMessage>();
        let (done, written) = mpsc::channel();
        let heard =
            Arc::new(Heartbeat { began: Instant::now(), at: AtomicU64::new(0), inside: AtomicBool::new(false) });
        let reader = Noting { stream: reader, heard: Arc::clone(&heard) };
        let heartbeat = Arc::clone(&heard);
        let (owed, wrote_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (still_owed, now_wrote, beat) = (Arc::clone(&owed), Arc::clone(&wrote_at), Arc::clone(&heard));
        thread::Builder::new().name(format!("{side:?} writer")).spawn(move || {
            let mut failure = None;
            for message in to_write {
                let mut pieces = message.bytes().chunks(PIECE);
                let write = |bytes: &[u8]| -> std::io::Result<()> {
                    writer.write_all(bytes)?;
                    still_owed.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                    now_wrote.store(millis_since(beat.began), Ordering::Relaxed);
                    Ok(())
                };
                // What cannot be written mostly shows at the reading end, too.
                if let Err(error) = pieces.try_for_each(write).and_then(|()| writer.flush()) {
                    failure = Some(error.to_string());
                    break;
                }
            }
            drop(writer);
            // Whoever closes the end may not wait for it.
            let _ = done.send(failure);
        })?;
        thread::Builder::new().name(format!("{side:?} reader")).spawn(move || {
            let mut reader = MessageReader::new(reader, DEFAULT_LIMIT);
            loop {
                let heard = match reader.next_message() {
                    Ok(Some(message)) => Heard::Message(message),
                    Ok(None) => Heard::Closed,
                    Err(error) => Heard::Broken(error.to_string()),
                };
                let last = !matches!(heard, Heard::Message(_));
                heartbeat.inside.store(!last && !reader.is_between_reads(), Ordering::Release);
                if events.send(Event::Heard { side, number, heard }).is_err() || last {
                    break;
                }
            }
        })?;
        Ok(Self { number, outbox: Some(outbox), written, owed, wrote_at, shut, heard })
    }

    /// When bytes came last.
    pub(super) fn heard_at(&self) -> Instant {
        self.heard.began + Duration::from_millis(self.heard.at.load(Ordering::Relaxed))
    }

    /// For how long nothing more has come of a message that has begun; `None` between messages.
    pub(super) fn stalled_for(&self) -> Option<Duration> {
        self.heard.inside.load(Ordering::Acquire).then(|| self.heard_at().elapsed())
    }

    /// Sends a message after those before it.
    pub(super) fn send(&self, message: WholeMessage) {
        if let Some(outbox) = &self.outbox {
            self.owed.fetch_add(message.bytes().len() as u64, Ordering::Relaxed);
            // A writer that is gone has found the end broken.
            let _ = outbox.send(message);
        }
    }

    /// How many bytes were sent and are not written yet.
    pub(super) fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Whether something was written within the last `time`.
    pub(super) fn written_within(&self, time: Duration) -> bool {
        let at = Duration::from_millis(self.wrote_at.load(Ordering::Relaxed));
        self.heard.began.elapsed().saturating_sub(at) < time
    }

    /// Closes the end once everything is written, or `limit` has passed; returns why not all was, if it failed.
    pub(super) fn close(mut self, limit: Duration) -> Option<String> {
        drop(self.outbox.take());
        let late = || Some(format!("not all was written within {} ms", limit.as_millis()));
        self.written.recv_timeout(limit).unwrap_or_else(|_| late())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.outbox.take());
        (self.shut)();
    }
}
