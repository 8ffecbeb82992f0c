//! A socket that sends and sees whole frames of one interface.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, bind, setsockopt, socket, sockopt,
};

use crate::support::Place;

pub struct PacketSocket(std::fs::File);

impl PacketSocket {
    /// On the interface of that name in the place.
    pub fn open(place: &dyn Place, ifname: &str) -> Self {
        let socket: OwnedFd = place.spot().inside(|| {
            let kind = (AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC);
            let socket = socket(kind.0, kind.1, kind.2, SockProtocol::EthAll).unwrap();
            let mut links = getifaddrs().unwrap().filter(|link| link.interface_name == ifname);
            let link = links.find_map(|link| link.address?.as_link_addr().copied());
            let link = link.unwrap_or_else(|| panic!("no interface {ifname}"));
            bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &link).unwrap();
            setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).unwrap();
            socket
        });
        Self(socket.into())
    }

    pub fn send(&self, frame: &[u8]) {
        (&self.0).write_all(frame).unwrap();
    }

    /// The next frame; `None` if there is none in time.
    pub fn receive(&self, within: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + within;
        let left = end.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).unwrap() == 0 {
            return None;
        }
        let mut frame = vec![0; 65_536];
        let length = (&self.0).read(&mut frame).unwrap();
        frame.truncate(length);
        Some(frame)
    }

    /// Whether frames with each of `needles` in them come before one with `fence` in it.
    pub fn sees(&self, needles: &[Vec<u8>], fence: &[u8]) -> bool {
        let has =
            |frame: &[u8], part: &[u8]| frame.windows(part.len()).any(|window| window == part);
        let end = Instant::now() + Duration::from_secs(10);
        let mut missing = needles.to_vec();
        while let Some(frame) = self.receive(end.saturating_duration_since(Instant::now())) {
            missing.retain(|needle| !has(&frame, needle));
            if has(&frame, fence) {
                return missing.is_empty();
            }
        }
        panic!("the frame behind the attack did not arrive either");
    }
}
