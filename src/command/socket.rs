//! Asks the agent of this host, on its local socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::agent::settings::Settings;

/// Longest wait for the agent: one that does nothing else answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// A larger answer is no answer of the agent: 10,000 peers take 3 MB.
const LIMIT_BYTES: u64 = 64 << 20;

/// The socket that the settings name; an error says that there is none.
pub fn of(settings: &Settings) -> Result<&Path, String> {
    settings.socket.as_deref().ok_or_else(|| "the agent has no socket (SOCKET=none)".to_owned())
}

/// Whether an agent answers on the socket that the settings name.
pub fn answers(settings: &Settings) -> bool {
    of(settings).is_ok_and(|path| get(path, "/v1/status").is_ok())
}

/// Whether this user may not open the socket that the settings name: nobody knows then whether an agent
/// serves this host.
pub fn is_denied(settings: &Settings) -> bool {
    let asked = of(settings).map(UnixStream::connect);
    matches!(asked, Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied)
}

/// The JSON document at `path`; an error says why there is none.
pub fn get(socket: &Path, path: &str) -> Result<Value, String> {
    let failed = |error| failed(socket, &error);
    let mut answer = Vec::new();
    ask(socket, path)
        .map_err(failed)?
        .take(LIMIT_BYTES)
        .read_to_end(&mut answer)
        .map_err(failed)?;
    body(&answer).map_err(|why| format!("the agent's answer ({}): {why}", socket.display()))
}

/// Asks for `path`; the answer can be read from what is given.
///
/// HTTP/1.0: the answer ends with the connection, and comes in one piece.
pub fn ask(socket: &Path, path: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    Ok(stream)
}

/// The answer to `path` that goes on; an error says why there is none.
pub fn follow(socket: &Path, path: &str) -> Result<UnixStream, String> {
    let stream = ask(socket, path).and_then(|stream| {
        stream.set_read_timeout(None)?;
        Ok(stream)
    });
    stream.map_err(|error| failed(socket, &error))
}

/// Why the agent cannot be asked.
fn failed(socket: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no agent serves this host ({}: {error})", socket.display())
        }
        io::ErrorKind::PermissionDenied => {
            format!("only root may ask the agent ({}): try sudo", socket.display())
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the agent does not answer within {PATIENCE:?} ({})", socket.display())
        }
        _ => format!("ask the agent ({}): {error}", socket.display()),
    }
}

/// The document of an answer.
fn body(answer: &[u8]) -> Result<Value, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or("it is not HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(head.lines().next().unwrap_or_default().to_owned());
    }
    serde_json::from_slice(&answer[end + 4..]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_or_refused() {
        let ok = |text: &str| body(text.as_bytes());
        assert_eq!(ok("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"a\":1}").unwrap()["a"], 1);
        assert_eq!(ok("HTTP/1.0 404 Not Found\r\n\r\n").unwrap_err(), "HTTP/1.0 404 Not Found");
        assert!(ok("HTTP/1.0 200 OK\r\n\r\n{").is_err());
        assert!(ok("").is_err());
    }
}
