//! ICMP echo. Source: icmp(7), raw(7), RFC 792, RFC 4443.
//!
//! Packets not larger than the known path MTU are sent with DF, unless the host has
//! `ip_no_pmtu_disc`: one of exactly that size that is answered was not fragmented.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    recv, send, socket,
};

use crate::net::Family;
use crate::os::wait::is_readable;

/// Bytes of the ICMP header: type, code, checksum, identifier, sequence.
const HEADER: usize = 8;

/// The smallest packet with all headers, bytes.
pub const SMALLEST: u32 = 84;

/// A socket for echoes to one address, in the network namespace it was opened in.
pub struct Echo {
    socket: OwnedFd,
    family: Family,
    identifier: u16,
}

impl Echo {
    /// `from`: the source address; `None`: the kernel chooses.
    ///
    /// # Errors
    /// No CAP_NET_RAW; no route.
    pub fn open(to: IpAddr, from: Option<IpAddr>) -> io::Result<Echo> {
        let family = Family::of(to);
        let (domain, protocol) = match family {
            Family::V4 => (AddressFamily::Inet, SockProtocol::Icmp),
            Family::V6 => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(domain, SockType::Raw, flags, protocol)?;
        let address = |ip| SockaddrStorage::from(SocketAddr::new(ip, 0));
        if let Some(from) = from {
            bind(socket.as_raw_fd(), &address(from))?;
        }
        connect(socket.as_raw_fd(), &address(to))?;
        // Other processes may send echoes to the same address.
        let identifier = (std::process::id() ^ (socket.as_raw_fd().cast_unsigned() << 8)) as u16;
        Ok(Echo { socket, family, identifier })
    }

    /// Sends a request in a packet of `bytes`, IP header included; at least [`SMALLEST`].
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`, `EMSGSIZE` …
    pub fn send(&self, sequence: u16, bytes: u32) -> io::Result<()> {
        let packet = request(self.family, self.identifier, sequence, bytes);
        send(self.socket.as_raw_fd(), &packet, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }

    /// The sequence of the next reply, if one has arrived.
    ///
    /// # Errors
    /// An ICMP error: `EHOSTUNREACH` …
    pub fn receive(&self) -> io::Result<Option<u16>> {
        let mut buffer = [0; 256];
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => return Ok(None),
                received => received?,
            };
            if let Some((identifier, sequence)) = reply(self.family, &buffer[..length])
                && identifier == self.identifier
            {
                return Ok(Some(sequence));
            }
        }
    }
}

impl AsFd for Echo {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The round trip time of one packet of `bytes`; `None` without a reply within `wait`.
///
/// # Errors
/// It cannot be sent.
pub fn round_trip(
    to: IpAddr,
    from: Option<IpAddr>,
    bytes: u32,
    wait: Duration,
) -> io::Result<Option<Duration>> {
    let echo = Echo::open(to, from)?;
    let begun = Instant::now();
    echo.send(1, bytes)?;
    loop {
        let waited = begun.elapsed();
        match echo.receive() {
            Ok(Some(_)) => return Ok(Some(begun.elapsed())),
            // An ICMP error of a router is not a reply.
            Err(error) if error.kind() != io::ErrorKind::HostUnreachable => return Err(error),
            _ if waited >= wait => return Ok(None),
            // Rounded up: a poll of zero would spin.
            _ => drop(is_readable(&echo, wait - waited + Duration::from_millis(1))?),
        }
    }
}

/// An echo request; the kernel computes the checksum of IPv6.
fn request(family: Family, identifier: u16, sequence: u16, bytes: u32) -> Vec<u8> {
    let (kind, header) = match family {
        Family::V4 => (8, 20),
        Family::V6 => (128, 40),
    };
    let length = (bytes.max(SMALLEST) as usize).saturating_sub(header).max(HEADER);
    let mut packet = vec![0; length];
    packet[0] = kind;
    packet[4..6].copy_from_slice(&identifier.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    if family == Family::V4 {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Identifier and sequence of an echo reply; `None` for anything else. Of IPv4 the IP header comes
/// before it.
fn reply(family: Family, bytes: &[u8]) -> Option<(u16, u16)> {
    let (kind, icmp) = match family {
        Family::V4 => (0, bytes.get(usize::from(bytes.first()? & 0xf) * 4..)?),
        Family::V6 => (129, bytes),
    };
    let [found, _, _, _, a, b, c, d] = *icmp.first_chunk::<HEADER>()?;
    (found == kind).then(|| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// Source: RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_requested_length_and_a_valid_checksum() {
        let v4 = request(Family::V4, 0x1234, 7, 1500);
        assert_eq!((v4.len(), checksum(&v4)), (1480, 0));
        assert_eq!(request(Family::V6, 1, 1, 1500).len(), 1460);
        assert_eq!(request(Family::V4, 1, 1, 0).len(), 64);
    }

    #[test]
    fn only_a_reply_is_a_reply() {
        let mut v6 = request(Family::V6, 0x1234, 7, 0);
        assert_eq!(reply(Family::V6, &v6), None, "a request");
        v6[0] = 129;
        assert_eq!(reply(Family::V6, &v6), Some((0x1234, 7)));
        let mut v4 = vec![0x45; 20];
        v4.extend(request(Family::V4, 0x1234, 7, 0));
        v4[20] = 0;
        assert_eq!(reply(Family::V4, &v4), Some((0x1234, 7)));
        for cut in 0..28 {
            assert_eq!(reply(Family::V4, &v4[..cut]), None, "{cut} bytes");
        }
        assert_eq!(reply(Family::V4, &[0x4f; 30]), None, "options that are missing");
    }
}
