//! A server in a network namespace that answers with the client's address, over TCP and UDP.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::node::Place;

/// How long an answer may take: nothing but a lost packet takes long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until dropped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Serves on every address of the place.
    pub fn serve(place: &dyn Place, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = ["0.0.0.0", "::"].into_iter().flat_map(|any| {
            let address = SocketAddr::new(any.parse().unwrap(), port);
            let (tcp, udp) = place.spot().inside(|| listen(address));
            let (for_tcp, for_udp) = (Arc::clone(&stop), Arc::clone(&stop));
            [
                std::thread::spawn(move || serve_tcp(&tcp, &for_tcp)),
                std::thread::spawn(move || serve_udp(&udp, &for_udp)),
            ]
        });
        Self { threads: threads.collect(), stop }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The source address that a server at `to` sees for `from`, over TCP; or why there was no answer.
pub fn ask_tcp(from: &dyn Place, to: SocketAddr) -> Result<IpAddr, String> {
    from.spot().inside(|| {
        let asked = || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok::<String, std::io::Error>(text)
        };
        parse(asked())
    })
}

/// The same over UDP; `port` is the asker's, 0 for any.
pub fn ask_udp(from: &dyn Place, port: u16, to: SocketAddr) -> Result<IpAddr, String> {
    from.spot().inside(|| {
        let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
        let asked = || {
            let socket = UdpSocket::bind((any, port))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(to)?;
            socket.send(b"who am I?")?;
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes)?;
            Ok::<String, std::io::Error>(String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        parse(asked())
    })
}

fn parse(answer: std::io::Result<String>) -> Result<IpAddr, String> {
    let text = answer.map_err(|error| error.to_string())?;
    text.parse().map_err(|_| format!("{text:?} is no address"))
}

/// IPv6 sockets here take no IPv4.
fn listen(address: SocketAddr) -> (TcpListener, UdpSocket) {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt,
        socket, sockopt,
    };
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let make = |kind| {
        let made = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        if address.is_ipv6() {
            setsockopt(&made, sockopt::Ipv6V6Only, &true).unwrap();
        }
        setsockopt(&made, sockopt::ReuseAddr, &true).unwrap();
        let place = SockaddrStorage::from(address);
        bind(std::os::fd::AsRawFd::as_raw_fd(&made), &place)
            .unwrap_or_else(|e| panic!("listen on {address}: {e}"));
        made
    };
    let tcp = make(SockType::Stream);
    listen(&tcp, Backlog::new(64).unwrap()).unwrap();
    let (tcp, udp) = (TcpListener::from(tcp), UdpSocket::from(make(SockType::Datagram)));
    tcp.set_nonblocking(true).unwrap();
    udp.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    (tcp, udp)
}

fn serve_tcp(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((mut stream, from)) => drop(stream.write_all(from.ip().to_string().as_bytes())),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut bytes = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((_, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(from.ip().to_string().as_bytes(), from);
        }
    }
}
