//! A TCP connection on which bytes never pause.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::Pod;
use crate::support::node::{Place, Spot};

const PORT: u16 = 9000;
const BLOCK: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);

/// From a pod, or a host, to a pod until it is asked for its report.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<usize>,
    receiver: JoinHandle<(usize, Duration)>,
}

impl Stream {
    pub fn start(from: &Spot<'_>, to: &Pod) -> Stream {
        let address: IpAddr = to.v4();
        let listener = to.spot().listen((address, PORT));
        let mut sent = from.inside(|| TcpStream::connect((address, PORT)).unwrap());
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
