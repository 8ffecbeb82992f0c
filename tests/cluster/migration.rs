//! Migration from flannel, and from bridge with host-local, to humanz: pods keep running and
//! communicating.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cni::{Attachment, Network};
use crate::support::echo::{Echo, ask_tcp};
use crate::support::guide::{Guide, Step};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pinger, Place, Pod, eventually, facts, ping};

/// Where flannel's file and that of a hand-made bridge lie.
const BEFORE: &str = "/etc/cni/net.d/10-flannel.conflist";

/// A host as flannel and its CNI plugin leave it: that one hands on to bridge and host-local.
/// `number`: of the subnet.
fn bridge_and_host_local(host: &Node, number: u8) -> Network {
    let subnet = format!("10.244.{number}.0/24");
    bridge_with(host, &json!({ "mtu": 1450, "ipMasq": false }), &subnet)
}

/// `more`: further keys of the plugin bridge.
fn bridge_with(host: &Node, more: &Value, subnet: &str) -> Network {
    host.shell(
        "mkdir -p /opt/cni/bin /etc/cni/net.d && cd /opt/cni/bin && ln -s /usr/lib/cni/bridge /usr/lib/cni/host-local . \
         && echo 1 > /proc/sys/net/ipv4/ip_forward",
    )
    .ok();
    let mut plugin = json!({
        "type": "bridge", "bridge": "cni0", "hairpinMode": true, "isGateway": true,
        "isDefaultGateway": true,
        "ipam": {
            "type": "host-local", "ranges": [[{ "subnet": subnet }]],
            "routes": [{ "dst": "10.244.0.0/16" }]
        }
    });
    plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let conf = json!({ "name": "cbr0", "cniVersion": "0.3.1", "plugins": [plugin] });
    host.write(BEFORE, &conf.to_string());
    Network::parse(&conf.to_string())
}

/// The objects of flannel's VXLAN backend: `(host, number of its subnet)` of both.
fn flannel_vxlan(hosts: &[(&Node, u8)]) {
    let mac = |number: u8| format!("02:00:00:00:f1:{number:02x}");
    for (host, number) in hosts {
        let mut lines = format!(
            "ip link add flannel.1 address {} type vxlan id 1 dev eth0 local {} dstport 8472 nolearning && \
             ip address add 10.244.{number}.0/32 dev flannel.1 && ip link set flannel.1 mtu 1450 up",
            mac(*number),
            host.v4()
        );
        for (other, far) in hosts.iter().filter(|(_, far)| far != number) {
            lines += &format!(
                " && ip neigh add 10.244.{far}.0 lladdr {0} dev flannel.1 nud permanent && \
                 bridge fdb add {0} dev flannel.1 dst {1} && \
                 ip route add 10.244.{far}.0/24 via 10.244.{far}.0 dev flannel.1 onlink",
                mac(*far),
                other.v4()
            );
        }
        host.shell(&lines).ok();
    }
}

fn old_pod(host: &Node, network: &Network, name: &str) -> Pod {
    make_netns(host, name);
    Pod::connect(host, network, Attachment::new(name)).unwrap_or_else(|e| panic!("{e}"))
}

/// Sections of the guide that the test of flannel follows, and those of the test of a bridge.
const FLANNEL: [&str; 5] = [
    "Configure the hosts of flannel",
    "Keep the subnets of flannel",
    "Look before the switch",
    "Switch from flannel",
    "After flannel",
];
const BRIDGE: [&str; 3] =
    ["From bridge and host-local", "Without the agent", "Back to the former network"];

/// No section of the guide is left, but those of `others` here and of the networks that pods cannot be taken over from.
fn finish(mut guide: Guide, others: &[&str]) {
    guide.leave_to("tests/cluster/migration.rs", others);
    let moved = [
        "Stop kindnet",
        "Remove what kindnet left",
        "Start humanz in place of kindnet",
        "Stop Calico",
        "Remove what Calico left",
        "Start humanz in place of Calico",
    ];
    guide.leave_to("tests/kubernetes/moved.rs", &moved);
    guide.finish();
}

const KEPT: &[(&str, &str)] = &[("BRIDGE_NAME", "cni0"), ("CNI_NAME", "cbr0")];

#[test]
fn hosts_of_flannel_keep_their_subnets_and_pods() {
    let cluster = Cluster::new(2);
    let numbers = [0, 7];
    let networks: Vec<Network> = cluster
        .hosts
        .iter()
        .zip(numbers)
        .map(|(host, number)| bridge_and_host_local(host, number))
        .collect();
    let hosts: Vec<(&Node, u8)> = cluster.hosts.iter().zip(numbers).collect();
    flannel_vxlan(&hosts);
    let old: Vec<Pod> = hosts
        .iter()
        .zip(&networks)
        .map(|((host, _), network)| old_pod(host, network, "old"))
        .collect();
    let pinger = Pinger::start(&old[0], old[1].v4());
    let mut guide = Guide::read("migration.md");
    let both: Vec<&Node> = cluster.hosts.iter().collect();
    guide.follow_on("Configure the hosts of flannel", &both, |_, _| false);
    guide.follow("Keep the subnets of flannel", both[0], |_| false);
    guide.follow("Look before the switch", both[0], |_| false);
    let dry = Agent::run(both[0], "--dry-run", &[]).ok();
    let route = dry.lines().filter(|line| line.starts_with('!') && line.contains("10.244.7.0/24"));
    assert_eq!(route.count(), 1, "one fault, one problem: {dry}");
    // While flannel's device is there, its address lies inside the pool: the start says so.
    let refused = Agent::run(both[0], "check-config", &[]);
    assert!(refused.stderr.contains("remove flannel.1"), "{refused}");
    let mut agents = Vec::new();
    guide.follow_on("Switch from flannel", &both, |step, host| starts(step, host, &mut agents));
    for agent in &agents {
        println!("{}: ready after {:?}", agent.host.name(), agent.wait_ready());
    }
    for ((host, _), far) in hosts.iter().zip([7, 0]) {
        eventually("the route to the other host", SOON, || {
            let routes = facts::routes(host);
            let there = routes.contains_key(&format!("10.244.{far}.0/24"));
            if there { Ok(()) } else { Err(format!("{routes:?}")) }
        });
    }
    lost_but_once(pinger);
    for (host, other) in [(both[0], &old[1]), (both[1], &old[0])] {
        let text = explains_taken_over(host, &format!("old {}", other.v4()));
        assert_eq!(text.matches("a port of cni0").count(), 1, "{text}");
        // What is too large for the MTU that it keeps is lost on the way to it, as the guide says.
        let back = Agent::run(host, &format!("explain {} old", other.v4()), &[]).stdout;
        assert!(back.contains("a port of cni0") && !back.contains("gone or incomplete"), "{back}");
        assert!(back.contains("answers this host within"), "{back}");
        let status = Agent::run(host, "status", &[]).stdout;
        assert!(
            status.contains("0 interfaces plugged in, 1 taken over from an earlier plugin"),
            "{status}"
        );
    }
    // As in the take-over of a bridge below: the first host port stops the others for a moment.
    let pinger = Pinger::start(&old[0], old[1].v4());
    let new: Vec<Pod> = hosts.iter().map(|(host, _)| Pod::add(host, "new")).collect();
    for (pod, number) in new.iter().zip(numbers) {
        assert!(pod.v4().to_string().starts_with(&format!("10.244.{number}.")), "{}", pod.result);
        assert!(old.iter().all(|old| old.v4() != pod.v4()), "{}", pod.result);
    }
    let all: Vec<&dyn Place> = old.iter().chain(&new).map(|pod| pod as &dyn Place).collect();
    let addresses: Vec<_> = old.iter().chain(&new).map(Pod::v4).collect();
    ping::all_reach(&all, &addresses);
    let report = pinger.report();
    println!("the first pods: {report}: {:?}", report.lost);
    assert!(report.longest_gap() < Duration::from_secs(1), "{report}: {:?}", report.lost);
    for host in &both {
        host.shell(
            "iptables -t nat -N FLANNEL-POSTRTG; iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG",
        )
        .ok();
    }
    guide.follow("After flannel", both[0], |_| false);
    finish(guide, &BRIDGE);
    for (pod, (host, _)) in old.iter().zip(&hosts) {
        goes(host, pod);
    }
}

/// No answer for one time only, the switch.
fn lost_but_once(pinger: Pinger) {
    let report = pinger.report();
    println!("{report}, for {:?}", report.longest_gap());
    let gaps = report.lost.windows(2).filter(|two| two[0] + 1 < two[1]).count();
    assert!(gaps == 0 && !report.lost.contains(&report.sent), "lost but once: {:?}", report.lost);
    // It was 0.3 to 0.85 s; a machine that runs many tests is slower.
    assert!(report.longest_gap() < Duration::from_secs(10), "{report}");
}

/// The guide's `systemctl enable --now humanz-agent`.
fn starts(step: &Step, host: &Node, agents: &mut Vec<Agent>) -> bool {
    let is_start = step.command == "systemctl enable --now humanz-agent";
    if is_start {
        agents.push(Agent::start(host, &[]));
    }
    is_start
}

/// What `explain` says to `ends` on a host with pods of an earlier plugin: nothing is lost, and nothing is made up.
fn explains_taken_over(host: &Node, ends: &str) -> String {
    // It may not have learned of the other host yet.
    let text = eventually(&format!("explain {ends}: nothing is lost"), SOON, || {
        let explained = Agent::run(host, &format!("explain {ends}"), &[]);
        if explained.succeeded() { Ok(explained.stdout) } else { Err(explained.to_string()) }
    });
    println!("{text}");
    assert!(!text.contains("gone or incomplete") && !text.contains("was deleted"), "{text}");
    assert!(text.contains("its network namespace is not known"), "{text}");
    assert!(text.contains("nothing is lost as far as this host can see; odd: "), "{text}");
    text
}

/// The runtime ends a pod of before, by the plugin that is there now: the interface, which is not
/// humanz's, is removed with its namespace.
fn goes(host: &Node, pod: &Pod) {
    let deleted = Network::of(host).del(host, &pod.attachment, &pod.result);
    deleted.unwrap_or_else(|e| panic!("{}: {e}", pod.label()));
    host.run(&format!("ip netns del {}", pod.attachment.container)).ok();
}

#[test]
fn a_bridge_with_host_local_is_taken_over_with_its_pods() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let network = bridge_with(host, &json!({ "ipMasq": false }), "10.4.0.0/24");
    host.run(&format!("mv {BEFORE} /etc/cni/net.d/10-bridge.conflist")).ok();
    let old = [old_pod(host, &network, "one"), old_pod(host, &network, "two")];
    let pinger = Pinger::start(&old[0], old[1].v4());
    let mut guide = Guide::read("migration.md");
    let mut agents = Vec::new();
    guide.follow("From bridge and host-local", host, |step| starts(step, host, &mut agents));
    agents[0].wait_ready();
    pinger.report().assert_nothing_lost();
    // Known before any ADD.
    for (pod, name) in old.iter().zip(["one", "two"]) {
        let listed = Agent::run(host, "ipam ls", &[]).ok();
        let line = listed.lines().find(|line| line.contains(&pod.v4().to_string()));
        assert!(line.is_some_and(|line| line.contains(name)), "{listed}");
    }
    let status = Agent::run(host, "status", &[]).ok();
    assert!(
        status.contains("0 interfaces plugged in, 2 taken over from an earlier plugin, 0 with"),
        "{status}"
    );
    let text = explains_taken_over(host, &format!("one {}", old[1].v4()));
    assert_eq!(text.matches("a port of cni0").count(), 2, "{text}");
    // The bridge's neighbour table is all that says where the pod is.
    host.run("ip neigh flush dev cni0").ok();
    let text = explains_taken_over(host, &format!("{} one --quiet", old[1].v4()));
    assert!(text.contains("which port leads to it is not known"), "{text}");
    let text = explains_taken_over(host, &format!("one {}", cluster.outside.addresses()[0]));
    assert_eq!(text.matches("a port of cni0").count(), 1, "{text}");
    // The first host port: the kernel stops each port of the bridge for a moment while it gets a filter.
    let pinger = Pinger::start(&old[0], old[1].v4());
    let new = Pod::add(host, "new");
    assert!(old.iter().all(|old| old.v4() != new.v4()), "{}", new.result);
    let all: Vec<&dyn Place> = old.iter().chain([&new]).map(|pod| pod as &dyn Place).collect();
    ping::all_reach(&all, &[old[0].v4(), old[1].v4(), new.v4(), cluster.outside.addresses()[0]]);
    let gap = pinger.report().longest_gap();
    assert!(gap < Duration::from_secs(1), "{gap:?}");
    old.iter().for_each(|pod| goes(host, pod));
    eventually("the bridge has the new pod alone", SOON, || {
        let ports = host.run("ip -o link show master cni0").ok();
        if ports.lines().count() == 1 { Ok(()) } else { Err(ports) }
    });
    let kept = host.list("/run/humanz/ipam/cbr0");
    assert!(!kept.contains(&old[0].v4().to_string()), "its address is free: {kept:?}");
    assert!(kept.contains(&new.v4().to_string()), "{kept:?}");
    Network::of(host).del(host, &new.attachment, &new.result).unwrap_or_else(|e| panic!("{e}"));
    guide.follow("Back to the former network", host, |step| {
        let stops = step.command == "systemctl disable --now humanz-agent";
        if stops {
            agents[0].stop();
        }
        stops
    });
    without_agent(host, &mut guide);
    finish(guide, &FLANNEL);
}

/// The guide's configuration for a host that has no agent.
fn without_agent(host: &Node, guide: &mut Guide) {
    guide.follow("Without the agent", host, |_| false);
    host.shell("mkdir -p /opt/cni/bin && cp /opt/humanz/humanz-agent /opt/cni/bin/humanz").ok();
    let network = Network::parse(&host.read("/etc/cni/net.d/10-bridge.conflist").unwrap());
    let [one, two] = ["one", "two"].map(|name| old_pod(host, &network, &format!("alone-{name}")));
    ping::all_reach(&[&one, &two], &[one.v4(), two.v4()]);
}

/// As podman and nerdctl have them, masqueraded by iptables.
#[test]
fn any_subnet_is_taken_over_and_chains_of_before_are_listed_with_their_removal() {
    for subnet in ["10.88.0.0/16", "10.4.0.0/24"] {
        let cluster = Cluster::new(1);
        let host = &cluster.hosts[0];
        let network = bridge_with(host, &json!({ "ipMasq": true }), subnet);
        let old = old_pod(host, &network, "old");
        let chain = || host.run("iptables -t nat -S POSTROUTING").ok();
        assert!(chain().contains("-j CNI-"), "{}", chain());
        // Another network's.
        let other = "CNI-0123456789abcdef01234567";
        host.shell(&format!(
            "iptables -t nat -N {other}; iptables -t nat -A POSTROUTING -s 10.99.0.7/32 -j {other}"
        ))
        .ok();

        let settings = [
            KEPT,
            &[
                ("SUBNET_SOURCE", "static"),
                ("SUBNET", subnet),
                ("ETCD_HOST", ""),
                ("RESYNC_INTERVAL", "1s"),
            ],
        ]
        .concat();
        host.shell(&format!("echo 1 > /proc/sys/net/ipv4/conf/cni0/arp_notify; rm {BEFORE}")).ok();
        let agent = Agent::start(host, &settings);
        agent.wait_ready();
        let new = Pod::add(host, "new");
        assert_ne!(old.v4(), new.v4());
        ping::all_reach(&[&old, &new], &[old.v4(), new.v4(), cluster.outside.addresses()[0]]);

        let fix = eventually("doctor lists the chain", SOON, || {
            let doctor = Agent::run(host, "doctor --json", &settings);
            let fix = doctor.stdout.split('"').find(|text| text.contains("iptables-restore"));
            fix.map(str::to_owned).ok_or(doctor.to_string())
        });
        host.shell(&fix).ok();
        assert_eq!(chain().matches("-j CNI-").count(), 1, "the other network's: {}", chain());
        eventually("it is right", SOON, || {
            let doctor = Agent::run(host, "doctor", &settings);
            let left = doctor.stdout.contains("former bridge plugin");
            if left { Err(doctor.to_string()) } else { Ok(()) }
        });
        ping::all_reach(&[&old, &new], &[old.v4(), new.v4(), cluster.outside.addresses()[0]]);
        goes(host, &old);
    }
}

/// A pod of before has its host ports as long as it runs; the plugin that made them does not get its DEL.
#[test]
fn host_ports_that_a_former_portmap_left_are_reported_once_their_pod_is_gone() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let mut network = bridge_with(host, &json!({ "ipMasq": false }), "10.4.0.0/24");
    host.run("ln -s /usr/lib/cni/portmap /opt/cni/bin/").ok();
    network.plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    let with_port = |name: &str, port: u16| {
        let port = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
        make_netns(host, name);
        let runtime = json!({ "portMappings": port });
        let attachment = Attachment { runtime, ..Attachment::new(name) };
        Pod::connect(host, &network, attachment).unwrap_or_else(|e| panic!("{e}"))
    };
    let [one, two] = [with_port("one", 8081), with_port("two", 8082)];
    // Of another network, which is not humanz's.
    host.shell(
        "iptables -t nat -N CNI-DN-0123456789abcdef01234 && iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp \
         -m comment --comment 'dnat name: \"podman\" id: \"three\"' -j CNI-DN-0123456789abcdef01234 && \
         iptables -t nat -A CNI-DN-0123456789abcdef01234 -s 10.88.0.7/32 -p tcp -j CNI-HOSTPORT-SETMARK",
    )
    .ok();
    let settings =
        [KEPT, &[("SUBNET_SOURCE", "static"), ("SUBNET", "10.4.0.0/24"), ("ETCD_HOST", "")]]
            .concat();
    host.shell(&format!("rm {BEFORE}")).ok();
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    let doctor = || Agent::run(host, "doctor --json", &settings).stdout;
    let said = doctor();
    assert!(!said.contains("portmap"), "{said}");
    goes(host, &one);
    let said = doctor();
    assert!(said.contains("iptables chains of a former portmap plugin lead host ports"), "{said}");
    let fix = said.split('"').find(|text| text.contains("iptables-restore")).unwrap().to_owned();
    host.shell(&fix).ok();
    let ports = host.run("iptables -t nat -S CNI-HOSTPORT-DNAT").ok();
    assert!(
        !ports.contains("8081") && ports.contains("8082") && ports.contains("three"),
        "{ports}"
    );
    assert!(!doctor().contains("portmap"));
    goes(host, &two);
}

/// The bridge is set, and the name of the former network is forgotten.
#[test]
fn addresses_of_pods_on_the_bridge_that_no_store_knows_are_reported_with_their_import() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let mut network = bridge_with(host, &json!({ "ipMasq": false }), "10.4.0.0/24");
    host.run("ln -s /usr/lib/cni/portmap /opt/cni/bin/").ok();
    network.plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    let port = json!([{ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" }]);
    make_netns(host, "one");
    let attachment =
        Attachment { runtime: json!({ "portMappings": port }), ..Attachment::new("one") };
    let one = Pod::connect(host, &network, attachment).unwrap_or_else(|e| panic!("{e}"));
    let two = old_pod(host, &network, "two");
    let settings = [
        ("BRIDGE_NAME", "cni0"),
        ("SUBNET_SOURCE", "static"),
        ("SUBNET", "10.4.0.0/24"),
        ("ETCD_HOST", ""),
        ("RESYNC_INTERVAL", "1s"),
    ];
    host.shell(&format!("rm {BEFORE}")).ok();
    let fix = "humanz-agent ipam import /var/lib/cni/networks/cbr0";
    let dry = Agent::run(host, "--dry-run", &settings).ok();
    let line = dry.lines().find(|line| line.starts_with("! ") && line.ends_with(fix));
    let why = "a former pod network has given 10.4.0.2 and 1 more to pods on the bridge";
    assert!(line.is_some_and(|line| line.contains(why)), "{dry}");
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    let status = Agent::run(host, "status", &settings).stdout;
    assert!(status.contains(why) && status.contains(fix), "{status}");
    // The containers of its host ports are not gone.
    let doctor = || Agent::run(host, "doctor", &settings).stdout;
    let said = doctor();
    assert!(said.contains(why) && !said.contains("portmap"), "{said}");

    Agent::run(host, fix.strip_prefix("humanz-agent ").unwrap(), &settings).ok();
    eventually("nothing is wrong", SOON, || {
        let said = doctor();
        if said.contains("nothing is wrong") { Ok(()) } else { Err(said) }
    });
    // Of a store that cannot be read it is unknown what was imported.
    let owners = "/run/humanz/ipam/humanz/owners";
    let record = "/var/lib/cni/networks/cbr0/taken-over-by-humanz";
    host.shell(&format!("mv {record} /run/record && mv {owners} /run/aside && touch {owners}"))
        .ok();
    let dry = Agent::run(host, "--dry-run", &settings).stdout;
    assert!(dry.contains(owners) && !dry.contains(why), "{dry}");
    host.shell(&format!("rm {owners} && mv /run/aside {owners} && mv /run/record {record}")).ok();
    let new = Pod::add(host, "new");
    assert!([&one, &two].iter().all(|old| old.v4() != new.v4()), "{}", new.result);
    // What is freed is not missed, though host-local's file stays.
    goes(host, &two);
    assert!(doctor().contains("nothing is wrong"), "{}", doctor());
    goes(host, &one);
    assert!(doctor().contains("iptables chains of a former portmap plugin"), "{}", doctor());
}

/// Its agent starts before the subnet is reserved.
#[test]
fn pods_on_the_bridge_outside_the_subnet_of_their_host_are_reported() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let network = bridge_and_host_local(host, 7);
    let [one, two] = ["one", "two"].map(|name| old_pod(host, &network, name));
    host.run(&format!("rm {BEFORE}")).ok();
    let settings = [KEPT, &[("RESYNC_INTERVAL", "1s")]].concat();
    let why =
        "on the bridge have addresses outside 10.244.1.0/24, and no gateway: 10.244.7.2 and 1 more";
    let run = |line: &str| Agent::run(host, line, &settings);
    let dry = run("--dry-run").ok();
    assert!(dry.lines().any(|line| line.starts_with("! ") && line.contains(why)), "{dry}");
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    let status = run("status").stdout;
    assert!(status.contains(why) && status.contains("nodes reserve"), "{status}");
    assert!(!one.run("ping -n -c 1 -W 1 10.244.7.1").succeeded());
    agent.stop();
    for line in ["nodes rm h1", "nodes reserve h1 10.244.7.0/24"] {
        run(line).ok();
    }
    let agent = Agent::start(host, &settings);
    agent.wait_ready();
    assert!(run("status").ok().ends_with("nothing is wrong\n"));
    one.run("ping -n -c 1 -W 3 10.244.7.1").ok();
    [&one, &two].into_iter().for_each(|pod| goes(host, pod));
}

/// Without an agent the plugin masquerades what leaves its own subnet.
#[test]
fn a_host_of_init_that_gets_an_agent_masquerades_nothing_on_its_way_to_other_hosts() {
    let cluster = Cluster::new(2);
    let [near, far] = &cluster.hosts[..] else { unreachable!() };
    Agent::run(near, "--subnet 10.244.1.0/24 init", &[("ETCD_HOST", "")]).ok();
    let old = Pod::add(near, "old");
    let reserve = format!("nodes reserve --new-network {} 10.244.1.0/24", near.name());
    Agent::run(near, &reserve, &[("ETCD_HOST", "192.0.2.2")]).ok();
    let dry = Agent::run(near, "--dry-run", &[("ETCD_HOST", "192.0.2.2")]).ok();
    assert!(dry.contains("- nft table inet humanz_humanz"), "{dry}");
    let agents = cluster.start_agents(&[]);
    let other = Pod::add(far, "other");
    let _echo = Echo::serve(&other, 80);
    eventually("the way to the other host", SOON, || {
        match ask_tcp(&old, SocketAddr::new(other.v4(), 80))? {
            seen if seen == old.v4() => Ok(()),
            seen => Err(format!("seen as {seen}")),
        }
    });
    agents.iter().for_each(Agent::stop);
}
