//! A socket that receives notifications of changes in the kernel.

use std::io::ErrorKind;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{MSG_DONTWAIT, MSG_TRUNC};
use nix::sys::socket::{setsockopt, sockopt};

use netlink_sys::{Socket, SocketAddr};

use crate::netlink::message::{Replies, Reply};
use crate::netlink::socket::DATAGRAM_BYTES;
use crate::netlink::{NetlinkError, NetlinkProtocol};
use crate::os::wait::is_readable;

/// Room for a burst of notifications while the agent works: 8 MiB where the host allows it.
const RECEIVE_BYTES: usize = 8 << 20;

/// So many datagrams are read after one wait.
const AT_ONCE: usize = 64;

/// Notifications of some multicast groups, in the namespace it was opened in.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Joins `groups` (RTNLGRP_*, NFNLGRP_*).
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open(protocol: NetlinkProtocol, groups: &[u32]) -> Result<Monitor, NetlinkError> {
        let mut socket = Socket::new(protocol.number()).map_err(NetlinkError::io("open"))?;
        socket.bind(&SocketAddr::new(0, 0)).map_err(NetlinkError::io("bind"))?;
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BYTES).is_err() {
            // Without the privilege the default has to do: an overflow is noticed.
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BYTES).ok();
        }
        for group in groups {
            socket.add_membership(*group).map_err(NetlinkError::io("join a group"))?;
        }
        Ok(Monitor { socket, buffer: Vec::with_capacity(DATAGRAM_BYTES) })
    }

    /// Waits for the next datagram, not longer than `patience`, and hands every notification in it, and in those
    /// that came with it, to `receive`.
    ///
    /// # Errors
    /// `ENOBUFS`: notifications were lost, so everything must be checked. Any other: the socket
    /// is of no more use.
    pub fn wait(
        &mut self,
        patience: Duration,
        mut receive: impl FnMut(&Reply<'_>),
    ) -> Result<(), NetlinkError> {
        if !is_readable(&self.socket, patience).map_err(NetlinkError::io("wait"))? {
            return Ok(());
        }
        for _ in 0..AT_ONCE {
            if !self.read_datagram()? {
                break;
            }
            for reply in Replies(&self.buffer) {
                receive(&reply?);
            }
        }
        Ok(())
    }

    /// Reads the next datagram; `false`: there is none.
    fn read_datagram(&mut self) -> Result<bool, NetlinkError> {
        let length = loop {
            self.buffer.clear();
            match self.socket.recv_from(&mut self.buffer, MSG_TRUNC | MSG_DONTWAIT) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                received => break received.map_err(NetlinkError::io("receive"))?.0,
            }
        };
        if length > self.buffer.len() {
            return Err(NetlinkError::io("receive")(Errno::ENOBUFS));
        }
        Ok(true)
    }
}
