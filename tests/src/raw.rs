//! A controller that says exactly what it is told, right or wrong: for tests of what an executor takes and refuses.
//!
//! Not the library's session, which would not let a test misbehave.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, ChildStdout, Command};
use std::time::Duration;

use graft_protocol::{
    Decode, Encode, ExecAddr, Expected, Header, Message, Opcode, Outcome, Text, Wrapper, decode, encode, encoded_len,
};

use crate::child::{self, Running};
use crate::place;

/// How long an executor may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// No executor of the tests sends more in one message.
const MESSAGE_LIMIT: u64 = 256 << 20;

/// Two pipes as one stream.
struct Pipes {
    to: ChildStdin,
    from: ChildStdout,
}

impl Read for Pipes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.from.read(out)
    }
}

impl Write for Pipes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// What an executor said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It introduced itself.
    Setup,
    /// The answer to a call.
    Result {
        /// The number of the call.
        seq_no: u64,
        /// The result's bytes.
        payload: Vec<u8>,
    },
    /// A call of a handler.
    Call {
        /// The number its Result must carry.
        seq_no: u64,
        /// The handler's tag.
        tag: ExecAddr,
        /// The arguments' bytes.
        args: Vec<u8>,
    },
    /// It ended the session, with a reason or without.
    Hangup(Option<String>),
    /// It closed the line.
    Closed,
}

/// One session with an executor, or several one after the other where the line stays.
pub struct Client {
    stream: Box<dyn Stream>,
    /// What keeps the executor up.
    executor: Option<Running>,
    next_seq_no: u64,
    symbols: HashMap<String, ExecAddr>,
    /// The page size of Setup.
    pub page_size: u64,
    /// The map of Setup.
    pub map: HashMap<String, Vec<u8>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("next_seq_no", &self.next_seq_no).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts the executor `program` as a process and takes its Setup.
    ///
    /// # Panics
    ///
    /// Panics when that fails.
    #[must_use]
    pub fn start(program: &std::path::Path) -> Self {
        let executor = child::spawn(Command::new(program).arg("listen=127.0.0.1:0")).unwrap();
        let said = executor.said("listening on ", ANSWER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
        let (_, address) = said.split_once("listening on ").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        stream.set_write_timeout(Some(ANSWER_LIMIT)).unwrap();
        Self::over(Box::new(stream), Some(executor))
    }

    /// Starts our own executor as a process and takes its Setup.
    ///
    /// # Panics
    ///
    /// Panics when that fails.
    #[must_use]
    pub fn hosted() -> Self {
        Self::start(&place::graft().unwrap_or_else(|error| panic!("{error}")).hosted)
    }

    /// Takes the Setup of the executor at the other end of `line`.
    ///
    /// # Panics
    ///
    /// Panics when none comes.
    #[must_use]
    pub fn on_line(line: UnixStream) -> Self {
        line.set_read_timeout(Some(ANSWER_LIMIT)).unwrap();
        line.set_write_timeout(Some(ANSWER_LIMIT)).unwrap();
        Self::over(Box::new(line), None)
    }

    /// Takes the Setup of the executor at the other ends of two pipes. They know no time limit.
    #[must_use]
    pub fn on_pipes(to: ChildStdin, from: ChildStdout) -> Self {
        Self::over(Box::new(Pipes { to, from }), None)
    }

    /// Goes without a word, and returns how the executor ended where it was started for this client.
    #[must_use]
    pub fn vanish(self) -> Option<child::Outcome> {
        drop(self.stream);
        self.executor.map(|executor| executor.finish(ANSWER_LIMIT))
    }

    fn over(stream: Box<dyn Stream>, executor: Option<Running>) -> Self {
        let (symbols, map) = (HashMap::new(), HashMap::new());
        let mut client = Self { stream, executor, next_seq_no: 0, symbols, page_size: 0, map };
        assert_eq!(client.receive(), Said::Setup);
        client
    }

    /// The address published under `name`.
    ///
    /// # Panics
    ///
    /// Panics when there is none.
    #[must_use]
    pub fn symbol(&self, name: &str) -> ExecAddr {
        *self.symbols.get(name).unwrap_or_else(|| panic!("the executor does not publish {name}"))
    }

    /// Whether anything is published under `name`.
    #[must_use]
    pub fn publishes(&self, name: &str) -> bool {
        self.symbols.contains_key(name)
    }

    /// The address of `W`, under whichever name it is published.
    ///
    /// # Panics
    ///
    /// Panics when there is none.
    #[must_use]
    pub fn wrapper<W: Wrapper>(&self) -> ExecAddr {
        let known = W::ID.names().iter().find_map(|name| self.symbols.get(name.name));
        *known.unwrap_or_else(|| panic!("the executor does not publish {:?}", W::ID))
    }

    /// Writes bytes as they are.
    ///
    /// # Panics
    ///
    /// Panics when the executor does not take them.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a message of these parts.
    pub fn send(&mut self, opcode: Opcode, seq_no: u64, tag: ExecAddr, payload: &[u8]) {
        let mut message = Header::bytes(opcode, seq_no, tag, payload.len()).to_vec();
        message.extend_from_slice(payload);
        self.send_bytes(&message);
    }

    /// Sends calls, in one piece.
    pub fn send_calls(&mut self, calls: &[(ExecAddr, Vec<u8>)]) {
        let mut bytes = Vec::new();
        for (target, args) in calls {
            bytes.extend(Header::bytes(Opcode::CALL_WRAPPER, self.next_seq_no, *target, args.len()));
            bytes.extend_from_slice(args);
            self.next_seq_no += 1;
        }
        self.send_bytes(&bytes);
    }

    /// Sends a call and returns its number.
    pub fn send_call(&mut self, target: ExecAddr, args: &[u8]) -> u64 {
        let seq_no = self.next_seq_no;
        self.next_seq_no += 1;
        self.send(Opcode::CALL_WRAPPER, seq_no, target, args);
        seq_no
    }

    /// Calls `target` and returns the bytes of its answer.
    ///
    /// # Panics
    ///
    /// Panics when anything but the answer comes.
    pub fn call_bytes(&mut self, target: ExecAddr, args: &[u8]) -> Vec<u8> {
        let sent = self.send_call(target, args);
        match self.receive() {
            Said::Result { seq_no, payload } if seq_no == sent => payload,
            other => panic!("call {sent} of {target} was answered by {other:?}"),
        }
    }

    /// Calls the wrapper function `W` and returns the bytes of its answer.
    pub fn call<W: Wrapper>(&mut self, args: &W::Args<'_>) -> Vec<u8> {
        self.call_bytes(self.wrapper::<W>(), &bytes_of(args))
    }

    /// The next message, whatever it is.
    ///
    /// # Panics
    ///
    /// Panics when none comes in time, or it is none.
    pub fn receive(&mut self) -> Said {
        let mut head = [0; Header::SIZE];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if is_end(&error) => return Said::Closed,
            Err(error) => panic!("no message in time: {error}"),
        }
        let header = Header::parse(&head, MESSAGE_LIMIT).unwrap();
        let mut payload = vec![0; usize::try_from(header.payload_len()).unwrap()];
        self.stream.read_exact(&mut payload).unwrap();
        match Message::parse(&header, &payload).unwrap() {
            Message::Setup(setup) => {
                self.next_seq_no = 0;
                self.page_size = setup.page_size;
                self.symbols = setup.symbols.iter().map(|(name, addr)| (words(name), addr)).collect();
                self.map = setup.map.iter().map(|(key, value)| (words(key), value.0.to_vec())).collect();
                Said::Setup
            }
            Message::Hangup(reason) => Said::Hangup(reason.and_then(|Outcome(reason)| reason.err()).map(words)),
            Message::Result { seq_no, payload } => Said::Result { seq_no, payload: payload.to_vec() },
            Message::Call { seq_no, target, args } => Said::Call { seq_no, tag: target, args: args.to_vec() },
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn words(text: Text<'_>) -> String {
    String::from_utf8_lossy(text.0).into_owned()
}

/// The SPS encoding of `value`.
///
/// # Panics
///
/// Never: the buffer is as long as the encoding.
#[must_use]
pub fn bytes_of<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = vec![0; encoded_len(value)];
    encode(value, &mut out).unwrap();
    out
}

/// The value of an `Expected`, or the text of its refusal.
///
/// # Panics
///
/// Panics when the bytes are no `Expected`.
pub fn expected<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let Expected(result) = decode::<Expected<'_, T>>(bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"));
    result.map_err(words)
}

/// Success, or the text of the refusal.
///
/// # Panics
///
/// Panics when the bytes are no `Outcome`.
pub fn outcome(bytes: &[u8]) -> Result<(), String> {
    let Outcome(result) = decode::<Outcome<'_>>(bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"));
    result.map_err(words)
}
