//! Conntrack entries of an address with a new owner are deleted, and no others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use humanz::netlink::conntrack::FlowEnd::{self, Destination, Source};
use humanz::netlink::conntrack::{flush_udp, flush_udp_at};

use super::network::{Netns, run, run_args};

/// Creates a flow: protocol, original source and destination, source of the reply.
fn flow(protocol: &str, [source, destination, answers]: [&str; 3], port: u16) {
    let port = port.to_string();
    let state: &[&str] = if protocol == "tcp" { &["--state", "ESTABLISHED"] } else { &[] };
    let arguments =
        ["-I", "-p", protocol, "-t", "1000", "-u", "SEEN_REPLY", "-s", source, "-d", destination];
    let ports = ["--sport", &port, "--dport", "53"];
    let reply = ["-r", answers, "-q", source, "--reply-port-src", "53", "--reply-port-dst", &port];
    run_args("conntrack", &[&arguments[..], &ports, &reply, state].concat());
}

/// Protocol, source and destination of each flow.
fn flows(family: &str) -> BTreeSet<String> {
    let listed = run(&format!("conntrack -L -f {family}"));
    let flow = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)).unwrap();
        format!("{} {} {}", words[0], address("src="), address("dst="))
    };
    listed.lines().map(flow).collect()
}

fn flush(address: &str) -> usize {
    flush_udp(&[address.parse::<IpAddr>().unwrap()]).unwrap()
}

fn flush_at(end: FlowEnd, addresses: &[&str]) -> bool {
    let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
    flush_udp_at(&[end], &addresses).unwrap()
}

#[test]
fn only_udp_flows_of_the_address_are_deleted() {
    Netns::new().inside(|| {
        let pod = "10.244.3.2";
        flow("udp", [pod, "8.8.8.8", "8.8.8.8"], 1);
        flow("udp", ["192.0.2.9", pod, pod], 2);
        flow("udp", ["192.0.2.9", "10.96.0.10", pod], 3);
        flow("udp", ["192.0.2.9", "10.96.0.10", "10.244.3.3"], 4);
        flow("udp", ["10.244.3.20", "8.8.8.8", "8.8.8.8"], 5);
        flow("tcp", [pod, "192.0.2.9", "192.0.2.9"], 6);
        assert_eq!(flush(pod), 3);
        let left =
            ["udp 192.0.2.9 10.96.0.10", "udp 10.244.3.20 8.8.8.8", "tcp 10.244.3.2 192.0.2.9"];
        assert_eq!(flows("ipv4"), left.map(str::to_owned).into());
        assert_eq!(flush(pod), 0);
    });
}

#[test]
fn ipv6_flows_are_deleted_too() {
    Netns::new().inside(|| {
        let pod = "fd00:10:0:3::2";
        flow("udp", [pod, "2001:db8::9", "2001:db8::9"], 1);
        flow("udp", ["2001:db8::9", "fd00:96::10", pod], 2);
        flow("udp", ["fd00:10:0:3::3", "2001:db8::9", "2001:db8::9"], 3);
        assert_eq!(flush(pod), 2);
        assert_eq!(flows("ipv6"), ["udp fd00:10:0:3::3 2001:db8::9".to_owned()].into());
    });
}

#[test]
fn flows_of_several_addresses_are_deleted_in_one_dump() {
    Netns::new().inside(|| {
        flow("udp", ["10.244.3.2", "8.8.8.8", "8.8.8.8"], 1);
        flow("udp", ["192.0.2.9", "10.96.0.10", "10.244.3.3"], 2);
        flow("udp", ["10.244.3.4", "8.8.8.8", "8.8.8.8"], 3);
        flow("udp", ["fd00:10:0:3::2", "2001:db8::9", "2001:db8::9"], 4);
        let pods = ["10.244.3.2", "10.244.3.3", "fd00:10:0:3::2"];
        let pods: Vec<IpAddr> = pods.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(flush_udp(&pods).unwrap(), 3);
        assert_eq!(flows("ipv4"), ["udp 10.244.3.4 8.8.8.8".to_owned()].into());
        assert_eq!(flows("ipv6"), BTreeSet::new());
    });
}

#[test]
fn a_kernel_filter_deletes_flows_with_an_ipv4_address_at_one_end_or_nothing() {
    Netns::new().inside(|| {
        let (pod, pod6) = ("10.244.3.2", "fd00:10:0:3::2");
        flow("udp", [pod, "8.8.8.8", "8.8.8.8"], 1);
        flow("udp", ["192.0.2.9", pod, pod], 2);
        flow("udp", ["10.244.3.20", "8.8.8.8", "8.8.8.8"], 3);
        flow("tcp", [pod, "192.0.2.9", "192.0.2.9"], 4);
        flow("udp", ["fd00:10:0:3::3", "2001:db8::9", "2001:db8::9"], 5);
        let before = (flows("ipv4"), flows("ipv6"));
        if !flush_at(Source, &[pod, pod6]) {
            assert_eq!((flows("ipv4"), flows("ipv6")), before, "this kernel deletes by no filter");
            return;
        }
        let others = ["udp 10.244.3.20 8.8.8.8", "tcp 10.244.3.2 192.0.2.9"].map(str::to_owned);
        let sent = "udp 192.0.2.9 10.244.3.2".to_owned();
        assert_eq!(flows("ipv4"), others.iter().cloned().chain([sent]).collect());
        assert!(flush_at(Destination, &[pod, pod6]));
        assert_eq!(flows("ipv4"), others.into());
        assert_eq!(flows("ipv6"), ["udp fd00:10:0:3::3 2001:db8::9".to_owned()].into());
    });
}

#[test]
fn flows_in_another_conntrack_zone_are_deleted_too() {
    Netns::new().inside(|| {
        run("conntrack -I -p udp -t 1000 -s 10.244.3.2 -d 8.8.8.8 --sport 1 --dport 53 -w 7");
        assert_eq!(flush("10.244.3.2"), 1);
        assert_eq!(flows("ipv4"), BTreeSet::new());
    });
}

#[test]
fn among_ten_thousand_flows_only_one_is_deleted() {
    Netns::new().inside(|| {
        let mut script = String::new();
        for number in 0..10_000u32 {
            let [_, _, high, low] = number.to_be_bytes();
            script += &format!(
                "-I -p udp -t 1000 -s 10.9.{high}.{low} -d 8.8.8.8 --sport 9 --dport 53\n"
            );
        }
        script += "-I -p udp -t 1000 -s 10.244.3.2 -d 8.8.8.8 --sport 9 --dport 53\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        run_args("conntrack", &["--load-file", file.path().to_str().unwrap()]);
        let start = Instant::now();
        assert_eq!(flush("10.244.3.2"), 1);
        println!("flush among 10,000 flows: {:?}", start.elapsed());
        assert_eq!(run("conntrack -C").trim(), "10000");
    });
}
