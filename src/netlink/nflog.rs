//! Packets that rules of nftables report: nflog, one reader for each group. Source:
//! linux/netfilter/nfnetlink_log.h.

use std::time::Duration;

use neli::consts::nl::NlmF;
use neli::types::Buffer;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::netlink::packet::Packet;
use crate::netlink::socket::DATAGRAM_BYTES;
use crate::netlink::{Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply};
use crate::os::wait::is_readable;

/// Messages: NFNL_SUBSYS_ULOG in the upper byte.
const PACKET: u16 = 4 << 8;
const CONFIGURE: u16 = 4 << 8 | 1;

/// NFULA_CFG_CMD with NFULNL_CFG_CMD_BIND; _MODE with NFULNL_COPY_PACKET; _TIMEOUT, in hundredths of a
/// second; _FLAGS with NFULNL_CFG_F_SEQ.
const COMMAND: u16 = 1;
const BIND: u8 = 1;
const MODE: u16 = 2;
const COPY_PACKET: u8 = 2;
const TIMEOUT: u16 = 4;
const FLAGS: u16 = 6;
const NUMBERED: u16 = 1;

/// Attributes of a packet: NFULA_IFINDEX_INDEV, _OUTDEV, _PHYSINDEV, _PHYSOUTDEV, _PAYLOAD, _PREFIX, _SEQ.
const INPUT: [u16; 2] = [6, 4];
const OUTPUT: [u16; 2] = [7, 5];
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;
const NUMBER: u16 = 12;

/// What is copied of each packet: the IPv6 header and some extensions of it.
const COPIED_BYTES: u32 = 128;

/// How long the kernel collects packets for one datagram, in hundredths of a second.
const COLLECTED: u32 = 10;

/// A packet, and the rule that reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedPacket {
    /// The rule's words.
    pub prefix: String,
    /// Indices of links; of a bridge, of its ports.
    pub input: Option<u32>,
    pub output: Option<u32>,
    /// `None`: it is no IP packet.
    pub packet: Option<Packet>,
    /// Counts the group's packets.
    pub number: Option<u32>,
}

/// The packets of one group, in the namespace it was opened in.
pub struct PacketLog {
    socket: NetlinkSocket,
    buffer: Vec<u8>,
    next_number: Option<u32>,
}

impl PacketLog {
    /// Takes the group, until this is dropped.
    ///
    /// # Errors
    /// `EPERM`: without CAP_NET_ADMIN, or while another socket has the group.
    pub fn open(group: u16) -> Result<PacketLog, NetlinkError> {
        let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
        // `struct nfgenmsg`: any family, version 0, the group in network order.
        let [high, low] = group.to_be_bytes();
        let mode = [&COPIED_BYTES.to_be_bytes()[..], &[COPY_PACKET, 0]].concat();
        let attributes = Attributes::new()
            .u8(COMMAND, BIND)
            .put(MODE, mode)
            .be32(TIMEOUT, COLLECTED)
            .put(FLAGS, NUMBERED.to_be_bytes());
        let what = format!("read packets of netlink group {group}");
        let header = [0, 0, high, low];
        socket.transact(&[Message::new(what, CONFIGURE, NlmF::empty(), &header, attributes)])?;
        Ok(PacketLog { socket, buffer: Vec::with_capacity(DATAGRAM_BYTES), next_number: None })
    }

    /// Waits for packets, not longer than `patience`, and hands each to `receive`; how many were lost
    /// before the last of them, because they were not read in time.
    ///
    /// # Errors
    /// The socket is of no more use.
    pub fn wait(
        &mut self,
        patience: Duration,
        mut receive: impl FnMut(LoggedPacket),
    ) -> Result<u64, NetlinkError> {
        if !is_readable(&self.socket, patience).map_err(NetlinkError::io("wait"))? {
            return Ok(0);
        }
        let replies = match self.socket.receive(&mut self.buffer) {
            // The numbers of the next packets say how many.
            Err(error) if error.errno() == Some(Errno::ENOBUFS) => return Ok(0),
            replies => replies?,
        };
        let mut lost = 0;
        for logged in replies.map_while(Result::ok).filter_map(|reply| logged(&reply)) {
            if let Some(number) = logged.number {
                let wanted = self.next_number.unwrap_or(number);
                lost += u64::from(number.wrapping_sub(wanted));
                self.next_number = Some(number.wrapping_add(1));
            }
            receive(logged);
        }
        Ok(lost)
    }
}

/// The packet in a message; `None` if it is another one, or broken.
pub fn logged(reply: &Reply<'_>) -> Option<LoggedPacket> {
    if reply.kind != PACKET {
        return None;
    }
    let (_, attributes) = reply.parse::<Buffer>(4).ok()?;
    let first = |kinds: [u16; 2]| kinds.into_iter().find_map(|kind| attributes.be32(kind));
    Some(LoggedPacket {
        prefix: attributes.text(PREFIX).unwrap_or_default(),
        input: first(INPUT),
        output: first(OUTPUT),
        packet: attributes.get(PAYLOAD).and_then(Packet::read),
        number: attributes.be32(NUMBER),
    })
}
