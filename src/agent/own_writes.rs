//! What this agent itself writes into the kernel, so that its own events trigger no reconcile.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnetwork::IpNetwork;

use crate::net::{Mac, subnet};
use crate::netlink::fdb::Destination;

/// Shared by the reconcile, which writes, and the filter of events.
#[derive(Debug, Default)]
pub struct OwnWrites {
    /// The netlink port that routes and neighbours are written from: their events bear it.
    port: u32,
    /// The one that tables of nftables are changed from.
    nft_port: u32,
    /// Policies are in force, which pods that go concern.
    pub policies: AtomicBool,
    state: Mutex<WrittenState>,
}

#[derive(Debug, Default)]
struct WrittenState {
    pools: Vec<IpNetwork>,
    /// The events of destinations bear no sender. By index of the device: its UDP port, and what was
    /// written last for each MAC.
    devices: BTreeMap<u32, (u16, Written)>,
}

/// Address and UDP port for each MAC.
type Written = BTreeMap<Mac, (IpAddr, u16)>;

impl OwnWrites {
    pub fn new(port: u32, nft_port: u32) -> OwnWrites {
        OwnWrites { port, nft_port, ..OwnWrites::default() }
    }

    /// The event's sender is this agent.
    pub fn is_sender(&self, port: u32) -> bool {
        port == self.port && port != 0
    }

    /// A change of a table with this sender is this agent's, which has looked at it itself.
    pub fn changes_tables_from(&self, port: u32) -> bool {
        port == self.nft_port && port != 0
    }

    /// Where pods have their addresses.
    pub fn set_pools(&self, pools: Vec<IpNetwork>) {
        self.state().pools = pools;
    }

    /// A route to `destination` is one to pods.
    pub fn is_of_pods(&self, destination: IpNetwork) -> bool {
        let state = self.state();
        state.pools.iter().any(|pool| subnet::overlap(*pool, destination))
            && destination.prefix() > 0
    }

    /// A destination that is about to be written on a device with this UDP port.
    pub fn note(&self, device: u32, own_port: u16, to: &Destination) {
        let mut state = self.state();
        let (port, written) = state.devices.entry(device).or_default();
        *port = own_port;
        written.insert(to.mac, (to.address, to.port.unwrap_or(own_port)));
    }

    /// The destination of an event is the one that was written last.
    pub fn wrote(&self, device: u32, found: &Destination) -> bool {
        let state = self.state();
        state.devices.get(&device).is_some_and(|(own_port, written)| {
            let found_to = (found.address, found.port.unwrap_or(*own_port));
            written.get(&found.mac) == Some(&found_to)
        })
    }

    fn state(&self) -> MutexGuard<'_, WrittenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_ours_if_it_is_the_last_that_was_written() {
        let to = |address: &str, port| Destination {
            mac: "0a:58:0a:f4:02:00".parse().unwrap(),
            address: address.parse().unwrap(),
            port,
        };
        let writes = OwnWrites::new(7, 8);
        assert!(!writes.wrote(3, &to("192.0.2.2", None)));
        writes.note(3, 10400, &to("192.0.2.2", Some(10400)));
        assert!(writes.wrote(3, &to("192.0.2.2", None)));
        for other in [to("192.0.2.3", None), to("192.0.2.2", Some(53))] {
            assert!(!writes.wrote(3, &other), "{other:?}");
        }
        assert!(!writes.wrote(4, &to("192.0.2.2", None)), "another device");
    }

    #[test]
    fn a_route_of_pods_is_in_a_pool_and_no_default_route() {
        let writes = OwnWrites::new(7, 8);
        let is_of_pods = |text: &str| writes.is_of_pods(text.parse().unwrap());
        assert!(!is_of_pods("10.244.2.0/24"));
        writes.set_pools(vec!["10.244.0.0/16".parse().unwrap()]);
        assert!(is_of_pods("10.244.2.0/24") && is_of_pods("10.0.0.0/8"));
        assert!(!is_of_pods("0.0.0.0/0") && !is_of_pods("10.245.0.0/24"));
        assert!(writes.is_sender(7) && !writes.is_sender(0));
    }
}
