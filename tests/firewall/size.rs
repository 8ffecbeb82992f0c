//! Ten thousand hosts: size and time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use humanz::net::subnet;
use humanz::nft::Nft;
use humanz::plan::firewall::{FirewallSpec, changes, ruleset, standalone_table};
use ipnetwork::IpNetwork;

use super::network::{on_host, run, run_args, spec};
use super::repair::reconcile;

/// `count` addresses, every second one.
fn addresses(count: u128) -> impl Iterator<Item = IpAddr> {
    let first = IpAddr::from(Ipv4Addr::new(100, 64, 0, 0));
    (0..count).map(move |number| subnet::offset(first, number * 2))
}

#[test]
fn ten_thousand_hosts_fit_and_one_more_is_one_element() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        let mut many = FirewallSpec { node_addresses: addresses(10_000).collect(), ..spec() };
        timed("replace, 10,000 single addresses", || {
            nft.replace(&ruleset(&many).unwrap()).unwrap()
        });
        timed("observe and compare, 10,000 single addresses", || {
            let found = nft.observe("humanz").unwrap();
            assert_eq!(changes(ruleset(&many).as_ref(), found.as_ref()), []);
        });
        let listed = run("nft list set inet humanz nodes4");
        assert_eq!(listed.matches("100.64.").count(), 10_000);
        let table = run("nft -a list chains");
        many.node_addresses.insert("203.0.113.9".parse().unwrap());
        many.node_addresses.remove(&"100.64.0.0".parse().unwrap());
        let differ = reconcile(&nft, &many);
        let line = "~ nft table inet humanz: set nodes4: +203.0.113.9 -100.64.0.0";
        assert_eq!(differ, [line]);
        assert_eq!(run("nft -a list chains"), table, "the table was not written anew");
    });
}

#[test]
fn ten_thousand_ranges_fit() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        let ranges: Vec<IpNetwork> = addresses(10_000).map(subnet::host).collect();
        let many = FirewallSpec { non_masq_cidrs: ranges, ..spec() };
        timed("replace, 10,000 ranges", || nft.replace(&ruleset(&many).unwrap()).unwrap());
        timed("observe and compare, 10,000 ranges", || {
            let found = nft.observe("humanz").unwrap();
            assert_eq!(changes(ruleset(&many).as_ref(), found.as_ref()), []);
        });
    });
}

#[test]
fn reading_a_small_table_is_cheap_beside_large_foreign_tables() {
    on_host(|_| {
        let other = |number: usize| {
            format!(
                "add table ip kube{number}; add chain ip kube{number} c; \
                 add rule ip kube{number} c ip saddr 10.0.0.1 accept; "
            )
        };
        run_args("nft", &[&(0..300).map(other).collect::<String>()]);
        let nft = Nft::open().unwrap();
        let alone = FirewallSpec {
            table: standalone_table("podnet"),
            node_addresses: Default::default(),
            ..spec()
        };
        let wanted = ruleset(&alone).unwrap();
        nft.replace(&wanted).unwrap();
        let mut times: Vec<Duration> = (0..200)
            .map(|_| {
                let start = Instant::now();
                let found = nft.observe(&alone.table).unwrap();
                assert_eq!(changes(Some(&wanted), found.as_ref()), []);
                start.elapsed()
            })
            .collect();
        times.sort();
        println!("observe and compare, standalone, median of 200: {:?}", times[100]);
    });
}

fn timed(what: &str, task: impl FnOnce()) {
    let start = Instant::now();
    task();
    println!("{what}: {:?}", start.elapsed());
}
