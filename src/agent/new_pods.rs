//! Questions of the plugin about new pods: received by a thread, answered by the loop.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use serde::Serialize;

use crate::inspect::local_socket;
use crate::os::threads;
use crate::os::wait::is_any_readable;
use crate::policy::ask::{self, LocalPod, PolicyAnswer};
use crate::policy::network_plan::{BlockAnswer, BlockQuestion};

/// How long the plugin may take to ask: as on a host that is so busy that it is not run for long …
const PATIENCE: Duration = Duration::from_millis(500);

/// … and how long while more than [`FEW`] are read: whoever connects and says nothing takes the place of others.
const HURRY: Duration = Duration::from_millis(50);
const FEW: usize = 8;

/// So many are received at once.
const ASKERS: usize = 64;

/// What a plugin asks for.
#[derive(Debug)]
pub enum PluginRequest {
    /// A new pod's policies.
    Pod(PodRequest),
    /// A block of a network.
    Block(BlockRequest),
}

/// A plugin that waits for a block.
#[derive(Debug)]
pub struct BlockRequest {
    pub question: BlockQuestion,
    pub asked_at: Instant,
    to: UnixStream,
}

impl BlockRequest {
    /// A plugin that has gone needs no answer.
    pub fn answer(self, answer: &BlockAnswer) {
        write_line(self.to, answer);
    }
}

fn write_line(mut to: UnixStream, answer: &impl Serialize) {
    let Ok(mut line) = serde_json::to_vec(answer) else { return };
    line.push(b'\n');
    let _gone = to.set_nonblocking(true).and_then(|()| to.write_all(&line));
}

/// A question that waits for its answer.
#[derive(Debug)]
pub struct PodRequest {
    pub pod: LocalPod,
    to: UnixStream,
}

impl PodRequest {
    /// A plugin that has gone needs no answer.
    pub fn answer(self, answer: &PolicyAnswer) {
        write_line(self.to, answer);
    }
}

/// The socket for questions, which are received until this is dropped.
#[derive(Debug)]
pub struct NewPods {
    path: PathBuf,
    listener: Arc<UnixListener>,
    /// Of the socket: device and number.
    file: Option<(u64, u64)>,
    ended: Arc<AtomicBool>,
}

impl NewPods {
    /// The socket has not been removed or replaced.
    pub fn is_there(&self) -> bool {
        self.file.is_some() && file(&self.path) == self.file
    }
}

impl Drop for NewPods {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // Its thread wakes up, and ends.
        let _ended = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
    }
}

fn file(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Starts the thread that receives questions. One that is not whole yet holds up no other.
///
/// # Errors
/// There can be no socket or no thread.
pub fn listen(
    ipam_dir: &Path,
    ask: impl Fn(PluginRequest) + Send + 'static,
) -> io::Result<NewPods> {
    let path = ask::socket(ipam_dir);
    let listener = Arc::new(local_socket::listen(&path)?);
    listener.set_nonblocking(true)?;
    let ended = Arc::new(AtomicBool::new(false));
    let new_pods = NewPods {
        file: file(&path),
        path,
        listener: Arc::clone(&listener),
        ended: Arc::clone(&ended),
    };
    let receive = move || {
        let mut askers = Vec::new();
        while !ended.load(Ordering::Acquire) {
            askers = askers.into_iter().filter_map(|it: Asker| it.receive(&ask)).collect();
            accept(&listener, &mut askers, &ask);
            wait(&listener, &askers);
        }
    };
    threads::spawn("policies", receive).map(|_| new_pods)
}

/// A plugin that has connected, and not asked yet.
struct Asker {
    stream: UnixStream,
    /// What has come of its question.
    line: Vec<u8>,
    until: Instant,
}

impl Asker {
    /// Passes its question on if that is whole; `None`: there is no more to be received.
    fn receive(mut self, ask: &impl Fn(PluginRequest)) -> Option<Asker> {
        let mut part = [0; 4096];
        match recv(self.stream.as_raw_fd(), &mut part, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) | Ok(0) => return None,
            Ok(read) => self.line.extend_from_slice(&part[..read]),
        }
        let Some(end) = self.line.iter().position(|byte| *byte == b'\n') else {
            let is_received = self.line.len() <= ask::LIMIT && Instant::now() < self.until;
            return is_received.then_some(self);
        };
        if let Ok(asked) = question(&self.line[..end], self.stream) {
            ask(asked);
        }
        None
    }
}

/// Takes in those who have connected, as many as there is room for.
fn accept(listener: &UnixListener, askers: &mut Vec<Asker>, ask: &impl Fn(PluginRequest)) {
    while askers.len() < ASKERS {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => {
                // As while there are too many open files.
                return thread::sleep(Duration::from_millis(1));
            }
        };
        let patience = if askers.len() > FEW { HURRY } else { PATIENCE };
        let until = Instant::now() + patience;
        if local_socket::refuse_others(&stream).is_ok() {
            askers.extend(Asker { stream, line: Vec::new(), until }.receive(ask));
        }
    }
}

/// Until one of `askers` says something, or its time is over, or another one connects.
fn wait(listener: &UnixListener, askers: &[Asker]) {
    let received = askers.iter().map(|it| it.stream.as_fd());
    let room = (askers.len() < ASKERS).then(|| listener.as_fd());
    let all: Vec<BorrowedFd<'_>> = received.chain(room).collect();
    let left = askers.iter().map(|it| it.until.saturating_duration_since(Instant::now())).min();
    // Not a moment too soon: it would only wait again.
    let left = left.map_or(Duration::MAX, |left| left + Duration::from_millis(1));
    // Whatever it says: who is there is received next.
    let _ready = is_any_readable(&all, left);
}

fn question(line: &[u8], to: UnixStream) -> serde_json::Result<PluginRequest> {
    if let Ok(pod) = serde_json::from_slice(line) {
        return Ok(PluginRequest::Pod(PodRequest { pod, to }));
    }
    let (question, asked_at) = (serde_json::from_slice(line)?, Instant::now());
    Ok(PluginRequest::Block(BlockRequest { question, asked_at, to }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_in(folder: &Path) -> NewPods {
        listen(folder, |asked| match asked {
            PluginRequest::Pod(asked) => {
                asked.answer(&PolicyAnswer { in_force: true, judged: true, why: String::new() })
            }
            PluginRequest::Block(asked) => {
                let why = asked.question.network.to_string();
                asked.answer(&BlockAnswer { ready: false, why })
            }
        })
        .unwrap()
    }

    #[test]
    fn a_question_that_comes_in_parts_is_answered_and_holds_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = ask::socket(folder.path());
        let _pods = listen_in(folder.path());
        let question = b"{\"network\":\"n\",\"container_id\":\"c\",\"ifname\":\"e\",\"pod\":null,\
            \"addresses\":[],\"labels\":{},\"annotations\":{}}\n";
        let (begin, rest) = question.split_at(20);
        let mut slow = UnixStream::connect(&path).unwrap();
        slow.write_all(begin).unwrap();
        local_socket::ask(&path, question, ask::LIMIT, Duration::from_millis(300)).unwrap();
        slow.write_all(rest).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let answer = local_socket::read_line(&mut slow, ask::LIMIT, until).unwrap();
        assert!(serde_json::from_slice::<PolicyAnswer>(&answer).unwrap().in_force);
    }

    #[test]
    fn a_plugin_that_writes_slowly_is_received_no_longer_than_others() {
        let is_received = |until: Instant| {
            let (stream, mut plugin) = UnixStream::pair().unwrap();
            plugin.write_all(b"{").unwrap();
            let asker = Asker { stream, line: Vec::new(), until };
            asker.receive(&|_| panic!("that is no question")).is_some()
        };
        assert!(is_received(Instant::now() + PATIENCE));
        assert!(!is_received(Instant::now()));
    }

    #[test]
    fn a_socket_that_was_removed_is_missed_and_its_thread_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = ask::socket(folder.path());
        let pod = r#"{"network":"n","container_id":"c","ifname":"e","pod":null,"addresses":[],"labels":{},
            "annotations":{}}"#;
        let question = pod.replace('\n', " ") + "\n";
        let answered =
            || local_socket::ask(&path, question.as_bytes(), ask::LIMIT, Duration::from_secs(5));
        let first = listen_in(folder.path());
        assert!(first.is_there() && answered().is_ok());
        fs::remove_file(&path).unwrap();
        assert!(!first.is_there() && answered().is_err());
        let second = listen_in(folder.path());
        assert!(!first.is_there() && second.is_there() && answered().is_ok());
        let listener = Arc::downgrade(&first.listener);
        drop(first);
        let until = Instant::now() + Duration::from_secs(10);
        while listener.upgrade().is_some() {
            assert!(Instant::now() < until, "its thread goes on");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(answered().is_ok());
    }
}
