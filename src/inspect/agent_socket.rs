//! Asks the agent of this host, on its local socket.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::inspect::local_socket;
use crate::settings::{Settings, Texts, flags};

/// Longest wait for the agent: one that does nothing else answers within a millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// A larger answer is no answer of the agent: 10,000 peers take 3 MB.
const LIMIT_BYTES: u64 = 64 << 20;

/// A longer head is none of the agent's: its heads have 200 bytes.
const HEAD_BYTES: u64 = 16 << 10;

/// The socket that the settings name; an error says that there is none.
pub fn of(settings: &Settings) -> Result<&Path, String> {
    settings.socket.as_deref().ok_or_else(|| "the agent has no socket (SOCKET=none)".to_owned())
}

#[derive(Deserialize)]
struct SettingsAnswer {
    settings: BTreeMap<String, String>,
}

/// The settings that the agent behind `socket` serves with; `None` if none answers, one of an older
/// release, or a process that is not root: subcommands do what these settings say.
pub fn settings(socket: &Path) -> Option<Texts> {
    let mut stream = ask(socket, "/v1/settings").ok()?;
    local_socket::refuse_others(&stream).ok()?;
    let mut answer = Vec::new();
    (&mut stream).take(LIMIT_BYTES).read_to_end(&mut answer).ok()?;
    let SettingsAnswer { settings } = body(&answer).ok()?;
    Some(flags::texts(settings))
}

/// Whether this user may not open the socket that the settings name: then it is not known whether an agent
/// serves this host.
pub fn is_denied(settings: &Settings) -> bool {
    let asked = of(settings).map(UnixStream::connect);
    matches!(asked, Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied)
}

/// The JSON document at `path`; an error says why there is none.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, String> {
    let answer = whole(socket, path)?;
    body(&answer).map_err(|why| format!("the agent's answer ({}): {why}", socket.display()))
}

/// The text at `path`, and whether its status is 200; an error says why there is none.
pub fn text(socket: &Path, path: &str) -> Result<(bool, String), String> {
    let answer = whole(socket, path)?;
    let (head, text) = split(&answer).map_err(|why| format!("{}: {why}", socket.display()))?;
    Ok((is_well(&head).is_ok(), String::from_utf8_lossy(text).trim().to_owned()))
}

/// Head and body of the answer to `path`.
fn whole(socket: &Path, path: &str) -> Result<Vec<u8>, String> {
    let failed = |error| failed(socket, &error);
    let mut answer = Vec::new();
    ask(socket, path)
        .map_err(failed)?
        .take(LIMIT_BYTES)
        .read_to_end(&mut answer)
        .map_err(failed)?;
    Ok(answer)
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

/// What follows the head of the answer to `path`, for as long as it goes on; an error says why there
/// is none. Only the head is waited for with patience: what follows may be long in coming.
pub fn follow(socket: &Path, path: &str) -> Result<BufReader<UnixStream>, String> {
    let begin = || -> io::Result<_> {
        let mut stream = BufReader::new(ask(socket, path)?);
        let refused = match is_well(&head(&mut stream)?) {
            Ok(()) => None,
            Err(line) => Some(format!("{line}: {}", words(&mut stream)?)),
        };
        stream.get_ref().set_read_timeout(None)?;
        Ok((stream, refused))
    };
    match begin().map_err(|error| failed(socket, &error))? {
        (stream, None) => Ok(stream),
        (_, Some(why)) => Err(format!("the agent's answer ({}): {why}", socket.display())),
    }
}

/// What it says of a refusal.
fn words(stream: &mut impl Read) -> io::Result<String> {
    let mut text = Vec::new();
    stream.take(HEAD_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// The lines before the first empty one, or before the end.
fn head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut stream = stream.take(HEAD_BYTES);
    let mut head = String::new();
    while stream.read_line(&mut head)? > "\r\n".len() {}
    Ok(head)
}

/// An error says what else the first line of an answer is.
fn is_well(head: &str) -> Result<(), String> {
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(head.lines().next().unwrap_or("it ended at once").to_owned()),
    }
}

/// Why the agent cannot be asked.
fn failed(socket: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no agent serves this host ({}: {error})", socket.display())
        }
        io::ErrorKind::PermissionDenied => {
            format!("only root may use the agent's socket ({}): try sudo", socket.display())
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the agent does not answer within {PATIENCE:?} ({})", socket.display())
        }
        _ => format!("query the agent ({}): {error}", socket.display()),
    }
}

/// The document of an answer.
fn body<T: DeserializeOwned>(answer: &[u8]) -> Result<T, String> {
    let (head, text) = split(answer)?;
    is_well(&head)?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn split(answer: &[u8]) -> Result<(Cow<'_, str>, &[u8]), String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("it is not HTTP")?;
    Ok((String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn an_answer_is_read_or_refused() {
        let ok = |text: &str| body::<Value>(text.as_bytes());
        assert_eq!(ok("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"a\":1}").unwrap()["a"], 1);
        assert_eq!(ok("HTTP/1.0 404 Not Found\r\n\r\n").unwrap_err(), "HTTP/1.0 404 Not Found");
        assert!(ok("HTTP/1.0 200 OK\r\n\r\n{").is_err());
        assert!(ok("").is_err());
    }
}
