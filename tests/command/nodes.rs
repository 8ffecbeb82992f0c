//! The subcommand `nodes`.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Agent, Cluster, Node, Place, eventually};
use crate::{object, refused, run, shape};

const POOLS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48")];

/// The words of the row of a host.
fn row(text: &str, name: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut rows = text.lines().map(words);
    rows.find(|row| row.first().is_some_and(|first| first.trim_end_matches('*') == name))
        .unwrap_or_else(|| panic!("no row of {name} in:\n{text}"))
}

/// Waits until no agent of that host shows itself in etcd.
fn wait_silent(cluster: &Cluster, host: &str) {
    eventually("the liveness key is deleted", Duration::from_secs(60), || {
        match cluster.etcd.get(&format!("/humanz/v1/alive/{host}")) {
            None => Ok(()),
            Some(alive) => Err(alive),
        }
    });
}

#[test]
fn hosts_are_listed_from_etcd_and_from_the_saved_state() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(POOLS);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    cluster.etcd.put("/humanz/hosts/py1", "10.244.77.0/24");
    cluster.etcd.put("/humanz/hosts/bad", "nonsense\x1b[2J");
    agents[1].stop();

    let listed = run(h1, "nodes ls", POOLS);
    assert_eq!(listed.status.code(), Some(1), "a key is broken: {listed}");
    let subnets = row(&listed.stdout, "h1")[2].clone();
    assert!(subnets.starts_with("10.244.") && subnets.contains(",fd10:"), "{listed}");
    assert_eq!(row(&listed.stdout, "h1")[..2], ["h1*", "alive"], "{listed}");
    assert_eq!(row(&listed.stdout, "h1")[3], format!("{},{}", h1.v4(), h1.v6()));
    assert_eq!(row(&listed.stdout, "h2")[..2], ["h2", "silent"], "{listed}");
    assert_eq!(row(&listed.stdout, "py1")[..3], ["py1", "python", "10.244.77.0/24"], "{listed}");
    assert!(listed.stdout.contains("! etcd key \"/humanz/hosts/bad\""), "{listed}");
    assert!(!listed.stdout.contains('\x1b'), "{listed}");
    cluster.etcd.delete("/humanz/hosts/bad");
    run(h1, "nodes ls", POOLS).ok();

    // A host without a state of its own reads etcd as well, and knows nothing without.
    eventually("h1 has saved what it knows", Duration::from_secs(30), || {
        let state = h1.read("/var/lib/humanz/state.json").unwrap_or_default();
        if state.contains("py1") { Ok(()) } else { Err(state) }
    });
    cluster.etcd.kill();
    let away = [("IPV6_SUBNET", "fd10::/48"), ("ETCD_TIMEOUT", "1s")];
    let known = run(h1, "nodes ls", &away);
    assert_eq!(known.status.code(), Some(1), "{known}");
    assert_eq!(row(&known.stdout, "h2")[..2], ["h2", "unknown"], "{known}");
    assert!(known.stdout.contains("! etcd does not answer: "), "{known}");
    assert!(known.stdout.contains("last known good state of "), "{known}");
    let value = object(&run(h1, "nodes ls --json", &away));
    assert_eq!(value["origin"]["from"], "state", "{value:#}");
    h2.shell("rm /var/lib/humanz/state.json").ok();
    refused(&run(h2, "nodes ls", &away), 69, &["192.0.2.2:2379", "there is no last known good"]);
    h2.write("/var/lib/humanz/state.json", "{\"schema\":1");
    refused(&run(h2, "nodes ls", &away), 69, &["state.json: it is no state"]);
    assert!(
        h2.read("/var/lib/humanz/state.json").is_some(),
        "a read-only command quarantines nothing"
    );
}

#[test]
fn a_host_is_shown_with_its_keys() {
    let cluster = Cluster::new(1);
    let _agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let shown = run(host, "nodes show h1", POOLS).ok();
    for words in ["alive since 20", "/humanz/v1/nodes/h1 (revision ", "/humanz/v1/subnets/6/"] {
        assert!(shown.contains(words), "{words} is not in:\n{shown}");
    }
    refused(&run(host, "nodes show h2", POOLS), 1, &["no host h2 is known; did you mean h1?"]);
    refused(&run(host, "nodes show a/b", POOLS), 2, &["\"a/b\""]);
    refused(&run(host, "nodes show", POOLS), 2, &["host", "nodes show --help"]);
    refused(&run(host, "nodes", POOLS), 2, &["ls", "nodes --help"]);
    refused(
        &run(host, "nodes lss", POOLS),
        2,
        &["unknown subcommand \"lss\" of nodes; did you mean ls?"],
    );
    let alone = [("SUBNET_SOURCE", "static")];
    refused(&run(host, "nodes ls", &alone), 2, &["serves itself alone"]);
}

#[test]
fn nodes_have_these_json_schemas() {
    let cluster = Cluster::new(1);
    let _agents = cluster.start_agents(POOLS);
    let host = &cluster.hosts[0];
    let value = object(&run(host, "nodes ls --json", POOLS));
    let node = "nodes[].addresses: list\nnodes[].addresses[]: string\nnodes[].backend: string\n\
                nodes[].encrypts: bool\nnodes[].machine_id: string\nnodes[].mtu: number\nnodes[].name: string\n\
                nodes[].since: string\nnodes[].state: string\nnodes[].subnets: list\n\
                nodes[].subnets[]: string\nnodes[].this_host: bool\n\
                nodes[].tunnel.port: number\nnodes[].tunnel.vni: number\nnodes[].version: string\n";
    let origin = "origin.age_seconds: number\norigin.error: null\norigin.from: string\n";
    let wanted = format!("faults: list\nnodes: list\n{node}{origin}schema: number");
    assert_eq!(shape(&value), wanted);

    let value = object(&run(host, "nodes show h1 --json", POOLS));
    let mut lines: Vec<String> =
        node.replace("nodes[]", "node").trim().lines().map(str::to_owned).collect();
    lines.extend(origin.trim().lines().map(str::to_owned));
    lines.extend(
        [
            "node.boot_id: string",
            "node.keys: list",
            "node.keys[].key: string",
            "node.keys[].revision: number",
            "node.tunnel.mac: string",
            "node.wireguard: null",
            "schema: number",
        ]
        .map(str::to_owned),
    );
    lines.sort();
    assert_eq!(shape(&value), lines.join("\n"));

    let value = object(&run(host, "nodes reserve h7 --json", POOLS));
    assert_eq!(shape(&value), "host: string\nschema: number\nsubnets: list\nsubnets[]: string");
    let value = object(&run(host, "nodes rm h7 --json", POOLS));
    assert_eq!(
        shape(&value),
        "host: string\nin_the_way: list\nkeys: list\nkeys[]: string\nremoved: bool\nschema: number"
    );
}

#[test]
fn a_stopped_host_is_removed_and_a_live_one_is_not() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(POOLS);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    cluster.etcd.put("/humanz/hosts/py1", "10.244.77.0/24");
    let everything = || cluster.etcd.list("/humanz/");
    let before = everything();
    refused(&run(h1, "nodes rm h2", POOLS), 1, &["host h2 is alive", "--release", "--force"]);
    refused(&run(h1, "nodes rm py1", POOLS), 1, &["Python agent", "--force"]);
    refused(&run(h1, "nodes rm h3", POOLS), 1, &["no host h3 is known"]);
    a_dry_run_prints_what_would_be_refused(h1);
    assert_eq!(everything(), before);

    agents[1].kill();
    h2.shell("rm -r /var/lib/humanz").ok();
    wait_silent(&cluster, "h2");
    // What it published of groups: more than one transaction deletes.
    let groups: Vec<_> = (0..120).map(|group| format!("0a{group}")).collect();
    for group in &groups {
        for host in ["h1", "h2"] {
            cluster.etcd.put(&format!("/humanz/v1-members/{host}/{group}"), "{}");
            cluster.etcd.put(&format!("/humanz/v1-groups/{group}/{host}"), "1");
        }
    }
    let planned = run(h1, "nodes rm h2 --dry-run", POOLS).ok();
    assert!(planned.contains("- etcd key /humanz/v1-members/h2/0a7\n"), "{planned}");
    assert!(planned.contains("host h2 would be removed from etcd"), "{planned}");
    assert!(!planned.contains('!'), "{planned}");
    let removed = run(h1, "nodes rm h2", POOLS).ok();
    let lines = removed.lines().count();
    assert_eq!(lines, 5 + 2 * groups.len(), "two claims, host and node, groups, a word: {removed}");
    let is_its = |key: &str| key.ends_with("/h2") || key.contains("/h2/");
    assert!(everything().iter().all(|(key, value)| !is_its(key) && value != "h2"));
    for prefix in ["/humanz/v1-members/h1/", "/humanz/v1-groups/"] {
        assert_eq!(cluster.etcd.list(prefix).len(), groups.len(), "of h1 below {prefix}");
    }
    // What was left behind, as by an earlier version.
    cluster.etcd.put("/humanz/v1-members/h2/0a", "{}");
    run(h1, "nodes rm h2", POOLS).ok();
    assert_eq!(cluster.etcd.get("/humanz/v1-members/h2/0a"), None);
    eventually("h1 has no route to it", Duration::from_secs(30), || {
        let routes =
            h1.run("ip route show proto 104").ok() + &h1.run("ip -6 route show proto 104").ok();
        if routes.contains(&h2.v4().to_string()) { Err(routes) } else { Ok(()) }
    });
    run(h1, "nodes rm py1 --force", POOLS).ok();
    assert!(cluster.etcd.get("/humanz/hosts/py1").is_none());
}

/// h2 is alive, and py1 of the Python agent.
fn a_dry_run_prints_what_would_be_refused(h1: &Node) {
    for (host, why) in [("h2", "is alive (its agent runs since"), ("py1", "runs the Python agent")]
    {
        let output = run(h1, &format!("nodes rm {host} --dry-run"), POOLS);
        assert_eq!(output.status.code(), Some(1), "{output}");
        assert!(output.stdout.contains("- etcd key /humanz/"), "{output}");
        assert!(output.stdout.contains(&format!("\n! host {host} {why}")), "{output}");
        assert!(!output.stdout.contains("would be"), "{output}");
        let forced = run(h1, &format!("nodes rm {host} --dry-run --force"), POOLS).ok();
        assert!(forced.contains(&format!("host {host} would be removed from etcd")), "{forced}");
        assert!(!forced.contains('!'), "{forced}");
    }
    let output = run(h1, "nodes rm h2 --dry-run --json", POOLS);
    assert_eq!(output.status.code(), Some(1), "{output}");
    let value: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(value["removed"], false, "{value}");
    assert!(value["in_the_way"][0].as_str().is_some_and(|why| why.contains("is alive")), "{value}");
}

#[test]
fn a_reserved_subnet_is_leased_only_by_its_host() {
    let cluster = Cluster::new(3);
    let [h1, h2, h3] = &cluster.hosts[..] else { unreachable!() };
    refused(&run(h1, "nodes reserve h2", POOLS), 1, &["no network of humanz", "/humanz/v1/config"]);
    cluster.etcd.put("/humanz/hosts/h5", "10.244.5.0/24");
    let new = "nodes reserve --new-network h2";
    refused(&run(h1, new, POOLS), 1, &["no new network"]);
    cluster.etcd.delete("/humanz/hosts/h5");
    let first = Agent::start(h1, POOLS);
    first.wait_ready();
    let output = run(h1, "nodes reserve h2 10.244.99.0/24,fd10:0:0:99::/64", POOLS).ok();
    assert!(output.contains("10.244.99.0/24 and fd10:0:0:99::/64 is kept for host h2"), "{output}");
    refused(
        &run(h1, "nodes reserve h2", POOLS),
        1,
        &["host h2 has 10.244.99.0/24 and fd10:0:0:99::/64 already"],
    );
    refused(
        &run(h1, "nodes reserve h9 10.244.99.0/24", POOLS),
        1,
        &["10.244.99.0/24 is not available: another host has it"],
    );
    refused(
        &run(h1, "nodes reserve h9 10.9.9.0/24", POOLS),
        1,
        &["10.9.9.0/24 is not available: it is no part of the pool 10.244.0.0/16"],
    );
    refused(&run(h1, "nodes reserve h9 10.244.99.1/24", POOLS), 2, &["10.244.99.1/24"]);
    refused(&run(h1, "nodes reserve h1", POOLS), 1, &["host h1 has "]);
    let listed = run(h1, "nodes ls", POOLS).ok();
    assert_eq!(row(&listed, "h2")[..3], ["h2", "reserved", "10.244.99.0/24,fd10:0:0:99::/64"]);

    let others = [Agent::start(h3, POOLS), Agent::start(h2, POOLS)];
    for agent in &others {
        agent.wait_ready();
    }
    assert_eq!(cluster.etcd.get("/humanz/hosts/h2").as_deref(), Some("10.244.99.0/24"));
    let node = cluster.etcd.get("/humanz/v1/nodes/h2").unwrap();
    assert!(node.contains("fd10:0:0:99::/64"), "{node}");
    assert_ne!(cluster.etcd.get("/humanz/hosts/h3").as_deref(), Some("10.244.99.0/24"));
    assert_eq!(row(&run(h1, "nodes ls", POOLS).ok(), "h2")[1], "alive");
}

#[test]
fn concurrent_reservations_get_different_subnets() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let small = &[("IP_SUBNET", "10.244.0.0/20"), ("IP_SUBNET_MARGIN", "4")];
    let _agent = {
        let agent = Agent::start(host, small);
        agent.wait_ready();
        agent
    };
    let codes: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..16)
            .map(|i| scope.spawn(move || run(host, &format!("nodes reserve r{i}"), small)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let full = codes.iter().filter(|ended| ended.status.code() == Some(75)).count();
    assert_eq!(codes.iter().filter(|ended| ended.succeeded()).count(), 14, "{codes:#?}");
    assert_eq!(full, 2, "15 slots, one of them the host's: {codes:#?}");
    let claims: std::collections::BTreeSet<_> =
        cluster.etcd.list("/humanz/v1/subnets/").into_iter().map(|(_, host)| host).collect();
    assert_eq!(claims.len(), 15, "each claim is another host's: {claims:?}");
}
