use serde_json::{Value, json};

use crate::cni::result::*;
use crate::cni::version::Version;

/// What a bridge with two families answers, with every key of 1.1.0.
fn full() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            { "name": "humanz0", "mac": "0a:5a:00:00:00:01" },
            { "name": "hz0123456789ab", "mac": "0a:5a:00:00:00:02", "mtu": 1450,
              "socketPath": "/run/s", "pciID": "0000:00:1f.6" },
            { "name": "eth0", "mac": "0a:58:0a:f4:01:02", "mtu": 1450,
              "sandbox": "/run/netns/c1" },
        ],
        "ips": [
            { "address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2 },
            { "address": "fd00::2/64", "gateway": "fd00::1", "interface": 0 },
            { "address": "10.245.1.2/24" },
        ],
        "routes": [
            { "dst": "0.0.0.0/0" },
            { "dst": "10.0.0.0/8", "gw": "10.244.1.9", "mtu": 1400, "advmss": 1360,
              "priority": 100, "table": 0, "scope": 0 },
            { "dst": "::/0", "gw": "fd00::1" },
        ],
        "dns": { "nameservers": ["10.96.0.10"], "domain": "a", "search": ["b"], "options": ["c"] },
    })
}

fn read(document: &Value, version: Version) -> CniResult {
    CniResult::from_json(document, version).unwrap()
}

/// `document`, of `from`, in the words of `to`.
fn convert(document: &Value, from: Version, to: Version) -> Value {
    read(document, from).to_json(to).unwrap()
}

fn refuses(document: Value, version: Version, why: &str) {
    let error = CniResult::from_json(&document, version).unwrap_err();
    assert_eq!(error.code, 6);
    assert!(error.msg.contains(why), "{document}: {error}");
}

#[test]
fn a_full_result_comes_back_as_it_went_in() {
    assert_eq!(convert(&full(), Version::V110, Version::V110), full());
}

#[test]
fn nothing_is_lost_on_the_way_by_1_0_0() {
    let older = convert(&full(), Version::V110, Version::V100);
    assert_eq!(older["cniVersion"], "1.0.0");
    assert_eq!(convert(&older, Version::V100, Version::V110), full());
}

#[test]
fn up_to_0_4_0_addresses_have_their_family_and_newer_keys_are_left_out() {
    let expected = json!({
        "interfaces": [
            { "name": "humanz0", "mac": "0a:5a:00:00:00:01" },
            { "name": "hz0123456789ab", "mac": "0a:5a:00:00:00:02" },
            { "name": "eth0", "mac": "0a:58:0a:f4:01:02", "sandbox": "/run/netns/c1" },
        ],
        "ips": [
            { "version": "4", "address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2 },
            { "version": "6", "address": "fd00::2/64", "gateway": "fd00::1", "interface": 0 },
            { "version": "4", "address": "10.245.1.2/24" },
        ],
        "routes": [
            { "dst": "0.0.0.0/0" },
            { "dst": "10.0.0.0/8", "gw": "10.244.1.9" },
            { "dst": "::/0", "gw": "fd00::1" },
        ],
        "dns": full()["dns"],
    });
    for version in [Version::V030, Version::V031, Version::V040] {
        let mut found = convert(&full(), Version::V110, version);
        let own = found.as_object_mut().unwrap().remove("cniVersion");
        assert_eq!((own, found), (Some(json!(version.as_str())), expected.clone()));
    }
}

#[test]
fn before_0_3_0_there_is_one_address_of_each_family() {
    let expected = json!({
        "ip4": {
            "ip": "10.244.1.2/24", "gateway": "10.244.1.1",
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.0.0.0/8", "gw": "10.244.1.9" }],
        },
        "ip6": {
            "ip": "fd00::2/64", "gateway": "fd00::1",
            "routes": [{ "dst": "::/0", "gw": "fd00::1" }],
        },
        "dns": full()["dns"],
    });
    for version in [Version::V010, Version::V020] {
        let mut found = convert(&full(), Version::V110, version);
        let own = found.as_object_mut().unwrap().remove("cniVersion");
        assert_eq!((own, found), (Some(json!(version.as_str())), expected.clone()));
    }
}

#[test]
fn an_old_result_comes_back_from_0_4_0_with_and_without_route_gateways() {
    for route in [json!({ "dst": "10.0.0.0/8" }), json!({ "dst": "10.0.0.0/8", "gw": "10.1.2.9" })]
    {
        let old = json!({
            "cniVersion": "0.2.0",
            "ip4": { "ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [route] },
            "ip6": { "ip": "fd00::3/64" },
        });
        let newer = convert(&old, Version::V020, Version::V040);
        assert_eq!(newer["ips"].as_array().unwrap().len(), 2);
        assert_eq!(convert(&newer, Version::V040, Version::V020), old);
    }
}

#[test]
fn routes_of_a_family_without_an_address_are_dropped_before_0_3_0() {
    let result =
        json!({ "ips": [{ "address": "fd00::2/64" }], "routes": [{ "dst": "0.0.0.0/0" }] });
    let expected = json!({ "cniVersion": "0.2.0", "ip6": { "ip": "fd00::2/64" } });
    assert_eq!(convert(&result, Version::V110, Version::V020), expected);
}

#[test]
fn no_address_cannot_be_said_before_0_3_0() {
    for version in [Version::V010, Version::V020] {
        let error = CniResult::default().to_json(version).unwrap_err();
        assert_eq!(error.code, 1);
        assert!(error.msg.contains("no address"), "{error}");
    }
    let empty = CniResult::default().to_json(Version::V040).unwrap();
    assert_eq!(empty, json!({ "cniVersion": "0.4.0" }));
}

#[test]
fn interface_0_stays_and_absent_stays_absent() {
    let document = json!({ "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0" }],
        "ips": [{ "address": "10.1.2.3/24", "interface": 0 }, { "address": "10.1.2.4/24" }] });
    assert_eq!(convert(&document, Version::V100, Version::V100), document);
    let result = read(&document, Version::V100);
    assert_eq!((result.ips[0].interface, result.ips[1].interface), (Some(0), None));
}

#[test]
fn a_result_without_a_version_has_the_networks() {
    for document in [json!({}), json!({ "cniVersion": "" }), json!({ "cniVersion": null })] {
        assert_eq!(read(&document, Version::V040), CniResult::default());
    }
    let both = json!({ "CNIVersion": "9.9.9", "cniVersion": "0.4.0" });
    assert_eq!(read(&both, Version::V040), CniResult::default());
}

#[test]
fn a_result_of_another_version_is_refused_with_the_supported_ones() {
    for other in ["1.0.0", "9.9.9", "x"] {
        refuses(json!({ "cniVersion": other }), Version::V040, "0.1.0, 0.2.0, 0.3.0");
    }
}

#[test]
fn what_is_no_result_is_refused_by_path() {
    let version = Version::V110;
    refuses(json!([]), version, "must be an object");
    refuses(json!({ "interfaces": {} }), version, "interfaces: must be a list");
    refuses(json!({ "interfaces": ["eth0"] }), version, "interfaces[0]: must be an object");
    refuses(json!({ "interfaces": [{}] }), version, "interfaces[0]: name is missing");
    refuses(json!({ "ips": [{}] }), version, "ips[0]: address is missing");
    refuses(json!({ "ips": [7] }), version, "ips[0]: must be an object");
    refuses(json!({ "ips": [{ "address": "10.1.2.3" }] }), version, "ips[0].address: must be");
    refuses(json!({ "routes": [{ "gw": "x" }] }), version, "routes[0]: dst is missing");
    refuses(json!({ "dns": 1 }), version, "dns: must be an object");
    let swapped = json!({ "ip4": { "ip": "fd00::2/64" } });
    refuses(swapped, Version::V020, "ip4.ip: must be an IPv4 address");
    refuses(json!({ "ip6": {} }), Version::V020, "ip6: ip is missing");
}

#[test]
fn an_index_that_points_nowhere_is_refused() {
    let with = |index: Value| {
        json!({ "interfaces": [{ "name": "eth0" }],
            "ips": [{ "address": "10.1.2.3/24", "interface": index }] })
    };
    refuses(with(json!(1)), Version::V110, "ips[0].interface: points past the 1 interfaces");
    refuses(with(json!(-1)), Version::V110, "ips[0].interface: must be a whole number");
    refuses(with(json!("0")), Version::V110, "ips[0].interface: must be a whole number");
}

#[test]
fn the_containers_addresses_are_those_on_its_interface_or_on_none() {
    let document = json!({
        "interfaces": [
            { "name": "eth0" }, { "name": "eth0", "sandbox": "/n" }, { "name": "net1", "sandbox": "/n" },
        ],
        "ips": [
            { "address": "10.0.0.1/24", "interface": 0 }, { "address": "10.0.0.2/24", "interface": 1 },
            { "address": "10.0.0.3/24", "interface": 2 }, { "address": "10.0.0.4/24" },
        ],
    });
    let result = read(&document, Version::V110);
    let addresses = result.container_addresses("eth0").map(|ip| ip.address.to_string());
    assert_eq!(addresses.collect::<Vec<_>>(), ["10.0.0.2/24", "10.0.0.4/24"]);
    assert_eq!(result.container_interface("eth0"), Some(&result.interfaces[1]));
    assert_eq!(result.container_interface("eth9"), None);
}

/// The result for one interface of a pod, with its bridge.
fn attached(
    host: &str,
    ifname: &str,
    address: &str,
    gateway: &str,
    routes: &[CniRoute],
) -> CniResult {
    let interface = |name: &str, sandbox: Option<&str>| Interface {
        name: name.to_owned(),
        sandbox: sandbox.map(str::to_owned),
        ..Interface::default()
    };
    CniResult {
        interfaces: vec![
            interface("br", None),
            interface(host, None),
            interface(ifname, Some("/run/netns/a")),
        ],
        ips: vec![IpConfig {
            address: address.parse().unwrap(),
            gateway: Some(gateway.parse().unwrap()),
            interface: Some(2),
        }],
        routes: routes.to_vec(),
        dns: Dns::default(),
    }
}

#[test]
fn a_result_of_two_interfaces_is_taken_apart_again() {
    let route = |dst: &str| CniRoute::new(dst.parse().unwrap(), None);
    let first = attached("h0", "eth0", "10.1.0.2/24", "10.1.0.1", &[route("0.0.0.0/0")]);
    let second = attached("h1", "eth1", "10.2.0.2/24", "10.2.0.1", &[route("10.2.0.0/16")]);
    let [first, second] = [first, second].map(CniResult::with_gateways);
    assert_eq!(second.routes[0].gw, Some("10.2.0.1".parse().unwrap()));
    let both = CniResult::default().and(first.clone()).and(second.clone());
    let names: Vec<&str> = both.interfaces.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["br", "h0", "eth0", "h1", "eth1"]);
    assert_eq!(both.ips[1].interface, Some(4));
    for (ifname, alone) in [("eth0", &first), ("eth1", &second)] {
        let found = both.of_interface(ifname);
        assert_eq!(found.routes, alone.routes, "{ifname}");
        let addresses = |result: &CniResult| -> Vec<_> {
            result.container_addresses(ifname).map(|ip| ip.address).collect()
        };
        assert_eq!(addresses(&found), addresses(alone));
    }
    // Without a gateway it is open which interface it is for: it is for each.
    let mut bare = both.clone();
    bare.routes.push(route("192.0.2.0/24"));
    assert_eq!(bare.of_interface("eth1").routes.len(), 2);
}
