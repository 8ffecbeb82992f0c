//! Hosts that were served with encryption before start again, on any kernel: the agent goes on with its last
//! settings where it cannot use the present ones.

use humanz::plan::firewall::encryption::{LEAVING, ruleset};
use serde_json::{Value, json};

use crate::guard::{dropped, knowing, write};
use crate::support::node::Place;
use crate::support::wait::soon;
use crate::support::{Agent, Cluster, Node, kernel, local};

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

#[test]
fn a_host_that_encrypted_is_served_on_a_kernel_without_wireguard_and_sends_nothing_in_clear_text() {
    if kernel::has_wireguard() {
        return;
    }
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    was_encrypted(host, &[]);
    let record = json!({
        "schema": 1, "machineId": "h2", "bootId": "b", "version": "0.1.0", "mtu": 1500,
        "subnets": ["10.244.108.0/24"], "addresses": [other.v4().to_string()], "backend": "auto",
        "wireguard": {
            "publicKey": "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=", "port": 10401, "rotationPort": 10402
        }
    });
    cluster.etcd.put("/humanz/v1/nodes/h2", record.to_string());
    cluster.etcd.put("/humanz/hosts/h2", "10.244.108.0/24");
    let _agent = Agent::start(host, &[ON]);
    soon("the agent answers", || local::connect(host).is_ok());
    local::status_when(host, "both reasons are problems", |status| {
        local::problem(status, "invalid-setting", "ENCRYPTION=wireguard").is_some()
            && local::problem(status, "inspect-failed", "tunnel humanz-wg").is_some()
            && status["peers"].to_string().contains("h2")
    });
    assert!(table(host).unwrap().contains(&format!("{}", other.v4())), "{:?}", table(host));
    host.run("ip link show humanz0").ok();
    let route = host.run("ip route get 10.244.108.2").ok();
    assert!(!route.contains(&other.v4().to_string()), "{route}");
    assert!(!host.run("ping -n -c 2 -i 0.2 -W 1 10.244.108.2").succeeded());
    assert!(dropped(host, LEAVING) >= 2, "{:?}", table(host));
}

#[test]
fn a_stop_with_cleanup_leaves_what_keeps_clear_text_in_and_off_or_uninstall_takes_it() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let settings = [ON, ("CLEANUP_ON_STOP", "true")];
    was_encrypted(host, &settings[1..]);
    let encrypted = |settings: &[(&str, &str)]| {
        let agent = Agent::start(host, settings);
        soon("the table is made", || table(host).is_some());
        soon("the bridge is made", || host.run("ip link show humanz0").succeeded());
        agent.stop();
    };
    encrypted(&settings);
    assert!(!host.run("ip link show humanz0").succeeded(), "it is cleaned up");
    assert!(table(host).unwrap().contains(LEAVING));
    let off = Agent::start(host, &[]);
    off.wait_ready();
    soon("off takes the table", || table(host).is_none());
    off.stop();
    was_encrypted(host, &[]);
    encrypted(&[ON]);
    assert!(table(host).is_some());
    Agent::run(host, "uninstall", &[]).ok();
    assert_eq!(table(host), None);
}
