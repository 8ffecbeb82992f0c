//! WireGuard keys of hosts, of which one is stolen and has the role of its host.

use std::fs;

use etcd_client::{Client, Error, Permission};
use humanz::lease::records::WireguardEnd;
use humanz::lease::roles::{self, RangeAccess};
use humanz::lease::{PeerFault, Peers};
use humanz::net::{ProblemKind, PublicKey, subnet};

use crate::host::{HUMANZ, Host, roots, start};
use crate::loss::started_with;
use crate::support::etcd::{EtcdServer, isolated};

const NAMES: [&str; 3] = ["h1", "h2", "h3"];

pub fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

pub fn claim_of(host: &str) -> String {
    format!("{HUMANZ}/wireguard/{host}")
}

/// The permissions of the role of `host`, which has 10.244.N.0/24.
fn permissions(host: &str) -> Vec<Permission> {
    let subnet = subnet::parse(&format!("10.244.{}.0/24", &host[1..])).unwrap();
    let role = roles::of_host(&roots(), &host.parse().unwrap(), &[subnet]);
    let permission = |wanted: roles::Permission| {
        let permission = match wanted.access {
            RangeAccess::Read => Permission::read(wanted.key),
            RangeAccess::Write => Permission::write(wanted.key),
            RangeAccess::ReadWrite => Permission::read_write(wanted.key),
        };
        if wanted.is_prefix { permission.with_prefix() } else { permission }
    };
    role.permissions.into_iter().map(permission).collect()
}

/// Authentication with a role for each host, and its subnet reserved.
pub fn enable(etcd: &mut EtcdServer, without_claim: Option<&str>) {
    for name in NAMES {
        etcd.put(&format!("{HUMANZ}/subnets/4/10.244.{}.0-24", &name[1..]), name);
    }
    let config = start(etcd, "h1").network.config("a").to_json();
    etcd.put(&format!("{HUMANZ}/config"), config);
    etcd.call(async |client| {
        client.user_add("root", "secret", None).await?;
        client.role_add("root").await?;
        client.user_grant_role("root", "root").await?;
        for name in NAMES {
            client.role_add(name).await?;
            for permission in permissions(name) {
                client.role_grant_permission(name, permission).await?;
            }
            client.user_add(name, "password", None).await?;
            client.user_grant_role(name, name).await?;
        }
        if let Some(name) = without_claim {
            client.role_revoke_permission(name, claim_of(name), None).await?;
        }
        client.auth_enable().await.map(drop)
    });
    etcd.connect_as("root", "secret");
}

/// The host `name` with this key.
fn up(etcd: &EtcdServer, folder: &std::path::Path, name: &str, number: u8) -> Host {
    up_with(etcd, folder, name, WireguardEnd::new(key(number), 10401.try_into().unwrap()))
}

pub fn up_with(etcd: &EtcdServer, folder: &std::path::Path, name: &str, end: WireguardEnd) -> Host {
    let file = folder.join("password");
    fs::write(&file, "password").unwrap();
    let mut start = start(etcd, name);
    start.etcd.user = Some(name.to_owned());
    start.etcd.password_file = Some(file);
    start.attributes.wireguard = Some(end);
    let host = Host::launch(start);
    host.snapshot();
    host
}

pub fn stolen(
    etcd: &EtcdServer,
    request: impl AsyncFnOnce(&mut Client) -> Result<(), Error> + Send,
) -> Result<(), Error> {
    etcd.try_call_as(("h1", "password"), request)
}

fn keys(peers: &Peers) -> Vec<(&str, Option<u8>)> {
    let key = |end: WireguardEnd| end.public_key.0[0];
    peers.by_name.iter().map(|(name, peer)| (name.as_str(), peer.wireguard.map(key))).collect()
}

/// h1 is older than h2 and stolen: it publishes and claims the key of h2.
#[test]
fn a_stolen_host_cannot_take_the_key_of_a_newer_one() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, None);
        let evil = up(&etcd, folder.path(), "h1", 1);
        let victim = up(&etcd, folder.path(), "h2", 2);
        let other = up(&etcd, folder.path(), "h3", 3);
        other.until_peers("keys", |peers| keys(peers) == [("h1", Some(1)), ("h2", Some(2))]);
        assert_eq!(victim.peers().faults, []);
        drop(evil.stop());
        let record = etcd.get(&format!("{HUMANZ}/nodes/h1")).unwrap();
        let record = record.replace(&key(1).to_string(), &key(2).to_string());
        let (theirs, copied) = (key(2).to_string(), record.as_str());
        stolen(&etcd, async |client| {
            client.put(format!("{HUMANZ}/nodes/h1"), copied, None).await?;
            client.put(claim_of("h1"), theirs.as_str(), None).await?;
            client.delete(claim_of("h1"), None).await?;
            client.put(claim_of("h1"), theirs.as_str(), None).await.map(drop)
        })
        .unwrap();
        let refused = |peers: &Peers| {
            let fault = |fault: &PeerFault| matches!(fault, PeerFault::SharedKey { host, owner, .. } if host.as_str() == "h1" && owner.as_str() == "h2");
            peers.faults.iter().any(fault)
        };
        other.until_peers("the second claim is refused", refused);
        assert_eq!(keys(&other.peers()), [("h1", None), ("h2", Some(2))]);
        victim.until_peers("its owner reports it", refused);
        assert_eq!(keys(&victim.peers()), [("h1", None), ("h3", Some(3))]);
        for request in ["put", "delete"] {
            let answer = stolen(&etcd, async |client| match request {
                "put" => client.put(claim_of("h2"), "x", None).await.map(drop),
                _ => client.delete(claim_of("h2"), None).await.map(drop),
            });
            let error = answer.unwrap_err().to_string();
            assert!(error.contains("permission denied"), "{request}: {error}");
        }
        // A restart of the victim writes its record anew, and the claim stays.
        drop(victim.stop());
        let again = up(&etcd, folder.path(), "h2", 2);
        assert_eq!(keys(&again.peers()), [("h1", None), ("h3", Some(3))]);
        assert_eq!(keys(&other.peers()), [("h1", None), ("h2", Some(2))]);
    });
}

#[test]
fn hostile_claims_of_keys_affect_no_other_host() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, None);
        let (victim, other) =
            (up(&etcd, folder.path(), "h2", 2), up(&etcd, folder.path(), "h3", 3));
        let zero = format!("{}=", "A".repeat(43));
        for value in ["", "\u{1b}[2J", &zero, "BwcH", &"B".repeat(1 << 20)] {
            stolen(&etcd, async |client| client.put(claim_of("h1"), value, None).await.map(drop))
                .unwrap();
            other.until("it is reported", |found| found.faults.contains_key(&*claim_of("h1")));
            let problems = other.snapshot().problems();
            assert!(problems.iter().all(|problem| problem.to_string().len() < 1000));
            assert_eq!(keys(&other.peers()), [("h2", Some(2))]);
            stolen(&etcd, async |client| client.delete(claim_of("h1"), None).await.map(drop))
                .unwrap();
            other.until("it is gone", |found| found.faults.is_empty());
        }
        etcd.put(&format!("{HUMANZ}/wireguard/a b"), key(2).to_string());
        etcd.put(&format!("{HUMANZ}/wireguard/h2/x"), key(2).to_string());
        other.until("malformed names", |found| found.faults.len() == 2);
        assert_eq!(keys(&other.peers()), [("h2", Some(2))]);
        drop(victim);
    });
}

/// The role is of an earlier release.
#[test]
fn without_the_permission_a_key_is_published_unclaimed_and_reported() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = EtcdServer::start();
        enable(&mut etcd, Some("h2"));
        let host = up(&etcd, folder.path(), "h2", 2);
        let other = up(&etcd, folder.path(), "h3", 3);
        assert_eq!(keys(&other.peers()), [("h2", Some(2))], "as before there were claims");
        assert_eq!(etcd.get(&claim_of("h2")), None);
        let problems = host.peers().problems();
        assert_eq!((problems.len(), problems[0].kind), (1, ProblemKind::EtcdRecord));
        let fix = problems[0].fix.clone().unwrap_or_default();
        assert!(fix.contains("humanz-agent nodes roles --apply h2"), "{fix}");
        etcd.call(async |client| {
            let permission = Permission::write(claim_of("h2"));
            client.role_grant_permission("h2", permission).await.map(drop)
        });
        host.handle().session.set_attributes({
            let mut changed = host.attributes.clone();
            changed.mtu = 1400;
            changed
        });
        host.until("the claim", |found| found.wireguard_keys.contains_key("h2"));
        assert_eq!(host.peers().problems(), []);
    });
}

#[test]
fn a_lost_etcd_gets_the_claims_back_and_a_faster_host_gets_no_key() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let etcd = EtcdServer::start();
        let (victim, other) =
            (up(&etcd, folder.path(), "h2", 2), up(&etcd, folder.path(), "h3", 3));
        other.until_peers("keys", |peers| keys(peers) == [("h2", Some(2))]);
        let known = other.stop();
        drop(victim.stop());
        etcd.delete_all("/humanz/");
        etcd.put(&claim_of("h1"), key(2).to_string());
        let survivor = started_with(&etcd, known);
        survivor.until("the claim is back", |found| found.wireguard_keys.contains_key("h2"));
        assert_eq!(etcd.get(&claim_of("h2")), Some(key(2).to_string()));
        assert_eq!(keys(&survivor.peers()), [("h2", Some(2))]);
    });
}
