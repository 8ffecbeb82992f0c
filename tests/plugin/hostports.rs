//! Host ports are forwarded to pods, from every source, while the pod exists.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::support::echo::{Echo, ask_tcp, ask_udp};
use crate::support::node::command;
use crate::support::plugin_host::{Call, PluginHost, conf};
use crate::support::{Node, Place};

/// Dual stack.
pub fn dual() -> Value {
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    conf("1.1.0", json!({ "ranges": sets }))
}

/// A mapping to the pod's port 80.
pub fn mapping(protocol: &str, port: u16, address: &str) -> Value {
    json!({ "hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": address })
}

/// `verb` for the container `name` with these mappings.
pub fn call(verb: &str, name: &str, mappings: &Value) -> Call {
    Call::new(verb, &dual(), name).key("runtimeConfig", json!({ "portMappings": mappings }))
}

/// ADD of a fresh container.
pub fn add(host: &PluginHost, name: &str, mappings: &Value) -> Value {
    host.netns(name);
    call("ADD", name, mappings).run(host).ok()
}

fn both(port: u16) -> Value {
    json!([mapping("tcp", port, ""), mapping("UDP", port, "")])
}

/// The elements of the table, in nft's syntax: `any4 tcp . 8080 : 10.1.2.2 . 80`, without comments.
pub fn elements(host: &Node) -> Vec<String> {
    let listed = host.run("nft -j list table inet humanz-hostports").stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap_or(Value::Null);
    let maps = listed["nftables"].as_array().into_iter().flatten().map(|item| &item["map"]);
    let words = |value: &Value| {
        let parts = value["concat"].as_array().into_iter().flatten();
        let parts: Vec<String> =
            parts.map(|part| part.as_str().map_or(part.to_string(), str::to_owned)).collect();
        parts.join(" . ")
    };
    let mut elements = Vec::new();
    for map in maps {
        for element in map["elem"].as_array().into_iter().flatten() {
            let key =
                if element[0]["elem"].is_null() { &element[0] } else { &element[0]["elem"]["val"] };
            let name = map["name"].as_str().unwrap();
            elements.push(format!("{name} {} : {}", words(key), words(&element[1])));
        }
    }
    elements.sort();
    elements
}

/// Every client at every address of the host is answered by the pod, which sees the given source.
#[track_caller]
fn reached(place: &dyn Place, asks: &[(&str, &str)]) {
    for (to, seen) in asks {
        let to = SocketAddr::new(to.parse().unwrap(), 8080);
        let seen: IpAddr = seen.parse().unwrap();
        assert_eq!(ask_tcp(place, to), Ok(seen), "{} asks {to} over TCP", place.label());
        assert_eq!(ask_udp(place, 0, to), Ok(seen), "{} asks {to} over UDP", place.label());
    }
}

#[track_caller]
fn unreached(place: &dyn Place, to: &str) {
    let to: SocketAddr = to.parse().unwrap();
    let answer = ask_tcp(place, to);
    assert!(answer.is_err(), "{} asks {to}: {answer:?}", place.label());
}

fn bridge_netfilter(host: &Node, on: bool) {
    for family in ["ip", "ip6"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}tables");
        host.write(&path, if on { "1" } else { "0" });
    }
}

#[test]
fn a_port_is_reached_from_everywhere_with_and_without_br_netfilter() {
    let host = PluginHost::new();
    let outside = host.outside();
    add(&host, "server", &both(8080));
    host.add(&dual(), "other");
    let (server, other) = (host.container("server"), host.container("other"));
    let _echo = Echo::serve(&server, 80);
    for on in [false, true] {
        bridge_netfilter(&host, on);
        // The host itself; the outside with its own address; pods as the bridge.
        let node: &Node = &host;
        reached(node, &[("192.0.2.11", "192.0.2.11"), ("fd99::11", "fd99::11")]);
        reached(node, &[("10.1.2.1", "10.1.2.1"), ("fd00::1", "fd00::1")]);
        reached(node, &[("127.0.0.1", "10.1.2.1"), ("127.0.0.9", "10.1.2.1")]);
        reached(&outside, &[("192.0.2.11", "192.0.2.99"), ("fd99::11", "fd99::99")]);
        for pod in [&server, &other] {
            reached(pod, &[("192.0.2.11", "10.1.2.1"), ("fd99::11", "fd00::1")]);
            reached(pod, &[("10.1.2.1", "10.1.2.1"), ("fd00::1", "fd00::1")]);
        }
    }
    // The kernel does not forward ::1: it is refused at once, and clients retry 127.0.0.1.
    unreached(&*host, "[::1]:8080");
    call("DEL", "server", &both(8080)).run(&host).ok();
    assert_eq!(elements(&host), [""; 0]);
    unreached(&outside, "192.0.2.11:8080");
}

#[test]
fn a_port_on_one_host_address_is_closed_on_the_others() {
    let host = PluginHost::new();
    let outside = host.outside();
    host.run("ip addr add 192.0.2.12/24 dev eth0").ok();
    let mappings = json!([
        mapping("tcp", 8080, "192.0.2.12"),
        mapping("tcp", 8080, "fd99::11"),
        mapping("tcp", 8081, "127.0.0.1"),
        mapping("tcp", 8082, "0.0.0.0"),
        mapping("tcp", 8083, "::"),
        // No address of this host: packets of pods to its owner must not match.
        mapping("tcp", 80, "198.51.100.7"),
    ]);
    add(&host, "server", &mappings);
    let _echo = Echo::serve(&host.container("server"), 80);
    let tcp = |place: &dyn Place, to: &str| ask_tcp(place, to.parse().unwrap()).is_ok();
    for (to, answers) in [
        ("192.0.2.12:8080", true),
        ("192.0.2.11:8080", false),
        ("[fd99::11]:8080", true),
        ("192.0.2.11:8081", false),
        ("192.0.2.12:8082", true),
        ("[fd99::11]:8082", false),
        ("[fd99::11]:8083", true),
        ("192.0.2.11:8083", false),
    ] {
        assert_eq!(tcp(&outside, to), answers, "{to}");
    }
    assert!(tcp(&*host, "127.0.0.1:8081"));
    host.add(&dual(), "other");
    let blackhole = "ip netns exec outside ip addr add 198.51.100.7/32 dev lo
        ip route add 198.51.100.7 via 192.0.2.99; ip netns exec outside ip route add 10.1.2.0/24 via 192.0.2.11";
    host.shell(blackhole).ok();
    let _theirs = Echo::serve(&outside, 80);
    let seen = ask_tcp(&host.container("other"), "198.51.100.7:80".parse().unwrap());
    assert_eq!(seen, Ok("10.1.2.3".parse().unwrap()), "the outside's own server answers");
}

#[test]
fn loopback_services_of_the_host_stay_closed_to_pods_and_the_outside() {
    let host = PluginHost::new();
    let outside = host.outside();
    add(&host, "pod", &both(8080));
    // A server that only 127.0.0.1 may ask.
    let local = host.inside(|| std::net::TcpListener::bind("127.0.0.1:7777")).unwrap();
    assert_eq!(host.read("/proc/sys/net/ipv4/conf/hz0/route_localnet").unwrap().trim(), "1");
    for (place, gateway, device) in
        [(host.container("pod"), "10.1.2.1", "eth0"), (outside, "192.0.2.11", "eth0-cable")]
    {
        place
            .shell(&format!(
                "echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
                 echo 1 > /proc/sys/net/ipv4/conf/{device}/route_localnet
                 ip rule add pref 0 to 127.0.0.0/8 lookup 77; ip rule del pref 0 lookup local
                 ip rule add pref 9 lookup local
                 ip route add 127.0.0.1/32 via {gateway} dev {device} table 77"
            ))
            .ok();
        let way = place.run("ip route get 127.0.0.1").ok();
        assert!(way.contains(gateway), "{way}");
        unreached(&place, "127.0.0.1:7777");
    }
    local.set_nonblocking(true).unwrap();
    assert!(local.accept().is_err(), "a connection got through");
    // The filter at the pod's port comes before its guard, and that before the table's rules.
    let port = host.run("ip -o link show master hz0").ok();
    let port = port.split(": ").nth(1).unwrap().split('@').next().unwrap();
    host.run(&format!("tc qdisc del dev {port} clsact")).ok();
    unreached(&host.container("pod"), "127.0.0.1:7777");
    assert!(local.accept().is_err(), "a connection got through");
    let dropped = host.run("nft list table netdev humanz").ok();
    let counted = |line: &str| line.contains("\"loopback\"") && !line.contains("packets 0 ");
    assert!(dropped.lines().any(counted), "{dropped}");
}

#[test]
fn udp_clients_with_stale_conntrack_entries_are_answered() {
    let host = PluginHost::new();
    let outside = host.outside();
    let to: SocketAddr = "192.0.2.11:8080".parse().unwrap();
    // Connection tracking needs a rule that matches ct state.
    host.run_command(
        &mut command("nft -f -"),
        "table ip t { chain c { type filter hook input priority 0; ct state established accept; }; }",
    )
    .ok();
    assert!(ask_udp(&outside, 5000, to).is_err());
    let flows = || host.run("conntrack -L -p udp --orig-port-dst 8080").stdout;
    for name in ["first", "second"] {
        if name == "first" {
            assert!(flows().contains("sport=5000"), "{}", flows());
        }
        add(&host, name, &both(8080));
        let echo = Echo::serve(&host.container(name), 80);
        // From the same port each time: the same flow, if it were still known.
        assert_eq!(ask_udp(&outside, 5000, to), Ok("192.0.2.99".parse().unwrap()), "{name}");
        drop(echo);
        call("DEL", name, &json!([])).run(&host).ok();
        assert!(!flows().contains("sport=5000"), "{}", flows());
    }
}

#[test]
fn a_pod_of_both_families_may_ask_for_a_thousand_ports() {
    let host = PluginHost::new();
    let many: Vec<Value> = (0..1000).map(|n| mapping("tcp", 20_000 + n, "")).collect();
    add(&host, "many", &json!(many));
    assert_eq!(elements(&host).len(), 2000);
    host.run("nft flush table inet humanz-hostports").ok();
    host.run("nft delete table inet humanz-hostports").ok();
    add(&host, "one", &both(8080));
    assert_eq!(elements(&host).len(), 2004);
    call("DEL", "many", &json!([])).run(&host).ok();
    assert_eq!(elements(&host).len(), 4);
}

#[test]
fn without_foreign_nat_flows_of_a_closed_port_are_deleted() {
    let host = PluginHost::new();
    let outside = host.outside();
    let to: SocketAddr = "192.0.2.11:8080".parse().unwrap();
    let conf = conf("1.1.0", json!({ "subnet": "10.1.2.0/24" }));
    let runtime = json!({ "portMappings": [mapping("udp", 8080, "")] });
    // The second was killed in an earlier DEL, for the third the store is lost.
    let lost =
        [("first", "true"), ("second", "rm -r .hostports/udp-8080"), ("third", "rm -r ./*/owners")];
    for (name, lost) in lost {
        host.netns(name);
        let call = |verb| Call::new(verb, &conf, name).key("runtimeConfig", runtime.clone());
        let result = call("ADD").run(&host).ok();
        let echo = Echo::serve(&host.container(name), 80);
        assert_eq!(ask_udp(&outside, 5000, to), Ok("192.0.2.99".parse().unwrap()), "{name}");
        drop(echo);
        host.shell(&format!("cd /run/humanz/ipam && {lost}")).ok();
        call("DEL").key("prevResult", result).run(&host).ok();
        let left = host.run("conntrack -L -p udp").stdout;
        assert!(!left.contains("sport=5000"), "{name}: {left}");
    }
}

#[test]
fn without_a_gateway_and_with_one_family_a_port_works() {
    let host = PluginHost::new();
    let keys = json!({ "subnet": "10.1.2.0/24", "isGateway": false, "isDefaultGateway": false });
    host.netns("c1");
    let mappings = json!([mapping("tcp", 8080, ""), mapping("tcp", 8081, "::")]);
    let runtime = json!({ "portMappings": mappings });
    let conf = conf("1.1.0", keys);
    Call::new("ADD", &conf, "c1").key("runtimeConfig", runtime).run(&host).ok();
    assert_eq!(elements(&host), ["any4 tcp . 8080 : 10.1.2.2 . 80"]);
    Call::new("DEL", &conf, "c1").run(&host).ok();
    assert_eq!(elements(&host), [""; 0]);
}

#[test]
fn sctp_has_its_rules_too() {
    let host = PluginHost::new();
    add(&host, "c1", &json!([mapping("SCTP", 8080, "192.0.2.11")]));
    assert_eq!(elements(&host), ["at4 192.0.2.11 . sctp . 8080 : 10.1.2.2 . 80"]);
}
