//! A web server in a network namespace that records its clients.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::node::Place;
use super::process::lock;

/// Size of the served file, in bytes.
pub const BODY: usize = 1_000_000;
const PORT: u16 = 8000;

pub struct Web {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<IpAddr>>,
    stop: AtomicBool,
}

impl Web {
    /// Serves at one of the place's addresses until dropped.
    pub fn serve(place: &dyn Place, address: IpAddr) -> Self {
        let address = SocketAddr::new(address, PORT);
        let listener = place.spot().listen(address);
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State::default());
        let thread = Some(std::thread::spawn({
            let state = Arc::clone(&state);
            move || accept(&listener, &state)
        }));
        Self { address, state, thread }
    }

    /// Fetches the body from `place`.
    ///
    /// # Panics
    /// If it is incomplete.
    pub fn fetch(&self, place: &dyn Place) {
        let fetched = place.run(&Self::line(self.address));
        assert!(fetched.stdout == BODY.to_string(), "{}: {fetched}", place.label());
    }

    /// The command that fetches the body from `address`, prints how many bytes came, and fails if
    /// none do.
    pub fn line(address: SocketAddr) -> String {
        format!("curl -sS --noproxy * -m 20 -o /dev/null -w %{{size_download}} http://{address}/")
    }

    /// The addresses that asked, as this server saw them.
    pub fn seen(&self) -> Vec<IpAddr> {
        lock(&self.state.seen).clone()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, state: &State) {
    while !state.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, from)) => {
                lock(&state.seen).push(from.ip());
                let _ = answer(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut request = [0; 4096];
    let _ = stream.read(&mut request)?;
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {BODY}\r\n\r\n")?;
    stream.write_all(&vec![b'x'; BODY])
}
