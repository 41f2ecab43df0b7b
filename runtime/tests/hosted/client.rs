//! A controller in a few lines, over TCP to a hosted executor started for one test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use graft_protocol::{
    AllocGroup, Blob, CallMainArgs, CallOutcome, ExecAddr, Expected, Fault, FinalizeArgs, Instance, LookupArgs,
    Message, OpenArgs, Outcome, ReserveArgs, Segment, Seq, SymbolDef, SymbolQuery, Text, Void, Wrapper, call, decode,
    encode, encoded_len,
};

pub(crate) const PAGE: u64 = 4096;

/// Where the console of the loaded program is sent.
pub(crate) const CONSOLE: ExecAddr = ExecAddr(0x1_0000);

/// The tag of the one handler this controller has: it answers with its argument, each byte one more.
pub(crate) const ECHO: u64 = 0x2_0000;

/// How a call ended, and what it printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Returned(i64),
    Exited(i64),
    Faulted(Fault),
    Refused(String),
}

pub(crate) struct Client {
    child: Child,
    stream: TcpStream,
    next: u64,
    symbols: Vec<(String, ExecAddr)>,
    handle: ExecAddr,
    pub(crate) console: Vec<u8>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // A test that fails must not leave a process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_graft-runtime"))
            .arg("listen=127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        // Nobody needs the rest, but it must go somewhere.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        let stream = TcpStream::connect(line.trim().rsplit(' ').next().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let none = ExecAddr::NULL;
        let mut client = Self { child, stream, next: 0, symbols: Vec::new(), handle: none, console: Vec::new() };
        let bytes = client.read();
        let Some((Message::Setup(setup), _)) = Message::split(&bytes, 1 << 20).unwrap() else { panic!() };
        client.symbols = setup.symbols.iter().map(|(name, addr)| (name.to_string(), addr)).collect();
        // Says that this is no tool of LLVM 19 or 22, which would be hung up on when it is quiet.
        client.call::<call::Info>(&Void);
        let instance = client.symbol(Instance::DylibManager.names()[0].name);
        let open = client.call::<call::Open>(&OpenArgs { instance, path: Text::new(""), mode: 0 });
        client.handle = decode::<Expected<'_, ExecAddr>>(&open).unwrap().0.unwrap();
        client
    }

    fn symbol(&self, name: &str) -> ExecAddr {
        self.symbols.iter().find(|(known, _)| known == name).unwrap().1
    }

    fn read(&mut self) -> Vec<u8> {
        let mut size = [0; 8];
        self.stream.read_exact(&mut size).unwrap();
        let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(size)).unwrap()];
        bytes[..8].copy_from_slice(&size);
        self.stream.read_exact(&mut bytes[8..]).unwrap();
        bytes
    }

    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = vec![0; encoded_len(message)];
        encode(message, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    pub(crate) fn call<W: Wrapper>(&mut self, args: &W::Args<'_>) -> Vec<u8> {
        let mut bytes = vec![0; encoded_len(args)];
        encode(args, &mut bytes).unwrap();
        let target = self.symbol(W::ID.names()[0].name);
        self.next += 1;
        let number = self.next;
        self.send(&Message::Call { seq_no: number, target, args: &bytes });
        loop {
            let bytes = self.read();
            match Message::split(&bytes, 1 << 30).unwrap().unwrap().0 {
                Message::Result { seq_no, payload } if seq_no == number => return payload.to_vec(),
                Message::Call { seq_no, target: CONSOLE, args } => {
                    self.console.extend(decode::<Blob<'_>>(args).unwrap().0);
                    self.send(&Message::Result { seq_no, payload: b"" });
                }
                Message::Call { seq_no, target: ExecAddr(ECHO), args } => {
                    let answer: Vec<u8> = args.iter().map(|byte| byte + 1).collect();
                    self.send(&Message::Result { seq_no, payload: &answer });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The address of a symbol of the executor, or null.
    pub(crate) fn find(&mut self, name: &str) -> u64 {
        let instance = self.symbol(Instance::DylibManager.names()[0].name);
        let symbols = [SymbolQuery { name: Text::new(name), required: false }];
        let args = LookupArgs { instance, handle: self.handle, symbols: Seq::new(&symbols) };
        let reply = self.call::<call::Lookup>(&args);
        decode::<Expected<'_, Seq<'_, SymbolDef>>>(&reply).unwrap().0.unwrap().iter().next().unwrap().addr.0
    }

    /// Loads a page of code and, behind it, a page of data; returns the address of the code.
    pub(crate) fn load(&mut self, code: &[u8], data: &[u8]) -> u64 {
        let instance = self.symbol(Instance::MemoryManager.names()[0].name);
        let reply = self.call::<call::Reserve>(&ReserveArgs { instance, size: 2 * PAGE });
        let base = decode::<Expected<'_, ExecAddr>>(&reply).unwrap().0.unwrap();
        let segment = |bits, page: u64, content| Segment {
            group: AllocGroup::from_bits(bits).unwrap(),
            addr: ExecAddr(base.0 + page * PAGE),
            size: PAGE,
            content: Blob(content),
        };
        let segments = [segment(5, 0, code), segment(3, 1, data)];
        let args = FinalizeArgs { instance, segments: Seq::new(&segments), actions: Seq::new(&[]) };
        let reply = self.call::<call::Initialize>(&args);
        decode::<Expected<'_, ExecAddr>>(&reply).unwrap().0.unwrap();
        base.0
    }

    /// Runs `main` with the given arguments.
    pub(crate) fn run(&mut self, entry: u64, args: &[&str]) -> End {
        let args: Vec<_> = args.iter().map(|arg| Text::new(arg)).collect();
        let args = CallMainArgs { entry: ExecAddr(entry), args: Seq::new(&args), console: CONSOLE };
        let reply = self.call::<call::CallMain>(&args);
        match decode(&reply).unwrap() {
            CallOutcome::Returned(value) => End::Returned(value),
            CallOutcome::Exited(value) => End::Exited(value),
            CallOutcome::Faulted(fault) => End::Faulted(fault),
            CallOutcome::Refused(text) => End::Refused(text.to_string()),
        }
    }

    /// Hangs up; returns what the process wrote to its standard output. It must have ended well.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.send(&Message::Hangup(Some(Outcome(Ok(())))));
        let mut output = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success());
        output
    }
}
