//! What holds for every input.

use std::net::IpAddr;
use std::path::{Component, Path};

use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::cni::args::CniArgs;
use crate::cni::attachment::Attachment;
use crate::cni::dns::Dns;
use crate::cni::env::{Environment, Netns, Operation};
use crate::cni::error::code;
use crate::cni::name::Name;
use crate::cni::request::{Request, Role};
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::cni::route::CniRoute;
use crate::cni::version::{self, SUPPORTED, Version};
use crate::net::subnet;

proptest! {
    #[test]
    fn no_bytes_on_stdin_bring_it_down(stdin in vec(any::<u8>(), 0..200), call in call()) {
        serve(call, &stdin);
    }

    #[test]
    fn no_configuration_brings_it_down(keys in configuration(), call in call()) {
        serve(call, keys.to_string().as_bytes());
    }

    #[test]
    fn a_cut_configuration_is_refused(keys in configuration(), cut in any::<prop::sample::Index>()) {
        let text = keys.to_string();
        let cut = cut.index(text.len());
        prop_assert!(!serve(Operation::Status, &text.as_bytes()[..cut]));
    }

    #[test]
    fn no_arguments_bring_it_down(text in "(IP|MAC|IgnoreUnknown|K8S_POD_NAME|[ -~]|[=;,/.:]|\\PC)*") {
        if let Err(error) = CniArgs::parse(&text) {
            prop_assert_eq!(error.code, code::ENVIRONMENT);
        }
    }

    #[test]
    fn no_variables_bring_it_down(values in vec(option::of("\\PC{0,20}"), 6), command in command()) {
        let names = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"];
        let parsed = Environment::parse(|name| {
            if name == "CNI_COMMAND" {
                return Some(command.into());
            }
            let place = names.iter().position(|known| *known == name).unwrap_or(names.len());
            values[place].as_ref().map(Into::into)
        });
        if let Err(error) = parsed {
            prop_assert_eq!(error.code, code::ENVIRONMENT);
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_path(text in "[a-zA-Z0-9._/ -]{0,12}") {
        if let Ok(name) = text.parse::<Name>() {
            let parts: Vec<Component> = Path::new(name.as_str()).components().collect();
            prop_assert!(matches!(parts[..], [Component::Normal(_)]));
        }
    }

    #[test]
    fn a_supported_version_is_a_well_formed_one(text in "[0-9.]{0,8}|\\PC{0,5}") {
        let numbers = version::numbers(&text);
        if text.parse::<Version>().is_ok() {
            prop_assert!(numbers.is_ok());
        }
    }

    #[test]
    fn no_json_is_too_strange_for_a_result(document in value(), version in version()) {
        if let Err(error) = CniResult::from_json(&document, version) {
            prop_assert_eq!(error.code, code::DECODE);
        }
    }

    #[test]
    fn from_1_0_0_on_a_result_comes_back_whole(result in result()) {
        for version in [Version::V100, Version::V110] {
            let document = result.to_json(version).unwrap();
            prop_assert_eq!(&CniResult::from_json(&document, version).unwrap(), &result);
        }
    }

    #[test]
    fn what_a_version_can_say_it_says_again(result in result(), version in version()) {
        let Ok(document) = result.to_json(version) else {
            prop_assert!(version < Version::V030 && result.ips.is_empty());
            return Ok(());
        };
        let back = CniResult::from_json(&document, version).unwrap();
        prop_assert_eq!(back.to_json(version).unwrap(), document);
    }

    #[test]
    fn a_newer_version_loses_nothing_of_an_older_one(
        result in result(), old in version(), new in version(),
    ) {
        let (old, new) = (old.min(new), old.max(new));
        let Ok(document) = result.to_json(old) else { return Ok(()) };
        let through = CniResult::from_json(&document, old).unwrap().to_json(new).unwrap();
        let back = CniResult::from_json(&through, new).unwrap().to_json(old).unwrap();
        prop_assert_eq!(back, document);
    }
}

/// Whether `stdin` makes a request.
fn serve(call: Operation, stdin: &[u8]) -> bool {
    let environment = Environment { call, args: String::new(), trace: None };
    let request = Request::parse(Role::Network, environment, stdin);
    if let Err(refused) = &request {
        assert!(!refused.error.msg.is_empty() && refused.error.code > 0);
    }
    request.is_ok()
}

fn command() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "NOPE"])
}

fn call() -> impl Strategy<Value = Operation> {
    let attachment =
        Attachment { container_id: "c1".parse().unwrap(), ifname: "eth0".parse().unwrap() };
    let netns = Netns { path: "/run/netns/c1".to_owned(), may_be_own: false };
    prop::sample::select(vec![
        Operation::Add(attachment.clone(), netns.clone()),
        Operation::Del(attachment.clone(), None),
        Operation::Check(attachment, netns),
        Operation::Gc,
        Operation::Status,
    ])
}

fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(SUPPORTED.to_vec())
}

/// Keys that are looked for somewhere.
const KEYS: &str = "mtu MTU bridge network subnet gateway rangeStart rangeEnd ranges routes dst gw table scope \
    ipam type dns search servers dataDir logFile mac vlan args cni ips ip4 ip address \
    interface interfaces name cniVersion prevResult runtimeConfig ipRanges cni.dev/valid- \
    attachments bandwidth ingressRate egressBurst sysctl net.core.somaxconn promisc txQLen \
    humanz.io/ip macspoofchk containerID ifname io.kubernetes.cri.pod-annotations";

/// Any JSON, with known keys and values that are nearly right more often than by chance.
fn value() -> impl Strategy<Value = Value> {
    let keys: Vec<&str> = KEYS.split(' ').collect();
    let texts = ["10.1.2.0/24", "10.1.2.3", "fd00::/64", "fd00::2", "/a", "eth0", "0.2.0", "1.1.0"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..300i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(texts.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        let key = prop_oneof![
            9 => prop::sample::select(keys.clone()).prop_map(str::to_owned),
            1 => "\\PC{0,4}",
        ];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key, inner), 0..6).prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

/// A network's configuration with anything in it.
fn configuration() -> impl Strategy<Value = Value> {
    let keys: Vec<&str> = KEYS.split(' ').collect();
    let key = prop::sample::select(keys).prop_map(str::to_owned);
    (vec((key, value()), 0..12), version()).prop_map(|(fields, version)| {
        let mut document = Map::from_iter(fields);
        document.entry("name").or_insert(json!("net"));
        document.entry("cniVersion").or_insert(json!(version.as_str()));
        Value::Object(document)
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),]
}

fn network() -> impl Strategy<Value = IpNetwork> {
    (address(), 0..=128u8).prop_map(|(address, prefix)| subnet::with_prefix(address, prefix))
}

/// A text that is not empty: empty ones are not written.
fn text() -> impl Strategy<Value = String> {
    "\\PC{1,12}"
}

fn interface() -> impl Strategy<Value = Interface> {
    let texts = (option::of(text()), option::of(text()), option::of(text()), option::of(text()));
    ("\\PC{0,15}", texts, option::of(1..=u32::MAX)).prop_map(|(name, texts, mtu)| {
        let (mac, sandbox, socket_path, pci_id) = texts;
        Interface { name, mac, mtu, sandbox, socket_path, pci_id }
    })
}

fn route() -> impl Strategy<Value = CniRoute> {
    let counts = (option::of(1..=u32::MAX), option::of(1..=u32::MAX), option::of(1..=u32::MAX));
    let selectors = (option::of(any::<u32>()), option::of(any::<u8>()));
    (network(), option::of(address()), counts, selectors).prop_map(
        |(dst, gw, counts, selectors)| {
            let (mtu, advmss, priority) = counts;
            let (table, scope) = selectors;
            CniRoute { dst, gw, mtu, advmss, priority, table, scope }
        },
    )
}

fn dns() -> impl Strategy<Value = Dns> {
    let list = || vec(text(), 0..3);
    (list(), option::of(text()), list(), list()).prop_map(
        |(nameservers, domain, search, options)| Dns { nameservers, domain, search, options },
    )
}

prop_compose! {
    /// A result whose addresses point at interfaces that are there.
    fn result()(interfaces in vec(interface(), 0..4))(
        ips in vec((network(), option::of(address()), 0..=interfaces.len()), 0..4),
        interfaces in Just(interfaces),
        routes in vec(route(), 0..4),
        dns in dns(),
    ) -> CniResult {
        let count = interfaces.len();
        let ip = |(address, gateway, place)| {
            IpConfig { address, gateway, interface: Some(place).filter(|place| *place < count) }
        };
        CniResult { interfaces, ips: ips.into_iter().map(ip).collect(), routes, dns }
    }
}
