use std::collections::BTreeMap;

use crate::netlink::link::PortFlags;
use crate::netlink::qdisc::TokenBucket;
use crate::netlink::route;
use crate::plan::bandwidth::Queues;
use crate::plan::pod::differences::*;

const PORT: PortFlags = PortFlags { hairpin: true, isolated: false, locked: false, fixed: true };

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([0x0a, 0, 0, 0, 0, last])
}

fn default_route(device: Option<u32>) -> Route {
    Route { device, ..Route::via("0.0.0.0/0".parse().unwrap(), "10.1.2.1".parse().unwrap(), 0) }
}

fn wanted() -> PodInterface {
    PodInterface {
        host_ifname: name("hz1"),
        host_mac: Some(mac(1)),
        host_mtu: Some(1500),
        port: PORT,
        ifname: name("eth0"),
        mac: Some(mac(2)),
        mtu: Some(1500),
        addresses: vec!["10.1.2.3/24".parse().unwrap()],
        routes: vec![default_route(None)],
        defaults: Vec::new(),
        instead: Vec::new(),
        requested: RequestedSettings::default(),
    }
}

fn link(text: &str, index: u32, peer: u32, last: u8) -> Link {
    Link {
        index,
        name: name(text),
        kind: Some("veth".to_owned()),
        mac: Some(mac(last)),
        mtu: 1500,
        up: true,
        oper_up: true,
        carrier: true,
        master: None,
        peer_index: Some(peer),
        alias: None,
        group: 0,
        port: None,
        delays_ports: false,
        vxlan: None,
    }
}

fn found() -> FoundPod {
    let host = Link { master: Some(3), port: Some(PORT), ..link("hz1", 7, 2, 1) };
    let bridge = Link { kind: Some("bridge".to_owned()), ..link("humanz0", 3, 0, 9) };
    FoundPod {
        bridge: Some(bridge),
        host: Some(host),
        pod: Some(link("eth0", 2, 7, 2)),
        addresses: vec!["10.1.2.3/24".parse().unwrap(), "fe80::1/64".parse().unwrap()],
        routes: vec![default_route(Some(2))],
        reserved: vec!["10.1.2.3".parse().unwrap()],
        settings: FoundSettings::default(),
    }
}

/// What differs after `spoil` has changed what was found.
fn check(spoil: impl FnOnce(&mut FoundPod), wanted_texts: &[&str]) {
    let mut there = found();
    spoil(&mut there);
    let texts: Vec<String> = differences(&wanted(), &name("humanz0"), &there)
        .iter()
        .map(PodDifference::to_string)
        .collect();
    assert_eq!(texts, wanted_texts);
}

fn host(found: &mut FoundPod) -> &mut Link {
    found.host.as_mut().unwrap()
}

fn pod(found: &mut FoundPod) -> &mut Link {
    found.pod.as_mut().unwrap()
}

#[test]
fn an_attachment_as_it_was_made_differs_in_nothing() {
    check(|_| {}, &[]);
}

#[test]
fn an_mtu_that_no_result_has_is_not_compared() {
    let wanted = PodInterface { host_mtu: None, mtu: None, ..wanted() };
    let mut there = found();
    (host(&mut there).mtu, pod(&mut there).mtu) = (1400, 9000);
    assert_eq!(differences(&wanted, &name("humanz0"), &there), []);
}

#[test]
fn what_others_added_is_no_difference() {
    check(
        |found| {
            found.addresses.push("10.9.9.9/32".parse().unwrap());
            found.routes.push(default_route(Some(9)));
        },
        &[],
    );
}

#[test]
fn each_thing_that_differs_is_reported() {
    let lost = "address 10.1.2.3 is not reserved for the container";
    check(|found| found.reserved.clear(), &[lost]);
    let missing = "prevResult lacks address 10.9.9.9, which is reserved for the container";
    check(|found| found.reserved.push("10.9.9.9".parse().unwrap()), &[missing]);
    check(|found| pod(found).up = false, &["interface eth0 is down in the pod"]);
    check(|found| host(found).up = false, &["interface hz1 is down on the host"]);
    let text = "interface eth0 in the pod is not the other end of hz1";
    check(|found| pod(found).peer_index = Some(8), &[text]);
    check(|found| host(found).peer_index = Some(8), &[text]);
    let text = "interface eth0 in the pod has MAC 0a:00:00:00:00:07, not 0a:00:00:00:00:02";
    check(|found| pod(found).mac = Some(mac(7)), &[text]);
    let text = "interface hz1 on the host has MAC none, not 0a:00:00:00:00:01";
    check(|found| host(found).mac = None, &[text]);
    let text = "interface eth0 in the pod has MTU 9000, not 1500";
    check(|found| pod(found).mtu = 9000, &[text]);
    let text = "interface hz1 on the host has MTU 1400, not 1500";
    check(|found| host(found).mtu = 1400, &[text]);
    let text = "interface eth0 in the pod lacks address 10.1.2.3/24";
    check(|found| found.addresses[0] = "10.1.2.3/25".parse().unwrap(), &[text]);
    let text = "the pod lacks the route to 0.0.0.0/0 via 10.1.2.1";
    check(|found| found.routes.clear(), &[text]);
    check(|found| found.routes[0].table = 7, &[text]);
    check(|found| found.routes[0].device = Some(3), &[text]);
    let not_a_port = "interface hz1 is not a port of bridge humanz0";
    check(|found| host(found).master = None, &[not_a_port]);
    check(|found| host(found).master = Some(4), &[not_a_port]);
    let port = |hairpin, isolated| Some(PortFlags { hairpin, isolated, ..PORT });
    check(|found| host(found).port = port(false, false), &["bridge port hz1 is not hairpin"]);
    check(|found| host(found).port = port(true, true), &["bridge port hz1 is isolated"]);
    let locked = Some(PortFlags { locked: true, ..PORT });
    check(|found| host(found).port = locked, &["bridge port hz1 is locked"]);
    check(
        |found| found.bridge.as_mut().unwrap().up = false,
        &["interface humanz0 is down on the host"],
    );
    check(
        |found| found.bridge.as_mut().unwrap().kind = None,
        &["interface humanz0 is not a bridge"],
    );
}

#[test]
fn what_is_gone_is_reported_from_the_host_inwards() {
    let all = [
        "address 10.1.2.3 is not reserved for the container",
        "bridge humanz0 is missing",
        "interface hz1 is missing on the host",
        "interface eth0 is missing in the pod",
    ];
    check(|found| *found = FoundPod::default(), &all);
}

#[test]
fn what_a_route_has_of_its_own_is_compared_with_it() {
    let plain = default_route(None);
    for requested in [
        Route { priority: Some(7), ..plain },
        Route { mtu: Some(1400), ..plain },
        Route { advmss: Some(1360), ..plain },
        Route { table: 5000, ..plain },
        Route { scope: 200, ..plain },
    ] {
        let wanted = PodInterface { routes: vec![requested], ..wanted() };
        let texts = differences(&wanted, &name("humanz0"), &found());
        assert!(matches!(texts[..], [PodDifference::NoRoute(..)]), "{requested:?}: {texts:?}");
        let there = Route { device: Some(2), ..requested };
        let found = FoundPod { routes: vec![there], ..found() };
        assert_eq!(differences(&wanted, &name("humanz0"), &found), []);
    }
    assert_eq!(plain.table, route::MAIN);
}

fn check_settings(requested: &RequestedSettings, found: &FoundSettings, texts: &[&str]) {
    let [host, pod] = ["hz1", "eth0"].map(|name| name.parse().unwrap());
    let differences = settings_differences(requested, found, &host, &pod);
    assert_eq!(differences.iter().map(PodDifference::to_string).collect::<Vec<_>>(), texts);
}

#[test]
fn a_requested_limit_is_compared() {
    let bucket = Some(TokenBucket { rate_bytes: 1000, burst_bytes: 1, limit_bytes: 1 });
    let queues = Queues { host: bucket, pod: bucket };
    let limited = RequestedSettings { queues, ..RequestedSettings::default() };
    let found =
        |host_rate, pod_rate| FoundSettings { host_rate, pod_rate, ..FoundSettings::default() };
    check_settings(&limited, &found(Some(1000), Some(1000)), &[]);
    let host = "interface hz1 on the host is limited to nothing, not 1000 bytes per second";
    let pod = "interface eth0 in the pod is limited to 999, not 1000 bytes per second";
    check_settings(&limited, &found(None, Some(999)), &[host, pod]);
    check_settings(&RequestedSettings::default(), &found(Some(7), Some(7)), &[]);
}

#[test]
fn requested_tuning_is_compared() {
    let tune = LinkSettings {
        promisc: Some(true),
        all_multicast: Some(false),
        tx_queue_len: Some(500),
        mtu: Some(1400),
        ..LinkSettings::default()
    };
    let key = || "net/ipv4/ip_local_port_range".to_owned();
    let sysctls = vec![(key(), "1024 65535".to_owned())];
    let tuned = RequestedSettings { tune, sysctls, ..RequestedSettings::default() };
    let found = |tune, value: &str| FoundSettings {
        tune,
        sysctls: BTreeMap::from([(key(), value.to_owned())]),
        ..FoundSettings::default()
    };
    check_settings(&tuned, &found(tune, "1024\t65535"), &[]);
    let other = LinkSettings {
        promisc: Some(false),
        all_multicast: Some(true),
        tx_queue_len: Some(1000),
        mtu: Some(1500),
        ..LinkSettings::default()
    };
    let texts = [
        "interface eth0 in the pod is not promiscuous",
        "interface eth0 in the pod is open to all multicast",
        "interface eth0 in the pod has no queue of 500 packets",
        "interface eth0 in the pod has no MTU of 1400",
        "sysctl net/ipv4/ip_local_port_range in the pod is 1, not 1024 65535",
    ];
    check_settings(&tuned, &found(other, "1"), &texts);
}
