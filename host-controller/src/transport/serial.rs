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
