use serde_json::{Value, json};

use crate::cni::config::*;
use crate::cni::env::Verb;
use crate::cni::error::RefusedRequest;
use crate::cni::json::FieldError;

/// A configuration with `keys` over the least that is needed, and its faults as text.
fn read(keys: Value) -> (NetConf, Vec<String>) {
    let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "humanz" });
    for (key, value) in keys.as_object().unwrap() {
        document[key] = value.clone();
    }
    let (conf, faults) = parse(&document.to_string(), Verb::Add).unwrap();
    (conf, faults.iter().map(FieldError::to_string).collect())
}

fn parse(text: &str, command: Verb) -> Result<(NetConf, Vec<FieldError>), RefusedRequest> {
    NetConf::parse(text.as_bytes(), command)
}

/// A configuration without faults.
fn conf(keys: Value) -> NetConf {
    let (conf, faults) = read(keys);
    assert_eq!(faults, Vec::<String>::new());
    conf
}

/// The one fault of a configuration.
fn fault(keys: Value) -> String {
    let (_, faults) = read(keys);
    let [fault] = &faults[..] else { panic!("not one fault: {faults:?}") };
    fault.clone()
}

fn code(text: &str, command: Verb) -> u32 {
    parse(text, command).unwrap_err().error.code
}

fn range(subnet: &str) -> RangeConf {
    let subnet = subnet.parse().unwrap();
    RangeConf { subnet, range_start: None, range_end: None, gateway: None }
}

#[test]
fn the_hand_written_file_of_the_go_seed_is_read_as_it_stands() {
    let file = r#"{
        "cniVersion": "0.3.1",
        "name": "humanz-cni",
        "type": "humanz-cni",
        "bridge": "humanz-cni0",
        "network": "100.100.0.0/16",
        "subnet": "100.100.1.0/24"
    }"#;
    let (conf, faults) = parse(file, Verb::Add).unwrap();
    assert_eq!(faults, vec![]);
    assert_eq!((conf.version, conf.name.as_str()), (Version::V031, "humanz-cni"));
    assert_eq!(conf.bridge.as_str(), "humanz-cni0");
    assert_eq!(conf.network, ["100.100.0.0/16".parse().unwrap()]);
    assert_eq!(conf.ranges, [[range("100.100.1.0/24")]]);
}

#[test]
fn the_file_of_the_python_seed_is_read_too() {
    let conf = conf(json!({ "network": "10.2.0.0/16", "subnet": "10.2.1.0/24" }));
    assert_eq!(conf.bridge.as_str(), "humanz0");
    assert_eq!(conf.ranges, [[range("10.2.1.0/24")]]);
}

#[test]
fn a_configuration_of_bridge_with_host_local_goes_on_working() {
    let conf = conf(json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
        "promiscMode": true, "hairpinMode": false, "enabledad": true, "forceAddress": false,
        "capabilities": { "ips": true },
        "ipam": {
            "type": "host-local",
            "dataDir": "/var/lib/cni/networks",
            "ranges": [
                [{ "subnet": "10.88.0.0/16", "rangeStart": "10.88.1.20", "rangeEnd": "10.88.3.50",
                   "gateway": "10.88.0.254" }],
                [{ "subnet": "2001:4860:4860::/64" }],
            ],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0", "gw": "2001:4860:4860::9" }],
        },
    }));
    let v4 = RangeConf {
        range_start: Some("10.88.1.20".parse().unwrap()),
        range_end: Some("10.88.3.50".parse().unwrap()),
        gateway: Some("10.88.0.254".parse().unwrap()),
        ..range("10.88.0.0/16")
    };
    assert_eq!(conf.ranges, [[v4], [range("2001:4860:4860::/64")]]);
    assert_eq!(conf.data_dir, PathBuf::from("/var/lib/cni/networks"));
    assert_eq!(conf.routes.len(), 2);
    assert!(conf.ip_masq && conf.is_gateway && conf.is_default_gateway && !conf.hairpin_mode);
}

#[test]
fn defaults() {
    let conf = conf(json!({}));
    assert!(conf.create_bridge && conf.hairpin_mode && conf.is_gateway && conf.is_default_gateway);
    assert!(!conf.ip_masq && !conf.port_isolation);
    assert_eq!((conf.mtu, conf.mac), (None, None));
    assert_eq!(conf.data_dir, PathBuf::from("/run/humanz/ipam"));
    assert_eq!(conf.log_file, Some(PathBuf::from("/var/log/humanz.log")));
    assert!(conf.ranges.is_empty() && conf.routes.is_empty() && conf.dns.is_empty());
    assert_eq!((conf.prev_result, conf.valid_attachments), (None, None));
}

#[test]
fn null_and_empty_texts_are_defaults() {
    let nulls = json!({ "bridge": null, "mtu": null, "hairpinMode": null, "ipam": null,
        "runtimeConfig": null, "args": null, "dns": null, "prevResult": null, "routes": null });
    assert_eq!(conf(nulls), conf(json!({})));
    let empty = json!({ "bridge": "", "mac": "", "dataDir": "", "mtu": 0 });
    assert_eq!(conf(empty), conf(json!({})));
    assert_eq!(conf(json!({ "logFile": "" })).log_file, None);
}

#[test]
fn keys_match_in_any_case() {
    let keys = json!({ "MTU": 1400, "HairPinMode": false,
        "RuntimeConfig": { "IPs": ["10.1.2.3"], "bandWidth": { "ingressRate": 8 } } });
    let conf = conf(keys);
    assert_eq!((conf.mtu, conf.hairpin_mode), (Some(1400), false));
    assert_eq!(conf.runtime.requested.ips.len(), 1);
    assert_eq!(conf.runtime.bandwidth.ingress.unwrap().rate_bits, 8);
}

#[test]
fn unknown_keys_are_tolerated_whatever_they_hold() {
    conf(json!({ "foo": [{}], "ipam": { "bar": 1 }, "runtimeConfig": { "aliases": ["a"],
        "cgroupPath": "/x", "deviceID": "" }, "args": { "labels": 1, "cni": { "z": null } } }));
}

#[test]
fn wrong_values_name_the_key_and_what_is_right() {
    for (keys, expected) in [
        (json!({ "mtu": "x" }), "mtu: must be 0 (the bridge's) or 68 to 65535 bytes, not \"x\""),
        (json!({ "mtu": 67 }), "mtu: must be 0 (the bridge's) or 68 to 65535 bytes, not 67"),
        (json!({ "mtu": -1 }), "mtu: must be"),
        (json!({ "mtu": 65536 }), "mtu: must be"),
        (json!({ "mtu": 1279, "subnet": "fd00::/64" }), "mtu: must be 0 (the bridge's) or 1280"),
        (json!({ "bridge": "sixteen-bytes-xx" }), "bridge: interface name"),
        (json!({ "bridge": 7 }), "bridge: must be a text, not 7"),
        (json!({ "hairpinMode": "true" }), "hairpinMode: must be true or false, not \"true\""),
        (json!({ "ipMasq": 1 }), "ipMasq: must be true or false, not 1"),
        (json!({ "subnet": "10.1.2.0" }), "subnet: must be an address with a prefix length"),
        (json!({ "subnet": "" }), "subnet: must be an address with a prefix length"),
        (json!({ "network": "10.1.2.3/16" }), "network: 10.1.2.3/16 has host bits set; the subnet"),
        (json!({ "network": ["10.0.0.0/8", 1] }), "network[1]: must be a text, not 1"),
        (json!({ "gateway": "10.1.2.1" }), "gateway: requires subnet"),
        (json!({ "ranges": {} }), "ranges: must be a list of lists of ranges, not an object"),
        (json!({ "ranges": [{}] }), "ranges[0]: must be a list of ranges"),
        (json!({ "ranges": [[]] }), "ranges[0]: the range set is empty"),
        (json!({ "ranges": [[{}]] }), "ranges[0][0]: subnet is missing"),
        (json!({ "ranges": [["10.1.2.0/24"]] }), "ranges[0][0]: must be an object"),
        (
            json!({ "ranges": [[{ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.0/24" }]] }),
            "ranges[0][0].rangeEnd: must be an IP address",
        ),
        (json!({ "routes": [{ "dst": "10.0.0.1/8" }] }), "routes[0].dst: 10.0.0.1/8 has host bits"),
        (json!({ "dns": [] }), "dns: must be an object, not a list"),
        (json!({ "dns": { "search": [1] } }), "dns.search[0]: must be a text, not 1"),
        (json!({ "dataDir": "ipam" }), "dataDir: must be an absolute path, not \"ipam\""),
        (json!({ "dataDir": "/a\u{0}b" }), "dataDir: must be an absolute path"),
        (json!({ "logFile": "log" }), "logFile: must be an absolute path"),
        (json!({ "mac": "01:00:00:00:00:01" }), "mac: MAC address 01:00:00:00:00:01 cannot"),
        (json!({ "runtimeConfig": [] }), "runtimeConfig: must be an object"),
        (json!({ "runtimeConfig": { "mac": "x" } }), "runtimeConfig.mac: \"x\" is not a MAC"),
        (json!({ "runtimeConfig": { "ips": ["x"] } }), "runtimeConfig.ips[0]: must be an IP"),
        (json!({ "runtimeConfig": { "ips": "x" } }), "runtimeConfig.ips: must be a list"),
        (
            json!({ "args": { "cni": { "ips": ["10.0.0.1/33"] } } }),
            "args.cni.ips[0]: must be an IP",
        ),
        (json!({ "ipam": "host-local" }), "ipam: must be an object, not \"host-local\""),
        (json!({ "ipam": { "type": "dhcp" } }), "ipam.type: must be \"host-local\""),
        (json!({ "ipam": { "type": "static", "addresses": [] } }), "not \"static\""),
    ] {
        let found = fault(keys.clone());
        assert!(found.contains(expected), "{keys}: {found}");
    }
}

#[test]
fn all_faults_are_found_in_one_go() {
    let (_, faults) = read(json!({ "mtu": "x", "bridge": "a/b", "ipMasq": 1, "subnet": "y" }));
    assert_eq!(faults.len(), 4, "{faults:?}");
}

#[test]
fn ranges_come_from_the_runtime_first_then_subnet_then_ranges() {
    let keys = json!({
        "subnet": "10.1.0.0/24", "ranges": [[{ "subnet": "10.2.0.0/24" }]],
        "runtimeConfig": { "ipRanges": [[{ "subnet": "10.0.0.0/24" }]] },
    });
    let expected = [[range("10.0.0.0/24")], [range("10.1.0.0/24")], [range("10.2.0.0/24")]];
    assert_eq!(conf(keys).ranges, expected);
}

#[test]
fn ranges_of_ipam_take_the_place_of_those_outside() {
    let keys = json!({ "subnet": "10.1.0.0/24", "dataDir": "/a", "routes": [{ "dst": "::/0" }],
        "ipam": { "subnet": "10.2.0.0/24", "dataDir": "/b", "routes": [] } });
    let found = conf(keys);
    assert_eq!(found.ranges, [[range("10.2.0.0/24")]]);
    assert_eq!((found.data_dir, found.routes), ("/b".into(), vec![]));
    let keys = json!({ "subnet": "10.1.0.0/24", "dataDir": "/a", "ipam": {} });
    let found = conf(keys);
    assert_eq!((found.ranges, found.data_dir), (vec![vec![range("10.1.0.0/24")]], "/a".into()));
}

#[test]
fn host_bits_of_a_range_are_kept_for_the_pool_to_refuse() {
    assert_eq!(conf(json!({ "subnet": "10.1.2.3/24" })).ranges, [[range("10.1.2.3/24")]]);
}

#[test]
fn the_default_route_follows_is_gateway_unless_it_is_set() {
    let gateways = |keys: Value| {
        let conf = conf(keys);
        (conf.is_gateway, conf.is_default_gateway)
    };
    assert_eq!(gateways(json!({ "isGateway": true })), (true, true));
    assert_eq!(gateways(json!({ "isGateway": false })), (false, false));
    assert_eq!(gateways(json!({ "isDefaultGateway": false })), (false, false));
    assert_eq!(gateways(json!({ "isGateway": true, "isDefaultGateway": false })), (true, false));
    assert_eq!(gateways(json!({ "isGateway": false, "isDefaultGateway": true })), (true, true));
}

#[test]
fn dns_of_the_runtime_takes_the_place_of_the_networks() {
    let keys = |runtime: Value| {
        let keys = json!({ "dns": { "nameservers": ["10.0.0.1"], "domain": "a" },
            "runtimeConfig": { "dns": runtime } });
        conf(keys).dns
    };
    let own = keys(json!({}));
    assert_eq!((own.nameservers, own.domain.as_deref()), (vec!["10.0.0.1".into()], Some("a")));
    let given = keys(json!({ "servers": ["10.96.0.10"] }));
    assert_eq!((given.nameservers, given.domain), (vec!["10.96.0.10".to_owned()], None));
}

#[test]
fn one_address_of_each_family_is_all_that_old_versions_hold() {
    let of = |version: &str, subnets: &[&str]| {
        let sets: Vec<Value> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        read(json!({ "cniVersion": version, "ranges": sets })).1
    };
    for version in ["0.1.0", "0.2.0"] {
        let two = of(version, &["10.1.0.0/24", "10.2.0.0/24"]);
        assert!(two.len() == 1 && two[0].starts_with("ranges: 2 sets are IPv4"), "{two:?}");
        assert_eq!(of(version, &["10.1.0.0/24", "fd00::/64", "fd01::/64"]).len(), 1);
        assert_eq!(of(version, &["10.1.0.0/24", "fd00::/64"]).len(), 0);
    }
    assert_eq!(of("0.3.0", &["10.1.0.0/24", "10.2.0.0/24"]).len(), 0);
}

#[test]
fn unsupported_features_are_refused_with_key_and_value() {
    for (keys, expected) in [
        (json!({ "disableContainerInterface": true }), "disableContainerInterface: true"),
        (json!({ "forceAddress": true }), "forceAddress: true"),
        (json!({ "ipam": { "resolvConf": "/etc/resolv.conf" } }), "ipam.resolvConf: \"/etc"),
        (
            json!({ "runtimeConfig": { "deviceID": "0000:00:1f" } }),
            "runtimeConfig.deviceID: \"0000",
        ),
        (json!({ "hairpinMode": true, "promiscMode": true }), "promiscMode: cannot be used"),
    ] {
        let found = fault(keys);
        assert!(found.contains(expected), "{found}");
    }
    conf(json!({ "vlan": 0, "vlanTrunk": [], "promiscMode": true, "forceAddress": false,
        "ipam": { "resolvConf": "" } }));
}

#[test]
fn what_is_not_a_json_object_is_undecodable() {
    let deep = "[".repeat(200_000);
    let nested = format!("{{\"name\":\"net\",\"x\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    for bad in ["", " ", "{", "[]", "null", "\"x\"", "{} {}", "\u{feff}{}", &deep, &nested] {
        assert_eq!(code(bad, Verb::Add), 6, "{:.20}", bad);
    }
    let huge = format!("{{\"name\":\"net\"}}{}", " ".repeat(MAX_BYTES));
    assert_eq!(code(&huge, Verb::Add), 6);
    assert_eq!(NetConf::parse(&[b'{', 0xff, b'}'], Verb::Add).unwrap_err().error.code, 6);
}

#[test]
fn the_last_of_two_equal_keys_counts() {
    let (conf, _) = parse(r#"{"name":"a","mtu":1000,"mtu":1400,"name":"b"}"#, Verb::Add).unwrap();
    assert_eq!((conf.name.as_str(), conf.mtu), ("b", Some(1400)));
}

#[test]
fn no_version_is_0_1_0() {
    for text in [r#"{"name":"n"}"#, r#"{"name":"n","cniVersion":""}"#] {
        assert_eq!(parse(text, Verb::Add).unwrap().0.version, Version::V010);
    }
}

#[test]
fn every_supported_version_is_taken_and_others_are_not() {
    let with = |version: &str| format!(r#"{{"name":"n","cniVersion":"{version}"}}"#);
    for version in crate::cni::version::SUPPORTED {
        let found = parse(&with(version.as_str()), Verb::Add).unwrap().0.version;
        assert_eq!(found, version);
    }
    for bad in ["4.3.2", "1.0", "adsfsadf", "1.0.0 "] {
        for command in [Verb::Add, Verb::Del] {
            let error = parse(&with(bad), command).unwrap_err().error;
            assert_eq!((error.code, error.msg.as_str()), (1, "incompatible CNI versions"));
            let details = error.details.unwrap();
            assert!(details.contains(bad) && details.contains("1.1.0"), "{details}");
        }
    }
    assert_eq!(code(r#"{"name":"n","cniVersion":1}"#, Verb::Add), 6);
}

#[test]
fn check_gc_and_status_compare_versions_as_numbers() {
    let with = |version: &str| format!(r#"{{"name":"n","cniVersion":"{version}"}}"#);
    for command in [Verb::Check, Verb::Gc, Verb::Status] {
        assert_eq!(code(&with("adsfsadf"), command), 6);
        assert_eq!(code(&with("0.3.0"), command), 1);
        assert_eq!(code(&with(""), command), 1);
        assert_eq!(code(&with("4.3.2"), command), 1);
        assert!(parse(&with("1.1.0"), command).is_ok());
    }
    assert!(parse(&with("0.4.0"), Verb::Check).is_ok());
    assert_eq!(code(&with("1.0.0"), Verb::Gc), 1);
    assert_eq!(code(&with("1.0.0"), Verb::Status), 1);
}

#[test]
fn a_network_has_a_proper_name() {
    let long = "x".repeat(256);
    for bad in ["\"te%%st\"", "\"\"", "null", "7", "\"../x\"", "\"a b\"", &format!("{long:?}")] {
        for command in [Verb::Add, Verb::Del] {
            assert_eq!(code(&format!("{{\"name\":{bad}}}"), command), 7, "{bad:.20}");
        }
    }
    assert_eq!(code("{}", Verb::Add), 7);
}

#[test]
fn a_refusal_is_answered_in_the_configurations_version() {
    let refused = parse(r#"{"cniVersion":"0.3.0","name":"n"}"#, Verb::Gc).unwrap_err();
    assert_eq!(refused.version, Version::V030);
    assert_eq!(parse("[", Verb::Add).unwrap_err().version, Version::LATEST);
}

#[test]
fn the_networks_bandwidth_beats_what_the_runtime_passes_as_a_whole() {
    let runtime = json!({ "bandwidth": { "ingressRate": 8000, "egressRate": 8000 } });
    let of = |keys: Value| {
        let found = conf(keys).bandwidth;
        [found.ingress, found.egress].map(|limit| limit.map(|limit| limit.rate_bits))
    };
    assert_eq!(of(json!({ "runtimeConfig": runtime })), [Some(8000), Some(8000)]);
    assert_eq!(of(json!({ "runtimeConfig": runtime, "egressRate": 16 })), [None, Some(16)]);
    let zeros = json!({ "runtimeConfig": runtime, "egressRate": 0, "egressBurst": 0 });
    assert_eq!(of(zeros), [Some(8000), Some(8000)]);
    let faulty = json!({ "runtimeConfig": { "bandwidth": { "egressBurst": 8 } } });
    assert_eq!(fault(faulty), "runtimeConfig.bandwidth.egressBurst: requires egressRate");
}
