//! The scenes of `tenant_kills` with a pod that has a fixed address.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::etcd::apply;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, eventually};
use crate::tenant_kills::{
    Call, agent_killed_at, assert_apart, kill_adds, kill_dels, leftovers, many_networks,
    wait_for_no_blocks,
};
use crate::tenants::SOON_GIVEN_BACK;

/// The same, with a fixed address for the pod `shop/c1` in `blue/n0`.
fn with_pin() -> Vec<Value> {
    let mut all = many_networks();
    all[0]["spec"]["pins"] = json!(["10.40.0.8/29"]);
    all.push(json!({"apiVersion": "humanz.io/v1", "kind": "Pin",
        "metadata": {"namespace": "shop", "name": "c1"}, "spec": {"addresses": [PINNED]}}));
    all
}

const PINNED: &str = "10.40.0.10";

/// The pod with the fixed address starts, has it, and ends.
fn starts_pinned(host: &Node, when: &str) {
    let call = Call::new(host, "c1", 0);
    let address = eventually(&format!("the pinned pod {when}"), SOON, || call.add());
    assert_eq!(address.to_string(), PINNED, "{when}");
    call.delete(when);
}

#[test]
fn the_address_of_a_pinned_pod_moves_after_add_or_del_was_killed_at_any_system_call() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_pin());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let adds = kill_adds(h1, |_| Call::new(h1, "c1", 0));
    starts_pinned(h2, "after every ADD of h1 was killed");
    let dels = kill_dels(h1, || Call::new(h1, "c1", 0));
    starts_pinned(h2, "after every DEL of h1 was killed");
    println!("ADD killed {adds} times, DEL {dels} times");
    assert!(adds > 15 && dels > 9, "{adds} {dels}");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn an_agent_killed_at_any_of_its_calls_gives_no_pinned_address_twice_and_loses_none() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_pin());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    let mut kills = 0;
    for calls in
        ["sendto,sendmsg", "write,writev,?rename,renameat", "?unlink,unlinkat,fsync,openat"]
    {
        let (before, mut has_lost) = (kills, false);
        for at in 1..12 {
            let when = format!("agent killed at call {at} of {calls}");
            let [one, other] = [h1, h2].map(|host| Call::new(host, "c1", 0));
            let ((first, second), is_killed) = agent_killed_at(&agents[0], calls, at, || {
                std::thread::scope(|scope| {
                    let second = scope.spawn(|| other.add());
                    (one.add(), second.join().unwrap())
                })
            });
            assert_apart(&first, &second, &when);
            if at % 2 == 0 {
                one.delete(&when);
            }
            if is_killed {
                kills += 1;
                agents[0] = Agent::start(h1, SOON_GIVEN_BACK);
                agents[0].wait_ready();
            }
            one.delete(&when);
            other.delete(&when);
            if at % 3 == 0 {
                starts_pinned(if at % 2 == 0 { h1 } else { h2 }, &when);
            }
            assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
            // An agent whose host gets the address makes all of its calls; one whose host does not may make few.
            if !is_killed && (first.is_ok() || has_lost) {
                break;
            }
            has_lost = !is_killed;
        }
        assert!(kills > before, "no agent was killed at {calls}");
    }
    println!("agent killed {kills} times");
    starts_pinned(h1, "after all");
    starts_pinned(h2, "after all");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_host_without_power_keeps_a_pinned_address_until_it_is_back() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &with_pin());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    let runs = Call::new(h1, "c1", 0);
    assert_eq!(eventually("the pod", SOON, || runs.add()).to_string(), PINNED);
    h1.power_off();
    let refused = Call::new(h2, "c1", 0).add().unwrap_err();
    assert!(refused.contains("host h1 has 10.40.0.10"), "{refused}");
    drop(agents.remove(0));
    cluster.reboot(h1);
    // As it expires.
    cluster.etcd.delete("/humanz/v1/alive/h1");
    let agent = Agent::start(h1, SOON_GIVEN_BACK);
    agent.wait_ready();
    starts_pinned(h2, "after the other host started again without it");
    wait_for_no_blocks(&cluster);
    agents.iter().chain([&agent]).for_each(Agent::stop);
}
