//! Pods of networks of tenants end while agent, etcd or the host is killed at each step, or is away: nothing of them
//! stays in etcd or on the host, and no address is given twice.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::apply;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, eventually};
use crate::tenant_kills::{
    Call, agent_killed_at, assert_apart, leftovers, many_networks, wait_for_no_blocks,
};
use crate::tenants::{SOON_GIVEN_BACK, blocks};

/// `many_networks`, whose pods are in a group that a policy has as its peer: their hosts publish them.
fn with_members() -> Vec<Value> {
    let mut all = many_networks();
    all.last_mut().unwrap()["spec"]["group"] = json!("web");
    let own = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "humanz.io/v1", "kind": kind,
            "metadata": {"tenant": "blue", "name": name}, "spec": spec})
    };
    let rule = json!({"direction": "in", "action": "allow", "peer": {"group": "web"}});
    all.extend([
        own("GroupPolicy", "from-web", json!({"rules": [rule]})),
        own("Group", "store", json!({"policies": ["from-web"], "default": "deny"})),
        own("Group", "web", json!({})),
    ]);
    all
}

/// Members of groups that `host` has published, by key and value.
fn members(cluster: &Cluster, host: &Node) -> Vec<(String, String)> {
    let mut all = cluster.etcd.list(&format!("/humanz/v1-members/{}/", host.name()));
    all.retain(|(_, value)| value.contains("10.40."));
    all
}

/// The blocks of `host`.
fn blocks_of(cluster: &Cluster, host: &Node) -> Vec<String> {
    let mut all = blocks(cluster);
    all.retain(|key| key.starts_with(&format!("{}/", host.name())));
    all
}

fn nothing_in_etcd(cluster: &Cluster, host: &Node) -> Result<(), String> {
    match (members(cluster, host), blocks_of(cluster, host)) {
        (members, blocks) if members.is_empty() && blocks.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    }
}

/// A pod runs, and its host has published its address.
fn runs(cluster: &Cluster, call: &Call<'_>, host: &Node, when: &str) -> IpAddr {
    let address = eventually(&format!("ADD, {when}"), SOON, || call.add());
    eventually(&format!("{address} among the members, {when}"), SOON, || {
        let members = members(cluster, host);
        let has = members.iter().any(|(_, value)| value.contains(&address.to_string()));
        if has { Ok(()) } else { Err(format!("{members:?}")) }
    });
    address
}

/// As soon as all of it is free, `other` has every address of the network `number`, each once.
fn has_both_blocks(other: &Node, number: usize, when: &str) {
    let calls: Vec<Call<'_>> =
        (0..6).map(|pod| Call::new(other, &format!("all{pod}"), number)).collect();
    let added = calls.iter().map(|call| eventually(when, SOON, || call.add()));
    let addresses: BTreeSet<IpAddr> = added.collect();
    assert_eq!(addresses.len(), calls.len(), "{when}: {addresses:?}");
    calls.iter().for_each(|call| call.delete(when));
}

#[test]
fn an_agent_killed_at_any_of_its_calls_while_a_pod_ends_withdraws_it_once_it_is_back() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_members());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    let (mut kills, mut number) = (0, 0);
    for calls in
        ["sendto,sendmsg", "write,writev", "?rename,renameat,?unlink,unlinkat,fsync,openat"]
    {
        for at in [1, 3, 9] {
            number += 1;
            let when = format!("agent killed at call {at} of {calls}");
            let (ends, other) = (Call::new(h1, "c1", number), Call::new(h2, "c2", number));
            let first = runs(&cluster, &ends, h1, &when);
            let (second, is_killed) = agent_killed_at(&agents[0], calls, at, || {
                ends.delete(&when);
                other.add()
            });
            assert_apart(&Ok(first), &second, &when);
            if is_killed {
                kills += 1;
                agents[0] = Agent::start(h1, SOON_GIVEN_BACK);
                agents[0].wait_ready();
            }
            eventually(&when, SOON, || nothing_in_etcd(&cluster, h1));
            assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
            other.delete(&when);
        }
    }
    println!("agent killed {kills} times in {number} DELs");
    assert!(kills > 3, "{kills}");
    has_both_blocks(h2, number, "after all");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn etcd_killed_at_any_moment_while_a_pod_ends_loses_no_withdrawal() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_members());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    for number in 0..6 {
        let when = format!("etcd killed {} ms after the begin of DEL", number * 5);
        let ends = Call::new(h1, "c1", number);
        runs(&cluster, &ends, h1, &when);
        let mut child = ends.start("DEL");
        // The moment is the input of this test, not a wait for something.
        std::thread::sleep(Duration::from_millis(number as u64 * 5));
        cluster.etcd.kill();
        let ended = child.wait().unwrap();
        assert!(ended.success(), "DEL, {when}: {ended}");
        assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
        cluster.etcd.restart();
        eventually(&when, SOON, || nothing_in_etcd(&cluster, h1));
    }
    has_both_blocks(h2, 0, "after all");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

/// The host is on again, and so is its agent.
fn reboot(cluster: &Cluster, host: &Node) -> Agent {
    cluster.reboot(host);
    // As it expires.
    cluster.etcd.delete(&format!("/humanz/v1/alive/{}", host.name()));
    let agent = Agent::start(host, SOON_GIVEN_BACK);
    agent.wait_ready();
    agent
}

#[test]
fn a_host_that_loses_power_while_a_pod_ends_withdraws_it_after_its_boot() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_members());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    for number in 0..6 {
        let when = format!("power lost {} ms after the begin of DEL", number * 4);
        let (ends, other) = (Call::new(h1, "c1", number), Call::new(h2, "c2", number));
        let first = runs(&cluster, &ends, h1, &when);
        let mut child = ends.start("DEL");
        std::thread::scope(|scope| {
            // The host is off once every process of it was waited for.
            scope.spawn(|| child.wait());
            // The moment is the input of this test, not a wait for something.
            std::thread::sleep(Duration::from_millis(number as u64 * 4));
            h1.power_off();
        });
        assert_apart(&Ok(first), &other.add(), &when);
        drop(agents.remove(0));
        agents.insert(0, reboot(&cluster, h1));
        // A runtime ends the pods of before once more.
        ends.delete(&when);
        eventually(&when, SOON, || nothing_in_etcd(&cluster, h1));
        assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
        other.delete(&when);
    }
    has_both_blocks(h2, 5, "after all");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

/// DEL writes nothing for the agent but what it takes out of the store.
#[test]
fn a_pod_that_ends_without_an_agent_is_withdrawn_after_the_next_boot() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_members());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    let (ends, other) = (Call::new(h1, "c1", 0), Call::new(h2, "c2", 0));
    let address = runs(&cluster, &ends, h1, "at first");
    agents.remove(0).kill();
    ends.delete("without an agent");
    assert_eq!(leftovers(h1), BTreeSet::new());
    h1.power_off();
    assert!(!members(&cluster, h1).is_empty(), "nobody else withdraws {address}");
    assert_eq!(blocks_of(&cluster, h1).len(), 1, "nor gives its block back");
    assert_apart(&Ok(address), &other.add(), "while the host is off");
    other.delete("while the host is off");
    let agent = reboot(&cluster, h1);
    eventually("the withdrawal", SOON, || nothing_in_etcd(&cluster, h1));
    has_both_blocks(h2, 0, "after the boot");
    wait_for_no_blocks(&cluster);
    agents.iter().chain([&agent]).for_each(Agent::stop);
}
