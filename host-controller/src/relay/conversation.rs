//! One client's session: messages in both directions until one side is finished.

use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use graft_protocol::{Message, Outcome};

use super::ends::{Endpoint, Event, Heard, Side};
use super::tracker::{Tracker, Verdict};
use super::{BUSY_AFTER, Closing, LAST_WORDS_LIMIT, LOOK_EVERY, Relay, hangup, hangup_in_order};
use crate::session::WholeMessage;

impl Relay {
    /// Passes messages between the executor, which has introduced itself, and a client until one of them is finished.
    pub(super) fn converse(&mut self, client: &Endpoint, closing: Closing) {
        let Some(setup) = self.executor.as_mut().and_then(|executor| executor.setup.take()) else {
            return;
        };
        let mut tracker = match setup.message() {
            Message::Setup(setup) => Tracker::new(&setup),
            _ => Tracker::default(),
        };
        client.send(setup.clone());
        if let Some(executor) = &mut self.executor {
            executor.unused = Some(setup);
        }
        let mut last = Instant::now();
        // Those who came meanwhile waited for the executor, not for this client.
        for (since, _) in &mut self.waiting {
            *since = last;
        }
        loop {
            if let Some(quiet) = client.stalled_for().filter(|quiet| *quiet >= self.stall_limit) {
                let why = format!("the client stopped in the middle of a message {} ms ago", quiet.as_millis());
                (self.hooks.note)(&format!("{why}; it is dropped"));
                client.send(hangup(&why));
                self.leave_executor();
                break;
            }
            let verdict = match closing {
                Closing::Client => Verdict::Stay,
                Closing::Relay => tracker.verdict(last.max(client.heard_at()).elapsed(), !self.waiting.is_empty()),
            };
            let wait = match verdict {
                Verdict::Close(reason) => {
                    (self.hooks.detail)(&format!("the client is finished: {reason}"));
                    self.leave_executor();
                    break;
                }
                Verdict::CloseAfter(left) => left.min(LOOK_EVERY),
                Verdict::Stay => LOOK_EVERY,
            };
            let event = match self.next_event(wait) {
                Some(event) => event,
                None => continue,
            };
            match event {
                Event::Client(wire) => self.waiting.push_back((Instant::now(), wire)),
                Event::Stop => {
                    client.send(hangup("the relay was stopped"));
                    self.leave_executor();
                    self.stopping = true;
                    break;
                }
                Event::Heard { side: Side::Client, number, heard } if number == client.number => {
                    last = Instant::now();
                    if !self.client_says(heard, &mut tracker, client, closing) {
                        break;
                    }
                }
                Event::Heard { side: Side::Executor, number, heard } if self.is_current(number) => {
                    last = Instant::now();
                    if !self.executor_says(heard, &mut tracker, client) {
                        break;
                    }
                }
                Event::Heard { .. } => {}
            }
        }
    }

    /// Tells those who have waited long enough why the executor is busy.
    pub(super) fn turn_away(&mut self, why: &str) {
        while let Some((since, _)) = self.waiting.front()
            && since.elapsed() >= BUSY_AFTER
        {
            if let Some((_, mut wire)) = self.waiting.pop_front() {
                // A short message always fits a fresh connection.
                let _ = wire.writer.write_all(hangup(&format!("busy: {why}")).bytes());
                (wire.shut)();
            }
        }
    }

    /// The next event, or `None` after `wait`, or when a waiting client's time was up.
    fn next_event(&mut self, wait: Duration) -> Option<Event> {
        self.turn_away("another client is being served");
        let busy = self.waiting.front().map(|(since, _)| BUSY_AFTER.saturating_sub(since.elapsed()));
        match self.events.recv_timeout(busy.map_or(wait, |busy| busy.min(wait))) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Stop),
        }
    }

    /// Says whether the conversation goes on.
    fn client_says(&mut self, heard: Heard, tracker: &mut Tracker, client: &Endpoint, closing: Closing) -> bool {
        let message = match heard {
            Heard::Message(message) => message,
            Heard::Closed => {
                self.leave_executor();
                return false;
            }
            Heard::Broken(why) => {
                (self.hooks.note)(&format!("the client is gone: {why}"));
                self.client_failure = Some(why.clone());
                // A stock client that is closing spoils its exit status over a Hangup.
                if closing == Closing::Client {
                    client.send(hangup(&why));
                }
                self.leave_executor();
                return false;
            }
        };
        match message.message() {
            // Meant for a line that does not know connections: asks for the Setup, which was on its way.
            Message::Hangup(None) if !tracker.any_call() => {
                let setup = self.executor.as_ref().and_then(|executor| executor.unused.clone());
                setup.into_iter().for_each(|setup| client.send(setup));
                true
            }
            Message::Hangup(_) if tracker.any_call() => {
                self.tell_executor(message);
                false
            }
            Message::Hangup(_) => {
                self.leave_executor();
                false
            }
            Message::Setup(_) => {
                (self.hooks.note)("the client sent a Setup, which is the executor's to send");
                client.send(hangup("a Setup is the executor's to send"));
                self.leave_executor();
                false
            }
            said @ (Message::Call { .. } | Message::Result { .. }) => {
                let size = message.bytes().len();
                if let Some(limit) = tracker.limit_below(size) {
                    let why = format!("a message of {size} bytes; the executor takes at most {limit}");
                    (self.hooks.note)(&format!("the client is dropped: {why}"));
                    client.send(hangup(&why));
                    self.leave_executor();
                    return false;
                }
                tracker.client_says(&said);
                // Before the call is passed on: what it leads to is logged after.
                self.client_tells.store(tracker.is_ours(), Ordering::Relaxed);
                self.tell_executor(message);
                true
            }
        }
    }

    /// Says whether the conversation goes on.
    fn executor_says(&mut self, heard: Heard, tracker: &mut Tracker, client: &Endpoint) -> bool {
        let what = match heard {
            Heard::Message(message) => match message.message() {
                Message::Setup(_) => {
                    self.keep_setup(message);
                    String::from("the executor restarted in the middle of the session")
                }
                Message::Hangup(reason) => {
                    if let Some(Outcome(Err(reason))) = reason {
                        (self.hooks.note)(&format!("the executor ended the session: {reason}"));
                    }
                    client.send(message);
                    return false;
                }
                said @ (Message::Call { .. } | Message::Result { .. }) => {
                    tracker.executor_says(&said);
                    self.executor.iter_mut().for_each(|executor| executor.unused = None);
                    client.send(message);
                    return true;
                }
            },
            Heard::Closed => self.lost_executor("the executor closed the connection in the middle of the session"),
            Heard::Broken(why) => self.lost_executor(&format!("the connection to the executor broke: {why}")),
        };
        (self.hooks.note)(&what);
        client.send(hangup(&what));
        false
    }

    /// Lets go of an executor that ended, and says how it did behind `what`.
    pub(super) fn lost_executor(&mut self, what: &str) -> String {
        let side = self.executor.as_mut().map(|executor| &mut executor.side);
        let how = side.and_then(|side| side.how_it_ended(LAST_WORDS_LIMIT));
        let how = how.map_or_else(String::new, |end| format!("; {end}"));
        self.drop_executor();
        format!("{what}{how}")
    }

    pub(super) fn tell_executor(&mut self, message: WholeMessage) {
        if let Some(executor) = &mut self.executor {
            executor.unused = None;
            executor.end.send(message);
        }
    }

    /// Ends the client's session at the executor. When nothing was said in it, there is none: its introduction still holds,
    /// and whoever only looked in costs nobody anything.
    fn leave_executor(&mut self) {
        match self.executor.as_mut().and_then(|executor| Some((executor.unused.take()?, executor))) {
            Some((setup, executor)) => executor.setup = Some(setup),
            None => self.tell_executor(hangup_in_order()),
        }
    }
}
