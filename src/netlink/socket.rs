//! The netlink socket: numbered messages out, acknowledgements and lists in.
//!
//! Socket by netlink-sys, message types by neli. A socket belongs to the network namespace it was
//! opened in, wherever it is used from.
//!
//! The kernel handles a request while it is being sent: when `send` returns, the answer lies in
//! the socket. So nothing here waits, and an answer that is not there never comes.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use neli::consts::nl::NlmF;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use nix::libc::{MSG_DONTWAIT, MSG_TRUNC};
use nix::sys::socket::{NetlinkAddr, bind, getsockname, setsockopt, sockopt};

use crate::netlink::dump::DumpReader;
use crate::netlink::error::{NetlinkError, Refused};
use crate::netlink::message::{Message, Replies, Reply, ReplyState, refusal};

/// Room for one datagram: the kernel makes lists in pieces of at most 32 KiB.
pub(super) const DATAGRAM_BYTES: usize = 64 * 1024;

/// Messages of one `send`. Each acknowledgement takes 768 bytes of the socket's receive buffer,
/// which holds 212,992 unless the host says otherwise: 277 of them.
const MESSAGES_AT_ONCE: usize = 128;

/// What fits into a socket's send buffer as the kernel makes it, less some room.
const USUAL_SEND_BYTES: usize = 128 * 1024;

/// How often a list that changes while it is read is read again.
const DUMP_TRIES: usize = 16;

/// Which part of the kernel is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// rtnetlink(7): links, addresses, routes, neighbours.
    Route,
    /// nfnetlink: nftables, connection tracking.
    Netfilter,
    /// Generic netlink: WireGuard.
    Generic,
}

impl NetlinkProtocol {
    /// As `socket(2)` takes it.
    pub(super) fn number(self) -> isize {
        match self {
            NetlinkProtocol::Route => NETLINK_ROUTE,
            NetlinkProtocol::Netfilter => NETLINK_NETFILTER,
            NetlinkProtocol::Generic => NETLINK_GENERIC,
        }
    }
}

thread_local! {
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// [`DATAGRAM_BYTES`], the same for all requests of a thread: to map and unmap them for each took an ADD
/// 0.2 ms.
struct ReceiveBuffer(Vec<u8>);

impl ReceiveBuffer {
    fn take() -> ReceiveBuffer {
        let mut room = ROOM.take();
        room.clear();
        room.reserve_exact(DATAGRAM_BYTES);
        ReceiveBuffer(room)
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        ROOM.set(std::mem::take(&mut self.0));
    }
}

/// A netlink socket in the network namespace it was opened in.
pub struct NetlinkSocket {
    socket: Socket,
    protocol: NetlinkProtocol,
    next_sequence: Cell<u32>,
}

impl NetlinkSocket {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// Errors come with the kernel's text (NETLINK_EXT_ACK) and without a copy of the request
    /// (NETLINK_CAP_ACK); filters of lists are taken at their word (NETLINK_GET_STRICT_CHK).
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open(protocol: NetlinkProtocol) -> Result<NetlinkSocket, NetlinkError> {
        let socket = Socket::new(protocol.number()).map_err(NetlinkError::io("open"))?;
        socket.set_ext_ack(true).map_err(NetlinkError::io("set NETLINK_EXT_ACK"))?;
        socket.set_cap_ack(true).map_err(NetlinkError::io("set NETLINK_CAP_ACK"))?;
        socket
            .set_netlink_get_strict_chk(true)
            .map_err(NetlinkError::io("set NETLINK_GET_STRICT_CHK"))?;
        Ok(NetlinkSocket { socket, protocol, next_sequence: Cell::new(1) })
    }

    /// Its netlink port, which the kernel's notifications of its changes bear.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn port(&self) -> Result<u32, NetlinkError> {
        let fd = self.socket.as_raw_fd();
        let port = || getsockname::<NetlinkAddr>(fd).map(|address| address.pid());
        match port().map_err(NetlinkError::io("read the socket's port"))? {
            0 => {
                bind(fd, &NetlinkAddr::new(0, 0)).map_err(NetlinkError::io("bind"))?;
                port().map_err(NetlinkError::io("read the socket's port"))
            }
            port => Ok(port),
        }
    }

    /// Sends all messages with one `send` and reads every acknowledgement.
    ///
    /// rtnetlink carries out each message for itself: those after a refused one are still done.
    /// (More than 128 rtnetlink messages go in several sends.) nftables does all or nothing.
    ///
    /// # Errors
    /// The first refusal, as [`NetlinkError::Refused`] with its place in `messages`.
    pub fn transact(&self, messages: &[Message]) -> Result<(), NetlinkError> {
        let at_once = match self.protocol {
            NetlinkProtocol::Route | NetlinkProtocol::Generic => MESSAGES_AT_ONCE,
            NetlinkProtocol::Netfilter => messages.len().max(1),
        };
        let mut first = None;
        for (number, chunk) in messages.chunks(at_once).enumerate() {
            if let Some(refused) = self.transact_chunk(chunk)?.into_iter().next() {
                let index = number * at_once + refused.index;
                first.get_or_insert(Refused { index, ..refused });
            }
        }
        first.map_or(Ok(()), |refused| Err(refused.into()))
    }

    /// As [`NetlinkSocket::transact`] of rtnetlink messages, all of them acknowledged, with an
    /// outcome for each, in their order.
    ///
    /// # Errors
    /// [`NetlinkError::Io`], [`NetlinkError::Malformed`]: how far it came is not known.
    pub fn transact_each(
        &self,
        messages: &[Message],
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for chunk in messages.chunks(MESSAGES_AT_ONCE) {
            let first = outcomes.len();
            outcomes.extend(chunk.iter().map(|_| Ok(())));
            for refused in self.transact_chunk(chunk)? {
                let index = first + refused.index;
                outcomes[index] = Err(Refused { index, ..refused }.into());
            }
        }
        Ok(outcomes)
    }

    /// Asks for one thing and reads the one answer.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] (`ENODEV`, `ENOENT` …) if there is no such thing.
    pub fn ask<T>(
        &self,
        request: &Message,
        parse: impl Fn(&Reply<'_>) -> Result<T, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let sequence = self.number(1);
        self.send_one(request, sequence, NlmF::empty())?;
        let mut buffer = ReceiveBuffer::take();
        loop {
            for reply in self.receive(&mut buffer.0)? {
                let reply = reply?;
                if reply.sequence != sequence {
                    continue;
                }
                return match reply.verdict()? {
                    ReplyState::Content => parse(&reply),
                    ReplyState::Refused(errno, text) => {
                        Err(refusal(request, 0, errno, text).into())
                    }
                    ReplyState::Done => Err(NetlinkError::Malformed(format!(
                        "{}: done, but no answer",
                        request.what
                    ))),
                };
            }
        }
    }

    /// Reads a whole list. `parse` gives `None` for what does not belong into it.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] also for an error at the end of the list;
    /// [`NetlinkError::Unsteady`] if it changed under every reading.
    pub fn dump<T>(
        &self,
        request: &Message,
        parse: impl Fn(&Reply<'_>) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_TRIES {
            if let Some(found) = self.dump_once(request, &parse)? {
                return Ok(found);
            }
        }
        Err(NetlinkError::Unsteady { what: request.what.clone(), tries: DUMP_TRIES })
    }

    /// The list, or `None` if it changed while it was read.
    fn dump_once<T>(
        &self,
        request: &Message,
        parse: impl Fn(&Reply<'_>) -> Result<Option<T>, NetlinkError>,
    ) -> Result<Option<Vec<T>>, NetlinkError> {
        let sequence = self.number(1);
        self.send_one(request, sequence, NlmF::DUMP)?;
        let mut buffer = ReceiveBuffer::take();
        let mut list = DumpReader::new(request, sequence);
        // To the end, whatever comes: the kernel starts no other list on this socket before.
        while !list.is_ended() {
            match self.receive(&mut buffer.0) {
                Ok(replies) => list.read(replies, &parse),
                Err(error @ NetlinkError::Malformed(_)) => list.fail(error),
                Err(error) => {
                    list.fail(error);
                    break;
                }
            }
        }
        list.found()
    }

    /// Sends the messages and gives the refusals, as they come.
    fn transact_chunk(&self, messages: &[Message]) -> Result<Vec<Refused>, NetlinkError> {
        let base = self.number(messages.len() as u32);
        let mut bytes = Vec::new();
        for (message, sequence) in messages.iter().zip(base..) {
            let ack = if message.acked { NlmF::ACK } else { NlmF::empty() };
            message.encode(sequence, ack, &mut bytes)?;
        }
        let mut refusals = Vec::new();
        if bytes.is_empty() {
            return Ok(refusals);
        }
        self.send(&bytes)?;

        let mut waiting = messages.iter().filter(|message| message.acked).count();
        let mut buffer = ReceiveBuffer::take();
        while waiting > 0 {
            for reply in self.receive(&mut buffer.0)? {
                let reply = reply?;
                // What an earlier, abandoned request left in the socket has a lower number.
                let index = reply.sequence.wrapping_sub(base) as usize;
                let Some(message) = messages.get(index) else { continue };
                match reply.verdict()? {
                    ReplyState::Content => continue,
                    ReplyState::Done => {}
                    ReplyState::Refused(errno, _) if message.tolerated.contains(&errno) => {}
                    ReplyState::Refused(errno, text) => {
                        refusals.push(refusal(message, index, errno, text));
                        if !message.acked {
                            // Begin or end of a transaction: no acknowledgement follows for sure.
                            return Ok(refusals);
                        }
                    }
                }
                waiting -= usize::from(message.acked);
            }
        }
        Ok(refusals)
    }

    /// The first of `count` fresh sequence numbers; never 0, the number of notifications.
    fn number(&self, count: u32) -> u32 {
        let first = self.next_sequence.get();
        let first = if first.checked_add(count).is_none() { 1 } else { first };
        self.next_sequence.set(first + count);
        first
    }

    fn send_one(&self, message: &Message, sequence: u32, flags: NlmF) -> Result<(), NetlinkError> {
        let mut bytes = Vec::new();
        message.encode(sequence, flags, &mut bytes)?;
        self.send(&bytes)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        if bytes.len() > USUAL_SEND_BYTES {
            self.grow_send_buffer(bytes.len() * 2);
        }
        let kernel = SocketAddr::new(0, 0);
        let sent = self.socket.send_to(bytes, &kernel, 0).map_err(NetlinkError::io("send"))?;
        match sent == bytes.len() {
            true => Ok(()),
            false => Err(NetlinkError::io("send")(io::Error::from(ErrorKind::WriteZero))),
        }
    }

    /// A message goes out whole or not at all, so the buffer must hold it. If it cannot grow,
    /// `send` says EMSGSIZE.
    fn grow_send_buffer(&self, bytes: usize) {
        if setsockopt(&self.socket, sockopt::SndBufForce, &bytes).is_err() {
            setsockopt(&self.socket, sockopt::SndBuf, &bytes).ok();
        }
    }

    /// The messages of the next datagram from the kernel.
    pub(super) fn receive<'a>(&self, buffer: &'a mut Vec<u8>) -> Result<Replies<'a>, NetlinkError> {
        loop {
            buffer.clear();
            let (length, sender) = self
                .socket
                .recv_from(buffer, MSG_DONTWAIT | MSG_TRUNC)
                .map_err(NetlinkError::io("receive"))?;
            if length > buffer.len() {
                let room = buffer.len();
                return Err(NetlinkError::Malformed(format!("{length} bytes in room for {room}")));
            }
            if sender.port_number() == 0 {
                break;
            }
        }
        Ok(Replies(buffer))
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
