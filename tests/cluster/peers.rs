//! Hosts are added, removed and moved: the others follow at once.

use std::time::{Duration, Instant};

use crate::support::wait::SOON;
use crate::support::watch::Watch;
use crate::support::{Agent, Cluster, Place, eventually, facts};

/// Far above what is printed, which the bench holds against its target; far below the full pass
/// (60 s), so that only an event can be the reason.
const LIMIT: Duration = Duration::from_secs(5);
/// A busy machine may spoil some.
const ROUNDS: usize = 9;

#[test]
fn a_change_of_a_host_changes_the_route_at_once() {
    let cluster = Cluster::new(2);
    let _agents = cluster.start_agents(&[]);
    let host = &cluster.hosts[0];
    let watch = Watch::links(host);
    let (node, lease) = ("/humanz/v1/nodes/new", "/humanz/hosts/new");
    let (mut join, mut move_, mut leave) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        cluster.etcd.put(node, record("192.0.2.77"));
        let event = cluster.etcd.put(lease, "10.244.200.0/24");
        join.push(watch.after(event, &["10.244.200.0/24 via 192.0.2.77"]));
        let event = cluster.etcd.put(node, record("192.0.2.78"));
        move_.push(watch.after(event, &["10.244.200.0/24 via 192.0.2.78"]));
        let event = cluster.etcd.delete(lease);
        leave.push(watch.after(event, &["Deleted", "10.244.200.0/24"]));
        cluster.etcd.delete(node);
    }
    for (what, times) in [("joins", join), ("changes its address", move_), ("leaves", leave)] {
        let median = median(&times);
        println!("a host {what} → route: median {median:?} of {times:?}");
        assert!(median < LIMIT, "{what}: {median:?}");
    }
}

#[test]
fn a_host_of_the_python_agent_gets_a_route_by_its_name() {
    let cluster = Cluster::new(1);
    let agent = Agent::start(&cluster.hosts[0], &[]);
    agent.wait_ready();
    let host = &cluster.hosts[0];
    let hosts = host.read("/etc/hosts").unwrap();
    host.write("/etc/hosts", &format!("{hosts}192.0.2.77 py1\n"));
    let watch = Watch::links(host);
    cluster.etcd.put("/humanz/hosts/nowhere", "10.244.99.0/24");
    let event = cluster.etcd.put("/humanz/hosts/py1", "10.244.98.0/24");
    let took = watch.after(event, &["10.244.98.0/24 via 192.0.2.77"]);
    println!("a Python host joins → route: {took:?}");
    agent.wait_log(&["the name nowhere does not resolve"]);
    // While its name was looked up nothing was wrong.
    assert!(!agent.log().contains("pods of host py1"), "{}", agent.log());
    let event = cluster.etcd.delete("/humanz/hosts/py1");
    let took = watch.after(event, &["Deleted", "10.244.98.0/24"]);
    println!("a Python host leaves → route: {took:?}");
}

/// The resolved address of a host outlives the agent, whatever happens to the name.
#[test]
fn a_restart_takes_nothing_from_a_host_of_the_python_agent() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let names = host.read("/etc/hosts").unwrap();
    host.write("/etc/hosts", &format!("{names}192.0.2.77 py1\n"));
    cluster.etcd.put("/humanz/hosts/nowhere", "10.244.99.0/24");
    cluster.etcd.put("/humanz/hosts/py1", "10.244.98.0/24");
    let agent = Agent::start(host, &[]);
    has_route(&cluster, "10.244.98.0/24", "192.0.2.77");
    eventually("its address is saved", SOON, || {
        let saved = host.read("/var/lib/humanz/state.json").unwrap_or_default();
        if saved.contains("192.0.2.77") { Ok(()) } else { Err(saved) }
    });
    agent.kill();

    host.write("/etc/hosts", &names);
    let watch = Watch::links(host);
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    agent.wait_log(&["nowhere"]);
    agent.stop();
    let once = Agent::run(host, "--once", &[]);
    assert!(once.succeeded(), "{once}");
    let planned = Agent::run(host, "--dry-run", &[]);
    assert!(!planned.stdout.contains("192.0.2.77"), "{planned}");
    assert!(!watch.log().contains("10.244.98.0/24"), "{}", watch.log());
    let listed = host.run("nft list set inet humanz nodes4").ok();
    assert!(listed.contains("192.0.2.77"), "{listed}");

    // Without what was saved the route says it.
    host.run("rm /var/lib/humanz/state.json").ok();
    let watch = Watch::links(host);
    let once = Agent::run(host, "--once", &[]);
    assert!(once.succeeded(), "{once}");
    assert!(!watch.log().contains("10.244.98.0/24"), "{}", watch.log());

    // Once its name is known again, and another one.
    host.write("/etc/hosts", &format!("{names}192.0.2.78 py1\n"));
    let once = Agent::run(host, "--once", &[]);
    assert!(once.succeeded(), "{once}");
    has_route(&cluster, "10.244.98.0/24", "192.0.2.78");
}

#[test]
fn a_host_with_a_new_address_keeps_its_subnet_and_stays_reachable() {
    let cluster = Cluster::new(3);
    let mut agents = cluster.start_agents(&[]);
    let moved = &cluster.hosts[2];
    let lease = "/humanz/hosts/h3";
    let subnet = cluster.etcd.get(lease).unwrap();
    has_route(&cluster, &subnet, "192.0.2.13");

    // Another address while the agent runs …
    moved.write("/proc/sys/net/ipv4/conf/eth0/promote_secondaries", "1");
    moved.run("ip address add 192.0.2.113/24 dev eth0").ok();
    moved.run("ip address del 192.0.2.13/24 dev eth0").ok();
    moved.run("ip route replace default via 192.0.2.1").ok();
    has_route(&cluster, &subnet, "192.0.2.113");

    // … and one from its settings at its next start.
    agents.pop().unwrap().stop();
    moved.run("ip address add 192.0.2.213/24 dev eth0").ok();
    let agent = Agent::start(moved, &[("NODE_IP", "192.0.2.213")]);
    agent.wait_ready();
    has_route(&cluster, &subnet, "192.0.2.213");
    assert_eq!(cluster.etcd.get(lease), Some(subnet));
}

#[test]
fn a_joining_host_has_a_route_as_soon_as_it_is_ready() {
    let cluster = Cluster::new(2);
    let first = Agent::start(&cluster.hosts[0], &[]);
    first.wait_ready();
    let watch = Watch::links(&cluster.hosts[0]);
    let start = Instant::now();
    let second = Agent::start(&cluster.hosts[1], &[]);
    let route = watch.after(start, &["via 192.0.2.12 dev eth0 proto 104"]);
    let ready = second.wait_ready();
    println!("start of an agent → READY {ready:?}, its route on the other host {route:?}");
}

/// Routes of a wide pool differ by their scope, for the kernel's sake; everything else is
/// as ever, and a route of the time before that is as good.
#[test]
fn a_host_at_the_end_of_a_wide_pool_has_routes_like_any_other() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let agent = Agent::start(host, &[("IP_SUBNET", "11.0.0.0/8"), ("IP_SUBNET_MARGIN", "16")]);
    agent.wait_ready();
    let (node, lease, subnet) = ("/humanz/v1/nodes/new", "/humanz/hosts/new", "11.39.7.0/24");
    let join = |address: &str| {
        cluster.etcd.put(node, record(address).replace("10.244.200.0/24", subnet));
        cluster.etcd.put(lease, subnet);
        has_route(&cluster, subnet, address);
    };
    let is_gone = || {
        cluster.etcd.delete(lease);
        eventually("the route is gone", Duration::from_secs(30), || match facts::routes(host) {
            routes if routes.contains_key(subnet) => Err(format!("{routes:?}")),
            _ => Ok(()),
        });
    };
    join("192.0.2.77");
    let shown = host.run(&format!("ip route show {subnet}")).ok();
    assert!(shown.contains("scope 39"), "{shown}");
    join("192.0.2.78");
    host.run(&format!("ip route del {subnet}")).ok();
    has_route(&cluster, subnet, "192.0.2.78");
    is_gone();

    let foreign = format!("ip route add {subnet} via 192.0.2.99");
    host.run(&foreign).ok();
    cluster.etcd.put(lease, subnet);
    agent.wait_log(&["add route 11.39.7.0/24 via 192.0.2.78", "File exists"]);
    host.run(&format!("ip route del {subnet}")).ok();
    has_route(&cluster, subnet, "192.0.2.78");

    host.run(&format!("ip route del {subnet}")).ok();
    host.run(&format!("ip route replace {subnet} via 192.0.2.78 proto 104 scope global")).ok();
    is_gone();
}

/// Every other host routes `subnet` via `address`.
fn has_route(cluster: &Cluster, subnet: &str, address: &str) {
    for host in cluster.hosts.iter().take(2) {
        let what = format!("{}: {subnet} via {address}", host.name());
        eventually(&what, Duration::from_secs(20), || {
            let routes = facts::routes(host);
            let found = routes.get(subnet).is_some_and(|via| via == address);
            if found { Ok(()) } else { Err(format!("{routes:?}")) }
        });
    }
}

/// A node record with these addresses, as docs and seeds of other versions write it.
fn record(address: &str) -> String {
    format!(
        r#"{{"schema":1,"machineId":"0123456789abcdef0123456789abcdef","bootId":"b",
        "version":"0.1.0","subnets":["10.244.200.0/24"],"addresses":["{address}"],
        "backend":"direct","mtu":1500}}"#
    )
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

/// It may still come after a start, which is therefore not refused; until then the other hosts lose what they send.
#[test]
fn a_node_ip_that_no_interface_has_is_a_problem_until_one_has_it() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let settings = [("NODE_IP", "192.0.2.99"), ("RESYNC_INTERVAL", "2s")];
    let preview = Agent::run(host, "--dry-run", &settings);
    let problem = "NODE_IP=192.0.2.99: no interface of this host has this address";
    assert!(preview.stdout.contains(&format!("! {problem}")), "{preview}");
    let checked = Agent::run(host, "check-config", &settings);
    assert!(checked.succeeded() && checked.stderr.contains(problem), "{checked}");
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    agent.wait_log(&["ERROR", problem]);
    assert!(Agent::run(host, "status", &[]).stdout.contains(problem));
    host.run("ip address add 192.0.2.99/24 dev eth0").ok();
    agent.wait_log(&["no longer", problem]);
}
