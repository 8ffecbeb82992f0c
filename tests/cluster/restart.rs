//! The agent is killed or the host reboots: the network stays as it was.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::pod::host_port;
use crate::support::wait::SOON;
use crate::support::web::Web;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts};
use crate::{DUAL_STACK, TUNNELS};

#[test]
fn pods_keep_running_while_the_agent_is_killed_and_restarted() {
    outlives_its_agent(DUAL_STACK);
}

#[test]
fn tunnels_stay_when_the_agent_is_killed() {
    outlives_its_agent(TUNNELS);
}

fn outlives_its_agent(variables: &[(&str, &str)]) {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(variables);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let before = state(host, 2);
    let pinger = Pinger::start(&far, near.v4());

    agents[0].kill();
    let meanwhile = Pod::add(host, "b");
    meanwhile.run(&format!("ping -n -c 1 -W 3 {}", far.v6())).ok();
    near.check().unwrap_or_else(|e| panic!("CHECK without an agent: {e}"));

    let agent = Agent::start(host, variables);
    println!("restarted agent: ready after {:?}", agent.wait_ready());
    assert_eq!(state(host, 2), before);
    let changes = agent.log().lines().filter(|line| touches_the_kernel(line)).count();
    assert_eq!(changes, 0, "there was nothing to do:\n{}", agent.log());
    meanwhile.delete();
    near.delete();
    let report = pinger.report();
    println!("{report} (the last ones after the pod was deleted)");
}

#[test]
fn a_stopped_agent_leaves_the_data_path() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(DUAL_STACK);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let before = state(host, 2);
    let pinger = Pinger::start(&near, far.v4());
    for agent in &agents {
        agent.stop();
    }
    assert_eq!(state(host, 2), before);
    let pod = Pod::add(host, "b");
    pod.run(&format!("ping -n -c 1 -W 3 {}", far.v4())).ok();
    pinger.report().assert_nothing_lost();
}

#[test]
fn a_host_that_boots_without_etcd_has_the_network_it_had() {
    boots_without_etcd(DUAL_STACK);
}

#[test]
fn a_host_that_boots_without_etcd_has_the_tunnels_it_had() {
    boots_without_etcd(TUNNELS);
}

fn boots_without_etcd(variables: &[(&str, &str)]) {
    let cluster = Cluster::new(2);
    let mut agents = cluster.start_agents(variables);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let far = Pod::add(other, "a");
    let before = state(host, 2);
    let lease = cluster.etcd.get("/humanz/hosts/h1");
    // The agent saves its state a moment after it has applied it.
    eventually("the other host is in the saved state", SOON, || {
        let saved = host.read("/var/lib/humanz/state.json").unwrap_or_default();
        if saved.contains("192.0.2.12") { Ok(()) } else { Err(saved) }
    });

    cluster.etcd.kill();
    agents.remove(0).kill();
    cluster.reboot(host);
    let agent = Agent::start(host, variables);
    println!("boot without etcd: ready after {:?}", agent.wait_ready());
    assert_eq!(state(host, 2), before);
    let pod = Pod::add(host, "b");
    for address in far.addresses() {
        pod.run(&format!("ping -n -c 1 -W 3 {address}")).ok();
    }
    let web = Web::serve(&pod, pod.v4());
    other.run(&Web::line(SocketAddr::new(host.v4().into(), host_port("b")))).ok();
    drop(web);

    cluster.etcd.restart();
    eventually("the host is alive in etcd", Duration::from_secs(60), || {
        let found = cluster.etcd.get("/humanz/v1/alive/h1");
        found.map(drop).ok_or_else(|| agent.log())
    });
    assert_eq!(cluster.etcd.get("/humanz/hosts/h1"), lease);
    assert_eq!(state(host, 2), before);
    assert!(agent.process.ended().is_none(), "{}", agent.log());
}

/// Bridge addresses and routes, once there are that many routes.
fn state(host: &Node, routes: usize) -> (Vec<String>, Vec<(String, String)>) {
    let found = eventually(&format!("{} has {routes} routes", host.name()), SOON, || {
        let found = facts::routes(host);
        if found.len() == routes { Ok(found) } else { Err(format!("{found:?}")) }
    });
    (facts::addresses(host, "humanz0"), found.into_iter().collect())
}

/// A log line of the agent that reports a change to links, addresses, routes or rules.
fn touches_the_kernel(line: &str) -> bool {
    let things = ["route ", "bridge ", "address ", "link ", "table "];
    let deeds = [" added", " removed", " replaced", " changed", " set"];
    let contains = |words: &[&str]| words.iter().any(|word| line.contains(word));
    line.contains("INFO") && contains(&things) && contains(&deeds)
}

#[test]
fn a_host_that_gets_another_name_keeps_its_subnet_while_its_pods_run() {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(&[]);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let pinger = Pinger::start(&far, near.v4());
    host.run("hostname renamed").ok();
    agents[0].stop();
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    near.run(&format!("ping -n -c 2 -W 3 {}", far.v4())).ok();
    pinger.report().assert_nothing_lost();
    agent.wait_log(&["the host name is renamed now", "goes on as h1", "NODE_NAME=h1"]);
    let ended = Agent::run(host, "doctor", &[]);
    assert!(ended.succeeded(), "doctor knows this host by the same name: {ended}");
    assert!(Agent::run(host, "nodes ls", &[]).ok().contains("h1*"));
    near.delete();
    agent.stop();
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    assert!(Agent::run(host, "nodes ls", &[]).stdout.contains("renamed*"));
    eventually("its former name is known as one", SOON, || {
        let found = Agent::run(host, "doctor", &[]).stdout;
        let is_known = found.contains("h1 has the machine id and the address of this host");
        if is_known { Ok(()) } else { Err(found) }
    });
    Agent::run(host, "nodes rm h1", &[]).ok();
    // The agent learns of it from etcd.
    eventually("nothing is left of the former name", SOON, || {
        let ended = Agent::run(host, "doctor", &[]);
        if ended.succeeded() { Ok(()) } else { Err(ended.to_string()) }
    });
}

/// Its state was lost, and its record removed: status said that nothing is wrong.
#[test]
fn pods_that_are_left_without_a_gateway_by_another_subnet_are_reported() {
    let cluster = Cluster::new(2);
    let [host, other] = [&cluster.hosts[0], &cluster.hosts[1]];
    let mut agents = cluster.start_agents(&[]);
    let (web, leaked) = (Pod::add(host, "web"), Pod::add(host, "leaked"));
    host.run("ip netns del leaked").ok();
    agents.remove(0).stop();
    let former = format!("{}.0/24", web.v4().to_string().rsplit_once('.').unwrap().0);
    Agent::run(other, &format!("nodes rm {}", host.name()), &[]).ok();
    Agent::run(other, &format!("nodes reserve h9 {former}"), &[]).ok();
    host.run("rm -r /var/lib/humanz").ok();
    let why = format!("no gateway: {}", web.v4());
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    for command in ["status", "doctor", "--dry-run"] {
        let said = Agent::run(host, command, &[]).stdout;
        assert!(said.contains(&why) && said.contains("ipam ls # lists them: start them"), "{said}");
        assert!(!said.contains(&format!("{why} and")), "{said}");
    }
    web.delete();
    drop(leaked);
    agent.stop();
    let agent = Agent::start(host, &[]);
    agent.wait_ready();
    assert!(!Agent::run(host, "status", &[]).stdout.contains("no gateway"));
    agent.stop();
}
