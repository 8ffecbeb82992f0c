//! What of a link can be set beside its name and its place. Source: rtnetlink(7), linux/if.h.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Iff, Ifla, RtAddrFamily, Rtm};
use neli::rtnl::{Ifinfomsg, IfinfomsgBuilder};

use crate::net::Mac;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct ifinfomsg`.
const HEADER: usize = 16;

/// How a link is set, or what of it shall be changed; `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: Option<u32>,
    /// It takes frames for every MAC.
    pub promisc: Option<bool>,
    /// It takes every multicast frame.
    pub all_multicast: Option<bool>,
    /// Packets that may wait at its end.
    pub tx_queue_len: Option<u32>,
}

impl LinkSettings {
    /// As much of this as `wanted` says something of: what must be set to undo `wanted`.
    pub fn before(&self, wanted: &LinkSettings) -> LinkSettings {
        LinkSettings {
            mac: wanted.mac.and(self.mac),
            mtu: wanted.mtu.and(self.mtu),
            promisc: wanted.promisc.and(self.promisc),
            all_multicast: wanted.all_multicast.and(self.all_multicast),
            tx_queue_len: wanted.tx_queue_len.and(self.tx_queue_len),
        }
    }
}

/// Sets a link.
pub fn set(index: u32, tune: &LinkSettings) -> Message {
    let attributes = Attributes::new()
        .put_some(Ifla::Address, tune.mac.map(|mac| mac.0))
        .put_some(Ifla::Mtu, tune.mtu.map(u32::to_ne_bytes))
        .put_some(Ifla::Txqlen, tune.tx_queue_len.map(u32::to_ne_bytes));
    let asked = [(Iff::PROMISC, tune.promisc), (Iff::ALLMULTI, tune.all_multicast)];
    let mut flags = Iff::empty();
    let mut change = Iff::empty();
    for (flag, on) in asked {
        change.set(flag, on.is_some());
        flags.set(flag, on == Some(true));
    }
    let header = IfinfomsgBuilder::default()
        .ifi_family(RtAddrFamily::Unspecified)
        .ifi_index(index.cast_signed())
        .ifi_flags(flags)
        .ifi_change(change);
    let header = header.build().expect("every field without a default is set");
    Message::new(format!("tune link {index}"), Rtm::Newlink, NlmF::empty(), &header, attributes)
}

/// How the link in an answer is set; nothing is `None` but a MAC that it has not.
pub fn parse(reply: &Reply<'_>) -> Result<LinkSettings, NetlinkError> {
    let (header, attributes) = reply.parse::<Ifinfomsg>(HEADER)?;
    Ok(LinkSettings {
        mac: attributes.array(Ifla::Address).map(Mac),
        mtu: attributes.u32(Ifla::Mtu),
        promisc: Some(header.ifi_flags().contains(Iff::PROMISC)),
        all_multicast: Some(header.ifi_flags().contains(Iff::ALLMULTI)),
        tx_queue_len: attributes.u32(Ifla::Txqlen),
    })
}
