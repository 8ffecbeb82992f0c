//! Tunnels are kept, repaired, and follow the hosts.

use std::time::{Duration, Instant};

use crate::DUAL_STACK;
use crate::support::cluster::{Cluster, FAR, NEAR};
use crate::support::ping::{addresses, all_reach};
use crate::support::wait::SOON;
use crate::support::watch::Watch;
use crate::support::web::Web;
use crate::support::{Agent, Node, Pinger, Place, Pod, eventually, facts};

#[test]
fn a_host_moves_to_the_other_segment_while_pods_communicate() {
    let cluster = Cluster::routed(2, 1);
    let _agents = cluster.start_agents(DUAL_STACK);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    let places: Vec<&dyn Place> = pods.iter().map(|pod| pod as &dyn Place).collect();
    reached(&pods);
    let steady = Pinger::start(&pods[0], pods[2].v4());
    for (segment, name, device) in [(&FAR, "far", "humanz-vx4"), (&NEAR, "near", "eth0")] {
        let pingers =
            [Pinger::start(&pods[0], pods[1].v4()), Pinger::start(&pods[1], pods[0].v6())];
        cluster.move_host(2, segment);
        eventually(&format!("h1 reaches h2 through {device}"), SOON, || {
            let devices = facts::devices(&cluster.hosts[0]);
            let wanted = devices.values().filter(|found| *found == device).count();
            if wanted == 2 { Ok(()) } else { Err(format!("{devices:?}")) }
        });
        reached(&pods);
        all_reach(&places, &addresses(&places));
        Web::serve(&pods[1], pods[1].v4()).fetch(&pods[0]);
        for pinger in pingers {
            let report = pinger.report();
            println!("carried {name}: {report}, longest gap {:?}", report.longest_gap());
        }
    }
    steady.report().assert_nothing_lost();
}

/// Every foreign change of a tunnel is repaired at once.
#[test]
fn a_broken_tunnel_is_repaired() {
    let cluster = Cluster::routed(1, 1);
    let agents = cluster.start_agents(DUAL_STACK);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    reached(&pods);
    let host = &cluster.hosts[0];
    let whole = state(host);
    let (route, route6) = (destination(host, "ip"), destination(host, "ip -6"));
    let near = addresses_of_tunnel(host);
    let replaced = [
        format!("ip route replace {route} dev lo"),
        format!("ip route replace blackhole {route}"),
        format!("ip route replace {route} dev lo proto 104"),
        format!("ip -6 route replace {route6} dev lo"),
        format!("ip -6 route replace {route6} dev lo proto 104 metric 1024"),
        format!(
            "ip neigh replace {} lladdr 02:00:00:00:00:01 dev humanz-vx4 nud permanent",
            near.neighbour
        ),
        format!("ip neigh replace {} lladdr {} dev humanz-vx4 nud stale", near.neighbour, near.mac),
        format!("bridge fdb replace {} dev humanz-vx4 dst 192.0.2.99", near.mac),
        format!("bridge fdb append {} dev humanz-vx4 dst 192.0.2.99", near.mac),
        format!("bridge fdb replace {} dev humanz-vx6 dst fd99::99 port 53", near.mac),
    ];
    let replaced = replaced.iter().map(String::as_str);
    for damage in replaced.chain([
        "ip link set humanz-vx4 alias mine",
        "ip link add other type bridge; ip link set humanz-vx4 master other",
        "ip link set humanz-vx4 down; ip link set humanz-vx4 name renamed; ip link set renamed alias mine",
        "ip link del humanz-vx4",
        "ip link set humanz-vx4 down",
        "ip link set humanz-vx4 mtu 1300",
        "ip link set humanz-vx4 address 02:00:00:00:00:01",
        "ip link set humanz-vx4 type vxlan local 192.0.2.99",
        "ip link set humanz-vx4 type vxlan learning",
        "ip address flush dev humanz-vx4",
        "ip neigh flush dev humanz-vx4 nud permanent",
        "ip -6 neigh flush dev humanz-vx6 nud permanent",
        "bridge fdb flush dev humanz-vx4",
        "ip route flush proto 104",
        "ip -6 route flush proto 104",
        "ip link set humanz-vx4 down; ip link set humanz-vx4 name other",
        "ip link del humanz-vx4; ip link add humanz-vx4 type vxlan id 9 dstport 4789; ip link set humanz-vx4 up",
        "ip link del humanz-vx6; ip link add humanz-vx6 type vxlan id 104 dstport 10400 group 239.1.1.1 dev eth0",
        "ip link del humanz0",
        "ip link set humanz0 down",
    ]) {
        let start = Instant::now();
        host.shell(damage);
        eventually(&format!("whole after: {damage}"), SOON, || {
            let found = state(host);
            if found == whole { Ok(()) } else { Err(format!("{found:#?}")) }
        });
        println!("{damage} → whole after {:?}", start.elapsed());
        // Far from the next full check, after a minute.
        assert!(start.elapsed() < Duration::from_secs(10), "{damage}");
        reached(&pods);
    }
    let log = agents[0].log();
    let failures: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(failures.len() <= 3, "{failures:#?}");
}

struct Near {
    neighbour: String,
    mac: String,
}

/// The other end, as the device of IPv4 knows it.
fn addresses_of_tunnel(host: &Node) -> Near {
    let found = host.run("ip neigh show dev humanz-vx4 nud permanent").ok();
    let words: Vec<&str> = found.split_whitespace().collect();
    Near { neighbour: words[0].to_owned(), mac: words[2].to_owned() }
}

/// Of the only route to pods of other hosts.
fn destination(host: &Node, ip: &str) -> String {
    let found = host.run(&format!("{ip} route show proto 104")).ok();
    found.split_whitespace().next().unwrap().to_owned()
}

/// All that the agent made for the tunnels.
fn state(host: &Node) -> Vec<String> {
    let devices =
        "ip -d -o link show humanz-vx4 | sed 's/^[0-9]*: //; s/ promiscuity.*srcport/ srcport/';
        ip -d -o link show humanz-vx6 | sed 's/^[0-9]*: //; s/ promiscuity.*srcport/ srcport/';
        ip -d -o link show type vxlan | grep -o 'vxlan id.*dstport [0-9]*' | sort";
    let entries = "for i in humanz-vx4 humanz-vx6; do
        ip -br address show dev $i scope global;
        bridge fdb show dev $i; ip neigh show dev $i nud permanent; done;
        ip route show proto 104; ip -6 route show proto 104";
    let text = [devices, entries].map(|script| host.shell(&format!("{script} || true")).stdout);
    text.concat().lines().map(str::to_owned).collect()
}

#[test]
fn a_restart_of_the_agent_touches_no_tunnel() {
    let cluster = Cluster::routed(1, 1);
    let mut agents = cluster.start_agents(DUAL_STACK);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    reached(&pods);
    let host = &cluster.hosts[0];
    let whole = state(host);
    let record = cluster.etcd.get("/humanz/v1/nodes/h1");
    let pingers = [Pinger::start(&pods[0], pods[1].v4()), Pinger::start(&pods[1], pods[0].v6())];
    agents.remove(0).kill();
    let agent = Agent::start(host, DUAL_STACK);
    agent.wait_ready();
    assert_eq!(state(host), whole);
    let touched: Vec<String> =
        agent.log().lines().filter(|line| line.contains("tunnel")).map(String::from).collect();
    assert!(touched.is_empty(), "{touched:?}");
    assert_eq!(cluster.etcd.get("/humanz/v1/nodes/h1"), record);
    for pinger in pingers {
        pinger.report().assert_nothing_lost();
    }

    // Without etcd, after a boot: the last known state.
    eventually("the other host is in the saved state", SOON, || {
        let saved = host.read("/var/lib/humanz/state.json").unwrap_or_default();
        if saved.contains("203.0.113.12") { Ok(()) } else { Err(saved) }
    });
    cluster.etcd.kill();
    agent.kill();
    drop(agent);
    cluster.reboot(host);
    let agent = Agent::start(host, DUAL_STACK);
    agent.wait_ready();
    let pod = Pod::add(host, "b");
    for address in pods[1].addresses() {
        pod.until_ok(&format!("ping -n -c 1 -W 1 {address}"), SOON);
    }
}

#[test]
fn a_changed_back_end_removes_or_creates_the_tunnel_at_the_next_start() {
    let cluster = Cluster::new(2);
    let mut agents = cluster.start_agents(&[]);
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    reached(&pods);
    let host = &cluster.hosts[0];
    let links = || host.run("ip -br link show type vxlan").stdout;
    assert_eq!(links(), "", "nobody needs one");
    for (backend, device, mtu) in [("vxlan", "humanz-vx4", "1450"), ("direct", "eth0", "1500")] {
        agents.remove(0).stop();
        let agent = Agent::start(host, &[("BACKEND", backend)]);
        agent.wait_ready();
        for (host, other) in [(&cluster.hosts[0], "h1"), (&cluster.hosts[1], "h2")] {
            eventually(&format!("{other} reaches the other through {device}"), SOON, || {
                let devices = facts::devices(host);
                let all = devices.values().all(|found| found == device);
                if all && devices.len() == 1 { Ok(()) } else { Err(format!("{devices:?}")) }
            });
        }
        reached(&pods);
        eventually(&format!("pods get {mtu}"), SOON, || {
            let conf = host.read("/etc/cni/net.d/05-humanz.conflist").unwrap_or_default();
            if conf.contains(&format!("\"mtu\": {mtu}")) { Ok(()) } else { Err(conf) }
        });
        agents.insert(0, agent);
    }
    assert_eq!(links(), "", "direct needs none");
}

#[test]
fn a_tunnel_follows_port_and_mtu_and_is_removed_when_disabled() {
    let cluster = Cluster::routed(1, 1);
    cluster.set_mtu(9000);
    let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
    let other_port = [DUAL_STACK[0], ("VXLAN_PORT", "4444"), ("CLEANUP_ON_STOP", "true")];
    let far_agent = Agent::start(far, &other_port);
    let near_agent = Agent::start(near, DUAL_STACK);
    far_agent.wait_ready();
    near_agent.wait_ready();
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    reached(&pods);
    let mtu = |link: &str| near.read(&format!("/sys/class/net/{link}/mtu")).unwrap();
    let watch = Watch::links(near);
    for (outer, v4, v6) in [(9000, "8950", "8930"), (1500, "1450", "1430"), (4000, "3950", "3930")]
    {
        cluster.set_mtu(outer);
        eventually(&format!("links follow {outer}"), SOON, || {
            let found = ["humanz-vx4", "humanz-vx6", "humanz0"].map(mtu);
            let conf = near.read("/etc/cni/net.d/05-humanz.conflist").unwrap_or_default();
            let right = found.each_ref().map(|found| found.trim()) == [v4, v6, v6];
            let written = conf.contains(&format!("\"mtu\": {v6}"));
            if right && written { Ok(()) } else { Err(format!("{found:?} {conf}")) }
        });
        reached(&pods);
        // Pods keep what they were made with.
        for address in pods[1].addresses() {
            Web::serve(&pods[1], address).fetch(&pods[0]);
        }
    }
    drop(watch);
    far_agent.stop();
    assert_eq!(far.run("ip -br link show type vxlan").stdout, "");
}

#[test]
fn a_foreign_device_and_a_used_port_are_reported() {
    let cluster = Cluster::routed(1, 1);
    let [near, far] = &cluster.hosts[..] else { panic!("two hosts") };
    near.run("ip link add humanz-vx4 type bridge").ok();
    far.run("ip link add other type vxlan id 104 dstport 10400 local 203.0.113.12").ok();
    let agents = [Agent::start(near, &[]), Agent::start(far, &[])];
    agents[0].wait_log(&["ERROR", "interface humanz-vx4 exists and is a bridge"]);
    agents[1].wait_log(&[
        "ERROR",
        "another VXLAN device has VNI 104 on UDP port 10400",
        "VXLAN_PORT",
    ]);
    assert!(near.run("ip -d link show humanz-vx4").ok().contains("bridge"));
    near.run("ip link del humanz-vx4").ok();
    far.run("ip link del other").ok();
    for agent in &agents {
        agent.wait_ready();
    }
    let pods: Vec<Pod> = cluster.hosts.iter().map(|host| Pod::add(host, "a")).collect();
    reached(&pods);
}

/// The first pod reaches all addresses of the others, after a while.
fn reached(pods: &[Pod]) {
    for pod in &pods[1..] {
        for address in pod.addresses() {
            pods[0].until_ok(&format!("ping -n -c 1 -W 1 {address}"), Duration::from_secs(30));
        }
    }
}
