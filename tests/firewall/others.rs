//! Firewalls of other programs on the host, in their own format, with pods beside them.

use std::time::Duration;

use humanz::nft::Nft;
use humanz::nft::base_chains::BaseChains;

use super::forward::{assert_cut_off, assert_passes, reconcile};
use super::network::{Network, OTHER_POD, OUTSIDE, POD, on_host, run_args, spec};
use super::repair;

/// Runs a script of several commands.
fn shell(script: &str) -> String {
    run_args("sh", &["-ec", script])
}

/// The forward chains of firewalld 1.3 with `sources` in its list of zones, all else as installed.
fn firewalld(zones: &str) -> String {
    format!(
        "table inet firewalld {{
           chain filter_FWD_trusted {{ accept; }}
           chain filter_FWD_public_allow {{ oifname \"uplink\" accept; }}
           chain filter_FWD_public_deny {{ }}
           chain filter_FWD_public {{
             jump filter_FWD_public_deny; jump filter_FWD_public_allow
             reject with icmpx admin-prohibited
           }}
           chain filter_FORWARD_ZONES {{
             {zones}
             iifname \"uplink\" goto filter_FWD_public
             goto filter_FWD_public
           }}
           chain filter_FORWARD {{
             type filter hook forward priority filter + 10; policy accept;
             ct state {{ established, related }} accept
             ct status dnat accept
             iifname \"lo\" accept
             ct state invalid drop
             ip6 daddr {{ ::/96, ::ffff:0.0.0.0/96, 2002::/24, 2002:a00::/24 }} reject with icmpv6 addr-unreachable
             jump filter_FORWARD_ZONES
             reject with icmpx admin-prohibited
           }}
         }}"
    )
}

fn pods_of_others_get_in(network: &Network) -> bool {
    (0..2).all(|family| network.reaches_pod(OTHER_POD[family], POD[family]))
}

#[test]
fn firewalld_is_reported_with_a_firewall_cmd_fix() {
    on_host(|network| {
        run_args("nft", &[&firewalld("")]);
        let fix = "; firewall-cmd --permanent --zone=trusted \
                    --add-source=10.244.0.0/16 --add-source=fd00:10::/48 && firewall-cmd --reload";
        let line = reconcile(&BaseChains::open().unwrap());
        // What pods send to the outside passes: the zone of the uplink lets it out.
        let wanted = "nft table inet firewalld, chain filter_FORWARD: a rule of chain \
                      filter_FWD_public drops what other hosts' pods send to pods";
        assert_eq!(line, [format!("{wanted}{fix}")]);
        assert!(network.never_reaches_pod(OTHER_POD[0], POD[0]));
    });
}

#[test]
fn firewalld_with_pods_in_a_trusted_zone_is_not_reported() {
    on_host(|network| {
        let zones = "ip saddr 10.244.0.0/16 goto filter_FWD_trusted
                     ip6 saddr fd00:10::/48 goto filter_FWD_trusted";
        run_args("nft", &[&firewalld(zones)]);
        assert_eq!(reconcile(&BaseChains::open().unwrap()), [""; 0]);
        assert!(pods_of_others_get_in(network));
        assert_eq!(network.seen_by(OUTSIDE[0]), POD[0]);
    });
}

/// The bridge in a zone does not help pods of other hosts: their packets arrive on the uplink.
#[test]
fn firewalld_with_only_the_bridge_in_a_zone_is_reported() {
    on_host(|network| {
        run_args("nft", &[&firewalld("iifname \"humanz0\" goto filter_FWD_trusted")]);
        let lines = reconcile(&BaseChains::open().unwrap());
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("drops what other hosts' pods send to pods"), "{lines:?}");
        assert_eq!(network.seen_by(OUTSIDE[0]), POD[0]);
        assert!(network.never_reaches_pod(OTHER_POD[0], POD[0]));
    });
}

/// As dockerd 20 to 28 writes it, of both families.
#[test]
fn docker_drops_and_pods_pass() {
    on_host(|network| {
        for program in ["iptables-nft", "ip6tables-nft"] {
            shell(&format!(
                "for c in DOCKER DOCKER-USER DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2; do
                   {program} -N $c; done
                 {program} -P FORWARD DROP
                 {program} -A FORWARD -j DOCKER-USER
                 {program} -A FORWARD -j DOCKER-ISOLATION-STAGE-1
                 {program} -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
                 {program} -A FORWARD -o docker0 -j DOCKER
                 {program} -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
                 {program} -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
                 {program} -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
                 {program} -A DOCKER-USER -j RETURN"
            ));
        }
        assert_cut_off(network);
        let forward = BaseChains::open().unwrap();
        assert_eq!(reconcile(&forward).len(), 4);
        assert_passes(network);
        // A restart of dockerd puts its own jumps before ours; they let pods through.
        shell("iptables-nft -D FORWARD -j DOCKER-USER; iptables-nft -I FORWARD -j DOCKER-USER");
        assert_eq!(reconcile(&forward), [""; 0]);
        assert_passes(network);
    });
}

/// As `ufw enable` writes it: `FORWARD` drops, and calls chains that accept nothing of pods.
#[test]
fn ufw_drops_and_pods_pass() {
    on_host(|network| {
        for program in ["iptables-nft", "ip6tables-nft"] {
            shell(&format!(
                "for c in ufw-before-forward ufw-user-forward ufw-reject-forward; do
                   {program} -N $c; {program} -A FORWARD -j $c; done
                 {program} -P FORWARD DROP
                 {program} -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
                 {program} -A ufw-before-forward -j ufw-user-forward
                 {program} -A ufw-reject-forward -j REJECT"
            ));
        }
        assert_cut_off(network);
        assert_eq!(reconcile(&BaseChains::open().unwrap()).len(), 4);
        assert_passes(network);
    });
}

/// With `br_netfilter` firewalls see what passes between pods on one bridge.
#[test]
fn pods_on_one_bridge_reach_each_other_whatever_firewalls_see() {
    const NEIGHBOUR: [&str; 2] = ["10.244.3.3", "fd00:10:0:3::3"];
    for (kind, seen) in [("nft", true), ("legacy", true), ("nft", false), ("legacy", false)] {
        on_host(move |network| {
            let pod = network.neighbour();
            // A module on many kernels, loaded when somebody asks for it.
            shell("test -d /proc/sys/net/bridge || modprobe br_netfilter");
            for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
                let path = format!("/proc/sys/net/bridge/{key}");
                std::fs::write(path, if seen { "1" } else { "0" }).unwrap();
            }
            let connects = |within| NEIGHBOUR.map(|to| network.connects(&pod, to, within));
            shell(&format!("iptables-{kind} -P FORWARD DROP; ip6tables-{kind} -P FORWARD DROP"));
            let patience = Duration::from_millis(if seen { 300 } else { 10_000 });
            assert_eq!(connects(patience), [!seen; 2], "{kind} before");
            reconcile(&BaseChains::open().unwrap());
            assert_eq!(connects(Duration::from_secs(10)), [true; 2], "{kind}, seen: {seen}");
        });
    }
}

/// Our table, and kube-proxy's in whichever form: a service whose only end is a pod of another host.
fn check_service(kube_proxy: &'static str, wanted: &'static [&'static str]) {
    on_host(move |network| {
        repair::reconcile(&Nft::open().unwrap(), &spec());
        let port = network.serve(OTHER_POD[0]);
        shell(&kube_proxy.replace("PORT", &port.to_string()));
        let forward = BaseChains::open().unwrap();
        assert_eq!(reconcile(&forward), wanted);
        assert!(network.pod_reaches("10.96.0.10:80", Duration::from_secs(10)));
        assert_eq!(network.seen_by(OTHER_POD[0]), POD[0], "no other source between pods");
        assert_eq!(reconcile(&forward), [""; 0]);
    });
}

#[test]
fn services_of_kube_proxy_with_iptables_are_reached() {
    check_service(
        "i=iptables-nft
         $i -t nat -N KUBE-SERVICES; $i -t nat -N KUBE-MARK-MASQ; $i -t nat -N KUBE-POSTROUTING
         $i -t nat -A PREROUTING -j KUBE-SERVICES
         $i -t nat -A POSTROUTING -j KUBE-POSTROUTING
         $i -t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
         $i -t nat -A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-MARK-MASQ
         $i -t nat -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.244.9.2:PORT
         $i -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
         $i -t nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
         $i -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
         $i -N KUBE-FORWARD; $i -N KUBE-SERVICES
         $i -A FORWARD -m comment --comment 'kubernetes forwarding rules' -j KUBE-FORWARD
         $i -A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
         $i -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
         $i -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
         $i -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
         $i -A KUBE-SERVICES -d 10.96.0.11/32 -p tcp --dport 80 -j REJECT
         $i -P FORWARD DROP",
        &[
            "+ rule -o humanz0 -j ACCEPT in iptables chain FORWARD",
            "+ rule -i humanz0 -j ACCEPT in iptables chain FORWARD",
        ],
    );
}

#[test]
fn services_of_kube_proxy_with_nftables_are_reached() {
    check_service(
        "nft 'table ip kube-proxy {
           map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict
             elements = { 10.96.0.11 . tcp . 80 : goto reject-chain } }
           map service-ips { type ipv4_addr . inet_proto . inet_service : verdict
             elements = { 10.96.0.10 . tcp . 80 : goto service-x } }
           chain reject-chain { reject; }
           chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
           chain service-x { ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
             ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.9.2:PORT; }
           chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
           chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
           chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; }
           chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
           chain masquerading { meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random; }
           chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
         }'",
        &[],
    );
}
