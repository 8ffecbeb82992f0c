//! WireGuard devices: make, configure, read. Source: linux/wireguard.h, `wg(8)`.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm};
use nix::errno::Errno;

use crate::net::{IfName, PrivateKey, PublicKey};
use crate::netlink::generic::{self, GenericFamily};
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::wire::link_header;
use crate::netlink::{Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket};

pub use crate::netlink::wireguard_info::{
    KEEPALIVE_SECS, KIND, NewWireguardPeer, WireguardInfo, WireguardPeer,
};

use crate::netlink::wireguard_info as codec;

/// The kernel's WireGuard, in the network namespace that it was opened in.
pub struct Wireguard {
    socket: NetlinkSocket,
    family: GenericFamily,
}

impl Wireguard {
    /// Opens it in the namespace of the calling thread; the kernel loads its module if it has one. `None`: this
    /// kernel has no WireGuard.
    ///
    /// # Errors
    /// Any other of [`NetlinkError`].
    pub fn open() -> Result<Option<Wireguard>, NetlinkError> {
        let socket = NetlinkSocket::open(NetlinkProtocol::Generic)?;
        match socket.ask(&generic::family(KIND), generic::parse_family) {
            Ok(family) => Ok(Some(Wireguard { socket, family })),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The device of that name, with all its peers.
    ///
    /// # Errors
    /// [`NetlinkError`]: `ENODEV` if there is none, `EOPNOTSUPP` if it is of another kind.
    pub fn device(&self, name: &IfName) -> Result<WireguardInfo, NetlinkError> {
        let get = codec::get(self.family, name);
        let parts = self.socket.dump(&get, |reply| codec::parse(reply).map(Some))?;
        let none = || NetlinkError::Malformed(format!("WireGuard device {name}: an empty list"));
        codec::joined(parts).ok_or_else(none)
    }

    /// Sets key and port, and removes all peers: their handshakes were with another key. `EADDRINUSE` if something else has the port and the device is up.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_device(
        &self,
        name: &IfName,
        key: &PrivateKey,
        port: u16,
    ) -> Result<(), NetlinkError> {
        self.socket.transact(&[codec::set_device(self.family, name, key, port)])
    }

    /// Carries out all changes of peers, and says for each whether it was done.
    ///
    /// # Errors
    /// The talk itself failed; how far it came is not known.
    pub fn change_peers<'a>(
        &self,
        name: &IfName,
        changes: impl IntoIterator<Item = PeerEdit<'a>>,
    ) -> Result<Vec<Result<(), NetlinkError>>, NetlinkError> {
        let message = |change| match change {
            PeerEdit::Set(peer) => codec::set_peer(self.family, name, peer),
            PeerEdit::Remove(key) => codec::remove_peer(self.family, name, key),
        };
        let messages: Vec<Message> = changes.into_iter().map(message).collect();
        self.socket.transact_each(&messages)
    }
}

/// A change of one peer.
#[derive(Clone, Copy, Debug)]
pub enum PeerEdit<'a> {
    /// Adds it, or replaces what it is.
    Set(&'a NewWireguardPeer),
    /// Success if there is none.
    Remove(PublicKey),
}

/// Makes a device, not up yet; `EOPNOTSUPP` if this kernel makes none.
pub fn add(name: &IfName, mtu: u32, alias: &str) -> [Message; 2] {
    let info = Attributes::new().text(IflaInfo::Kind, KIND);
    let attributes = Attributes::new()
        .text(Ifla::Ifname, name.as_str())
        .u32(Ifla::Mtu, mtu)
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let what = format!("create WireGuard device {name}");
    let create = Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes);
    let mark = LinkChange { alias: Some(alias.to_owned()), ..LinkChange::default() };
    [create, link::change(LinkRef::Name(name), &mark)]
}
