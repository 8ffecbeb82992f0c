//! Messages of the kernel: rtnetlink, nftables, connection tracking.

use humanz::net::Family;
use humanz::netlink::AttributeList;
use humanz::netlink::packet::Packet;
use humanz::netlink::{
    address, conntrack, events, fdb, link, neighbour, nflog, qdisc, route, vxlan_info,
};
use humanz::nft::{Userdata, found};
use humanz::plan::host_ports::PortMap;

/// A datagram of rtnetlink (or of connection tracking), read as a list of everything there is.
pub fn netlink(data: &[u8]) {
    for reply in super::replies(data) {
        let _verdict = reply.verdict();
        if let Ok(Some(link)) = link::parse(&reply) {
            assert!(link.name.as_str().len() <= 15, "{link:?}");
        }
        let _address = address::parse(&reply);
        let _neighbour = (neighbour::parse(&reply), neighbour::link_of(&reply));
        let _destination = fdb::parse(&reply);
        let _limit = qdisc::parse(&reply);
        let _event = events::of_route(&reply);
        let _logged = nflog::logged(&reply);
        let _way = route::parse_lookup(&reply);
        if let Ok(Some(found)) = route::parse(&reply) {
            let _messages = [route::add(&found), route::delete(&found), route::replace(&found)];
        }
        if let Ok(Some(paths)) = route::parse_paths(&reply) {
            let _message = route::add_paths(&paths);
        }
        for family in Family::BOTH {
            let _deletion = conntrack::forget(family, |_, _| Ok(true), &reply);
        }
    }
    if let Ok(attributes) = AttributeList::parse(data) {
        let _tunnel = vxlan_info::parse(&attributes);
        let whole: usize = attributes.iter().map(|(_, payload)| payload.len() + 4).sum();
        assert!(whole <= data.len(), "attributes of {whole} bytes in {}", data.len());
    }
}

/// The first bytes of a packet that somebody sent.
pub fn packets(data: &[u8]) {
    let Some(packet) = Packet::read(data) else { return };
    let Packet { source, destination, .. } = packet;
    assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{packet:?}");
    assert!(packet.ports.is_none() || packet.icmp.is_none(), "{packet:?}");
    assert_eq!(packet.reversed().reversed(), packet);
    let shorter = Packet::read(&data[..data.len() - 1]);
    assert!(shorter.is_none_or(|it| it.ports.is_none() || it == packet), "{packet:?}");
}

/// A datagram of nftables, read as humanz reads its own tables.
pub fn nft(data: &[u8]) {
    let (mut shapes, mut entries) = (Vec::new(), Vec::new());
    for reply in super::replies(data) {
        let _parts = (found::table_name(&reply), found::dormant(&reply), found::chain(&reply));
        let _rule = (found::rule(&reply), found::flowtable(&reply));
        shapes.extend(found::set(&reply).ok().flatten().and_then(|set| set.shape));
        entries.extend(found::entries(&reply).unwrap_or_default());
    }
    for map in PortMap::ALL {
        let shape = map.set().shape;
        for port in shape.elements(entries.clone()).iter().filter_map(|found| map.read(found)) {
            let (from, to) = (port.forward.from, port.forward.to);
            assert_eq!(from.address.is_ipv4(), to.is_ipv4(), "{port:?}");
        }
        shapes.push(shape);
    }
    for shape in shapes {
        let _elements = shape.elements(entries.clone());
    }
    let _userdata = Userdata::read(data).bytes();
}
