//! A machine at a serial line.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serialport::{ClearBuffer, SerialPort};

use super::{ConnectError, Connection, Target};
use crate::session::Wire;

/// How often a read that waits looks whether it still should.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn connect(device: &str, baud: u32) -> Result<Connection, ConnectError> {
    let open = || -> serialport::Result<_> {
        let port = serialport::new(device, baud).timeout(LOOK_EVERY).open_native()?;
        // What a board said before anybody listened.
        port.clear(ClearBuffer::Input)?;
        let writer = port.try_clone_native()?;
        Ok((port, writer))
    };
    let (port, writer) = open().map_err(|error| ConnectError::NobodyThere {
        target: Target::Serial { device: device.to_owned(), baud }.to_string(),
        reason: error.to_string(),
        advice: "check the cable, the device name and your permission to use it",
    })?;
    let open = Arc::new(AtomicBool::new(true));
    let reader = Listening { port, open: Arc::clone(&open) };
    let shut = move || open.store(false, Ordering::Release);
    let wire = Wire { reader: Box::new(reader), writer: Box::new(writer), shut: Box::new(shut) };
    // A line has no notion of connections: ask for a Setup at once.
    Ok(Connection::remote(wire, Duration::ZERO))
}

/// A port that is read until its wire is shut.
struct Listening<P> {
    port: P,
    open: Arc<AtomicBool>,
}

impl<P: Read> Read for Listening<P> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.open.load(Ordering::Acquire) {
            match self.port.read(out) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                other => return other,
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use graft_protocol::{Message, Setup};
    use serialport::TTYPort;

    use super::*;
    use crate::session::{DEFAULT_LIMIT, MessageReader, Session, WholeMessage};

    #[test]
    fn a_board_that_spoke_before_anybody_listened_is_asked_again() {
        let (mut board, line) = TTYPort::pair().unwrap();
        board.set_timeout(Duration::from_secs(10)).unwrap();
        board.write_all(b"a boot message, and half of a Set").unwrap();
        let device = line.name().unwrap();
        drop(line);
        // What a terminal holds is lost when its last user closes it.
        let _kept = std::fs::File::open(&device).unwrap();
        let board = thread::spawn(move || {
            let mut writer = board.try_clone_native().unwrap();
            let mut reader = MessageReader::new(board, DEFAULT_LIMIT);
            assert!(matches!(reader.next_message().unwrap().unwrap().message(), Message::Hangup(_)));
            let setup = Setup { page_size: 4096, ..Setup::default() };
            writer.write_all(WholeMessage::new(&Message::Setup(setup)).bytes()).unwrap();
            assert!(matches!(reader.next_message().unwrap().unwrap().message(), Message::Hangup(_)));
        });
        let connection = connect(&device, 115_200).unwrap();
        let options = connection.options();
        let session = Session::open(connection.wire, options).unwrap();
        assert_eq!(session.peer().page_size(), 4096);
        session.finish();
        board.join().unwrap();
    }

    #[test]
    fn a_missing_device_is_named() {
        let error = connect("/dev/no-such-line", 9600).unwrap_err().to_string();
        assert!(error.starts_with("no target at serial:/dev/no-such-line@9600: "), "{error}");
    }
}
