//! Sockets of a network namespace that take in what comes to a port.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::os::files;

/// Of the calling thread: that of the process would be the main thread's.
const FOLDER: &str = "/proc/thread-self/net";

/// Values of the kernel's `enum` of TCP's states, which UDP has, too: open to everybody.
const TCP_LISTENS: &str = "0A";
const UDP_UNCONNECTED: &str = "07";

/// Tables of iptables-legacy.
const LEGACY: [&str; 2] = ["ip_tables_names", "ip6_tables_names"];

/// Whether a socket in the calling thread's network namespace takes in what strangers send to
/// `destination`; `None` for a protocol (IANA's number) whose sockets are not looked at.
///
/// # Errors
/// A file in /proc cannot be read.
pub fn is_taken(protocol: u8, destination: SocketAddr) -> io::Result<Option<bool>> {
    let (names, state) = match protocol {
        6 => (["tcp", "tcp6"], TCP_LISTENS),
        17 => (["udp", "udp6"], UDP_UNCONNECTED),
        _ => return Ok(None),
    };
    for name in names {
        let takes =
            |line: &str| socket(line, state).is_some_and(|socket| is_for(socket, destination));
        if any(name, takes)? {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

/// The calling thread's network namespace has a table of iptables-legacy.
///
/// # Errors
/// As [`is_taken`].
pub fn has_legacy_tables() -> io::Result<bool> {
    Ok(any(LEGACY[0], |_| true)? || any(LEGACY[1], |_| true)?)
}

/// A line of a file there is wanted. One that does not exist has none: the kernel lacks that family.
fn any(name: &str, wanted: impl Fn(&str) -> bool) -> io::Result<bool> {
    let file = files::found(File::open(format!("{FOLDER}/{name}")))?;
    let Some(file) = file else { return Ok(false) };
    for line in BufReader::new(file).lines() {
        if wanted(&line?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Address and port of a line such as `0: 0100007F:1F90 00000000:0000 0A …` in that state.
fn socket(line: &str, state: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let is_open = words.nth(1)? == state;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let address: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()
        }
        _ => return None,
    };
    is_open.then(|| SocketAddr::new(address, port))
}

/// A socket at `::` takes in IPv4, too, unless IPV6_V6ONLY is set, which nothing shows.
fn is_for(socket: SocketAddr, destination: SocketAddr) -> bool {
    let (address, wanted) = (socket.ip(), destination.ip());
    let is_any = address.is_unspecified() && (address.is_ipv6() || wanted.is_ipv4());
    socket.port() == destination.port() && (is_any || address.to_canonical() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn a_socket_is_found_by_its_line() {
        for (line, state, destination, wanted) in [
            ("0: 00000000:1F90 00000000:0000 0A 0", TCP_LISTENS, "10.244.1.2:8080", true),
            ("0: 0201F40A:1F90 00000000:0000 0A 0", TCP_LISTENS, "10.244.1.2:8080", true),
            ("0: 0201F40A:1F90 00000000:0000 0A 0", TCP_LISTENS, "10.244.1.2:8081", false),
            ("0: 0100007F:1F90 00000000:0000 0A 0", TCP_LISTENS, "10.244.1.2:8080", false),
            ("0: 0201F40A:1F90 0301F40A:9C40 01 0", TCP_LISTENS, "10.244.1.2:8080", false),
            ("0: 00000000:0035 00000000:0000 07 0", UDP_UNCONNECTED, "10.244.1.2:53", true),
            ("0: 00000000:0035 00000000:0000 07 0", UDP_UNCONNECTED, "[fd00::2]:53", false),
            (
                "1: 00000000000000000000000000000000:1F90 0:0000 0A",
                TCP_LISTENS,
                "10.244.1.2:8080",
                true,
            ),
            (
                "1: 0000000000000000FFFF00000201F40A:1F90 0:0000 0A",
                TCP_LISTENS,
                "10.244.1.2:8080",
                true,
            ),
            (
                "1: 000000FD000000000000000002000000:1F90 0:0000 0A",
                TCP_LISTENS,
                "[fd00::2]:8080",
                true,
            ),
        ] {
            let found = socket(line, state);
            let takes = found.is_some_and(|found| is_for(found, destination.parse().unwrap()));
            assert_eq!(takes, wanted, "{line} {destination}");
        }
        for line in
            ["", "sl local_address rem_address st", "0: é:1 0:0 0A", "0: 0:0", "0: 00:00 0 0A"]
        {
            assert_eq!(socket(line, TCP_LISTENS), None, "{line}");
        }
    }
}
