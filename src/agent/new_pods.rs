//! Questions of the plugin about new pods: heard by a thread, answered by the loop.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use serde::Serialize;

use crate::inspect::local_socket;
use crate::policy::ask::{self, LocalPod, PolicyAnswer};
use crate::policy::network_plan::{BlockAnswer, BlockQuestion};

/// How long the plugin may take to ask: as on a host that is so busy that it is not run for long …
const PATIENCE: Duration = Duration::from_millis(500);

/// … and how long while more than [`FEW`] are read: whoever connects and says nothing holds up others.
const HURRY: Duration = Duration::from_millis(50);
const FEW: usize = 8;

/// No usual question has more bytes …
const USUAL: usize = 8 << 10;

/// … and it comes so soon after the connection, in milliseconds: a thread of its own would cost the pod more than that
/// wait, in which the plugin is usually between the two.
const SOON: u16 = 1;

/// So many questions are read at once.
const READERS: usize = 64;

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

/// The socket for questions, which are heard until this is dropped.
#[derive(Debug)]
pub struct NewPods {
    path: PathBuf,
    listener: Arc<UnixListener>,
    /// Of the socket: device and number.
    file: Option<(u64, u64)>,
    ended: Arc<AtomicBool>,
}

impl NewPods {
    /// Nobody has removed or replaced the socket.
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

/// Starts the thread that hears questions. One that is not there yet is read by a thread of its own, and holds up no
/// other.
///
/// # Errors
/// There can be no socket or no thread.
pub fn listen(
    ipam_dir: &Path,
    ask: impl Fn(PluginRequest) + Clone + Send + 'static,
) -> io::Result<NewPods> {
    let path = ask::socket(ipam_dir);
    let listener = Arc::new(local_socket::listen(&path)?);
    let ended = Arc::new(AtomicBool::new(false));
    let new_pods = NewPods {
        file: file(&path),
        path,
        listener: Arc::clone(&listener),
        ended: Arc::clone(&ended),
    };
    let readers = Arc::new(());
    let hear = move || {
        for stream in listener.incoming() {
            if ended.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else {
                // As while there are too many open files.
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            if has_whole_line(&stream) {
                pass_on(stream, HURRY, &ask);
                continue;
            }
            while Arc::strong_count(&readers) > READERS {
                thread::sleep(Duration::from_millis(1));
            }
            let patience = if Arc::strong_count(&readers) > FEW { HURRY } else { PATIENCE };
            let (ask, reader) = (ask.clone(), Arc::clone(&readers));
            let read = move || {
                let _reader = reader;
                pass_on(stream, patience, &ask);
            };
            if thread::Builder::new().name("new pod".into()).spawn(read).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    };
    thread::Builder::new().name("policies".into()).spawn(hear).map(|_| new_pods)
}

fn pass_on(stream: UnixStream, patience: Duration, ask: &impl Fn(PluginRequest)) {
    if let Ok(asked) = question(stream, patience) {
        ask(asked);
    }
}

/// Reading it waits for nobody.
fn has_whole_line(stream: &UnixStream) -> bool {
    let _interrupted = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], SOON);
    let mut begin = [0; USUAL];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(stream.as_raw_fd(), &mut begin, flags).is_ok_and(|read| begin[..read].contains(&b'\n'))
}

fn question(mut stream: UnixStream, patience: Duration) -> io::Result<PluginRequest> {
    local_socket::refuse_others(&stream)?;
    let line = local_socket::read_line(&mut stream, ask::LIMIT, Instant::now() + patience)?;
    if let Ok(pod) = serde_json::from_slice(&line) {
        return Ok(PluginRequest::Pod(PodRequest { pod, to: stream }));
    }
    let (question, asked_at) = (serde_json::from_slice(&line)?, Instant::now());
    Ok(PluginRequest::Block(BlockRequest { question, asked_at, to: stream }))
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
