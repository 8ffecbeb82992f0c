//! Settings change while pods communicate: by SIGHUP, in etcd, by a new release.

use nix::sys::signal::Signal;

use crate::support::disk::EXECUTABLE;
use crate::support::ping::{addresses, all_reach};
use crate::support::wait::SOON;
use crate::support::web::Web;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts, soon};

/// Without the cluster's etcd in the environment, where it would hide the file's.
const FILE_ALONE: &[(&str, &str)] = &[("ETCD_HOST", "")];

/// Puts this into a host's settings file.
fn configure(host: &Node, settings: &str) {
    host.shell("mkdir -p /etc/humanz").ok();
    host.write(
        "/etc/humanz/agent.env",
        &format!("ETCD_HOST=192.0.2.2\nBACKEND=direct\n{settings}"),
    );
}

fn start(host: &Node, settings: &str) -> Agent {
    configure(host, settings);
    let agent = Agent::start(host, FILE_ALONE);
    agent.wait_ready();
    agent
}

fn lease(cluster: &Cluster, host: &str) -> String {
    cluster.etcd.get(&format!("/humanz/hosts/{host}")).unwrap_or_default()
}

/// The pool grows downward, so that the third host's number lies in what is new.
#[test]
fn a_pool_grows_under_running_pods() {
    const NARROW: &str = "IP_SUBNET=10.244.4.0/22\nIP_SUBNET_MARGIN=2\n\
                          IPV6_SUBNET=fd10:0:0:4::/62\nIPV6_SUBNET_MARGIN=2\n\
                          IP_SUBNET_LIMIT=10.244.0.0/16\nIPV6_SUBNET_LIMIT=fd10::/48\n";
    const WIDE: &str = "IP_SUBNET=10.244.0.0/21\nIP_SUBNET_MARGIN=3\n\
                        IPV6_SUBNET=fd10::/61\nIPV6_SUBNET_MARGIN=3\n\
                        IP_SUBNET_LIMIT=10.244.0.0/16\nIPV6_SUBNET_LIMIT=fd10::/48\n";
    let cluster = Cluster::new(3);
    let [first, second, third] = &cluster.hosts[..] else { panic!("three hosts") };
    let agent = start(first, NARROW);
    let narrow = start(second, NARROW);
    let old = [Pod::add(first, "a"), Pod::add(second, "a")];
    let pingers = [Pinger::start(&old[0], old[1].v4()), Pinger::start(&old[1], old[0].v4())];
    // A link-local address is tentative for its first second.
    let links =
        |pod: &Pod| pod.shell("ip -o address | sed 's/ tentative / /'; ip route; ip -6 route").ok();
    let links_before = old.each_ref().map(links);

    configure(first, WIDE);
    let planned = Agent::run(first, "--dry-run", FILE_ALONE).ok();
    let growth = "~ etcd key /humanz/v1/config: the pools grow to 10.244.0.0/21, fd10::/61";
    assert!(planned.lines().any(|line| line == growth), "{planned}");
    agent.reload();
    agent.wait_log(&["reload:", growth]);
    narrow.wait_log(&["set IPV6_SUBNET=fd10::/61 and IPV6_SUBNET_MARGIN=3"]);
    narrow
        .wait_log(&["grew to 10.244.0.0/21", "set IP_SUBNET=10.244.0.0/21 and IP_SUBNET_MARGIN=3"]);
    let newcomer = start(third, NARROW);
    assert_eq!(lease(&cluster, "h3"), "10.244.3.0/24");
    newcomer.wait_log(&["grew to 10.244.0.0/21"]);
    let new = Pod::add(third, "a");
    for host in &cluster.hosts {
        soon("its routes", || facts::routes(host).len() == 4);
        soon("the pool in the firewall", || {
            let table = host.run("nft list table inet humanz").ok();
            table.contains("10.244.0.0/21") && table.contains("fd10::/61")
        });
    }
    let pods = [&old[0], &old[1], &new];
    let places: Vec<&dyn Place> = pods.iter().map(|pod| *pod as &dyn Place).collect();
    all_reach(&places, &addresses(&places));
    sees_the_client_address(&cluster, pods);

    // No pool becomes narrower again, whatever the settings say.
    configure(first, NARROW);
    agent.reload();
    agent.wait_log(&["IP_SUBNET stays 10.244.0.0/21", "can only grow", "h3 (10.244.3.0/24)"]);
    narrow.stop();
    let narrow = start(second, NARROW);
    assert_eq!(facts::routes(second).len(), 4, "{}", narrow.log());
    agent.stop();
    let agent = start(first, NARROW);
    all_reach(&places, &addresses(&places));
    assert_eq!(facts::routes(first).len(), 4, "{}", agent.log());

    // A host with the new setting logs no reminder.
    configure(second, WIDE);
    narrow.reload();
    narrow.wait_log(&["no longer: the IPv4 pool of the network grew"]);
    pingers.into_iter().for_each(|pinger| pinger.report().assert_nothing_lost());
    assert_eq!(old.each_ref().map(links), links_before, "no pod is touched");
    for (name, subnet) in [("h1", "10.244.5.0/24"), ("h2", "10.244.6.0/24")] {
        assert_eq!(lease(&cluster, name), subnet);
    }
    old.into_iter().chain([new]).for_each(Pod::delete);
}

/// Pods of old and new hosts are seen as themselves by pods, and as their hosts by the outside.
fn sees_the_client_address(cluster: &Cluster, pods: [&Pod; 3]) {
    let [first, second, new] = pods;
    let in_pod = Web::serve(new, new.v4());
    in_pod.fetch(first);
    in_pod.fetch(second);
    assert_eq!(in_pod.seen(), [first.v4(), second.v4()]);
    let in_old = Web::serve(second, second.v4());
    in_old.fetch(new);
    assert_eq!(in_old.seen(), [new.v4()]);
    let outside = Web::serve(&cluster.outside, crate::OUTSIDE[0]);
    pods.iter().for_each(|pod| outside.fetch(*pod));
    let hosts: Vec<std::net::IpAddr> = cluster.hosts.iter().map(|host| host.v4().into()).collect();
    assert_eq!(outside.seen(), hosts);
}

#[test]
fn a_host_does_not_follow_a_pool_around_its_own_address() {
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let agents = [start(host, ""), start(other, "IP_SUBNET_LIMIT=10.244.0.0/15\n")];
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let pinger = Pinger::start(&near, far.v4());
    other.run("ip address add 10.245.7.7/32 dev lo").ok();
    configure(host, "IP_SUBNET=10.244.0.0/15\nIP_SUBNET_MARGIN=9\n");
    agents[0].reload();
    agents[1].wait_log(&["grew to 10.244.0.0/15", "contains this host's address 10.245.7.7"]);
    let table = || other.run("nft list table inet humanz").ok();
    assert!(table().contains("10.244.0.0/16"), "{}", table());
    agents[1].kill();
    let agent = Agent::start(other, FILE_ALONE);
    agent.wait_ready();
    agent.wait_log(&["contains this host's address 10.245.7.7"]);
    assert!(table().contains("10.244.0.0/16"), "{}", table());
    other.run("ip address del 10.245.7.7/32 dev lo").ok();
    soon("it follows", || table().contains("10.244.0.0/15"));
    pinger.report().assert_nothing_lost();
    near.delete();
    far.delete();
}

#[test]
fn the_node_address_and_the_etcd_address_are_reloaded() {
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    configure(other, "ETCD_HOST=192.0.2.98\n");
    let agents = [start(host, ""), Agent::start(other, FILE_ALONE)];
    agents[1].wait_log(&["etcd does not answer", "192.0.2.98"]);
    configure(other, "");
    agents[1].process.signal(Signal::SIGHUP);
    agents[1].wait_ready();
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let pinger = Pinger::start(&far, near.v4());
    let subnet = lease(&cluster, "h1");

    host.run("ip address add 192.0.2.111/24 dev eth0").ok();
    configure(host, "NODE_IP=192.0.2.111\n");
    agents[0].reload();
    agents[0].wait_log(&["reload: NODE_IP: (not set) → 192.0.2.111"]);
    eventually("the other host follows", SOON, || {
        let routes = facts::routes(other);
        let found = routes.get(&subnet).is_some_and(|via| via == "192.0.2.111");
        if found { Ok(()) } else { Err(format!("{routes:?}")) }
    });

    // The later line counts. That address does not answer.
    configure(host, "ETCD_HOST=192.0.2.99\nETCD_TIMEOUT=1s\n");
    agents[0].reload();
    agents[0].wait_log(&["etcd does not answer", "192.0.2.99"]);
    Pod::add(host, "b").delete();
    configure(host, "ETCD_HOST=192.0.2.99,[fd99::2]:2379\nETCD_TIMEOUT=1s\n");
    agents[0].reload();
    agents[0].wait_log(&["etcd answers: http://[fd99::2]:2379"]);
    // The address set meanwhile is published now.
    eventually("the record has the default address again", SOON, || {
        let record = cluster.etcd.get("/humanz/v1/nodes/h1").unwrap_or_default();
        if record.contains("192.0.2.11\"") { Ok(()) } else { Err(record) }
    });
    assert_eq!(lease(&cluster, "h1"), subnet);
    pinger.report().assert_nothing_lost();
    near.delete();
    far.delete();
}

#[test]
fn a_new_release_takes_over_and_changes_nothing_but_the_plugin() {
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let agents = [start(host, ""), start(other, "")];
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    let pinger = Pinger::start(&far, near.v4());
    soon("the route", || facts::routes(host).len() == 1);
    soon("no address is tentative", || !host.run("ip -o address").stdout.contains("tentative"));
    // A pod's counter of dropped packets comes with the first one.
    let state = || {
        host.shell(
            "ip -o link | sed 's/ qlen .*//'; ip -o address; ip route; ip -6 route; \
             nft -s list ruleset | sed '/elements = { \"hz[0-9a-f]*\" counter }/d'; cat /etc/cni/net.d/*",
        )
        .ok()
    };
    let before = state();
    const RELEASE: &str = "/opt/later/humanz-agent";
    host.shell(&format!("mkdir /opt/later; cp {EXECUTABLE} {RELEASE}; echo >> {RELEASE}")).ok();
    agents[0].stop();
    let agent = Agent::start_release(host, RELEASE, FILE_ALONE);
    println!("another release: ready after {:?}", agent.wait_ready());
    assert_eq!(state(), before);
    host.run(&format!("cmp {RELEASE} /opt/cni/bin/humanz")).ok();
    near.check().unwrap_or_else(|e| panic!("CHECK by another release: {e}"));
    pinger.report().assert_nothing_lost();
    near.delete();
    Pod::add(host, "b").delete();
    far.delete();
}

/// `FORMER_RELEASE` is an executable of an earlier release, where a host sees it; without it, this one takes over
/// from itself.
#[test]
fn the_pods_of_a_former_release_go_on_under_this_one() {
    const FORMER: &str = "/opt/former/humanz-agent";
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let executable = std::env::var("FORMER_RELEASE").unwrap_or_else(|_| EXECUTABLE.to_owned());
    for host in &cluster.hosts {
        host.shell(&format!("mkdir /opt/former; cp {executable} {FORMER}")).ok();
        configure(host, "IPV6_SUBNET=fd10::/48\n");
    }
    let former: Vec<Agent> =
        cluster.hosts.iter().map(|host| Agent::start_release(host, FORMER, FILE_ALONE)).collect();
    for agent in &former {
        agent.wait_ready();
    }
    let names = ["a", "b", "c"];
    let pods: Vec<[Pod; 2]> =
        names.iter().map(|name| [Pod::add(host, name), Pod::add(other, name)]).collect();
    let leases = [lease(&cluster, "h1"), lease(&cluster, "h2")];
    soon("the routes", || cluster.hosts.iter().all(|host| facts::routes(host).len() == 2));
    let pingers: Vec<Pinger> = pods
        .iter()
        .flat_map(|[near, far]| [Pinger::start(far, near.v4()), Pinger::start(near, far.v6())])
        .collect();
    // One host after the other, with the other one in its former state.
    let agents: Vec<Agent> = cluster
        .hosts
        .iter()
        .zip(&former)
        .map(|(host, former)| {
            former.stop();
            let agent = Agent::start(host, FILE_ALONE);
            agent.wait_ready();
            let late = Pod::add(host, "late");
            late.check().unwrap();
            late.delete();
            agent
        })
        .collect();
    assert_eq!([lease(&cluster, "h1"), lease(&cluster, "h2")], leases);
    for pinger in pingers {
        pinger.report().assert_nothing_lost();
    }
    for pod in pods.into_iter().flatten() {
        pod.check().unwrap_or_else(|error| panic!("{}: CHECK: {error}", pod.label()));
        pod.delete();
    }
    for host in &cluster.hosts {
        assert_eq!(facts::veths(host).len(), 0, "{}", host.name());
        let doctor = Agent::run(host, "doctor", FILE_ALONE);
        assert!(doctor.succeeded(), "{doctor:?}");
    }
    agents.iter().for_each(Agent::stop);
}

/// Hosts of one segment, reconfigured one after the other.
#[test]
fn the_back_end_changes_under_running_pods() {
    let cluster = Cluster::new(2);
    let [host, other] = &cluster.hosts[..] else { panic!("two hosts") };
    let agents = [start(host, ""), start(other, "")];
    let (near, far) = (Pod::add(host, "a"), Pod::add(other, "a"));
    for (settings, device, tunnel) in [
        ("BACKEND=auto\n", "eth0", ""),
        ("BACKEND=vxlan\n", "humanz-vx4", "vxlan id 104 "),
        ("BACKEND=vxlan\nVXLAN_VNI=105\nVXLAN_PORT=10401\n", "humanz-vx4", "dstport 10401"),
        ("BACKEND=auto\n", "eth0", ""),
        ("BACKEND=vxlan\n", "humanz-vx4", "vxlan id 104 "),
        ("BACKEND=direct\n", "eth0", ""),
    ] {
        let pinger = Pinger::start(&near, far.v4());
        for (host, agent) in cluster.hosts.iter().zip(&agents) {
            configure(host, settings);
            agent.reload();
        }
        for host in &cluster.hosts {
            eventually(&format!("{}: {settings}", host.name()), SOON, || {
                let devices = facts::devices(host);
                let right = devices.len() == 1 && devices.values().all(|found| found == device);
                let link = host.run("ip -d link show dev humanz-vx4").stdout;
                if right && link.contains(tunnel) {
                    Ok(())
                } else {
                    Err(format!("{devices:?} {link}"))
                }
            });
        }
        near.until_ok(&format!("ping -n -c 1 -W 1 {}", far.v4()), SOON);
        println!("{settings:?}: {}", pinger.report());
    }
    assert!(!host.run("ip link show dev humanz-vx4").succeeded(), "no tunnel is left");
    near.delete();
    far.delete();
}
