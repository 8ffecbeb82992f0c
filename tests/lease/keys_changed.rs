//! Changes of WireGuard keys, while a stolen host with the role of its own writes what helps it.

use std::path::Path;

use humanz::lease::records::WireguardEnd;
use humanz::lease::{PeerFault, Peers};

use crate::host::{HUMANZ, Host};
use crate::keys::{claim_of, enable, key, stolen, up_with};
use crate::support::etcd::{EtcdServer, isolated};

/// The key of the first device and that of the second one.
type Keys = (u8, Option<u8>);

fn end((first, next): Keys) -> WireguardEnd {
    let port = |port: u16| port.try_into().unwrap();
    let rotation_port = Some(port(10402));
    WireguardEnd {
        rotation_port,
        next: next.map(key),
        ..WireguardEnd::new(key(first), port(10401))
    }
}

/// As the agent publishes each step.
fn publish(host: &mut Host, keys: Keys) {
    host.attributes.wireguard = Some(end(keys));
    host.handle().session.set_attributes(host.attributes.clone());
}

fn keys(peers: &Peers, host: &str) -> Option<Keys> {
    let end = peers.by_name.get(host)?.wireguard?;
    Some((end.public_key.0[0], end.next.map(|key| key.0[0])))
}

/// h1 is older than all others, and publishes and claims this.
fn steal(etcd: &EtcdServer, record: &str, published: Keys, claim: &[u8]) {
    let mut record: serde_json::Value = serde_json::from_str(record).unwrap();
    record["wireguard"] = serde_json::to_value(end(published)).unwrap();
    let claim: Vec<String> = claim.iter().map(|number| key(*number).to_string()).collect();
    let (record, claim) = (record.to_string(), claim.join(" "));
    stolen(etcd, async |client| {
        client.put(claim_of("h1"), claim.as_str(), None).await?;
        client.put(format!("{HUMANZ}/nodes/h1"), record.as_str(), None).await.map(drop)
    })
    .unwrap();
}

fn refuses_h1(peers: &Peers) -> bool {
    peers.faults.iter().any(|fault| {
        matches!(fault, PeerFault::SharedKey { host, owner, .. } if host.as_str() == "h1" && owner.as_str() == "h2")
    })
}

fn up(etcd: &EtcdServer, folder: &Path, name: &str, keys: Keys) -> Host {
    up_with(etcd, folder, name, end(keys))
}

/// What the stolen host writes while h2 changes from key 2 to key 8.
const THEFTS: [(Keys, &[u8]); 6] = [
    ((2, None), &[2]),
    ((8, None), &[8]),
    // It changes from the key of h2, to it, or to the same one.
    ((2, Some(9)), &[9, 2]),
    ((1, Some(2)), &[2, 1]),
    ((1, Some(8)), &[8, 1]),
    ((8, Some(8)), &[8, 2]),
];

#[test]
fn a_stolen_host_takes_no_key_of_a_change_even_if_the_agent_starts_anew_in_it() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, None);
        let evil = up(&etcd, folder.path(), "h1", (1, None));
        let mut victim = up(&etcd, folder.path(), "h2", (2, None));
        let other = up(&etcd, folder.path(), "h3", (3, None));
        drop(evil.stop());
        let record = etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap();
        publish(&mut victim, (2, Some(8)));
        other.until_peers("it changes", |peers| keys(peers, "h2") == Some((2, Some(8))));
        for ((published, claim), mtu) in THEFTS.into_iter().zip(1400..) {
            steal(&etcd, &record, published, claim);
            other.until_peers("the theft is reported", refuses_h1);
            assert_eq!(keys(&other.peers(), "h2"), Some((2, Some(8))), "{published:?} {claim:?}");
            drop(victim.stop());
            victim = up(&etcd, folder.path(), "h2", (2, Some(8)));
            // A record that is written anew is younger than the theft.
            victim.attributes.mtu = mtu;
            publish(&mut victim, (2, Some(8)));
            other.until("its record is younger", |found| {
                let [h1, h2] = ["h1", "h2"].map(|name| &found.nodes[name]);
                h2.value.mtu == mtu && h2.modified > h1.modified
            });
            victim.until_peers("and its owner reports it", refuses_h1);
            assert_eq!(keys(&other.peers(), "h2"), Some((2, Some(8))), "{published:?}: restarted");
            // It takes back what it wrote, so that the next one is seen.
            steal(&etcd, &record, (1, None), &[1]);
            other.until_peers("the theft is over", |peers| !refuses_h1(peers));
        }
        for keys_then in [(8, Some(8)), (8, None)] {
            steal(&etcd, &record, (8, None), &[8, 2]);
            publish(&mut victim, keys_then);
            other.until_peers("the change goes on", |peers| keys(peers, "h2") == Some(keys_then));
            assert_eq!(keys(&other.peers(), "h1"), None);
        }
        drop(victim);
    });
}

/// Older records and claims of the victim, written by the stolen host where it may, and where it may not.
#[test]
fn a_record_of_before_a_change_that_is_written_again_gives_no_host_a_key() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, None);
        drop(up(&etcd, folder.path(), "h1", (1, None)).stop());
        let own = etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap();
        let mut victim = up(&etcd, folder.path(), "h2", (2, None));
        let other = up(&etcd, folder.path(), "h3", (3, None));
        let older = etcd.get(&format!("{HUMANZ}/nodes/h2")).unwrap();
        for step in [(2, Some(8)), (8, Some(8)), (8, None)] {
            publish(&mut victim, step);
            other.until_peers("it changes", |peers| keys(peers, "h2") == Some(step));
        }
        let answer = stolen(&etcd, async |client| {
            client.put(format!("{HUMANZ}/nodes/h2"), older.as_str(), None).await.map(drop)
        });
        assert!(answer.unwrap_err().to_string().contains("permission denied"));
        steal(&etcd, &own, (2, None), &[2]);
        other.until_peers("the key of before is not free", refuses_h1);
        // One with more rights than a host: its owner puts it right. The key of before, which the claim that was
        // overwritten had kept, may be anybody's from then on: nobody encrypts with it.
        etcd.put(&format!("{HUMANZ}/nodes/h2"), older.as_str());
        etcd.put(&claim_of("h2"), key(2).to_string());
        let now = |peers: &Peers| keys(peers, "h2") == Some((8, None));
        other.until("the claim is back", |found| {
            let claim = found.wireguard_keys.get("h2");
            claim.is_some_and(|claim| claim.value.key == key(8))
        });
        other.until_peers("the record is back", now);
        assert_ne!(keys(&other.peers(), "h1").map(|(present, _)| present), Some(8));
    });
}

#[test]
fn of_two_hosts_with_one_next_key_the_first_has_it_and_the_other_keeps_its_present_one() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let etcd = EtcdServer::start();
        let mut second = up(&etcd, folder.path(), "h1", (1, None));
        let mut first = up(&etcd, folder.path(), "h2", (2, None));
        let other = up(&etcd, folder.path(), "h3", (3, None));
        publish(&mut first, (2, Some(8)));
        other.until_peers("the first", |peers| keys(peers, "h2") == Some((2, Some(8))));
        publish(&mut second, (1, Some(8)));
        other.until_peers("the other", refuses_h1);
        let now = other.peers();
        assert_eq!((keys(&now, "h1"), keys(&now, "h2")), (Some((1, None)), Some((2, Some(8)))));
        for host in [&first, &second] {
            host.until_peers("both know", refuses_h1);
        }
    });
}
