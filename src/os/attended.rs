//! A program that runs for as long as its standard input is open: it ends with the process that started it, however
//! that ends.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Deserializer, Value};

use crate::os::threads;

/// Its standard input and output. Dropping it ends the program, without waiting.
pub struct AttendedProgram(UnixStream);

impl AttendedProgram {
    /// One that the service manager starts for each connection with `socket`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(socket: &Path) -> io::Result<AttendedProgram> {
        UnixStream::connect(socket).map(AttendedProgram)
    }

    /// A child of this process. What it writes to stderr is this process's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn spawn(mut command: Command) -> io::Result<AttendedProgram> {
        let (ours, input) = UnixStream::pair()?;
        let output = input.try_clone()?;
        command.stdin(OwnedFd::from(input)).stdout(OwnedFd::from(output));
        let mut child = command.spawn()?;
        // Its end closes the last copy of the other side.
        drop(command);
        threads::spawn("attended", move || drop(child.wait()))?;
        Ok(AttendedProgram(ours))
    }

    /// The first JSON value that it writes, of at most `most` bytes; each part of it comes within `patience`.
    ///
    /// # Errors
    /// It does not come, or it is none.
    pub fn read_json(&self, patience: Duration, most: u64) -> io::Result<Value> {
        self.0.set_read_timeout(Some(patience))?;
        let mut values = Deserializer::from_reader((&self.0).take(most));
        Value::deserialize(&mut values).map_err(io::Error::from)
    }

    /// Closes its standard input, and waits for its end, at most `patience`.
    pub fn end(self, patience: Duration) {
        let mut rest = Vec::new();
        let closed = self.0.shutdown(Shutdown::Write);
        let waits = closed.and_then(|()| self.0.set_read_timeout(Some(patience)));
        // One that has ended already is as good.
        let _ended = waits.and_then(|()| (&self.0).read_to_end(&mut rest));
    }
}
