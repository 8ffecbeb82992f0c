use std::path::Path;

use super::*;
use crate::cni::env::{Environment, Verb};
use crate::cni::request::{Request, Role};
use serde_json::json;

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[
    {"type":"humanz","managedBy":"humanz-agent","bridge":"humanz0","subnet":"10.244.1.0/24"}]}"#;

fn host_network(text: &str) -> Option<HostNetwork> {
    HostNetwork::read(Path::new("/etc/cni/net.d/x.conflist"), text, "humanz")
}

/// As podman 5.4.2 wrote it, with `change`d parts.
fn container(change: impl Fn(&mut Value)) -> Vec<u8> {
    let mut document = json!({
        "container_id": "59f4234805582b8c3dcc", "container_name": "c1",
        "port_mappings": [
            { "container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1 },
            { "container_port": 90, "host_ip": "127.0.0.1", "host_port": 9000, "protocol": "udp,tcp", "range": 3 },
        ],
        "network": {
            "dns_enabled": false, "driver": "humanz", "id": "be6e", "internal": false, "ipv6_enabled": false,
            "name": "mine", "network_interface": null, "ipam_options": { "driver": "none" }, "subnets": null,
            "options": { "config": "/etc/cni/net.d/x.conflist", "network": "pods" },
            "routes": null, "network_dns_servers": null,
        },
        "network_options": {
            "aliases": ["59f423480558"], "interface_name": "eth7", "static_ips": ["10.244.1.77"],
            "static_mac": "02:11:22:33:44:55", "options": null,
        },
    });
    change(&mut document);
    document.to_string().into_bytes()
}

/// The call of CNI that a call of netavark becomes.
fn request(stdin: &[u8], verb: Verb) -> Result<Request, CniError> {
    let call = ContainerCall::parse(stdin, verb, "/run/netns/x")?;
    let network = host_network(LIST).unwrap();
    assert!(call.asked.is(&network), "{:?}", call.asked);
    let environment = Environment::parse(|name| call.variable(name))?.unwrap();
    let request = Request::parse(Role::Network, environment, &call.stdin(&network));
    request.map_err(|refused| refused.error)
}

fn refused(change: impl Fn(&mut Value)) -> String {
    request(&container(change), Verb::Add).unwrap_err().to_string()
}

#[test]
fn a_container_that_starts_is_an_add() {
    let Request::Add(add) = request(&container(|_| {}), Verb::Add).unwrap() else { panic!() };
    assert_eq!(add.attachment.ifname.as_str(), "eth7");
    assert_eq!((add.netns.path.as_str(), add.conf.name.as_str()), ("/run/netns/x", "pods"));
    assert_eq!(add.requested.ips, ["10.244.1.77/32".parse().unwrap()]);
    assert_eq!(add.requested.mac.unwrap().to_string(), "02:11:22:33:44:55");
    assert_eq!(add.args.pod().as_deref(), Some("c1"));
    let ports = &add.conf.runtime.port_mappings;
    let shown: Vec<String> = ports
        .iter()
        .map(|it| format!("{}/{} to {}", it.host_port, it.protocol, it.container_port))
        .collect();
    let all = ["8080/tcp to 80", "9000/udp to 90", "9001/udp to 91", "9002/udp to 92"];
    assert_eq!(shown[..4], all);
    assert_eq!(shown.len(), 7, "{shown:?}");
}

#[test]
fn what_is_invalid_is_refused_with_its_place() {
    let too_long = json!([{ "host_port": 65530, "container_port": 1, "range": 7 }]);
    let too_many = json!([{ "host_port": 1, "container_port": 1, "range": 16385 }]);
    let cases: [(&str, Value, &str); 12] = [
        ("/network_options/static_ips", json!(["10.244.1.777"]), "runtimeConfig.ips[0]"),
        ("/network_options/static_ips", json!("10.244.1.7"), "runtimeConfig.ips"),
        ("/network_options/static_mac", json!("02:11"), "runtimeConfig.mac"),
        ("/network_options/interface_name", json!("../x"), "CNI_IFNAME"),
        ("/network_options/interface_name", json!(7), "network_options.interface_name"),
        ("/network_options/options", json!({ "a": "b" }), "no options for one container"),
        ("/container_id", json!("../../etc"), "CNI_CONTAINERID"),
        ("/port_mappings", json!({}), "port_mappings: must be a list"),
        (
            "/port_mappings",
            json!([{ "host_port": 0, "container_port": 1 }]),
            "port_mappings[0].host_port",
        ),
        (
            "/port_mappings",
            json!([{ "host_port": 1, "container_port": 1, "protocol": "tcp,icmp" }]),
            "icmp",
        ),
        ("/port_mappings", too_long, "ends above port 65535"),
        ("/port_mappings", too_many, "more than 16384 host ports"),
    ];
    for (place, value, wanted) in cases {
        let said = refused(|document| *document.pointer_mut(place).unwrap() = value.clone());
        assert!(said.contains(wanted), "{place}: {said}");
    }
    for bad in ["", "[]", "7", "{", "{\"container_id\":"] {
        assert_eq!(ContainerCall::parse(bad.as_bytes(), Verb::Add, "/x").unwrap_err().code, 6);
    }
    assert_eq!(document(&vec![b' '; MAX_BYTES + 1]).unwrap_err().code, 6);
}

#[test]
fn no_name_of_a_container_smuggles_in_an_argument() {
    for name in ["c1;IP=10.244.1.9", "a=b", "", "ü", "a\nb"] {
        let stdin = container(|document| document["container_name"] = json!(name));
        let Request::Add(add) = request(&stdin, Verb::Add).unwrap() else { panic!() };
        assert_eq!((add.args.pod(), add.requested.ips.len()), (None, 1), "{name}");
    }
}

#[test]
fn an_ended_container_is_detached_whatever_else_is_wrong() {
    let stdin = container(|document| {
        document["port_mappings"] = json!([7]);
        document["network_options"]["options"] = json!({ "a": "b" });
        document["network_options"]["static_ips"] = json!("x");
    });
    let Request::Del(del) = request(&stdin, Verb::Del).unwrap() else { panic!() };
    assert_eq!(del.attachment.ifname.as_str(), "eth7");
    let gone = HostNetwork::gone(&AskedNetwork {
        network: Some("pods".into()),
        ..AskedNetwork::default()
    });
    assert_eq!(gone.name(), "pods");
    assert_eq!(HostNetwork::gone(&AskedNetwork::default()).name(), "humanz");
}

#[test]
fn only_a_configuration_with_humanz_alone_serves() {
    assert_eq!(host_network(LIST).unwrap().name(), "pods");
    let single = r#"{"name":"n","type":"humanz","subnet":"10.1.2.0/24"}"#;
    assert_eq!(host_network(single).unwrap().name(), "n");
    let renamed = LIST.replace("\"humanz\"", "\"renamed\"");
    assert_eq!(host_network(&renamed).unwrap().name(), "pods");
    for other in ["", "[]", "{", "{}", r#"{"type":"bridge"}"#, r#"{"plugins":[1,{"type":7}]}"#] {
        assert_eq!(host_network(other), None, "{other}");
    }
    let chained = LIST.replace("}]", r#"},{"type":"tuning"}]"#);
    let error = host_network(&chained).unwrap().alone().unwrap_err();
    assert!(error.msg.contains("\"tuning\" is chained"), "{error}");
}

#[test]
fn a_network_of_podmans_gives_out_no_address_itself() {
    let found = host_network(LIST).unwrap();
    // As podman 5.4.2 wrote it.
    let given = json!({ "name": "mine", "id": "be6e", "driver": "humanz", "created": "2026-11-26T05:48:20Z",
        "ipv6_enabled": false, "internal": false, "dns_enabled": true });
    let made = created(given.clone(), &found).unwrap();
    assert_eq!(made["dns_enabled"], false);
    assert_eq!(made["ipam_options"], json!({ "driver": "none" }));
    assert_eq!(AskedNetwork::of(&made).file.as_deref(), Some(found.file.as_path()));
    for key in ["name", "id", "driver", "created"] {
        assert_eq!(made[key], given[key]);
    }
    // What was made may be made again.
    assert_eq!(created(made.clone(), &found).unwrap(), made);
    let cases = [
        ("subnets", json!([{ "subnet": "10.9.0.0/24", "gateway": "10.9.0.1" }])),
        ("routes", json!([{ "destination": "10.0.0.0/8", "gateway": "10.9.0.1" }])),
        ("internal", json!(true)),
        ("ipv6_enabled", json!(true)),
        ("network_interface", json!("br0")),
        ("network_dns_servers", json!(["10.9.0.9"])),
        ("ipam_options", json!({ "driver": "dhcp" })),
        ("options", json!({ "mtu": "9000" })),
    ];
    for (key, value) in cases {
        let mut asked = given.clone();
        asked[key] = value;
        let error = created(asked, &found).unwrap_err();
        assert!(error.code == 2 && error.msg.contains(key), "{key}: {error}");
    }
}

#[test]
fn another_networks_configuration_is_not_taken() {
    let found = host_network(LIST).unwrap();
    let asked =
        |name: &str| AskedNetwork { network: Some(name.to_owned()), ..AskedNetwork::default() };
    assert!(
        asked("pods").is(&found)
            && AskedNetwork::default().is(&found)
            && !asked("other").is(&found)
    );
}

#[test]
fn a_result_has_the_containers_interfaces_alone() {
    let result = json!({
        "cniVersion": "1.0.0",
        "interfaces": [
            { "name": "humanz0", "mac": "0a:00:00:00:00:01" },
            { "name": "hz1", "mac": "0a:00:00:00:00:02" },
            { "name": "eth0", "mac": "0a:00:00:00:00:03", "sandbox": "/run/netns/x" },
        ],
        "ips": [
            { "address": "10.244.1.2/24", "gateway": "10.244.1.1", "interface": 2 },
            { "address": "fd00::2/64", "interface": 2 },
        ],
        "dns": { "nameservers": ["10.96.0.10"], "search": ["a.b"] },
    });
    let wanted = json!({
        "dns_search_domains": ["a.b"], "dns_server_ips": ["10.96.0.10"],
        "interfaces": { "eth0": { "mac_address": "0a:00:00:00:00:03", "subnets": [
            { "ipnet": "10.244.1.2/24", "gateway": "10.244.1.1" },
            { "ipnet": "fd00::2/64", "gateway": null },
        ] } },
    });
    assert_eq!(translated(&result), wanted);
    let error = json!({ "cniVersion": "1.0.0", "code": 101, "msg": "taken", "details": "by c2" });
    assert_eq!(translated(&error), json!({ "error": "taken: by c2" }));
}
