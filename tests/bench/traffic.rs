//! Traffic between two network namespaces: a stream, round trips, connections.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::series::middle;
use crate::support::node::Place;
use crate::support::wait::SOON;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{self, setsockopt, sockopt};
use nix::unistd::Pid;

/// Size of one read or write, in bytes.
const BLOCK: usize = 128 << 10;

/// Ports of [`Servers`], as the place itself sees them.
pub const SINK: u16 = 7070;
pub const ECHO: u16 = 7071;

/// A sink and an echo in one place, one connection at a time each; they end when dropped.
pub struct Servers {
    _sink: Server,
    _echo: Server,
}

impl Servers {
    pub fn start(place: &dyn Place, address: IpAddr) -> Self {
        Self {
            _sink: Server::start(place, SocketAddr::new(address, SINK), swallow),
            _echo: Server::start(place, SocketAddr::new(address, ECHO), give_back),
        }
    }
}

struct Server {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(
        place: &dyn Place,
        address: SocketAddr,
        serve: fn(TcpStream) -> std::io::Result<()>,
    ) -> Self {
        let listener = place.spot().inside(|| TcpListener::bind(address));
        let listener = listener.unwrap_or_else(|e| panic!("{} {address}: {e}", place.label()));
        let accepting = listener.try_clone().unwrap();
        let thread = Some(std::thread::spawn(move || {
            stay_on_one_processor();
            while let Ok((stream, _)) = accepting.accept() {
                // A client that is done may reset its connection.
                drop(serve(stream));
            }
        }));
        Self { listener, thread }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both).ok();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Reports the number of received bytes at the end.
fn swallow(mut stream: TcpStream) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut block)? {
            0 => return stream.write_all(&total.to_be_bytes()),
            count => total += count as u64,
        }
    }
}

fn give_back(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0; 1];
    while stream.read(&mut byte)? == 1 {
        stream.write_all(&byte)?;
    }
    stream.shutdown(Shutdown::Both)
}

/// Gbit/s of one TCP stream, until the last byte was acknowledged by the sink.
pub fn stream(from: &dyn Place, to: SocketAddr, during: Duration) -> f64 {
    let (bytes, seconds) = from.spot().inside(|| {
        stay_on_one_processor();
        let mut stream = connect(to);
        let block = vec![b'x'; BLOCK];
        let start = Instant::now();
        while start.elapsed() < during {
            stream.write_all(&block).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut received = [0; 8];
        stream.read_exact(&mut received).unwrap();
        (u64::from_be_bytes(received), start.elapsed().as_secs_f64())
    });
    bytes as f64 * 8.0 / seconds / 1e9
}

/// Median round-trip time of one byte on one connection, in microseconds.
pub fn round_trip(from: &dyn Place, to: SocketAddr, during: Duration) -> f64 {
    let each = from.spot().inside(|| {
        stay_on_one_processor();
        let mut stream = connect(to);
        repeat(during, || exchange(&mut stream))
    });
    middle(each) * 1e6
}

/// Connections per second, each made, used for one byte and closed, one after the other.
pub fn connections(from: &dyn Place, to: SocketAddr, during: Duration) -> f64 {
    let each = from.spot().inside(|| {
        stay_on_one_processor();
        repeat(during, || {
            let mut stream = connect(to);
            exchange(&mut stream);
            // A port that waits for late packets would be missing soon.
            let reset = nix::libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&stream, sockopt::Linger, &reset).unwrap();
        })
    });
    each.len() as f64 / each.iter().sum::<f64>()
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap_or_else(|e| panic!("connect to {to}: {e}"));
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream) {
    let mut byte = *b"x";
    stream.write_all(&byte).unwrap();
    stream.read_exact(&mut byte).unwrap();
}

/// Seconds that each turn took.
fn repeat(during: Duration, mut turn: impl FnMut()) -> Vec<f64> {
    let start = Instant::now();
    let mut each = Vec::new();
    while start.elapsed() < during {
        let before = Instant::now();
        turn();
        each.push(before.elapsed().as_secs_f64());
    }
    each
}

/// Both ends on the same processor: the data path is measured, not the scheduler.
fn stay_on_one_processor() {
    let mut only = CpuSet::new();
    only.set(processor()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
}

/// The number of the last processor there is.
fn processor() -> usize {
    std::thread::available_parallelism().map_or(0, |count| count.get() - 1)
}
