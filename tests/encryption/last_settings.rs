//! Hosts that were served with encryption before start again, on any kernel: the agent goes on with its last
//! settings where it cannot use the present ones.

use humanz::plan::firewall::encryption::ruleset;
use serde_json::Value;

use crate::guard::{knowing, write};
use crate::support::node::Place;
use crate::support::wait::soon;
use crate::support::{Agent, Cluster, Node};

const ON: (&str, &str) = ("ENCRYPTION", "wireguard");
const SETTINGS: &str = "/var/lib/humanz/settings.json";

/// Serves the host with these settings, and says that it was encrypted. What the kernel had is gone, as after a
/// boot.
fn was_encrypted(host: &Node, settings: &[(&str, &str)]) {
    let agent = Agent::start(host, settings);
    agent.wait_ready();
    agent.stop();
    let mut last: Value = serde_json::from_str(&host.read(SETTINGS).unwrap()).unwrap();
    last["settings"]["ENCRYPTION"] = "wireguard".into();
    host.write(SETTINGS, &last.to_string());
    host.shell("ip link del humanz0 || true; nft flush ruleset").ok();
}

fn table(host: &Node) -> Option<String> {
    let listed = host.run("nft list table inet humanz-encryption");
    listed.succeeded().then_some(listed.stdout)
}

/// At a start without etcd what was kept on disk may be older than the table: a network is not in it.
#[test]
fn what_keeps_clear_text_of_tenants_in_stays_until_it_is_known_where_they_are() {
    const OF_TENANTS: &str = "10.32.0.0/16";
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let settings = [ON, ("POLICY", "on"), ("RESYNC_INTERVAL", "1s")];
    was_encrypted(host, &settings[1..]);
    let mut before = knowing(other, true);
    before.pools = vec![OF_TENANTS.parse().unwrap()];
    write(host, &ruleset(&before));
    cluster.etcd.kill();
    let _agent = Agent::start(host, &settings);
    let has = |pool: &str| table(host).is_some_and(|listed| listed.contains(pool));
    soon("the pool of the settings is in the table", || has("10.244.0.0/16"));
    // Where tables have owners nobody else can.
    host.shell("nft delete element inet humanz-encryption inside '{ lo }' || true").ok();
    soon("it is put right", || has("\"lo\""));
    assert!(has(OF_TENANTS), "{:?}", table(host));
    cluster.etcd.restart();
    soon("there is no such network", || !has(OF_TENANTS));
    assert!(has("10.244.0.0/16"));
}
