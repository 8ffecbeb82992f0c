//! A TCP connection on which bytes never pause.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};

use crate::support::Pod;
use crate::support::node::{Place, Spot};

const PORT: u16 = 9000;
const BLOCK: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);

fn connect(source: IpAddr, to: SocketAddr) -> TcpStream {
    let (kind, none) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Inet, kind, none, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).unwrap();
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)).unwrap();
    TcpStream::from(socket)
}

/// From an address of a pod, or a host, to a pod until it is asked for its report.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<usize>,
    receiver: JoinHandle<(usize, Duration)>,
}

impl Stream {
    pub fn start(from: &Spot<'_>, source: IpAddr, to: &Pod) -> Stream {
        let address: IpAddr = to.v4();
        let listener = to.spot().listen((address, PORT));
        let mut sent = from.inside(|| connect(source, (address, PORT).into()));
        let (mut taken, _) = listener.accept().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut blocks = 0;
            while !stops.load(Ordering::Relaxed) {
                sent.write_all(&[(blocks % 251) as u8; BLOCK]).unwrap();
                blocks += 1;
                std::thread::sleep(PAUSE);
            }
            blocks
        });
        let receiver = std::thread::spawn(move || {
            let (mut blocks, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
            let mut block = [0; BLOCK];
            while taken.read_exact(&mut block).is_ok() {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                assert!(block.iter().all(|byte| *byte == (blocks % 251) as u8), "{blocks}");
                blocks += 1;
            }
            (blocks, longest)
        });
        Stream { stop, sender, receiver }
    }

    /// Every byte has come, in order; the longest pause between two blocks.
    pub fn assert_whole(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        let (received, longest) = self.receiver.join().unwrap();
        assert_eq!(received, sent, "blocks of the stream");
        assert!(sent > 100, "{sent} blocks are no stream");
        longest
    }
}
