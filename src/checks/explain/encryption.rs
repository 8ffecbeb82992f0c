//! Pure. What the WireGuard device does with a packet.

use crate::checks::explain::hop::{AGENT, HERE, Hop};
use crate::checks::explain::path::{EncryptedHop, PathEnd};

/// The host that the device sends to.
pub fn hop(found: &Result<Option<EncryptedHop>, String>, device: &str, end: &PathEnd) -> Hop {
    let name = "encryption";
    let host = end.remote().map_or("the other host", |remote| remote.host.as_str());
    let peer = match found {
        Err(error) => {
            let seen = format!("{device} cannot be read: {error}");
            return Hop::odd(name, HERE, seen, "run this as root");
        }
        Ok(None) => {
            let seen = format!("{device} encrypts to no host that may have {}", end.address);
            return Hop::lost(name, HERE, seen, AGENT);
        }
        Ok(Some(peer)) => peer,
    };
    let Some(endpoint) = peer.endpoint else {
        let seen = format!("{device} does not know where {host} is");
        return Hop::lost(name, HERE, seen, AGENT);
    };
    match peer.handshake_age {
        Some(age) => {
            let age = age.as_secs();
            let seen = format!("{device} encrypts to {endpoint} (last handshake {age} s ago)");
            Hop::fine(name, HERE, seen)
        }
        None => {
            let seen = format!(
                "{device} encrypts to {endpoint}, and {host} has never answered a handshake"
            );
            let fix = format!(
                "is UDP port {} open between the hosts, and does the agent of {host} run? It must know \
                 this host's key, and have the same ENCRYPTION_PSK_FILE or none",
                endpoint.port()
            );
            Hop::odd(name, HERE, seen, fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::checks::explain::path::{EndPlace, RemoteEnd};

    fn check(found: Result<Option<EncryptedHop>, String>, words: &str, is_lost: bool) {
        let remote = RemoteEnd {
            host: "h2".to_owned(),
            addresses: Default::default(),
            subnet: "10.244.2.0/24".parse().ok(),
            mtu: None,
            has_route: true,
        };
        let end = PathEnd {
            address: "10.244.2.7".parse().unwrap(),
            name: "10.244.2.7".to_owned(),
            place: EndPlace::RemoteHost(remote),
        };
        let hop = hop(&found, "humanz-wg", &end);
        assert!(hop.seen.contains(words), "{hop:?}");
        assert_eq!(hop.is_lost(), is_lost, "{hop:?}");
    }

    #[test]
    fn the_last_handshake_is_shown_and_a_missing_one_doubted() {
        let peer = |endpoint: Option<&str>, age| {
            let endpoint = endpoint.map(|text| text.parse().unwrap());
            Ok(Some(EncryptedHop { endpoint, handshake_age: age }))
        };
        let at = Some("192.0.2.2:10401");
        let age = Some(Duration::from_secs(7));
        check(peer(at, age), "encrypts to 192.0.2.2:10401 (last handshake 7 s ago)", false);
        check(peer(at, None), "h2 has never answered a handshake", false);
        check(peer(None, None), "does not know where h2 is", true);
        check(Ok(None), "encrypts to no host that may have 10.244.2.7", true);
        check(Err("Operation not permitted".to_owned()), "cannot be read", false);
    }
}
