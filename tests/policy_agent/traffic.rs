//! Packets between pods that are counted: floods over UDP.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::PORT;
use crate::support::wait::patience;
use crate::support::{Place, soon};

/// Listens at all addresses of a pod.
pub struct Server {
    socket: UdpSocket,
    received: BTreeMap<IpAddr, u64>,
}

/// Sends packets until it is dropped.
pub struct Flood {
    sent: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn open(at: &impl Place) -> Server {
        let socket = at.spot().inside(|| UdpSocket::bind(("::", PORT)).unwrap());
        socket.set_nonblocking(true).unwrap();
        Server { socket, received: BTreeMap::new() }
    }

    /// At this address of it alone.
    pub fn open_at(at: &impl Place, address: IpAddr) -> Server {
        let socket = at.spot().inside(|| UdpSocket::bind((address, PORT)).unwrap());
        socket.set_nonblocking(true).unwrap();
        Server { socket, received: BTreeMap::new() }
    }

    /// Packets so far from anywhere.
    pub fn total(&mut self) -> u64 {
        self.received([0, 0, 0, 0].into());
        self.received.values().sum()
    }

    /// Packets so far from `source`; each is answered.
    pub fn received(&mut self, source: IpAddr) -> u64 {
        let mut buffer = [0; 16];
        while let Ok((_, from)) = self.socket.recv_from(&mut buffer) {
            *self.received.entry(from.ip().to_canonical()).or_default() += 1;
            let _gone = self.socket.send_to(b"answer", from);
        }
        self.received.get(&source).copied().unwrap_or(0)
    }

    /// Waits until packets of `source` arrive.
    pub fn wait(&mut self, source: IpAddr) {
        let before = self.received(source);
        soon(&format!("packets from {source}"), || self.received(source) > before + 3);
    }

    /// Waits until none of `source` arrived for a while in which others did; gives how long after
    /// `since` the last one came.
    pub fn wait_silence(&mut self, source: IpAddr, since: Instant) -> Duration {
        let (mut count, mut last) = (self.received(source), Instant::now());
        while last.elapsed() < Duration::from_millis(700) * patience() {
            assert!(
                since.elapsed() < Duration::from_secs(40) * patience(),
                "{source} still arrives"
            );
            let now = self.received(source);
            if now > count {
                (count, last) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        last.saturating_duration_since(since)
    }
}

impl Flood {
    /// A packet every fifth of a millisecond: finds a way that is open for a moment.
    pub fn start(from: &impl Place, to: IpAddr) -> Flood {
        Self::every(Duration::from_micros(200), from, to)
    }

    /// A packet every two milliseconds: enough to see that the way is open. One that is answered takes up to a tenth
    /// of a processor at the rate of [`Flood::start`].
    pub fn sparse(from: &impl Place, to: IpAddr) -> Flood {
        Self::every(Duration::from_millis(2), from, to)
    }

    fn every(rest: Duration, from: &impl Place, to: IpAddr) -> Flood {
        let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = from.spot().inside(|| UdpSocket::bind((any, 0)).unwrap());
        socket.set_nonblocking(true).unwrap();
        let (sent, answered, ends) = (Arc::default(), Arc::default(), Arc::default());
        let flood = (Arc::clone(&sent), Arc::clone(&answered), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let (sent, answered, ends): (Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicBool>) = flood;
            let mut buffer = [0; 16];
            while !ends.load(Ordering::Relaxed) {
                if socket.send_to(b"flood", SocketAddr::new(to, PORT)).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                while socket.recv(&mut buffer).is_ok() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(rest);
            }
        });
        Flood { sent, answered, ends, thread: Some(thread) }
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until it has sent more.
    pub fn go_on(&self) {
        let before = self.sent();
        soon("the flood goes on", || self.sent() > before + 50);
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}
