//! Many hosts request a subnet at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::support::{Agent, Cluster, eventually, facts};

const HOSTS: &str = "/humanz/hosts/";

/// Namespaces share the kernel's table of 1024 neighbours: fifty hosts that probe each other fill it.
const QUIET: (&str, &str) = ("PROBE_INTERVAL", "0");

#[test]
fn fifty_hosts_that_start_at_once_get_fifty_subnets() {
    let cluster = Cluster::new(50);
    let start = Instant::now();
    let agents = cluster.start_agents(&[QUIET]);
    println!("50 agents on an empty etcd: all ready after {:?}", start.elapsed());
    let leases = cluster.etcd.list(HOSTS);
    assert_eq!(leases.len(), 50, "{leases:?}");
    distinct_and_not_slot_0(&leases);
    let claims = cluster.etcd.list("/humanz/v1/subnets/4/");
    let claimed = claims.into_iter().map(|(key, host)| {
        let subnet = key.rsplit('/').next().unwrap().replace('-', "/");
        (format!("{HOSTS}{host}"), subnet)
    });
    assert_eq!(claimed.collect::<BTreeSet<_>>(), leases.iter().cloned().collect());
    for (key, subnet) in &leases {
        let host = cluster.hosts.iter().find(|host| *key == format!("{HOSTS}{}", host.name()));
        let gateway = subnet.replace(".0/", ".1/");
        assert_eq!(facts::addresses(host.unwrap(), "humanz0"), [gateway], "{key}");
    }
    for host in &cluster.hosts {
        eventually(&format!("{} has all routes", host.name()), Duration::from_secs(30), || {
            let routes = facts::routes(host).len();
            if routes == 49 { Ok(()) } else { Err(format!("{routes} routes")) }
        });
    }
    println!("every host has 49 routes after {:?}", start.elapsed());
    drop(agents);
}

#[test]
fn hosts_of_the_python_agent_and_ours_never_share_a_subnet() {
    let cluster = Cluster::new(12);
    let agents: Vec<Agent> =
        cluster.hosts.iter().map(|host| Agent::start(host, &[QUIET])).collect();
    for number in 1..=12 {
        join_like_python(&cluster, &format!("py{number}"));
    }
    for agent in &agents {
        agent.wait_ready();
    }
    // A host of ours that finds a Python host on its new subnet takes another one.
    eventually("24 hosts with subnets of their own", Duration::from_secs(30), || {
        let leases = cluster.etcd.list(HOSTS);
        let subnets: BTreeSet<_> = leases.iter().map(|(_, subnet)| subnet).collect();
        if subnets.len() == 24 { Ok(()) } else { Err(format!("{leases:#?}")) }
    });
    distinct_and_not_slot_0(&cluster.etcd.list(HOSTS));
}

#[test]
fn a_start_does_what_the_dry_run_printed_for_a_number_of_two_python_hosts() {
    let cluster = Cluster::new(2);
    let ours = "10.244.9.0/24";
    for host in ["h1", "h2"] {
        cluster.etcd.put(&format!("{HOSTS}{host}"), ours);
    }
    for (host, kept) in cluster.hosts.iter().zip([true, false]) {
        let output = Agent::run(host, "--dry-run", &[QUIET]).ok();
        assert_eq!(output.contains(&format!("~ etcd keys of host {} ({ours})", host.name())), kept);
        assert_eq!(output.contains("+ lease of a free subnet"), !kept, "{output}");
    }
    for (host, kept) in cluster.hosts.iter().zip([true, false]) {
        let agent = Agent::start(host, &[QUIET]);
        agent.wait_ready();
        let key = cluster.etcd.get(&format!("{HOSTS}{}", host.name())).unwrap();
        assert_eq!(key == ours, kept, "{} has {key}", host.name());
    }
}

#[test]
fn a_pool_of_sixteen_serves_fifteen_hosts_and_refuses_the_others() {
    let cluster = Cluster::new(20);
    let variables = [("IP_SUBNET_MARGIN", "4"), QUIET];
    let agents: Vec<Agent> =
        cluster.hosts.iter().map(|host| Agent::start(host, &variables)).collect();
    let refused = eventually("5 agents have ended", Duration::from_secs(60), || {
        let refused: Vec<_> = agents.iter().filter(|a| a.process.ended().is_some()).collect();
        if refused.len() == 5 { Ok(refused) } else { Err(format!("{}", refused.len())) }
    });
    for agent in &agents {
        match agent.process.ended() {
            None => drop(agent.wait_ready()),
            Some(status) => assert_eq!(status.code(), Some(75), "{}", agent.log()),
        }
    }
    println!("error of the refused host: {}", refused[0].log().trim());
    for agent in refused {
        let log = agent.log();
        for word in ["10.244.0.0/16", "15"] {
            assert!(log.contains(word), "{}: {word} in {log}", agent.host.name());
        }
    }
    let leases = cluster.etcd.list(HOSTS);
    assert_eq!(leases.len(), 15, "{leases:?}");
    distinct_and_not_slot_0(&leases);
}

/// As the Python agent does it: counter put, counter read, and the slot of that number taken,
/// without looking whose it is.
fn join_like_python(cluster: &Cluster, name: &str) {
    cluster.etcd.put("/humanz/counter", "");
    let slot = cluster.etcd.version("/humanz/counter");
    cluster.etcd.create(&format!("{HOSTS}{name}"), &format!("10.244.{slot}.0/24"));
}

fn distinct_and_not_slot_0(leases: &[(String, String)]) {
    let subnets: BTreeSet<_> = leases.iter().map(|(_, subnet)| subnet.as_str()).collect();
    assert_eq!(subnets.len(), leases.len(), "{leases:#?}");
    assert!(!subnets.iter().any(|subnet| subnet.starts_with("10.244.0.0/")), "{leases:#?}");
}
