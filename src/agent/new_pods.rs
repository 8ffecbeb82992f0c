//! Questions of the plugin about new pods: heard by a thread, answered by the loop.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::inspect::local_socket;
use crate::policy::ask::{self, Answer, LocalPod};

/// How long the plugin may take to ask.
const PATIENCE: Duration = Duration::from_millis(50);

/// So many questions are read at once.
const READERS: usize = 64;

/// A question that waits for its answer.
#[derive(Debug)]
pub struct PodRequest {
    pub pod: LocalPod,
    to: UnixStream,
}

impl PodRequest {
    /// A plugin that has gone needs no answer.
    pub fn answer(mut self, answer: &Answer) {
        let Ok(mut line) = serde_json::to_vec(answer) else { return };
        line.push(b'\n');
        let _gone = self.to.set_nonblocking(true).and_then(|()| self.to.write_all(&line));
    }
}

/// Starts the thread that hears questions. Each is read by a thread of its own: one that does not come
/// holds up no other.
///
/// # Errors
/// There can be no socket or no thread.
pub fn listen(
    ipam_dir: &Path,
    ask: impl Fn(PodRequest) + Clone + Send + 'static,
) -> io::Result<()> {
    let listener = local_socket::listen(&ask::socket(ipam_dir))?;
    let readers = Arc::new(());
    let hear = move || {
        for stream in listener.incoming() {
            while Arc::strong_count(&readers) > READERS {
                thread::sleep(Duration::from_millis(1));
            }
            let (ask, reader) = (ask.clone(), Arc::clone(&readers));
            let read = move || {
                let _reader = reader;
                if let Ok(asked) = stream.and_then(question) {
                    ask(asked);
                }
            };
            if thread::Builder::new().name("new pod".into()).spawn(read).is_err() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    };
    thread::Builder::new().name("policies".into()).spawn(hear).map(drop)
}

fn question(mut stream: UnixStream) -> io::Result<PodRequest> {
    local_socket::refuse_others(&stream)?;
    let line = local_socket::read_line(&mut stream, ask::LIMIT, Instant::now() + PATIENCE)?;
    Ok(PodRequest { pod: serde_json::from_slice(&line)?, to: stream })
}
