//! Pure. Keys of other hosts that the kernel has and the saved state of the network has not: an agent may be killed
//! before it has saved what etcd said last, and etcd be away when the next one starts.

use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::netlink::wireguard::WireguardPeer;
use crate::plan::encryption::EncryptedPeer;
use crate::plan::encryption::rotation::is_fresh;

/// `peers`, as they were saved, each with the key by which the first device has a session with it now: `found`, at
/// the time `now` since 1970. The kernel takes packets of a host's pods from one key alone: to set the saved one
/// would take them from that of a later message.
pub fn with_keys_in_use(
    peers: &[EncryptedPeer],
    found: &[WireguardPeer],
    now: Duration,
) -> Vec<EncryptedPeer> {
    let in_use = |peer: &EncryptedPeer| {
        let has = |found: &&WireguardPeer| is_of(found, &peer.subnets) && is_fresh(found, now);
        found.iter().find(has).map_or(peer.key, |found| found.key)
    };
    peers.iter().map(|peer| EncryptedPeer { key: in_use(peer), ..peer.clone() }).collect()
}

/// It is the only one that may send from `subnets`.
fn is_of(found: &WireguardPeer, subnets: &[IpNetwork]) -> bool {
    !subnets.is_empty() && subnets.iter().all(|subnet| found.allowed.contains(subnet))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::net::{PerFamily, PublicKey};
    use crate::netlink::wireguard::KEEPALIVE_SECS;
    use crate::plan::encryption::{Stage, missing_peers, on_second};

    const NOW: Duration = Duration::from_secs(1000);

    fn peer(number: u8, next: Option<u8>) -> EncryptedPeer {
        let address: IpAddr = [192, 0, 2, number].into();
        EncryptedPeer {
            key: PublicKey([number; 32]),
            address,
            addresses: PerFamily { v4: Some(address), v6: None },
            port: 10401,
            rotation_port: Some(10402),
            next: next.map(|key| PublicKey([key; 32])),
            host: format!("h{number}").parse().unwrap(),
            alive: true,
            subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
            mtu_bytes: None,
        }
    }

    /// As the kernel has the host with that number, by another key.
    fn found(number: u8, key: u8, handshake: Option<Duration>) -> WireguardPeer {
        let peer = peer(number, None);
        WireguardPeer {
            key: PublicKey([key; 32]),
            preshared: None,
            endpoint: Some((peer.address, peer.port).into()),
            keepalive_secs: KEEPALIVE_SECS,
            last_handshake: handshake,
            received_bytes: 0,
            sent_bytes: 0,
            allowed: peer.subnets.into_iter().collect(),
        }
    }

    #[test]
    fn a_key_that_was_not_saved_is_used_on_and_its_host_has_the_stage_of_that_key() {
        let saved = [peer(2, Some(22)), peer(3, None)];
        let kernel = [found(2, 22, Some(NOW - Duration::from_secs(9))), found(3, 3, Some(NOW))];
        let peers = with_keys_in_use(&saved, &kernel, NOW);
        assert_eq!(peers[0].key, PublicKey([22; 32]));
        assert_eq!(Stage::of(&peers[0].key, peers[0].next.as_ref()), Stage::Returning);
        assert_eq!(peers[1], saved[1]);
        assert_eq!(missing_peers(&peers, Default::default(), &kernel), []);
        assert_ne!(
            missing_peers(&saved, Default::default(), &kernel),
            [],
            "it would be taken away"
        );
        assert_eq!(on_second(&peers, Stage::Steady)[0].key, PublicKey([22; 32]));
    }

    #[test]
    fn a_key_without_a_session_or_of_other_addresses_is_not_in_use() {
        let saved = [peer(2, None)];
        let none = [
            found(2, 22, None),
            found(2, 22, Some(NOW - Duration::from_secs(181))),
            found(4, 22, Some(NOW)),
        ];
        for kernel in none {
            assert_eq!(with_keys_in_use(&saved, &[kernel], NOW), saved);
        }
        let nowhere = [EncryptedPeer { subnets: Vec::new(), ..peer(2, None) }];
        assert_eq!(with_keys_in_use(&nowhere, &[found(2, 22, Some(NOW))], NOW), nowhere);
    }
}
