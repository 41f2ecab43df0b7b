//! Reading the channels beside the protocol's.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

/// Moves what arrives on a channel to where it belongs, on a thread of its own.
#[derive(Debug)]
pub struct Pump {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    /// Hands every piece that arrives on `stream` to `sink`.
    ///
    /// # Errors
    /// When the system gives no second handle or no thread.
    pub fn start(stream: UnixStream, mut sink: impl FnMut(&[u8]) + Send + 'static) -> io::Result<Self> {
        let mut reader = stream.try_clone()?;
        let thread = thread::Builder::new().name(String::from("side channel")).spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                match reader.read(&mut buffer) {
                    Ok(count) if count > 0 => sink(buffer.get(..count).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // What cannot be read any more has nothing to say any more.
                    _ => break,
                }
            }
        })?;
        Ok(Self { stream, thread: Some(thread) })
    }

    /// Waits until the other end has closed and everything has reached the sink.
    pub fn join(mut self) {
        self.wait();
    }

    /// Ends the channel. What has arrived by now still reaches the sink.
    ///
    /// A socket whose reading is shut down still gives what is in it, then its end (unix(7); tested below).
    pub fn finish(mut self) {
        let _ = self.stream.shutdown(Shutdown::Read);
        self.wait();
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn finishing_loses_nothing_that_arrived() {
        for _ in 0..50 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let (sink, sunk) = mpsc::channel();
            let pump = Pump::start(ours, move |bytes| {
                thread::sleep(Duration::from_micros(200));
                sink.send(bytes.to_vec()).unwrap();
            })
            .unwrap();
            for _ in 0..20 {
                theirs.write_all(&[7; 1000]).unwrap();
            }
            pump.finish();
            assert_eq!(sunk.iter().map(|piece| piece.len()).sum::<usize>(), 20_000);
        }
    }
}
