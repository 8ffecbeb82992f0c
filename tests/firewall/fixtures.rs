//! Rulesets of real firewalls: the evaluated verdict is that of the kernel, and the reported chain
//! is the one that drops.

use std::net::{Ipv4Addr, TcpListener};

use humanz::checks::forward::evaluate::{UDP, evaluate};
use humanz::net::Family;
use humanz::nft::base_chains::{BaseChains, FirstPacket, HookChains};

use super::forward::reconcile;
use super::network::{ARRIVES, HOST, LOST, Network, OTHER_POD, OUTSIDE, POD, on_host, run_args};
use super::sets::{allow_source, make_kube_proxys};

const PORT: u16 = 10400;

/// Loads a file of `fixtures` with this command.
fn load(command: &str, file: &str) {
    let path = format!("{}/tests/firewall/fixtures/{file}", env!("CARGO_MANIFEST_DIR"));
    run_args("sh", &["-ec", &format!("{command} < {path}")]);
}

fn passes(found: &HookChains, packet: &FirstPacket<'_>) -> bool {
    let family = Family::of(packet.destination);
    let mut met = found.chains.iter().filter(|chain| chain.place.sees(family));
    met.all(|chain| evaluate(chain, packet).dropping_chain().is_none())
}

/// Whether these packets pass, as evaluated: from a pod to the outside, from there to a pod, from a
/// pod of another host to a pod, from another host to a port of this one; IPv4, then IPv6.
fn evaluated() -> [[bool; 4]; 2] {
    let base_chains = BaseChains::open().unwrap();
    let forward = base_chains.observe(&Family::BOTH).unwrap();
    let input = base_chains.observe_input(&Family::BOTH).unwrap();
    [0, 1].map(|family| {
        let packet =
            |from: (&'static str, &str), to: (&'static str, &str), transport| FirstPacket {
                input: from.0,
                output: to.0,
                source: from.1.parse().unwrap(),
                destination: to.1.parse().unwrap(),
                transport,
            };
        let outside = ("uplink", OUTSIDE[family]);
        let (pod, other) = (("humanz0", POD[family]), ("uplink", OTHER_POD[family]));
        let tunnel = packet(outside, ("", HOST[family]), Some((UDP, PORT)));
        [
            passes(&forward, &packet(pod, outside, None)),
            passes(&forward, &packet(outside, pod, None)),
            passes(&forward, &packet(other, pod, None)),
            passes(&input, &tunnel),
        ]
    })
}

/// The same, as it happens.
fn seen(network: &Network, evaluated: [[bool; 4]; 2]) -> [[bool; 4]; 2] {
    let inputs = network.reaches_host(PORT, evaluated.map(|passes| passes[3]));
    [0, 1].map(|family| {
        let to_pod = |from: &str, expected| match expected {
            true => network.reaches_pod(from, POD[family]),
            false => !network.never_reaches_pod(from, POD[family]),
        };
        [
            !network.is_cut_off(OUTSIDE[family]),
            to_pod(OUTSIDE[family], evaluated[family][1]),
            to_pod(OTHER_POD[family], evaluated[family][2]),
            inputs[family],
        ]
    })
}

/// Checks a firewall by what of [`evaluated`] passes of each family, and the begins of the lines that
/// the agent logs about it.
fn check(
    files: &'static [(&'static str, &'static str)],
    wanted: [[bool; 4]; 2],
    lines: &'static [&'static str],
) {
    check_with(|| (), files, wanted, lines);
}

/// After `prepare` on the host.
fn check_with(
    prepare: fn(),
    files: &'static [(&'static str, &'static str)],
    wanted: [[bool; 4]; 2],
    lines: &'static [&'static str],
) {
    on_host(move |network| {
        // Neighbours find each other before anything is dropped.
        assert_eq!(seen(network, [[true; 4]; 2]), [[true; 4]; 2]);
        prepare();
        for (command, file) in files {
            load(command, file);
        }
        assert_eq!(evaluated(), wanted, "{files:?}");
        assert_eq!(seen(network, wanted), wanted, "{files:?}");
        let reported = reconcile(&BaseChains::open().unwrap());
        assert_eq!(reported.len(), lines.len(), "{reported:#?}");
        for (line, wanted) in reported.iter().zip(lines) {
            assert!(line.starts_with(wanted), "{line}");
        }
    });
}

/// The lines about rules that are inserted into the chain of these programs.
macro_rules! inserted {
    ($($program:literal),*) => {
        &[$(
            concat!("+ rule -o humanz0 -j ACCEPT in ", $program, " chain FORWARD"),
            concat!("+ rule -i humanz0 -j ACCEPT in ", $program, " chain FORWARD"),
        )*]
    };
}

#[test]
fn firewalld_as_installed() {
    check(
        &[("nft -f -", "firewalld.nft")],
        [[true, false, false, false]; 2],
        &[
            "nft table inet firewalld, chain filter_FORWARD: a rule of chain filter_FWD_public drops \
           what other hosts' pods send to pods; firewall-cmd --permanent --zone=trusted",
        ],
    );
}

#[test]
fn ufw_as_enabled() {
    check(
        &[("iptables-nft-restore", "ufw.rules"), ("ip6tables-nft-restore", "ufw6.rules")],
        [[false; 4]; 2],
        inserted!["iptables", "ip6tables"],
    );
    check(
        &[("iptables-legacy-restore", "ufw.rules"), ("ip6tables-legacy-restore", "ufw6.rules")],
        [[false; 4]; 2],
        inserted!["iptables-legacy", "ip6tables-legacy"],
    );
}

#[test]
fn docker_with_iptables() {
    for kind in ["nft", "legacy"] {
        let v4 = [[false, false, false, true], [true; 4]];
        match kind {
            "nft" => {
                check(&[("iptables-nft-restore", "docker.rules")], v4, inserted!["iptables"]);
            }
            _ => check(
                &[("iptables-legacy-restore", "docker.rules")],
                v4,
                inserted!["iptables-legacy"],
            ),
        }
    }
}

#[test]
fn docker_with_nftables() {
    check(&[("nft -f -", "docker.nft")], [[true; 4]; 2], &[]);
}

#[test]
fn kube_proxy_with_iptables_and_with_nftables() {
    check(&[("iptables-nft-restore", "kube-proxy.rules")], [[true; 4]; 2], &[]);
    check(&[("iptables-legacy-restore", "kube-proxy.rules")], [[true; 4]; 2], &[]);
    check(&[("nft -f -", "kube-proxy.nft")], [[true; 4]; 2], &[]);
}

const IPVS: [&str; 2] = ["iptables-nft-restore", "iptables-legacy-restore"];

#[test]
fn kube_proxy_with_ipvs() {
    let sets = || make_kube_proxys(Ipv4Addr::new(203, 0, 113, 10));
    check_with(sets, &[(IPVS[0], "kube-proxy-ipvs.rules")], [[true; 4]; 2], &[]);
    check_with(sets, &[(IPVS[1], "kube-proxy-ipvs.rules")], [[true; 4]; 2], &[]);
}

/// What a set has in it is not read. What is dropped for that alone is no problem: it is of those who fill the set.
#[test]
fn a_load_balancer_is_for_its_sources_with_ipvs_and_that_is_no_problem() {
    for command in IPVS {
        on_host(move |network| {
            let [balancer, pods] = [OUTSIDE[0], "10.244.0.0"].map(|it| it.parse().unwrap());
            make_kube_proxys(balancer);
            load(command, "kube-proxy-ipvs.rules");
            let connects = |port: u16, within| {
                let _server =
                    network.remote.inside(|| TcpListener::bind((balancer, port))).unwrap();
                network.pod_reaches(&format!("{balancer}:{port}"), within)
            };
            assert!(connects(81, ARRIVES), "{command}");
            assert!(!connects(80, LOST), "{command}");
            assert_eq!(reconcile(&BaseChains::open().unwrap()), [""; 0]);
            allow_source(balancer, (pods, 16));
            assert!(connects(80, ARRIVES), "{command}");
        });
    }
}

#[test]
fn iptables_services_of_rhel() {
    check(
        &[("iptables-legacy-restore", "rhel.rules"), ("ip6tables-legacy-restore", "rhel6.rules")],
        [[false; 4]; 2],
        inserted!["iptables-legacy", "ip6tables-legacy"],
    );
    check(
        &[("iptables-nft-restore", "rhel.rules"), ("ip6tables-nft-restore", "rhel6.rules")],
        [[false; 4]; 2],
        inserted!["iptables", "ip6tables"],
    );
}

#[test]
fn calico_beside() {
    let v4 = [[false, false, false, true], [true; 4]];
    check(&[("iptables-nft-restore", "calico.rules")], v4, inserted!["iptables"]);
    check(&[("iptables-legacy-restore", "calico.rules")], v4, inserted!["iptables-legacy"]);
}

/// What a firewall drops of connections to a port is evaluated for that port.
#[test]
fn a_service_without_endpoints_is_rejected_by_kube_proxy() {
    for (command, file) in [
        ("iptables-nft-restore", "kube-proxy.rules"),
        ("iptables-legacy-restore", "kube-proxy.rules"),
    ] {
        on_host(move |_| {
            load(command, file);
            let forward = BaseChains::open().unwrap().observe(&[Family::V4]).unwrap();
            let to = |port| FirstPacket {
                input: "humanz0",
                output: "uplink",
                source: POD[0].parse().unwrap(),
                destination: "10.96.0.11".parse().unwrap(),
                transport: Some((6, port)),
            };
            assert!(passes(&forward, &to(81)));
            let verdict = evaluate(&forward.chains[0], &to(80));
            assert_eq!(verdict.dropping_chain(), Some(Some("KUBE-SERVICES".to_owned())));
        });
    }
}
