//! The network configuration on stdin, including the parts that a pod's owner controls.

use humanz::cni::env::{Environment, Netns, Operation, Verb};
use humanz::cni::netavark::{self, ContainerCall, HostNetwork};
use humanz::cni::request::Role;
use humanz::cni::version::SUPPORTED;
use humanz::cni::{Attachment, CniResult, NetConf, Request, Version};
use humanz::ipam::pool::range_sets;
use humanz::net::port;
use humanz::plan::bandwidth::queues;
use serde_json::{Value, json};

/// Any bytes as the configuration of every command.
pub fn config(data: &[u8]) {
    netavark(data);
    let attachment = || Attachment {
        container_id: "c1".parse().expect("a container id"),
        ifname: "eth0".parse().expect("a name"),
    };
    let netns = || Netns { path: "/run/netns/a".to_owned(), may_be_own: false };
    let calls = [
        Operation::Add(attachment(), netns()),
        Operation::Del(attachment(), None),
        Operation::Check(attachment(), netns()),
        Operation::Gc,
        Operation::Status,
    ];
    for call in calls {
        let detaches = matches!(call, Operation::Del(..));
        let environment = Environment { call, args: String::new(), trace: None };
        match Request::parse(Role::Network, environment, data) {
            Ok(request) => used(&request),
            Err(refused) => {
                let answer = refused.error.to_json(refused.version);
                assert!(answer["code"].as_u64().is_some_and(|code| code > 0), "{answer}");
                let about_the_frame = [1, 4, 5, 6, 7].contains(&refused.error.code);
                assert!(!detaches || about_the_frame, "DEL is refused: {answer}");
            }
        }
    }
}

/// Any bytes as what netavark writes, and as the configuration that it is about.
fn netavark(data: &[u8]) {
    let known = r#"{"name":"n","type":"humanz","subnet":"10.244.1.0/24"}"#;
    let text = String::from_utf8_lossy(data);
    for text in [known, text.as_ref()] {
        let Some(network) = HostNetwork::read("x".as_ref(), text, "humanz") else { continue };
        for verb in [Verb::Add, Verb::Del] {
            let Ok(call) = ContainerCall::parse(data, verb, "/run/netns/a") else { continue };
            let Ok(Some(environment)) = Environment::parse(|name| call.variable(name)) else {
                continue;
            };
            let request = Request::parse(Role::Network, environment, &call.stdin(&network));
            request.iter().for_each(used);
        }
        if let Ok(document) = netavark::document(data) {
            assert!(netavark::translated(&document).is_object());
            match netavark::created(document, &network) {
                Ok(made) => assert_eq!(made["ipam_options"]["driver"], "none"),
                Err(error) => assert!([2, 7].contains(&error.code), "{error}"),
            }
        }
    }
}

/// A pod's annotation, and JSON texts for `ipRanges`, `args.cni`, `portMappings` and `bandwidth`.
pub fn annotations(data: &[u8]) {
    let [annotation, ranges, args, ports, bandwidth] = super::parts(data);
    let value = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        serde_json::from_slice(bytes).unwrap_or(Value::String(text))
    };
    let document = json!({
        "cniVersion": "1.0.0",
        "name": "humanz",
        "type": "humanz",
        "subnet": "10.244.1.0/24",
        "args": { "cni": value(args) },
        "runtimeConfig": {
            "io.kubernetes.cri.pod-annotations":
                { "humanz.io/ip": String::from_utf8_lossy(annotation) },
            "ipRanges": value(ranges),
            "portMappings": value(ports),
            "bandwidth": value(bandwidth),
        },
    });
    config(document.to_string().as_bytes());
}

/// The processing of a request before any kernel call.
fn used(request: &Request) {
    let conf: &NetConf = match request {
        Request::Add(add) => &add.conf,
        Request::Del(del) => &del.conf,
        Request::Check(check) => {
            written(&check.prev_result);
            &check.conf
        }
        Request::Gc(gc) => &gc.conf,
        Request::Status(conf) => conf,
        Request::Version => return,
    };
    if let Some(result) = &conf.prev_result {
        written(result);
    }
    let mut addresses = Vec::new();
    if let Ok(sets) = range_sets(&conf.ranges) {
        for set in &sets {
            assert!(set.count() > 0, "an empty range: {set}");
            let first = set.after(None).next();
            let inside = |address| set.range_of(address).is_some();
            assert!(first.is_none_or(inside), "{first:?} is not in {set}");
            addresses.extend(first);
        }
    }
    let _forwards = port::forwards(&conf.runtime.port_mappings, &addresses);
    for mtu in [68, 1500, 65_535] {
        let _queues = [queues(&conf.bandwidth, mtu), queues(&conf.runtime.bandwidth, mtu)];
    }
}

/// A result that was read can be answered in every version, and read again in the latest.
fn written(result: &CniResult) {
    for version in SUPPORTED {
        let Ok(answer) = result.to_json(version) else {
            assert!(version < Version::V030, "{version} has a word for no address");
            continue;
        };
        let again = CniResult::from_json(&answer, version);
        assert!(again.is_ok(), "{version}: {answer}: {again:?}");
        if version == Version::LATEST {
            assert_eq!(again.as_ref().ok(), Some(result), "{answer}");
        }
    }
}
