//! Questions over a socket in the file system, between processes of root.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket,
};
use nix::sys::time::TimeVal;

use crate::os::files;

/// Time to read what is there.
const READ: Duration = Duration::from_millis(1);

/// A question that was sent.
#[derive(Debug)]
pub struct SentQuestion {
    stream: UnixStream,
    until: Instant,
}

impl SentQuestion {
    /// The answer, one line of at most `limit` bytes; one that came in time counts, however late it is read.
    ///
    /// # Errors
    /// No answer within the deadline.
    pub fn answer(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let until = self.until.max(Instant::now() + READ);
        read_line(&mut self.stream, limit, until)
    }

    /// The answer, if it comes within `longer` from now.
    ///
    /// # Errors
    /// As those of [`SentQuestion::answer`].
    pub fn late_answer(&mut self, limit: usize, longer: Duration) -> io::Result<Vec<u8>> {
        read_line(&mut self.stream, limit, Instant::now() + longer)
    }
}

/// Asks `question` (one line) at `path`; gives the answer, one line of at most `limit` bytes.
///
/// # Errors
/// No answer within `deadline`, or the other process is not root.
pub fn ask(path: &Path, question: &[u8], limit: usize, deadline: Duration) -> io::Result<Vec<u8>> {
    send(path, question, deadline)?.answer(limit)
}

/// Sends `question` (one line) to `path`, for an answer within `deadline` from now.
///
/// # Errors
/// No process listens, or one that is not root.
pub fn send(path: &Path, question: &[u8], deadline: Duration) -> io::Result<SentQuestion> {
    let until = Instant::now() + deadline;
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let micros = i64::try_from(deadline.as_micros()).unwrap_or(i64::MAX);
    setsockopt(&socket, SendTimeout, &TimeVal::new(micros / 1_000_000, micros % 1_000_000))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    refuse_others(&stream)?;
    stream.write_all(question)?;
    Ok(SentQuestion { stream, until })
}

/// Success if somebody reads what is sent to `path`: an empty line, at whose end an agent hangs up without an answer.
///
/// # Errors
/// No process listens or reads within `deadline`, or it is a process that is not root.
pub fn greet(path: &Path, deadline: Duration) -> io::Result<()> {
    let mut stream = send(path, b"\n", deadline)?.stream;
    stream.set_read_timeout(Some(deadline))?;
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        read => read.map(drop),
    }
}

/// A line of at most `limit` bytes, without its end.
///
/// # Errors
/// It does not come before `until`, or is longer.
pub fn read_line(stream: &mut UnixStream, limit: usize, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut part = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = match stream.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        line.extend_from_slice(&part[..read]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() > limit {
            return Err(io::Error::other(format!("more than {limit} bytes")));
        }
    }
}

/// # Errors
/// The other end is not root.
pub fn refuse_others(stream: &UnixStream) -> io::Result<()> {
    match getsockopt(stream, PeerCredentials)?.uid() {
        0 => Ok(()),
        other => Err(io::Error::other(format!("the other end runs as user {other}, not as root"))),
    }
}

/// A socket at `path` for root alone, in place of one that is there.
///
/// # Errors
/// It cannot be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Made under another name, so that it never has other permissions.
    let new = files::unfinished(path);
    files::remove(&new).map_err(io::Error::other)?;
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_question_is_answered_in_time_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let patience = Duration::from_millis(100);
        assert!(ask(&path, b"x\n", 9, patience).is_err(), "no process listens");
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let begun = Instant::now();
        assert!(ask(&path, b"x\n", 9, patience).is_err(), "no process answers");
        assert!(begun.elapsed() < Duration::from_secs(10));
        thread::spawn(move || answer_all(&listener, b"yes\nmore"));
        let long = Duration::from_secs(20);
        assert_eq!(ask(&path, b"x\n", 9, long).unwrap(), b"yes");
        let mut late = send(&path, b"x\n", patience).unwrap();
        thread::sleep(2 * patience);
        assert_eq!(late.answer(9).unwrap(), b"yes", "it was there");
        let listener = listen(&path).unwrap();
        thread::spawn(move || answer_all(&listener, &[b'a'; 20_000]));
        assert!(ask(&path, b"x\n", 9, long).unwrap_err().to_string().contains("more than 9"));
    }

    #[test]
    fn a_peer_that_hangs_up_or_answers_is_there_and_one_that_does_not_read_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (patience, long) = (Duration::from_millis(100), Duration::from_secs(20));
        assert!(greet(&path, patience).is_err(), "no process listens");
        let listener = listen(&path).unwrap();
        assert!(greet(&path, patience).is_err(), "no process reads");
        thread::spawn(move || {
            for (number, mut stream) in listener.incoming().flatten().enumerate() {
                let read = stream.read_exact(&mut [0; 1]);
                let text: &[u8] = if number < 2 { b"" } else { b"yes\n" };
                drop(read.and_then(|()| stream.write_all(text)));
            }
        });
        for _ in 0..3 {
            greet(&path, long).unwrap();
        }
    }

    /// Also those who wait no longer. Who is answered before the question is sent cannot send it.
    fn answer_all(listener: &UnixListener, text: &[u8]) {
        for mut stream in listener.incoming().flatten() {
            let asked = stream.read_exact(&mut [0; 2]);
            drop(asked.and_then(|()| stream.write_all(text)));
        }
    }
}
