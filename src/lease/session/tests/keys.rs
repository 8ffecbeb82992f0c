//! Claims of WireGuard keys.

use super::*;

/// Host h1 publishes this key.
fn with_key(number: u8) -> HostAttributes {
    let port = 10401.try_into().unwrap();
    let wireguard = Some(WireguardEnd::new(PublicKey([number; 32]), port));
    HostAttributes { wireguard, ..HostAttributes::default() }
}

/// The revision since which h1 claims the key.
fn claimed(found: &Snapshot, number: u8) -> Option<i64> {
    let claim = found.wireguard_keys.get("h1")?;
    (claim.value.key == PublicKey([number; 32])).then_some(claim.modified)
}

#[test]
fn a_wireguard_key_is_claimed_before_a_record_publishes_it_and_only_once() {
    let mut scene = Scene::new();
    scene.attributes = with_key(1);
    scene.run().unwrap();
    let since = claimed(&scene.store, 1).expect("a claim");
    assert!(since < scene.store.nodes["h1"].created);
    scene.attributes.mtu = 1400;
    scene.run().unwrap();
    scene.machine = Scene::machine(&scene.configured, None);
    scene.run().unwrap();
    assert_eq!(claimed(&scene.store, 1), Some(since), "another record, another run");
    scene.attributes.wireguard = None;
    scene.run().unwrap();
    assert_eq!(claimed(&scene.store, 1), Some(since), "encryption is off for now");
    scene.attributes = with_key(2);
    scene.run().unwrap();
    assert!(claimed(&scene.store, 2) > Some(since), "its file was replaced");
}

#[test]
fn a_claim_of_the_key_that_somebody_overwrites_or_deletes_is_put_back() {
    let mut scene = Scene::new();
    scene.attributes = with_key(1);
    scene.run().unwrap();
    scene.put("/z/wireguard/h1", &PublicKey([9; 32]).to_string());
    assert!(!scene.machine.agrees(&scene.store));
    scene.run().unwrap();
    assert!(claimed(&scene.store, 1).is_some());
    let warnings = scene.machine.take_warnings();
    assert!(warnings.iter().any(|line| line.contains("/z/wireguard/h1")), "{warnings:?}");
    scene.delete("/z/wireguard/h1");
    scene.run().unwrap();
    assert!(claimed(&scene.store, 1).is_some());
    scene.put("/z/wireguard/h1", "garbage");
    scene.run().unwrap();
    assert!(claimed(&scene.store, 1).is_some());
}

#[test]
fn a_host_that_may_not_claim_its_key_serves_and_claims_it_once_it_may() {
    let mut scene = Scene::new();
    scene.attributes = with_key(1);
    scene.denied = Some("/z/wireguard/");
    scene.run().unwrap();
    assert_eq!(scene.subnet(), "10.0.1.0/24");
    assert_eq!(claimed(&scene.store, 1), None);
    assert!(scene.store.nodes["h1"].value.wireguard.is_some());
    assert!(scene.machine.agrees(&scene.store), "it does not try with every change");
    scene.run().unwrap();
    assert_eq!(scene.machine.take_warnings().len(), 1, "it is logged once");
    scene.denied = None;
    scene.run().unwrap();
    assert!(claimed(&scene.store, 1).is_some());
}

/// h2 has had key 2 for long and published it; h3 claimed it later. What this host makes of the claims of a store that
/// lost its data and in which h3 was faster.
fn owner_after_loss(denied: Option<&'static str>) -> String {
    let key = PublicKey([2; 32]).to_string();
    let mut scene = Scene::new();
    scene.put("/z/wireguard/h2", &key);
    scene.put_host("h2", "10.0.2.0/24");
    scene.put_host("h3", "10.0.3.0/24");
    scene.put("/z/wireguard/h3", &key);
    scene.run().unwrap();
    let saved = Saved {
        host: "h1".parse().unwrap(),
        machine_id: "m1".to_owned(),
        lease: scene.machine.lease().unwrap().clone(),
        snapshot: Arc::clone(scene.machine.last_known().unwrap()),
        resolved: Default::default(),
    };
    scene.store = Snapshot::default();
    scene.denied = denied;
    scene.put("/z/wireguard/h3", &key);
    scene.put_host("h3", "10.0.3.0/24");
    scene.run().unwrap();
    if denied.is_some() {
        scene.put("/z/wireguard/h2", &key);
        scene.put_host("h2", "10.0.2.0/24");
    }
    scene.run().unwrap();
    assert!(scene.store.wireguard_keys["h2"].modified > scene.store.wireguard_keys["h3"].modified);
    // A run that begins anew and read its state from the disk.
    let again = Saved { snapshot: Arc::clone(scene.machine.last_known().unwrap()), ..saved };
    let again = Saved::from_text(&again.to_text()).unwrap();
    scene.machine = Scene::machine(&scene.configured, Some(again));
    let settled = scene.run().unwrap();
    let owners = key_owners::owners(&settled.snapshot);
    owners[&PublicKey([2; 32])].to_string()
}

#[test]
fn a_key_stays_its_owners_when_etcd_loses_its_data_and_another_host_is_faster() {
    assert_eq!(owner_after_loss(None), "h2", "this host put the claim back");
    assert_eq!(owner_after_loss(Some("/h/h2")), "h2", "it may not, and h2 did");
}
