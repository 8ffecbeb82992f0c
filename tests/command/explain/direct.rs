//! Hosts on one segment.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use super::{Broken, VARIABLES, hops, lost, text};
use crate::run;
use crate::support::cluster::{Alone, Cluster, OUTSIDE};
use crate::support::echo::{self, Echo};
use crate::support::pod::{CONTAINER_PORT, host_port};
use crate::support::{Agent, Node, Place, Pod, facts, soon};

/// Two hosts whose agents have done their work and gone, and pods `a`, `b` on the first one and `c`
/// on the second.
fn scene() -> (Cluster, [Pod; 3]) {
    let cluster = Cluster::new(2);
    let agents = cluster.start_agents(VARIABLES);
    let [h1, h2] = &cluster.hosts[..] else { unreachable!() };
    for host in [h1, h2] {
        soon("routes of both families", || facts::routes(host).len() == 2);
    }
    agents.iter().for_each(Agent::stop);
    let pods = [Pod::add(h1, "a"), Pod::add(h1, "b"), Pod::add(h2, "c")];
    (cluster, pods)
}

fn broken<'a>(cluster: &'a Cluster, pods: &[Pod; 3]) -> Broken<'a> {
    let (h1, h2) = (&cluster.hosts[0], &cluster.hosts[1]);
    let subnet = |pod: &Pod| format!("{}/24", pod.v4().to_string().rsplit_once('.').unwrap().0);
    let of_c = subnet(&pods[2]).replace("/24", ".0/24");
    let words = vec![
        ("$A4", pods[0].v4().to_string()),
        ("$C4", pods[2].v4().to_string()),
        ("$C6", pods[2].v6().to_string()),
        ("$CNET", of_c),
        ("$GW4", pods[0].gateways()[0].to_string()),
        ("$GW6", pods[0].gateways()[1].to_string()),
        ("$H1", h1.v4().to_string()),
        ("$H2", h2.v4().to_string()),
        ("$OUT4", OUTSIDE[0].to_string()),
        ("$HOSTPORT", host_port("a").to_string()),
    ];
    Broken { host: h1, words, faults: Vec::new() }
}

#[test]
fn an_intact_path_has_no_problem() {
    let (cluster, pods) = scene();
    let mut whole = broken(&cluster, &pods);
    let _server = Echo::serve(&pods[0], CONTAINER_PORT);
    for ends in [
        "a b",
        "a b --ipv6",
        "a $C4",
        "a $C6",
        "$C4 a",
        "$C6 a",
        "a $H1",
        "a $H2",
        "a $OUT4",
        "$H1 a",
        "$H1 $C4",
        "a http://$H2:8080/x",
        "a http://$H1:$HOSTPORT/",
        "$OUT4 a",
    ] {
        whole.check("true", ends, "-", "true");
    }
    let said = text(run(whole.host, &whole.filled("explain a $C4"), VARIABLES));
    assert!(said.contains(&whole.filled("default/a ($A4) → $C4 of host h2\n")), "{said}");
    assert!(said.contains("answers default/a within"), "{said}");
    let (_, value) = lost(whole.host, &whole.filled("a b"));
    let echo = hops(&value).find(|hop| hop["hop"] == "echo").unwrap();
    assert_eq!(echo["verdict"], "ok", "{value:#}");
    let (_, value) = lost(whole.host, &whole.filled("a b --quiet"));
    assert!(!hops(&value).any(|hop| hop["hop"] == "echo"), "{value:#}");
}

#[test]
fn who_does_not_answer_is_odd_and_the_path_not_said_to_be_right() {
    let (cluster, pods) = scene();
    let host = &cluster.hosts[0];
    let explain = || text(run(host, &format!("explain a {}", pods[2].v4()), VARIABLES));
    let said = explain();
    assert!(said.ends_with("nothing is wrong as far as this host can see\n"), "{said}");
    cluster.set_cable(&cluster.hosts[1], false);
    let said = explain();
    assert!(said.ends_with("nothing is lost as far as this host can see; odd: echo\n"), "{said}");
}

#[test]
fn a_gateway_that_this_host_has_no_more_is_odd() {
    let (cluster, pods) = scene();
    let host = &cluster.hosts[0];
    let gateway = pods[0].gateways()[0];
    host.shell(&format!(
        "ip addr add 10.244.77.1/24 dev humanz0; ip addr del {gateway}/24 dev humanz0"
    ))
    .ok();
    let (_, value) = lost(host, &format!("a {}", pods[2].v4()));
    let hop = hops(&value).find(|hop| hop["hop"] == "pod-route").unwrap();
    assert_eq!(hop["verdict"], "odd", "{value:#}");
    let seen = hop["seen"].as_str().unwrap();
    assert!(seen.ends_with(&format!("via {gateway}, which is no address of this host by now")));
}

#[test]
fn a_port_where_nothing_listens_is_found() {
    let (cluster, pods) = scene();
    let mut case = broken(&cluster, &pods);
    for ends in ["a b 5432", "a b udp/5432", "a b 5432 --ipv6", "$C4 b 5432"] {
        case.check("true", ends, "listener", "true");
    }
    let ended = run(case.host, "explain a b 5432", VARIABLES);
    let seen = format!("nothing listens there at {}, TCP port 5432", pods[1].v4());
    assert!(ended.stdout.contains(&seen), "{ended}");
    assert!(!ended.stdout.contains("nothing is wrong"), "{ended}");
    // Of another host's pods, and of other protocols, that is not known here.
    for ends in ["a $C4 5432", "a b sctp/5432"] {
        case.check("true", ends, "-", "true");
    }
    let _server = Echo::serve(&pods[1], 5432);
    for ends in ["a b 5432", "a b udp/5432", "a b 5432 --ipv6", "$C4 b 5432"] {
        case.check("true", ends, "-", "true");
    }
    // Only the pod itself reaches what listens at its loopback address.
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 6000);
    let _local = pods[1].spot().inside(|| TcpListener::bind(local)).unwrap();
    case.check("true", "a b 6000", "listener", "true");
    // As sidecars do.
    let redirected = "ip netns exec b nft add table ip sidecar";
    case.check(redirected, "a b 7000", "-", "ip netns exec b nft delete table ip sidecar");
}

#[test]
fn the_same_connection_many_times_is_one_with_its_number() {
    let (cluster, pods) = scene();
    let [a, b] = [&pods[0], &pods[1]];
    let host = &cluster.hosts[0];
    let _server = Echo::serve(b, 5432);
    for _ in 0..4 {
        echo::ask_udp(a, 0, SocketAddr::new(b.v4(), 5432)).unwrap();
    }
    let (_, value) = lost(host, "a b 5432 --quiet");
    let hop = hops(&value).find(|hop| hop["hop"] == "connections").unwrap();
    let connection = format!("4 × UDP {} → {} port 5432", a.v4(), b.v4());
    assert_eq!(hop["seen"], connection, "{value:#}");
}

#[test]
fn faults_of_a_pod_or_its_link_are_found() {
    let (cluster, pods) = scene();
    let mut broken = broken(&cluster, &pods);
    for (script, ends, wanted) in [
        ("ip -n p link set eth0 down", "p b", "pod-interface"),
        ("ip -n p link set eth0 down", "b p", "pod-interface"),
        ("ip -n p link set eth0 down", "$C6 p", "pod-interface"),
        ("ip link del $PORT", "p $C4", "pod-interface"),
        ("ip netns del p", "p b", "pod-namespace"),
        ("ip -n p addr del $P4/24 dev eth0", "p b", "pod-address"),
        ("ip -n p addr flush dev eth0", "p b --ipv6", "pod-address"),
        ("ip -n p addr flush dev eth0", "b p", "pod-address"),
        ("ip -n p route del default", "p $C4", "pod-route"),
        ("ip -n p route del default", "p $OUT4", "pod-route"),
        ("ip -n p -6 route del default", "p $C6", "pod-route"),
        ("ip -n p -6 route del default", "$C6 p", "pod-way-back"),
        ("ip link set $PORT nomaster", "p b", "pod-port"),
        ("ip link set $PORT nomaster", "p $C6", "pod-port"),
        ("ip link set $PORT nomaster", "b p", "pod-port"),
        ("ip link set $PORT down", "p b", "pod-port"),
        ("ip link set $PORT down", "$C4 p", "pod-port"),
        (
            "bridge fdb replace $(ip -n p -j link show eth0 | grep -o '..:..:..:..:..:..' | head -1) dev $(ls /sys/class/net/humanz0/brif | grep -v $PORT | head -1) master static sticky",
            "p b",
            "pod-port",
        ),
        ("bridge fdb del $(cat /sys/class/net/$PORT/address) dev $PORT master", "p b", "pod-port"),
        ("bridge fdb del $(cat /sys/class/net/$PORT/address) dev $PORT master", "b p", "pod-port"),
        (
            "ip -n p neigh replace $GW4 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
            "p $C4",
            "pod-neighbour",
        ),
        (
            "ip -n p neigh replace $GW6 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
            "$C6 p",
            "pod-neighbour-back",
        ),
        (
            "ip neigh replace $P4 lladdr 02:00:00:00:00:99 dev humanz0 nud permanent",
            "$C4 p",
            "neighbour",
        ),
        ("ip link set $PORT mtu 1400", "p b", "mtu"),
        ("ip link set $PORT mtu 1400", "b p", "mtu"),
    ] {
        broken.check_pod(script, ends, wanted);
    }
}

#[test]
fn faults_of_the_host_are_found() {
    let (cluster, pods) = scene();
    let mut broken = broken(&cluster, &pods);
    let drop = "nft add table inet evil
        nft 'add chain inet evil f { type filter hook forward priority 5; policy drop; }'";
    let aimed = "nft add table inet evil
        nft 'add chain inet evil f { type filter hook forward priority 5; }'
        nft add rule inet evil f ip saddr $A4 drop";
    let port = "nft add table inet evil
        nft 'add chain inet evil f { type filter hook forward priority 5; }'
        nft add rule inet evil f tcp dport 8080 drop";
    let input = "nft add table inet evil
        nft 'add chain inet evil i { type filter hook input priority 5; }'
        nft add rule inet evil i iifname humanz0 drop";
    let whole = "nft delete table inet evil";
    let strict = "ip link add other type veth peer name end
        ip link set other up; ip link set end up
        sysctl -qw net.ipv4.conf.humanz0.rp_filter=1; ip route add $A4/32 dev other";
    for (script, ends, wanted, repair) in [
        (
            "sysctl -qw net.ipv4.ip_forward=0",
            "a $C4",
            "forwarding",
            "sysctl -qw net.ipv4.ip_forward=1",
        ),
        (
            "sysctl -qw net.ipv6.conf.all.forwarding=0",
            "$C6 a",
            "forwarding",
            "sysctl -qw net.ipv6.conf.all.forwarding=1",
        ),
        ("ip route del $CNET", "a $C4", "route", "ip route add $CNET via $H2 proto 104"),
        ("ip route del $CNET", "$C4 a", "way-back", "ip route add $CNET via $H2 proto 104"),
        ("ip route add blackhole $C4/32", "a $C4", "route", "ip route del blackhole $C4/32"),
        ("ip addr del $GW4/24 dev humanz0", "a $C4", "bridge", "ip addr add $GW4/24 dev humanz0"),
        // The host routes between its pods, too.
        ("ip addr del $GW4/24 dev humanz0", "a b", "bridge", "ip addr add $GW4/24 dev humanz0"),
        (drop, "a $C4", "firewall", whole),
        (drop, "a $C6", "firewall", whole),
        (drop, "$C4 a", "firewall", whole),
        (aimed, "a $C4", "firewall", whole),
        (aimed, "b $C4", "-", whole),
        (port, "a http://$H2:8080", "firewall", whole),
        (port, "a http://$H2:8081", "-", whole),
        (input, "a $H1", "host-firewall", whole),
        ("iptables-nft -P FORWARD DROP", "a $C4", "firewall", "iptables-nft -P FORWARD ACCEPT"),
        (
            "iptables-legacy -P FORWARD DROP",
            "$C4 a",
            "firewall",
            "iptables-legacy -P FORWARD ACCEPT",
        ),
        (
            strict,
            "a $C4",
            "reverse-path",
            "ip link del other; sysctl -qw net.ipv4.conf.humanz0.rp_filter=0",
        ),
        (
            "ip neigh replace $H2 dev eth0 nud failed",
            "a $C4 --quiet",
            "next-hop",
            "ip neigh del $H2 dev eth0",
        ),
        ("nft delete table inet humanz-hostports", "a http://$H1:$HOSTPORT", "host-port", "true"),
        ("nft delete table inet humanz", "a $OUT4", "masquerade", "true"),
        ("ip link set humanz0 down", "a b", "bridge", "ip link set humanz0 up"),
    ] {
        broken.check(script, ends, wanted, repair);
    }
    // The other host is down: its address does not answer ARP.
    cluster.hosts[1].shell("ip link set eth0 down").ok();
    broken.check("ip neigh flush dev eth0", "a $C4", "next-hop", "true");
    broken.check("ip link set eth0 down", "a $C4", "uplink", "true");
    broken.check("ip link del humanz0", "a b", "bridge", "true");
}

#[test]
fn the_fix_for_a_partial_drop_does_not_accept_everything() {
    let (cluster, pods) = scene();
    let mut case = broken(&cluster, &pods);
    let table = "nft add table inet evil
        nft 'add chain inet evil f { type filter hook forward priority 5; }'";
    let policy = "nft add table inet evil
        nft 'add chain inet evil f { type filter hook forward priority 5; policy drop; }'";
    let from_c = format!("{table}; nft add rule inet evil f ip saddr $CNET drop");
    let from_a = format!("{table}; nft add rule inet evil f ip saddr $A4 drop");
    let port = format!("{table}; nft add rule inet evil f tcp dport 8080 drop");
    let called = format!(
        "{table}; nft add chain inet evil g; nft add rule inet evil f jump g
        nft add rule inet evil g ip daddr $C4 drop"
    );
    let uplink = format!("{table}; nft add rule inet evil f iifname eth0 drop");
    let of_f = "nft -a list chain inet evil f # finds it";
    let of_g = "nft -a list chain inet evil g # finds it";
    let all = "insert rule inet evil f iifname \"humanz0\" accept";
    for (script, ends, seen, fix) in [
        (from_c.as_str(), "$C4 a", "a rule drops packets like this one, from $C4 to $A4", of_f),
        (&from_a, "a $C4", "a rule drops packets like this one, from $A4 to $C4", of_f),
        (&port, "a http://$H2:8080", "a rule drops packets like this one, from $A4 to $H2", of_f),
        (&called, "a $C4", "a rule of chain g drops packets like this one, from $A4 to $C4", of_g),
        (&uplink, "$C4 a", "a rule drops what other hosts' pods send to pods", all),
        (policy, "a $C4", "its policy drops what pods send", all),
    ] {
        case.host.shell(&case.filled(script)).ok();
        let (found, value) = lost(case.host, &case.filled(ends));
        case.host.shell("nft delete table inet evil").ok();
        assert_eq!(found, "firewall", "{script}: {value:#}");
        let hop = hops(&value).find(|hop| hop["verdict"] == "lost").unwrap();
        let (was_seen, todo) = (hop["seen"].as_str().unwrap(), hop["cure"].as_str().unwrap());
        assert!(was_seen.contains(&case.filled(seen)), "{script}: {was_seen}");
        assert!(todo.contains(fix), "{script}: {todo}");
        assert!(fix == all || !todo.contains("accept"), "{script}: {todo}");
    }
    case.check("true", "$C4 a", "-", "true");
}

#[test]
fn an_unknown_endpoint_is_reported() {
    let alone = Alone::new();
    let standalone = [("SUBNET_SOURCE", "static"), ("ETCD_HOST", ""), ("IPV6_SUBNET", "fd10::/48")];
    let agent = Agent::start(&alone.host, &standalone);
    agent.wait_ready();
    let pod = Pod::add(&alone.host, "c1");
    let nobody = format!("c1 {}.200", pod.v4().to_string().rsplit_once('.').unwrap().0);
    let _other = Pod::add(&alone.host, "c2");
    check(&alone.host, &standalone, "c1 nobody", 2, "none of the 2 pods of this host");
    check(&alone.host, &standalone, "c 192.0.2.9", 2, "c1 and c2: give more of the id");
    check(&alone.host, &standalone, &nobody, 1, "no pod has it");
    check(&alone.host, &standalone, "c1 10.244.99.7", 1, "no host of the network has that subnet");
    check(&alone.host, &standalone, "192.0.2.9 192.0.2.10", 2, "run it on a host of one of them");
    check(&alone.host, &standalone, "c1 http://no.such.name.invalid/", 69, "does not resolve");
    check(&alone.host, &standalone, "c1", 2, "");
}

fn check(host: &Node, variables: &[(&str, &str)], ends: &str, code: i32, words: &str) {
    let ended = run(host, &format!("explain {ends}"), variables);
    assert_eq!(ended.status.code(), Some(code), "{ended}");
    assert!(ended.stderr.contains(words) && ended.stdout.is_empty(), "{ended}");
}
