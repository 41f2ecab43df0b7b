//! The relay between a played client and a played executor, over sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use graft_protocol::{ExecAddr, Seq, Setup};

use super::*;
use crate::session::{DEFAULT_LIMIT, MessageReader, NUDGE};
use crate::transport::Target;

const RUN_AS_MAIN: &str = "__llvm_orc_bootstrap_run_as_main_wrapper";
const MAIN: ExecAddr = ExecAddr(0x1010);

/// One side of a conversation, played by a test.
struct Played<S> {
    reader: MessageReader<S>,
    writer: S,
}

impl Played<UnixStream> {
    fn unix(stream: UnixStream) -> Self {
        Self { reader: MessageReader::new(stream.try_clone().unwrap(), DEFAULT_LIMIT), writer: stream }
    }

    fn setup(&mut self) {
        self.try_setup().unwrap();
    }

    /// The relay may have been stopped before the last one.
    fn try_setup(&mut self) -> std::io::Result<()> {
        let symbols = [(Text::new(RUN_AS_MAIN), MAIN)];
        let setup = Setup { page_size: 4096, symbols: Seq::new(&symbols), ..Setup::default() };
        self.writer.write_all(WholeMessage::new(&Message::Setup(setup)).bytes())
    }

    /// The other end closes, whatever it has left unread.
    fn is_left(&mut self) {
        assert!(!matches!(self.reader.next_message(), Ok(Some(_))));
    }
}

impl Played<TcpStream> {
    fn tcp(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        Self { reader: MessageReader::new(stream.try_clone().unwrap(), DEFAULT_LIMIT), writer: stream }
    }
}

impl<S: Read + Write> Played<S> {
    fn say(&mut self, message: &Message<'_>) {
        self.writer.write_all(WholeMessage::new(message).bytes()).unwrap();
    }

    fn hear(&mut self) -> WholeMessage {
        self.reader.next_message().unwrap().expect("a message")
    }

    fn hears_setup(&mut self) {
        assert!(matches!(self.hear().message(), Message::Setup(_)));
    }

    fn hears_hangup(&mut self) -> String {
        match self.hear().message() {
            Message::Hangup(Some(Outcome(Err(text)))) => text.to_string(),
            Message::Hangup(_) => String::new(),
            other => panic!("{other:?} is no Hangup"),
        }
    }

    fn hears_the_end(&mut self) {
        assert_eq!(self.reader.next_message().unwrap(), None);
    }

    fn call_main(&mut self, seq_no: u64) {
        self.say(&Message::Call { seq_no, target: MAIN, args: b"args" });
    }
}

/// A relay that serves `listener` for an executor that `act` plays.
struct Stage {
    relay: Option<JoinHandle<Result<(), RelayError>>>,
    executor: Option<JoinHandle<()>>,
    stopper: Stopper,
    at: String,
    notes: Arc<Mutex<Vec<String>>>,
    folder: PathBuf,
}

impl Stage {
    fn new(name: &str, tcp: bool, act: impl FnOnce(UnixListener) + Send + 'static) -> Self {
        Self::with(name, tcp, false, act)
    }

    /// The executor of a relay to which it belongs.
    fn ours(name: &str, act: impl FnOnce(UnixListener) + Send + 'static) -> Self {
        Self::with(name, false, true, act)
    }

    fn with(name: &str, tcp: bool, is_ours: bool, act: impl FnOnce(UnixListener) + Send + 'static) -> Self {
        let folder = std::env::temp_dir().join(format!("graft-relay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let line = folder.join("line");
        let listener = UnixListener::bind(&line).unwrap();
        let executor = thread::spawn(move || act(listener));
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (noted, detailed) = (Arc::clone(&notes), Arc::clone(&notes));
        let hooks = Hooks {
            console: Arc::new(|_| {}),
            log: Arc::new(|_| {}),
            fault: Arc::new(|_| {}),
            note: Arc::new(move |text| noted.lock().unwrap().push(text.to_owned())),
            detail: Arc::new(move |text| detailed.lock().unwrap().push(text.to_owned())),
        };
        let target = Target::Unix(line);
        let name = target.to_string();
        let connect = move || target.connect(None).map_err(Failure::from);
        let mut relay = Relay::new(Reach { target: name, is_ours, connect: Box::new(connect) }, hooks);
        relay.stall_limit = Duration::from_millis(500);
        let stopper = relay.stopper();
        let listener =
            if tcp { Listener::tcp("127.0.0.1", 0) } else { Listener::unix(&folder.join("clients")) }.unwrap();
        let at = listener.target();
        let relay = Some(thread::spawn(move || relay.serve(&listener, false)));
        Self { relay, executor: Some(executor), stopper, at, notes, folder }
    }

    fn client(&self) -> Played<UnixStream> {
        Played::unix(UnixStream::connect(self.at.strip_prefix("unix:").unwrap()).unwrap())
    }

    fn end(mut self) -> Vec<String> {
        self.stopper.stop();
        self.relay.take().unwrap().join().unwrap().unwrap();
        self.executor.take().into_iter().for_each(|executor| executor.join().unwrap());
        std::fs::remove_dir_all(&self.folder).unwrap();
        self.notes.lock().unwrap().clone()
    }
}

#[test]
fn clients_come_one_after_another_and_leave_the_line_clean() {
    let stage = Stage::new("clean", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        // The first client, in order.
        assert_eq!(line.hear().message(), Message::Call { seq_no: 7, target: MAIN, args: b"args" });
        line.say(&Message::Result { seq_no: 7, payload: b"result" });
        assert_eq!(line.hears_hangup(), "");
        line.setup();
        // The second one died in the middle of its second message, of which nothing comes.
        assert_eq!(line.hear().message().head().1, 8);
        assert_eq!(line.hears_hangup(), "");
        // A late answer of the old session goes nowhere.
        line.say(&Message::Result { seq_no: 8, payload: b"late" });
        line.setup();
        assert_eq!(line.hear().message().head().1, 9);
        line.say(&Message::Result { seq_no: 9, payload: b"" });
        assert_eq!(line.hears_hangup(), "");
        line.hears_the_end();
    });
    let mut client = stage.client();
    client.hears_setup();
    // Asks for the Setup it has: nothing for the executor.
    client.say(&NUDGE);
    client.hears_setup();
    client.call_main(7);
    assert_eq!(client.hear().message(), Message::Result { seq_no: 7, payload: b"result" });
    client.say(&Message::Hangup(Some(Outcome(Ok(())))));
    client.hears_the_end();

    let mut client = stage.client();
    client.hears_setup();
    client.call_main(8);
    client.writer.write_all(&[40, 0, 0]).unwrap();
    drop(client);

    let mut client = stage.client();
    client.hears_setup();
    client.call_main(9);
    assert_eq!(client.hear().message(), Message::Result { seq_no: 9, payload: b"" });
    let notes = {
        let mut late = stage.client();
        assert_eq!(late.hears_hangup(), "busy: another client is being served");
        let stopped = stage.end();
        assert_eq!(client.hears_hangup(), "the relay was stopped");
        stopped
    };
    assert!(notes.iter().any(|note| note.contains("3 bytes after its start, of 32")), "{notes:?}");
}

#[test]
fn a_client_that_hangs_up_without_a_call_is_let_go_and_costs_the_executor_nothing() {
    let stage = Stage::new("no-call", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        assert_eq!(line.hear().message().head().1, 3);
        line.say(&Message::Result { seq_no: 3, payload: b"" });
        assert_eq!(line.hears_hangup(), "");
        let _ = line.try_setup();
        line.is_left();
    });
    for _ in 0..3 {
        let mut client = stage.client();
        client.hears_setup();
        client.say(&Message::Hangup(Some(Outcome(Ok(())))));
        client.hears_the_end();
    }
    let mut client = stage.client();
    client.hears_setup();
    client.call_main(3);
    assert_eq!(client.hear().message().head().1, 3);
    drop(client);
    stage.end();
}

#[test]
fn a_message_above_the_executors_limit_never_reaches_it() {
    const LIMIT_BYTES: u64 = 4096;
    let stage = Stage::new("above", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        let limit = LIMIT_BYTES.to_le_bytes();
        let map = [(Text::new(graft_protocol::map_key::MAX_MESSAGE), graft_protocol::Blob(&limit))];
        line.say(&Message::Setup(Setup { page_size: 4096, map: Seq::new(&map), ..Setup::default() }));
        let (size, seq_no) = {
            let heard = line.hear();
            (heard.bytes().len() as u64, heard.message().head().1)
        };
        assert_eq!((size, seq_no), (LIMIT_BYTES, 2), "the largest one goes through");
        assert_eq!(line.hears_hangup(), "");
        let _ = line.try_setup();
        line.is_left();
    });
    let args = vec![0x7a; usize::try_from(LIMIT_BYTES).unwrap()];
    let mut client = stage.client();
    client.hears_setup();
    client.say(&Message::Call { seq_no: 1, target: MAIN, args: &args });
    assert_eq!(client.hears_hangup(), "a message of 4128 bytes; the executor takes at most 4096");
    client.hears_the_end();
    let mut client = stage.client();
    client.hears_setup();
    client.say(&Message::Call { seq_no: 2, target: MAIN, args: &args[32..] });
    thread::sleep(Duration::from_millis(100));
    drop(client);
    stage.end();
}

#[test]
fn garbage_of_a_client_does_not_reach_the_executor() {
    let stage = Stage::new("garbage", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        // One introduction will do for all who never say anything to it.
        line.setup();
        line.hears_the_end();
    });
    let mut client = stage.client();
    client.hears_setup();
    client.writer.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(client.hears_hangup().contains("this is text, not the protocol"));
    let mut client = stage.client();
    client.hears_setup();
    client.setup();
    assert_eq!(client.hears_hangup(), "a Setup is the executor's to send");
    client.hears_the_end();
    stage.end();
}

#[test]
fn who_queued_while_the_executor_recovered_is_served_in_turn() {
    let stage = Stage::new("queue", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        assert_eq!(line.hear().message().head().1, 1);
        assert_eq!(line.hears_hangup(), "");
        thread::sleep(BUSY_AFTER + Duration::from_millis(300));
        for seq_no in [2, 3] {
            line.setup();
            assert_eq!(line.hear().message().head().1, seq_no);
            line.say(&Message::Result { seq_no, payload: b"" });
            assert_eq!(line.hears_hangup(), "");
        }
        let _ = line.try_setup();
        line.is_left();
    });
    let mut client = stage.client();
    client.hears_setup();
    client.call_main(1);
    drop(client);
    // Some who do not live to see it come up again, one of them in the middle of a word.
    for words in [&b""[..], b"", b"\x20\0\0"] {
        stage.client().writer.write_all(words).unwrap();
    }
    let (mut client, mut next) = (stage.client(), stage.client());
    for (client, seq_no) in [(&mut client, 2), (&mut next, 3)] {
        client.hears_setup();
        client.call_main(seq_no);
        assert_eq!(client.hear().message().head().1, seq_no);
        client.say(&Message::Hangup(Some(Outcome(Ok(())))));
        client.hears_the_end();
    }
    stage.end();
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_message_is_dropped() {
    let stage = Stage::new("stall", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        assert_eq!(line.hear().message().head().1, 1);
        assert_eq!(line.hears_hangup(), "");
        let _ = line.try_setup();
        line.is_left();
    });
    let mut client = stage.client();
    client.hears_setup();
    client.call_main(1);
    client.writer.write_all(&[40, 0, 0]).unwrap();
    let heard = client.hears_hangup();
    assert!(heard.starts_with("the client stopped in the middle of a message"), "{heard}");
    client.hears_the_end();
    // One that is silent between messages thinks.
    let mut client = stage.client();
    client.hears_setup();
    thread::sleep(LOOK_EVERY + Duration::from_millis(600));
    let notes = stage.end();
    assert_eq!(client.hears_hangup(), "the relay was stopped");
    assert!(notes.iter().any(|note| note.ends_with("it is dropped")), "{notes:?}");
}

#[test]
fn an_executor_that_ends_is_reached_again_for_the_next_client() {
    let stage = Stage::new("again", false, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        let _ = line.hear();
        drop(line);
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        let _ = line.hear();
        // Reset in the middle.
        line.setup();
        let _ = line.hear();
        line.say(&Message::Hangup(Some(Outcome(Err(Text::new("out of everything"))))));
        let _ = line.try_setup();
        line.is_left();
    });
    for reason in ["closed the connection in the middle", "restarted in the middle", "out of everything"] {
        let mut client = stage.client();
        client.hears_setup();
        client.call_main(1);
        let heard = client.hears_hangup();
        assert!(heard.contains(reason), "{heard}");
        client.hears_the_end();
    }
    stage.end();
}

#[test]
fn who_waits_for_a_slow_executor_to_take_what_was_sent_is_told() {
    const LEN: usize = 1 << 20;
    let stage = Stage::new("slow", false, |listener| {
        let mut stream = listener.accept().unwrap().0;
        let mut line = Played::unix(stream.try_clone().unwrap());
        line.setup();
        // The call and the Hangup behind it, at less than the pace at which the wait would end.
        let mut left = LEN + 2 * 32 + 1;
        let mut piece = vec![0; 64 << 10];
        while left > 0 {
            left -= stream.read(&mut piece).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
        line.setup();
        line.is_left();
    });
    let mut client = stage.client();
    client.hears_setup();
    client.say(&Message::Call { seq_no: 1, target: MAIN, args: &vec![7; LEN] });
    drop(client);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(stage.client().hears_hangup(), "busy: the executor is still taking what the last client sent");
    // It is served as soon as that is over.
    loop {
        let mut client = stage.client();
        match client.hear().message() {
            Message::Setup(_) => break,
            Message::Hangup(_) => {}
            other => panic!("{other:?}"),
        }
    }
    stage.end();
}

#[test]
fn a_finished_client_over_tcp_is_closed_without_a_hangup() {
    let stage = Stage::new("finished", true, |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        let _ = line.hear();
        line.say(&Message::Result { seq_no: 0, payload: b"\0\0\0\0\0\0\0\0" });
        assert_eq!(line.hears_hangup(), "");
        let _ = line.try_setup();
        line.is_left();
    });
    let mut client = Played::tcp(stage.at.strip_prefix("tcp:").unwrap());
    client.hears_setup();
    client.call_main(0);
    assert_eq!(client.hear().message().head().1, 0);
    client.hears_the_end();
    let notes = stage.end();
    assert!(notes.iter().any(|note| note.contains("it ran its program")), "{notes:?}");
}

#[test]
fn nobody_there_is_told_to_the_client() {
    let mut stage = Stage::new("nobody", false, drop);
    stage.executor.take().unwrap().join().unwrap();
    let mut client = stage.client();
    let heard = client.hears_hangup();
    assert!(heard.contains("no target at unix:"), "{heard}");
    client.hears_the_end();
    stage.end();
}

#[test]
fn an_interrupt_ends_the_relay_while_it_waits_for_its_executor() {
    let (left, client_left) = mpsc::channel();
    let stage = Stage::ours("stopped", move |listener| {
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        assert_eq!(line.hear().message().head().1, 1);
        // Stuck in loaded code: it takes the Hangup and never comes back.
        assert_eq!(line.hears_hangup(), "");
        left.send(()).unwrap();
        line.hears_the_end();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "nothing is started any more");
    });
    let mut client = stage.client();
    client.hears_setup();
    client.call_main(1);
    drop(client);
    client_left.recv().unwrap();
    let began = Instant::now();
    stage.end();
    assert!(began.elapsed() < RENEW_LIMIT);
}

#[test]
fn an_executor_of_ours_that_ends_is_started_again_but_not_for_ever() {
    let mut stage = Stage::ours("quick", |listener| {
        // One for the client, that does not outlive it; then as many as are tried in vain.
        let mut line = Played::unix(listener.accept().unwrap().0);
        line.setup();
        assert_eq!(line.hear().message().head().1, 1);
        assert_eq!(line.hears_hangup(), "");
        drop(line);
        for _ in 0..MOST_QUICK_ENDS {
            Played::unix(listener.accept().unwrap().0).setup();
        }
    });
    let mut client = stage.client();
    client.hears_setup();
    client.say(&Message::Call { seq_no: 1, target: MAIN, args: b"" });
    drop(client);
    let error = stage.relay.take().unwrap().join().unwrap().unwrap_err().to_string();
    assert!(error.contains("ends as soon as it is started"), "{error}");
    stage.executor.take().unwrap().join().unwrap();
    std::fs::remove_dir_all(&stage.folder).unwrap();
}
