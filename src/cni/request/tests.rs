use serde_json::{Value, json};

use crate::cni::request::*;

const VARIABLES: [(&str, &str); 4] = [
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/run/netns/c1"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
];

/// The request `command` with `args` as CNI_ARGS and `keys` in the configuration.
fn request(role: Role, command: &str, args: &str, keys: Value) -> Result<Request, CniError> {
    let environment = Environment::parse(|name| match name {
        "CNI_COMMAND" => Some(command.into()),
        "CNI_ARGS" => Some(args.into()),
        _ => VARIABLES.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()),
    });
    let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "humanz" });
    for (key, value) in keys.as_object().unwrap() {
        document[key] = value.clone();
    }
    let stdin = document.to_string();
    let parsed = Request::parse(role, environment.unwrap().unwrap(), stdin.as_bytes());
    parsed.map_err(|refused| refused.error)
}

fn add(args: &str, keys: Value) -> Result<Add, CniError> {
    match request(Role::Network, "ADD", args, keys)? {
        Request::Add(add) => Ok(*add),
        other => panic!("{other:?}"),
    }
}

fn del(args: &str, keys: Value) -> Del {
    match request(Role::Network, "DEL", args, keys) {
        Ok(Request::Del(del)) => *del,
        other => panic!("{other:?}"),
    }
}

fn refusal(command: &str, keys: Value) -> CniError {
    request(Role::Network, command, "", keys).unwrap_err()
}

#[test]
fn add_has_everything() {
    let add = add("IgnoreUnknown=1;K8S_POD_NAME=p", json!({ "subnet": "10.1.2.0/24" })).unwrap();
    assert_eq!(add.attachment.to_string(), "c1:eth0");
    assert_eq!(add.netns.path, "/run/netns/c1");
    assert_eq!(add.args.pod().as_deref(), Some("p"));
    assert_eq!(add.conf.ranges.len(), 1);
}

#[test]
fn every_fault_is_in_the_one_error() {
    let error = refusal("ADD", json!({ "mtu": "x", "ipMasq": 1 }));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("mtu: must") && error.msg.contains("ipMasq: must"), "{error}");
}

#[test]
fn what_humanz_does_not_have_is_code_2_with_key_and_value() {
    let error = refusal("ADD", json!({ "subnet": "10.1.2.0/24", "forceAddress": true }));
    assert_eq!(error.code, 2);
    assert!(error.msg.contains("forceAddress: true"), "{error}");
}

#[test]
fn another_ipam_plugin_is_refused_by_name() {
    let error = refusal("ADD", json!({ "ipam": { "type": "dhcp" } }));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("ipam.type") && error.msg.contains("dhcp"), "{error}");
}

#[test]
fn add_needs_a_range_or_a_requested_address_and_loopback_neither() {
    let error = refusal("ADD", json!({}));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("set subnet"), "{error}");
    let asked = add("IP=10.1.2.3/24", json!({})).unwrap();
    assert_eq!(asked.requested.ips[0].to_string(), "10.1.2.3/24");
    for command in ["ADD", "STATUS"] {
        assert!(request(Role::Loopback, command, "", json!({})).is_ok());
    }
    assert!(request(Role::Network, "STATUS", "", json!({})).is_ok());
}

#[test]
fn bad_cni_args_are_code_4_on_add_and_passed_over_on_del() {
    let subnet = json!({ "subnet": "10.1.2.0/24" });
    assert_eq!(add("Unk=nown", subnet.clone()).unwrap_err().code, 4);
    let del = del("Unk=nown", subnet);
    assert!(del.ignored[0].contains("Unk=nown"), "{del:?}");
    assert_eq!(del.args, CniArgs::default());
}

#[test]
fn del_is_served_whatever_the_configuration_has_become() {
    let broken = json!({ "mtu": "x", "ipam": { "type": "dhcp" }, "vlan": 4095,
        "prevResult": { "cniVersion": "9.9.9" }, "dataDir": "/d" });
    let del = del("", broken);
    assert_eq!(del.ignored.len(), 4, "{:?}", del.ignored);
    assert_eq!(del.conf.data_dir.to_str(), Some("/d"));
    assert_eq!(del.conf.prev_result, None);
}

#[test]
fn del_is_refused_for_version_and_name_alone() {
    assert_eq!(refusal("DEL", json!({ "cniVersion": "4.3.2" })).code, 1);
    assert_eq!(refusal("DEL", json!({ "name": "te%%st" })).code, 7);
}

#[test]
fn check_needs_what_add_answered() {
    let error = refusal("CHECK", json!({}));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("prevResult is missing"), "{error}");
    let keys = json!({ "prevResult": { "ips": [{ "address": "10.1.2.3/24" }] } });
    match request(Role::Network, "CHECK", "", keys) {
        Ok(Request::Check(check)) => assert_eq!(check.prev_result.ips.len(), 1),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_previous_result_of_another_version_is_refused_with_the_supported_ones() {
    for version in ["1.0.0", "9.9.9"] {
        let error = refusal("CHECK", json!({ "prevResult": { "cniVersion": version } }));
        assert_eq!(error.code, 7);
        let named =
            error.msg.contains("prevResult.cniVersion") && error.msg.contains("0.1.0, 0.2.0");
        assert!(named && error.msg.contains(version), "{error}");
    }
}

#[test]
fn gc_without_a_list_is_refused() {
    let error = refusal("GC", json!({}));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("cni.dev/valid-attachments"), "{error}");
    for empty in [json!(null), json!([])] {
        match request(Role::Network, "GC", "", json!({ "cni.dev/valid-attachments": empty })) {
            Ok(Request::Gc(gc)) => assert!(gc.valid.is_empty()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn gc_with_a_member_that_cannot_be_read_is_refused() {
    let list = json!([{ "containerID": "../x", "ifname": "eth0" }]);
    let error = refusal("GC", json!({ "cni.dev/valid-attachments": list }));
    assert_eq!(error.code, 7);
    assert!(error.msg.contains("valid-attachments[0].containerID"), "{error}");
}

#[test]
fn version_looks_at_no_byte() {
    let environment = Environment::parse(|name| (name == "CNI_COMMAND").then(|| "VERSION".into()));
    let parsed = Request::parse(Role::Network, environment.unwrap().unwrap(), b"%%%");
    assert_eq!(parsed, Ok(Request::Version));
}

#[test]
fn the_runtime_beats_args_which_beat_cni_args_which_beat_the_network() {
    let mac = |last: u8| json!(format!("0a:00:00:00:00:0{last}"));
    let voices = [
        ("runtimeConfig", json!({ "runtimeConfig": { "mac": mac(1), "ips": ["10.1.2.11"] } })),
        ("args.cni", json!({ "args": { "cni": { "mac": mac(2), "ips": ["10.1.2.12/24"] } } })),
        ("CNI_ARGS", json!({})),
    ];
    let args = "MAC=0a:00:00:00:00:03;IP=10.1.2.13/24";
    for loudest in 0..3 {
        let mut keys = json!({ "subnet": "10.1.2.0/24", "mac": mac(4) });
        for (_, voice) in &voices[loudest..] {
            keys.as_object_mut().unwrap().extend(voice.as_object().unwrap().clone());
        }
        let requested = add(args, keys).unwrap().requested;
        let expected =
            (format!("0a:00:00:00:00:0{}", loudest + 1), format!("10.1.2.1{}", loudest + 1));
        let found = (requested.mac.unwrap().to_string(), requested.ips[0].ip().to_string());
        assert_eq!(found, expected, "{}", voices[loudest].0);
        assert_eq!(requested.ips.len(), 1, "addresses of several voices are never mixed");
    }
    let keys = json!({ "subnet": "10.1.2.0/24", "mac": mac(4) });
    let requested = add("", keys).unwrap().requested;
    assert_eq!(
        (requested.mac.unwrap().to_string(), requested.ips),
        ("0a:00:00:00:00:04".into(), vec![])
    );
}

#[test]
fn an_invalid_address_is_refused_from_every_source() {
    let subnet = |more: Value| {
        let mut keys = json!({ "subnet": "10.1.2.0/24" });
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        keys
    };
    let bad = json!(["10.1.2.300"]);
    let runtime = subnet(json!({ "runtimeConfig": { "ips": bad } }));
    assert_eq!(add("", runtime).unwrap_err().code, 7);
    let args = subnet(json!({ "args": { "cni": { "ips": bad } } }));
    assert_eq!(add("", args).unwrap_err().code, 7);
    assert_eq!(add("IP=10.1.2.300", subnet(json!({}))).unwrap_err().code, 4);
}

#[test]
fn two_default_routes_keep_their_order() {
    let keys = json!({ "subnet": "10.1.2.0/24", "routes": [
        { "dst": "0.0.0.0/0", "gw": "10.1.2.1" }, { "dst": "0.0.0.0/0", "gw": "10.1.2.9" },
    ] });
    let gateways: Vec<String> = add("", keys)
        .unwrap()
        .conf
        .routes
        .iter()
        .map(|route| route.gw.unwrap().to_string())
        .collect();
    assert_eq!(gateways, ["10.1.2.1", "10.1.2.9"]);
}
