//! ADD: the interfaces, addresses and routes afterwards, and the result for the runtime.

use serde_json::{Value, json};

use crate::VERSIONS;
use crate::support::Place;
use crate::support::facts::addresses;
use crate::support::plugin_host::{Call, PluginHost, conf};

/// The seed's configuration file, word for word.
const SEED: &str = r#"{
    "cniVersion": "0.3.1",
    "name": "net",
    "type": "humanz",
    "bridge": "hz0",
    "network": "10.244.0.0/16",
    "subnet": "10.244.1.0/24"
}"#;

/// Names of all links on the host but the loopback and its uplink.
fn links(host: &PluginHost) -> Vec<String> {
    let shown = host.ip("link show");
    let names = shown.as_array().unwrap().iter().filter_map(|link| link["ifname"].as_str());
    names.filter(|name| *name != "lo" && !name.starts_with("eth0")).map(String::from).collect()
}

/// `(destination, gateway)` of the pod's routes through a gateway.
fn routes(host: &PluginHost, pod: &str) -> Vec<(String, String)> {
    let mut routes = Vec::new();
    for family in ["-4", "-6"] {
        let shown = host.pod_ip(pod, &format!("{family} route show"));
        for route in shown.as_array().into_iter().flatten() {
            if let (Some(dst), Some(gateway)) = (route["dst"].as_str(), route["gateway"].as_str()) {
                routes.push((dst.to_owned(), gateway.to_owned()));
            }
        }
    }
    routes
}

fn pod_addresses(host: &PluginHost, pod: &str) -> Vec<String> {
    let shown = host.pod_ip(pod, "address show dev eth0");
    let infos = shown[0]["addr_info"].as_array().unwrap().iter();
    let global = infos.filter(|info| info["scope"] == "global");
    let text = |info: &Value| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]);
    global.map(text).collect()
}

#[test]
fn the_python_agents_configuration_works_unchanged() {
    let host = PluginHost::new();
    let seed: Value = serde_json::from_str(SEED).unwrap();
    let result = host.add(&seed, "c1");
    assert_eq!(result["ips"][0]["address"], "10.244.1.2/24");
    assert_eq!(result["ips"][0]["gateway"], "10.244.1.1");
    assert_eq!(result["ips"][0]["version"], "4");
    assert_eq!(addresses(&*host, "hz0"), ["10.244.1.1/24"]);
    assert_eq!(routes(&host, "c1"), [("default".into(), "10.244.1.1".into())]);
    assert_eq!(host.read("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "1");
    Call::new("DEL", &seed, "c1").run(&host).ok();
    host.assert_clean("after DEL");
}

#[test]
fn an_ipv4_pod_in_every_version() {
    let host = PluginHost::new();
    for version in VERSIONS {
        let conf = conf(version, json!({ "subnet": "10.1.2.0/24" }));
        let pod = format!("c{}", version.replace('.', ""));
        let result = host.add(&conf, &pod);
        assert_eq!(result["cniVersion"], version);
        let address = pod_addresses(&host, &pod);
        assert_eq!(address.len(), 1, "{address:?}");
        assert_eq!(routes(&host, &pod), [("default".into(), "10.1.2.1".into())]);
        if version < "0.3.0" {
            assert_eq!(result["ip4"]["ip"], address[0].as_str());
            assert_eq!(result["ip4"]["gateway"], "10.1.2.1");
            assert_eq!(result["ip4"]["routes"][0]["dst"], "0.0.0.0/0");
        } else {
            assert_eq!(result["ips"][0]["address"], address[0].as_str());
            assert_eq!(result["ips"][0]["interface"], 2);
            assert_interfaces(&host, &result, &pod);
        }
        if version >= "0.4.0" {
            Call::new("CHECK", &conf, &pod).key("prevResult", result.clone()).run(&host).ok();
        }
        Call::new("DEL", &conf, &pod).key("prevResult", result).run(&host).ok();
        host.assert_clean(&format!("after DEL of {version}"));
    }
}

/// Bridge, host's end, pod's end, with the MACs and the MTU they have.
fn assert_interfaces(host: &PluginHost, result: &Value, pod: &str) {
    let returned = result["interfaces"].as_array().unwrap();
    let names: Vec<&str> = returned.iter().map(|link| link["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0], names[2]), (3, "hz0", "eth0"));
    assert!(names[1].starts_with("hz") && names[1].len() == 15, "{names:?}");
    assert_eq!(links(host), names[..2], "exactly these and no strays");
    for (place, shown) in [
        (0, host.ip("link show hz0")),
        (1, host.ip(&format!("link show {}", names[1]))),
        (2, host.pod_ip(pod, "link show eth0")),
    ] {
        assert_eq!(returned[place]["mac"], shown[0]["address"], "{}", names[place]);
        if result["cniVersion"].as_str() >= Some("1.0.0") {
            assert_eq!(returned[place]["mtu"], shown[0]["mtu"], "{}", names[place]);
        }
    }
    assert_ne!(returned[0]["mac"], returned[1]["mac"]);
    assert_eq!(returned[2]["sandbox"], format!("/run/netns/{pod}"));
    assert_eq!(returned[0].get("sandbox").or(returned[1].get("sandbox")), None);
    assert_eq!(host.pod_ip(pod, "link show eth0")[0]["operstate"], "UP");
    assert_eq!(host.ip(&format!("link show {}", names[1]))[0]["operstate"], "UP");
}

#[test]
fn ipv6_and_dual_stack_pods_are_usable_at_once() {
    let host = PluginHost::new();
    let subnets = |list: &[&str]| {
        let sets: Vec<Value> = list.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        conf("1.0.0", json!({ "ranges": sets }))
    };
    for (list, gateways, given) in [
        (&["2001:db8::/64"][..], &["2001:db8::1/64"][..], &["2001:db8::2/64"][..]),
        (
            &["192.168.0.0/24", "fd00::/64"],
            &["192.168.0.1/24", "fd00::1/64"],
            &["192.168.0.2/24", "fd00::2/64"],
        ),
        (
            &["192.168.0.0/24", "fd00::/64", "fd01::/64"],
            &["192.168.0.1/24", "fd00::1/64", "fd01::1/64"],
            &["192.168.0.3/24", "fd00::3/64", "fd01::2/64"],
        ),
    ] {
        let conf = subnets(list);
        let result = host.add(&conf, "c1");
        assert!(
            gateways.iter().all(|gateway| addresses(&*host, "hz0").contains(&(*gateway).into()))
        );
        let mut there = pod_addresses(&host, "c1");
        there.sort();
        assert_eq!(there, given);
        let families: Vec<_> = routes(&host, "c1").into_iter().map(|(dst, _)| dst).collect();
        let wanted = usize::from(list[0].contains('.')) + 1;
        assert_eq!(families, vec!["default"; if list.len() == 1 { 1 } else { wanted }]);
        let tentative = host.run("ip -n c1 -6 address show tentative scope global").ok();
        assert_eq!(tentative, "", "no waiting for duplicate address detection");
        Call::new("CHECK", &conf, "c1").key("prevResult", result).run(&host).ok();
        Call::new("DEL", &conf, "c1").run(&host).ok();
        host.run("ip netns del c1").ok();
    }
}

#[test]
fn old_versions_have_one_address_of_each_family() {
    let host = PluginHost::new();
    let two = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.3.0/24" }]]);
    let dual = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    for version in ["0.1.0", "0.2.0"] {
        host.netns("c1");
        let two = conf(version, json!({ "ranges": two }));
        let answer = Call::new("ADD", &two, "c1").run(&host);
        assert_eq!(answer.code(), 7, "{}", answer.error());
        let result =
            Call::new("ADD", &conf(version, json!({ "ranges": dual })), "c1").run(&host).ok();
        assert!(result["ip4"]["ip"].is_string() && result["ip6"]["ip"].is_string(), "{result}");
        Call::new("DEL", &two, "c1").run(&host).ok();
        host.assert_clean("after DEL");
        host.run("ip netns del c1").ok();
    }
}

#[test]
fn an_existing_bridge_keeps_its_settings_and_gets_missing_ones() {
    let host = PluginHost::new();
    host.shell("ip link add hz0 address 02:00:00:00:00:07 type bridge; ip link set hz0 mtu 1400; ip addr add 192.0.2.200/28 dev hz0").ok();
    let before = host.ip("link show hz0");
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let result = host.add(&conf, "c1");
    let after = host.ip("link show hz0");
    for key in ["ifindex", "address", "mtu"] {
        assert_eq!(before[0][key], after[0][key], "{key}");
    }
    assert_eq!(addresses(&*host, "hz0"), ["10.1.2.1/24", "192.0.2.200/28"]);
    assert_eq!(result["interfaces"][2]["mtu"], 1400, "the pod's MTU is the bridge's");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    let last = host.ip("link show hz0");
    assert_eq!(before[0]["address"], last[0]["address"]);
    assert_eq!(before[0]["mtu"], last[0]["mtu"]);
}

#[test]
fn a_bridge_made_by_add_keeps_its_mac_and_mtu_when_pods_come_and_go() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "mtu": 9000 }));
    let facts = || {
        let link = host.ip("-d link show hz0")[0].clone();
        let data = &link["linkinfo"]["info_data"];
        assert_eq!((&data["stp_state"], &data["vlan_filtering"]), (&json!(0), &json!(0)));
        assert_eq!(link["promiscuity"], 0);
        (link["address"].clone(), link["mtu"].clone())
    };
    host.add(&conf, "c1");
    let first = facts();
    assert_eq!(first.1, 9000);
    host.add(&conf, "c2");
    assert_eq!(facts(), first);
    for name in ["c1", "c2"] {
        Call::new("DEL", &conf, name).run(&host).ok();
    }
    assert_eq!(facts(), first);
}

#[test]
fn a_foreign_device_with_the_bridges_name_is_refused_and_left() {
    let host = PluginHost::new();
    host.shell("ip link add hz0 type veth peer name eth0-other").ok();
    host.netns("c1");
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    for create in [true, false] {
        let answer = Call::new("ADD", &conf, "c1").key("createBridge", json!(create)).run(&host);
        assert!(answer.error().contains("hz0"), "{}", answer.error());
    }
    assert_eq!(host.ip("-d link show hz0")[0]["linkinfo"]["info_kind"], "veth");
    assert_eq!(host.leftovers().into_iter().collect::<Vec<_>>(), ["link hz0"]);
}

/// As the Go seed, brctl and ifupdown make it: it would take the MAC of one of its ports, and another when
/// that port goes.
#[test]
fn a_bridge_without_a_mac_of_its_own_keeps_the_one_that_it_has() {
    let host = PluginHost::new();
    host.shell("ip link add hz0 type bridge; ip link set hz0 up").ok();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let mac = || host.ip("link show hz0")[0]["address"].as_str().unwrap().to_owned();
    let before = mac();
    for name in ["c1", "c2", "c3"] {
        let result = host.add(&conf, name);
        assert_eq!(result["interfaces"][0]["mac"], before.as_str(), "{name}");
    }
    let kind = || host.read("/sys/class/net/hz0/addr_assign_type").unwrap();
    assert_eq!((mac(), kind().trim()), (before.clone(), "3"));
    for name in ["c2", "c1"] {
        Call::new("DEL", &conf, name).run(&host).ok();
        host.run("ip netns exec c3 ping -n -c 1 -W 1 10.1.2.1").ok();
        assert_eq!(mac(), before);
    }
    // One that took a pod's MAC under an older release keeps that.
    host.shell("ip link del hz0; ip link add hz0 type bridge; ip link set hz0 up").ok();
    host.shell(
        "ip link add low0 address 02:00:00:00:00:01 type veth peer name low1; ip link set low0 master hz0",
    )
    .ok();
    assert_eq!(mac(), "02:00:00:00:00:01");
    host.add(&conf, "c4");
    host.run("ip link del low0").ok();
    assert_eq!(mac(), "02:00:00:00:00:01");
}

#[test]
fn interface_names_reserved_by_the_kernel_are_refused() {
    let host = PluginHost::new();
    host.netns("c1");
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let links = || host.shell("ip -br link; ip -n c1 -br link").ok();
    let before = links();
    let bridge = Call::new("ADD", &conf, "c1").key("bridge", json!("hz%d")).run(&host);
    assert_eq!(bridge.code(), 7);
    assert!(bridge.error().contains("\"hz%d\" contains '%'"), "{}", bridge.error());
    for name in ["e%d", "all", "default"] {
        let answer = Call::new("ADD", &conf, "c1").with("CNI_IFNAME", name).run(&host);
        assert_eq!(answer.code(), 4);
        assert!(answer.error().contains("CNI_IFNAME"), "{}", answer.error());
    }
    assert_eq!(links(), before);
    host.assert_clean("after the refusals");
}

#[test]
fn with_an_agent_a_bridge_that_is_not_ready_is_code_11() {
    let host = PluginHost::new();
    host.netns("c1");
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "createBridge": false }));
    let refused = |wanted: &str| {
        let answer = Call::new("ADD", &conf, "c1").run(&host);
        assert_eq!(answer.code(), 11);
        assert!(answer.error().contains(wanted), "{}", answer.error());
        for command in ["systemctl status humanz-agent", "kubectl -n kube-system get pods"] {
            assert!(answer.error().contains(command), "{}", answer.error());
        }
    };
    refused("bridge hz0 not found: is humanz-agent running on this host?");
    host.shell("ip link add hz0 type bridge").ok();
    refused("bridge hz0 is down");
    host.shell("ip link set hz0 up").ok();
    refused("bridge hz0 has no address 10.1.2.1/24");
    host.shell("ip addr add 10.1.2.1/24 dev hz0").ok();
    Call::new("ADD", &conf, "c1").run(&host).ok();
    assert_eq!(host.read("/proc/sys/net/ipv4/ip_forward").unwrap().trim(), "0", "the agent's");
}

#[test]
fn the_source_with_the_highest_precedence_sets_the_mac() {
    let host = PluginHost::new();
    let mac = |last: u8| json!(format!("c2:b0:57:49:47:0{last}"));
    let base = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let said = [
        ("CNI_ARGS", base.clone()),
        (
            "args.cni",
            Call::new("ADD", &base, "x").key("args", json!({ "cni": { "mac": mac(2) } })).conf,
        ),
    ];
    let runtime =
        Call::new("ADD", &said[1].1, "x").key("runtimeConfig", json!({ "mac": mac(3) })).conf;
    for (number, conf) in [&said[0].1, &said[1].1, &runtime].into_iter().enumerate() {
        let name = format!("c{number}");
        host.netns(&name);
        let args = format!("IgnoreUnknown=1;MAC={}", mac(1).as_str().unwrap());
        let result = Call::new("ADD", conf, &name).with("CNI_ARGS", &args).run(&host).ok();
        let wanted = mac(number as u8 + 1);
        assert_eq!(host.pod_ip(&name, "link show eth0")[0]["address"], wanted);
        assert_eq!(result["interfaces"][2]["mac"], wanted);
        assert_ne!(result["interfaces"][1]["mac"], wanted);
        Call::new("CHECK", conf, &name).key("prevResult", result).run(&host).ok();
    }
}

#[test]
fn port_flags_are_as_configured() {
    let host = PluginHost::new();
    for (number, (hairpin, isolated)) in
        [(None, None), (Some(false), Some(true)), (Some(true), Some(false))].into_iter().enumerate()
    {
        let mut conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
        for (key, value) in [("hairpinMode", hairpin), ("portIsolation", isolated)] {
            if let Some(value) = value {
                conf[key] = json!(value);
            }
        }
        let result = host.add(&conf, &format!("c{number}"));
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        let shown = host.ip(&format!("-d link show {port}"));
        let data = &shown[0]["linkinfo"]["info_slave_data"];
        assert_eq!(data["hairpin"], json!(hairpin.unwrap_or(true)));
        assert_eq!(data["isolated"], json!(isolated.unwrap_or(false)));
    }
}

#[test]
fn configured_routes_tables_scopes_and_metrics_are_set_returned_and_checked() {
    let host = PluginHost::new();
    let routes = json!([
        { "dst": "192.0.2.0/24" },
        { "dst": "198.51.100.0/24", "gw": "10.1.2.9", "mtu": 1400, "advmss": 1360, "priority": 7 },
        { "dst": "203.0.113.0/24", "table": 5000 },
        { "dst": "203.0.113.128/25", "scope": 200 },
        { "dst": "2001:db8::/32", "gw": "fd00::9", "mtu": 1300, "advmss": 1240, "priority": 9 },
        { "dst": "2001:db9::/32", "table": 5000 },
    ]);
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let conf = conf(version, json!({ "ranges": sets, "routes": routes }));
        let result = host.add(&conf, "c1");
        let mut returned = routes.clone();
        for route in returned.as_array_mut().unwrap().iter_mut().filter(|_| version == "0.4.0") {
            route.as_object_mut().unwrap().retain(|key, _| key == "dst" || key == "gw");
        }
        assert_eq!(result["routes"].as_array().unwrap()[..6], returned.as_array().unwrap()[..]);
        assert_eq!(result["routes"].as_array().unwrap().len(), 8, "and two default routes");
        let shown = ["-4", "-6"]
            .map(|family| host.run(&format!("ip {family} -n c1 route show table all")).ok());
        let shown = shown.concat();
        for line in [
            "192.0.2.0/24 via 10.1.2.1 dev eth0",
            "198.51.100.0/24 via 10.1.2.9 dev eth0 proto 104 metric 7 mtu 1400 advmss 1360",
            "203.0.113.0/24 via 10.1.2.1 dev eth0 table 5000",
            "2001:db8::/32 via fd00::9 dev eth0 proto 104 metric 9 mtu 1300 advmss 1240",
            "2001:db9::/32 via fd00::1 dev eth0 table 5000",
            "default via 10.1.2.1 dev eth0",
        ] {
            assert!(shown.contains(line), "{line} is not in\n{shown}");
        }
        let scoped =
            |line: &str| line.starts_with("203.0.113.128/25") && line.contains("scope site");
        assert!(shown.lines().any(scoped), "{shown}");
        let check = || Call::new("CHECK", &conf, "c1").key("prevResult", result.clone()).run(&host);
        check().ok();
        let change = "route change 198.51.100.0/24 via 10.1.2.9 metric 7 mtu 1300 advmss 1360";
        host.run(&format!("ip -n c1 {change} proto 104")).ok();
        assert_eq!(check().code(), 103, "{version}");
        Call::new("DEL", &conf, "c1").run(&host).ok();
        host.run("ip netns del c1").ok();
    }
}

#[test]
fn several_gateways_of_one_destination_share_the_load() {
    let host = PluginHost::new();
    let ways = |dst: &str, gateways: [&str; 2]| gateways.map(|gw| json!({ "dst": dst, "gw": gw }));
    let routes =
        [ways("192.0.2.0/24", ["10.1.2.8", "10.1.2.9"]), ways("::/0", ["fd00::8", "fd00::9"])];
    let sets = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    let conf = conf("1.0.0", json!({ "ranges": sets, "routes": routes.concat() }));
    let result = host.add(&conf, "c1");
    for (family, gateways) in [("-4", ["10.1.2.8", "10.1.2.9"]), ("-6", ["fd00::8", "fd00::9"])] {
        let shown = host.run(&format!("ip {family} -n c1 route show")).ok();
        for gateway in gateways {
            assert!(shown.contains(&format!("nexthop via {gateway} dev eth0")), "{shown}");
        }
    }
    let check = Call::new("CHECK", &conf, "c1").key("prevResult", result);
    check.run(&host).ok();
    host.run("ip -n c1 route replace 192.0.2.0/24 via 10.1.2.8").ok();
    let answer = check.run(&host);
    assert!(answer.error().contains("192.0.2.0/24 via 10.1.2.9"), "{}", answer.error());
}

#[test]
fn an_ipv6_address_survives_link_down() {
    let host = PluginHost::new();
    host.add(&conf("1.0.0", json!({ "subnet": "fd00::/64" })), "c1");
    host.shell("ip -n c1 link set eth0 down; ip -n c1 link set eth0 up").ok();
    assert_eq!(pod_addresses(&host, "c1"), ["fd00::2/64"]);
}

#[test]
fn without_a_default_gateway_there_is_no_default_route() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "isDefaultGateway": false }));
    let result = host.add(&conf, "c1");
    assert_eq!((routes(&host, "c1"), result.get("routes")), (vec![], None));
    assert_eq!(addresses(&*host, "hz0"), Vec::<String>::new(), "and no gateway");
}

#[test]
fn dns_settings_are_handed_on() {
    let host = PluginHost::new();
    let dns = json!({ "nameservers": ["10.1.2.53"], "search": ["cluster.local"] });
    let result = host.add(&conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "dns": dns })), "c1");
    assert_eq!(result["dns"], dns);
}

#[test]
fn an_interface_that_exists_in_the_pod_is_refused_and_left() {
    let host = PluginHost::new();
    host.netns("c1");
    host.run("ip -n c1 link add eth0 type veth").ok();
    let answer =
        Call::new("ADD", &conf("1.0.0", json!({ "subnet": "10.1.2.0/24" })), "c1").run(&host);
    assert_eq!(answer.code(), 102);
    assert!(answer.error().contains("already exists"), "{}", answer.error());
    assert_eq!(host.pod_ip("c1", "-d link show eth0")[0]["linkinfo"]["info_kind"], "veth");
    host.assert_clean("after the refusal");
}

#[test]
fn a_second_add_is_refused_while_the_first_lives_and_replaces_it_when_it_is_dead() {
    let host = PluginHost::new();
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24" }));
    let first = host.add(&conf, "c1");
    let call = Call::new("ADD", &conf, "c1");
    let answer = call.run(&host);
    assert_eq!(answer.code(), 102);
    assert!(answer.error().contains("duplicate allocation"), "{}", answer.error());
    Call::new("CHECK", &conf, "c1").key("prevResult", first).run(&host).ok();
    // Its link is gone.
    let veth = crate::support::facts::veths(&host).remove(0);
    host.run(&format!("ip link del {veth}")).ok();
    let second = call.run(&host).ok();
    assert_eq!(second["ips"][0]["address"], "10.1.2.3/24");
    // Its namespace is gone: the container was stopped and is started in a new one.
    host.run("ip netns del c1").ok();
    host.netns("c1b");
    let third = call.with("CNI_NETNS", "/run/netns/c1b").run(&host).ok();
    assert_eq!(third["ips"][0]["address"], "10.1.2.4/24");
    assert_eq!(host.list("/run/humanz/ipam/net/owners"), ["c1:eth0"]);
    assert_eq!(crate::support::facts::veths(&host).len(), 1);
}

#[test]
fn a_pod_with_ipv6_disabled_by_the_runtime_gets_its_ipv6_address() {
    let host = PluginHost::new();
    host.netns("c1");
    host.run("ip netns exec c1 sysctl -qw net.ipv6.conf.default.disable_ipv6=1").ok();
    let dual = json!([[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]]);
    Call::new("ADD", &conf("1.0.0", json!({ "ranges": dual })), "c1").run(&host).ok();
    assert_eq!(pod_addresses(&host, "c1"), ["10.1.2.2/24", "fd00::2/64"]);
    assert_eq!(routes(&host, "c1").len(), 2);
}

#[test]
fn a_network_with_the_longest_name_is_masqueraded() {
    let host = PluginHost::new();
    for length in [248, 255] {
        let name = format!("{length}{}", "n".repeat(length - 3));
        let keys = json!({ "name": name, "subnet": "10.1.2.0/24", "ipMasq": true });
        let long = conf("1.0.0", keys);
        host.add(&long, &format!("c{length}"));
        let tables = host.run("nft list tables").ok();
        assert!(tables.contains(&format!("humanz_{length}nnn")), "{tables}");
    }
}

#[test]
fn an_add_that_fails_late_leaves_alone_what_a_later_one_made() {
    let host = PluginHost::new();
    host.netns("c1");
    let sysctl = json!({ "net.core.somaxconn": "77" });
    let conf = conf("1.0.0", json!({ "subnet": "10.1.2.0/24", "sysctl": sysctl }));
    // Nobody reads its result until both ends of the pipe are full.
    let (reader, writer) = std::io::pipe().unwrap();
    let file = std::os::fd::AsFd::as_fd(&writer);
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while nix::unistd::write(&writer, &[b'x'; 1]).is_ok() {}
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    // Both get one address.
    let call = Call::new("ADD", &conf, "c1").with("CNI_ARGS", "IP=10.1.2.2");
    let mut command = call.command();
    command.stdin(std::process::Stdio::piped()).stdout(writer).stderr(std::process::Stdio::null());
    let mut slow = host.spot().inside(|| command.spawn()).unwrap();
    drop(command);
    let mut stdin = slow.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, call.conf.to_string().as_bytes()).unwrap();
    drop(stdin);
    let somaxconn = || host.run("ip netns exec c1 sysctl -n net.core.somaxconn").stdout;
    crate::support::soon("everything is made", || somaxconn().trim() == "77");
    Call::new("DEL", &conf, "c1").run(&host).ok();
    // The store tells two reservations of one address apart by the second.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let later = call.run(&host).ok();
    let made = host.leftovers();
    drop(reader);
    assert!(!slow.wait().unwrap().success());
    assert_eq!(host.leftovers(), made);
    assert_eq!(somaxconn().trim(), "77");
    Call::new("CHECK", &conf, "c1").key("prevResult", later).run(&host).ok();
}
