//! The two ends of a relay: threads that read and write, so that the relay itself never waits for either.

use std::io::Write;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

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
pub(super) struct End {
    pub(super) number: u64,
    outbox: Option<Sender<WholeMessage>>,
    written: Receiver<()>,
    shut: Box<dyn Fn() + Send + Sync>,
}

impl End {
    /// Starts to read and write `wire`.
    pub(super) fn start(wire: Wire, side: Side, number: u64, events: Sender<Event>) -> std::io::Result<Self> {
        let Wire { reader, mut writer, shut } = wire;
        let (outbox, to_write) = mpsc::channel::<WholeMessage>();
        let (done, written) = mpsc::channel();
        thread::Builder::new().name(format!("{side:?} writer")).spawn(move || {
            for message in to_write {
                // What cannot be written shows at the reading end, too.
                if writer.write_all(message.bytes()).and_then(|()| writer.flush()).is_err() {
                    break;
                }
            }
            drop(writer);
            drop(done);
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
                if events.send(Event::Heard { side, number, heard }).is_err() || last {
                    break;
                }
            }
        })?;
        Ok(Self { number, outbox: Some(outbox), written, shut })
    }

    /// Sends a message after those before it.
    pub(super) fn send(&self, message: WholeMessage) {
        if let Some(outbox) = &self.outbox {
            // A writer that is gone has found the end broken.
            let _ = outbox.send(message);
        }
    }

    /// Closes the end once everything is written, or `limit` has passed.
    pub(super) fn close(mut self, limit: Duration) {
        drop(self.outbox.take());
        let _ = self.written.recv_timeout(limit);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.outbox.take());
        (self.shut)();
    }
}
