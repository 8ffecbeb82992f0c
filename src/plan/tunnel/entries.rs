//! Pure. The changes of a tunnel's neighbours and destinations.
//!
//! Missing entries are added before the routes that need them, surplus ones removed after the routes
//! that needed them, so that no route is without its entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::net::Mac;
use crate::net::gather::Gather;
use crate::netlink::fdb::Destination;
use crate::netlink::neighbour::Neighbour;
use crate::plan::tunnel::peer::{TunnelPeer, via};

/// The entries that a tunnel device needs to send to other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    destinations: BTreeMap<Mac, (IpAddr, u16)>,
    neighbours: BTreeMap<IpAddr, Mac>,
}

/// The entries of a tunnel device. All are ours, because the device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundEntries {
    /// In the kernel's order; a MAC can have several.
    pub destinations: Vec<Destination>,
    /// The permanent ones.
    pub neighbours: Vec<Neighbour>,
}

/// One entry that must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// Replaces the first destination of the MAC.
    SetDestination(Destination),
    RemoveDestination(Destination),
    SetNeighbour(Neighbour),
    RemoveNeighbour(Neighbour),
}

impl Entries {
    /// The entries for `remotes`.
    pub fn of<'a>(remotes: impl IntoIterator<Item = &'a TunnelPeer>) -> Entries {
        let mut entries = Entries::default();
        for remote in remotes {
            entries.destinations.insert(remote.mac, (remote.address, remote.port));
            entries.neighbours.insert(via(remote), remote.mac);
        }
        entries
    }

    fn sends_to(&self, found: &Destination, own_port: u16) -> bool {
        self.destinations.get(&found.mac) == Some(&(found.address, found.port.unwrap_or(own_port)))
    }
}

/// The entries of `wanted` that `found` lacks or has with other values. `own_port` is that of the
/// device, which the kernel leaves out where the other host has the same.
pub fn missing(wanted: &Entries, found: &FoundEntries, own_port: u16) -> Vec<EntryChange> {
    let right = found.destinations.iter().filter(|there| wanted.sends_to(there, own_port));
    let right: BTreeSet<Mac> = right.map(|there| there.mac).gather();
    let absent = wanted.destinations.iter().filter(|(mac, _)| !right.contains(mac));
    let destination = |(mac, (address, port)): (&Mac, &(IpAddr, u16))| {
        EntryChange::SetDestination(Destination { mac: *mac, address: *address, port: Some(*port) })
    };
    let known: BTreeMap<IpAddr, Mac> =
        found.neighbours.iter().map(|there| (there.address, there.mac)).gather();
    let unknown = wanted.neighbours.iter().filter(|(address, mac)| known.get(address) != Some(mac));
    let neighbour = |(address, mac): (&IpAddr, &Mac)| {
        EntryChange::SetNeighbour(Neighbour { address: *address, mac: *mac })
    };
    absent.map(destination).chain(unknown.map(neighbour)).collect()
}

/// The entries of `found` that `wanted` does not have. Of a MAC with wrong destinations only, the first
/// has been replaced already.
pub fn surplus(wanted: &Entries, found: &FoundEntries, own_port: u16) -> Vec<EntryChange> {
    let right = found.destinations.iter().filter(|there| wanted.sends_to(there, own_port));
    let mut settled: BTreeSet<Mac> = right.map(|there| there.mac).gather();
    let surplus = found.destinations.iter().filter(|there| {
        let replaced = wanted.destinations.contains_key(&there.mac) && settled.insert(there.mac);
        !replaced && !wanted.sends_to(there, own_port)
    });
    let surplus: Vec<Destination> = surplus.copied().collect();
    let unknown = found.neighbours.iter();
    let unknown = unknown.filter(|there| !wanted.neighbours.contains_key(&there.address));
    let destinations = surplus.into_iter().map(EntryChange::RemoveDestination);
    destinations.chain(unknown.copied().map(EntryChange::RemoveNeighbour)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Describe;

    const OWN_PORT: u16 = 10400;

    fn mac(number: u8) -> Mac {
        Mac([0x0a, 0x58, 0x0a, 0xf4, number, 0])
    }

    /// Host number 2, 3 … with its IPv4 subnet, at this address and port.
    fn remote(number: u8, address: &str, port: u16) -> TunnelPeer {
        TunnelPeer {
            subnet: format!("10.244.{number}.0/24").parse().unwrap(),
            address: address.parse().unwrap(),
            mac: mac(number),
            port,
            mtu_bytes: None,
        }
    }

    fn there(number: u8, address: &str, port: Option<u16>) -> Destination {
        Destination { mac: mac(number), address: address.parse().unwrap(), port }
    }

    fn knows(number: u8) -> Neighbour {
        let address = format!("10.244.{number}.1").parse().unwrap();
        Neighbour { address, mac: mac(number) }
    }

    fn check(
        remotes: &[TunnelPeer],
        destinations: &[Destination],
        neighbours: &[Neighbour],
        [first, last]: [&[&str]; 2],
    ) {
        let wanted = Entries::of(remotes);
        let found =
            FoundEntries { destinations: destinations.to_vec(), neighbours: neighbours.to_vec() };
        let lines = |changes: Vec<EntryChange>| -> Vec<String> {
            changes.iter().map(|change| change.line().to_string()).collect()
        };
        assert_eq!(lines(missing(&wanted, &found, OWN_PORT)), first);
        assert_eq!(lines(surplus(&wanted, &found, OWN_PORT)), last);
    }

    #[test]
    fn correct_entries_are_not_changed() {
        let remotes = [remote(2, "192.0.2.2", OWN_PORT), remote(3, "192.0.2.3", 53)];
        let found = [there(2, "192.0.2.2", None), there(3, "192.0.2.3", Some(53))];
        check(&remotes, &found, &[knows(2), knows(3)], [&[], &[]]);
        let found = [there(2, "192.0.2.2", Some(OWN_PORT)), found[1]];
        check(&remotes, &found, &[knows(2), knows(3)], [&[], &[]]);
    }

    #[test]
    fn missing_entries_are_added_first_and_surplus_ones_removed_last() {
        check(
            &[remote(2, "192.0.2.2", OWN_PORT)],
            &[there(3, "192.0.2.3", None)],
            &[knows(3)],
            [
                &[
                    "+ tunnel to 192.0.2.2 port 10400 (mac 0a:58:0a:f4:02:00)",
                    "+ neighbour 10.244.2.1 (mac 0a:58:0a:f4:02:00) of the tunnel",
                ],
                &[
                    "- tunnel to 192.0.2.3 (mac 0a:58:0a:f4:03:00)",
                    "- neighbour 10.244.3.1 (mac 0a:58:0a:f4:03:00) of the tunnel",
                ],
            ],
        );
    }

    #[test]
    fn a_host_that_moved_or_changed_its_port_is_followed() {
        let moved = [there(2, "192.0.2.9", None)];
        let line = "+ tunnel to 192.0.2.2 port 10400 (mac 0a:58:0a:f4:02:00)";
        let remotes = [remote(2, "192.0.2.2", OWN_PORT)];
        check(&remotes, &moved, &[knows(2)], [&[line], &[]]);
        let other_port = [there(2, "192.0.2.2", Some(53))];
        check(&remotes, &other_port, &[knows(2)], [&[line], &[]]);
    }

    #[test]
    fn of_several_destinations_of_a_mac_only_its_own_is_left() {
        let remotes = [remote(2, "192.0.2.2", OWN_PORT)];
        let line = "- tunnel to 192.0.2.9 (mac 0a:58:0a:f4:02:00)";
        let found = [there(2, "192.0.2.9", None), there(2, "192.0.2.2", None)];
        check(&remotes, &found, &[knows(2)], [&[], &[line]]);
        let found = [there(2, "192.0.2.8", None), there(2, "192.0.2.9", None)];
        let added = "+ tunnel to 192.0.2.2 port 10400 (mac 0a:58:0a:f4:02:00)";
        check(&remotes, &found, &[knows(2)], [&[added], &[line]]);
    }

    #[test]
    fn a_neighbour_with_another_mac_gets_its_own() {
        let wrong = Neighbour { mac: mac(9), ..knows(2) };
        let line = "+ neighbour 10.244.2.1 (mac 0a:58:0a:f4:02:00) of the tunnel";
        let found = [there(2, "192.0.2.2", None)];
        check(&[remote(2, "192.0.2.2", OWN_PORT)], &found, &[wrong], [&[line], &[]]);
    }

    #[test]
    fn a_host_with_both_families_has_one_destination_and_two_neighbours() {
        let mut v6 = remote(2, "192.0.2.2", OWN_PORT);
        v6.subnet = "fd00:0:0:2::/64".parse().unwrap();
        check(
            &[remote(2, "192.0.2.2", OWN_PORT), v6],
            &[],
            &[],
            [
                &[
                    "+ tunnel to 192.0.2.2 port 10400 (mac 0a:58:0a:f4:02:00)",
                    "+ neighbour 10.244.2.1 (mac 0a:58:0a:f4:02:00) of the tunnel",
                    "+ neighbour fe80::858:aff:fef4:200 (mac 0a:58:0a:f4:02:00) of the tunnel",
                ],
                &[],
            ],
        );
    }
}
