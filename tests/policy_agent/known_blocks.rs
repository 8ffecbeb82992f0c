//! What a host says and does about blocks of others, at its agent's start and right after one was taken.

use crate::etcd::{FROM_ETCD, apply};
use crate::support::node::command;
use crate::support::{Agent, Cluster, Node, Place, facts, soon};
use crate::tenants::{add, reaches, two_tenants};

/// Without an agent's answer the networks are known by what it wrote, up to a second later.
fn knows_networks_on_disk(host: &Node) {
    let kept =
        || host.read("/var/lib/humanz/policy.json").is_some_and(|text| text.contains("10.32."));
    soon("the networks on disk", kept);
}

/// The agent of before had no pools for some milliseconds: of five starts one or two took the others' blocks out of the
/// kernel and put them back.
#[test]
fn a_restart_changes_nothing_of_the_blocks_of_other_hosts() {
    let cluster = Cluster::routed(1, 1);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    let pods = [(h1, "blue/a"), (h2, "blue/b"), (h1, "red/a"), (h2, "red/b")];
    let [blue1, blue2, red1, red2] = pods.map(|(host, pod)| add(host, pod));
    soon("both tenants", || reaches(&blue2, &blue1) && reaches(&red2, &red1));
    knows_networks_on_disk(h2);
    let changes = Agent::run(h2, "--dry-run", FROM_ETCD).ok();
    assert!(!changes.contains("tunnel"), "{changes}");
    let monitor = h2.spawn(&mut command("ip monitor neigh route"));
    agents[1].stop();
    for start in 0..8 {
        let agent = Agent::start(h2, FROM_ETCD);
        agent.wait_ready();
        let both = || reaches(&blue2, &blue1) && reaches(&red2, &red1);
        soon(&format!("both tenants after start {start}"), both);
        agent.stop();
        let log = agent.log();
        assert!(!log.contains("ERROR"), "start {start}:\n{log}");
    }
    let log = monitor.log();
    let lost = log.lines().find(|line| line.starts_with("Deleted") && line.contains("humanz-vx"));
    assert_eq!(lost, None, "{log}");
    agents[0].stop();
}

#[test]
fn a_new_block_of_another_host_is_known_at_once() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &two_tenants());
    let agents = cluster.start_agents(FROM_ETCD);
    knows_networks_on_disk(h2);
    let blue1 = add(h1, "blue/a");
    let (to, is_way) = (blue1.v4(), |to: &str| to.starts_with("10.32."));
    soon("the route to it", || facts::routes(h2).keys().any(|to| is_way(to)));
    let routes = Agent::run(h2, "routes", FROM_ETCD).ok();
    assert!(!routes.contains("stale") && routes.contains("10.32."), "{routes}");
    let blue2 = add(h2, "blue/b");
    let explained = Agent::run(h2, &format!("explain blue/b {to}"), FROM_ETCD);
    assert!(explained.stdout.contains("h1"), "{}{}", explained.stdout, explained.stderr);
    soon("the pod", || reaches(&blue2, &blue1));
    agents.iter().for_each(Agent::stop);
}

/// An agent that was killed before a change of policies was on disk knew no network at its start, and took all of them
/// out of the host's tables: a pod that reached a shared network before etcd was read did so by the address of its node,
/// for as long as the connection lasted.
#[test]
fn networks_stay_where_an_agent_was_killed_before_a_change_was_on_disk() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &two_tenants());
    let agent = Agent::start(host, FROM_ETCD);
    agent.wait_ready();
    let _blue = add(host, "blue/a");
    let folder = "/var/lib/humanz";
    soon("what holds is kept", || host.list(folder).contains(&"policy.json".to_owned()));
    agent.kill();
    cluster.etcd.kill();
    host.run(&format!("mv {folder}/policy.json {folder}/policy.json.outdated")).ok();
    // Its return shows that the agent has compared the kernel with what it knows.
    host.run("nft delete table inet humanz").ok();
    let agent = Agent::start(host, FROM_ETCD);
    let table = || host.run("nft list table inet humanz").stdout;
    soon("the table", || table().contains("masquerade"));
    let found = table();
    for wanted in ["10.32.0.0", "fd00:32::/64", "ip saddr 10.32."] {
        assert!(found.contains(wanted), "no {wanted}: {found}");
    }
    agent.kill();
}
