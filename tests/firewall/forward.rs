//! Hosts whose own firewall drops forwarded packets.

use std::path::PathBuf;

use ipnetwork::IpNetwork;

use humanz::checks::forward::{plan, removals};
use humanz::net::Family;
use humanz::nft::base_chains::BaseChains;
use humanz::plan::Describe;

use super::network::{HOST, Network, OUTSIDE, POD, on_host, run, run_args, traffic};

/// Other hosts with a pod subnet: of both families, and one that no test uses.
const OTHERS: [(&str, &str); 3] =
    [("b", "10.244.9.0/24"), ("b", "fd00:10:0:9::/64"), ("c", "10.244.200.0/24")];

fn other((host, subnet): (&'static str, &str)) -> (&'static str, IpNetwork) {
    (host, subnet.parse().unwrap())
}

/// One reconcile of the agent: returns a line for each edit and each blocking rule.
pub fn reconcile(forward: &BaseChains) -> Vec<String> {
    let found = forward.observe(&Family::BOTH).unwrap();
    let plan = plan(&traffic(), OTHERS.map(other).into_iter(), &found);
    for edit in &plan.edits {
        forward.apply(edit).unwrap();
    }
    let edits = plan.edits.iter().map(|edit| edit.line().to_string());
    edits.chain(plan.problems.iter().map(ToString::to_string)).collect()
}

pub fn assert_cut_off(network: &Network) {
    for family in 0..2 {
        assert!(network.is_cut_off(OUTSIDE[family]), "pod to {}", OUTSIDE[family]);
        assert!(
            network.never_reaches_pod(OUTSIDE[family], POD[family]),
            "{} to pod",
            OUTSIDE[family]
        );
    }
}

pub fn assert_passes(network: &Network) {
    for family in 0..2 {
        assert_eq!(network.seen_by(OUTSIDE[family]), POD[family]);
        assert!(network.reaches_pod(OUTSIDE[family], POD[family]), "{} to pod", OUTSIDE[family]);
    }
}

/// The whole life of our rules, with the program that made the drop: `kind` is `nft` or `legacy`.
fn check(kind: &'static str) {
    on_host(move |network| {
        let (v4, v6) = (format!("iptables-{kind}"), format!("ip6tables-{kind}"));
        let forward = BaseChains::open().unwrap();
        for program in [&v4, &v6] {
            run(&format!("{program} -P FORWARD DROP"));
            run(&format!("{program} -A FORWARD -i docker0 -j ACCEPT"));
        }
        assert_cut_off(network);

        let name = if kind == "legacy" { "-legacy" } else { "" };
        let mut lines = Vec::new();
        for program in ["iptables", "ip6tables"] {
            for option in ["-o", "-i"] {
                let rule = format!("rule {option} humanz0 -j ACCEPT");
                lines.push(format!("+ {rule} in {program}{name} chain FORWARD"));
            }
        }
        let mut done = reconcile(&forward);
        done.sort();
        lines.sort();
        assert_eq!(done, lines);
        assert_passes(network);
        assert_eq!(reconcile(&forward), [""; 0], "inserted once");

        for program in [&v4, &v6] {
            let listed = run(&format!("{program} -S FORWARD"));
            let wanted = "-P FORWARD DROP\n\
                -A FORWARD -i humanz0 -m comment --comment \"humanz: from pods\" -j ACCEPT\n\
                -A FORWARD -o humanz0 -m comment --comment \"humanz: to pods\" -j ACCEPT\n\
                -A FORWARD -i docker0 -j ACCEPT\n";
            assert_eq!(listed, wanted);
        }

        // As a restart of Docker does: save and restore, or flush.
        run_args("sh", &["-c", &format!("{v4}-save | {v4}-restore && {v6}-save | {v6}-restore")]);
        assert_eq!(reconcile(&forward), [""; 0], "known again after save and restore");
        assert_passes(network);
        run(&format!("{v4} -F FORWARD"));
        assert!(network.is_cut_off(OUTSIDE[0]));
        assert_eq!(reconcile(&forward).len(), 2, "re-inserted when gone");
        assert_passes(network);

        // An operator's own rules do as well, and cleaning up leaves them.
        run(&format!("{v6} -F FORWARD"));
        run(&format!("{v6} -A FORWARD -i humanz0 -j ACCEPT"));
        run(&format!("{v6} -A FORWARD -o humanz0 -j ACCEPT"));
        assert_eq!(reconcile(&forward), [""; 0]);
        clean_up(&forward);
        assert_eq!(run(&format!("{v4} -S FORWARD")), "-P FORWARD DROP\n");
        assert_eq!(run(&format!("{v6} -S FORWARD")).lines().count(), 3);
        assert!(network.is_cut_off(OUTSIDE[0]));
        clean_up(&forward);
    });
}

fn clean_up(forward: &BaseChains) {
    for edit in removals(&traffic().bridge, &forward.observe(&Family::BOTH).unwrap()) {
        forward.apply(&edit).unwrap();
    }
}

#[test]
fn pods_pass_a_dropping_iptables_nft() {
    check("nft");
}

#[test]
fn pods_pass_a_dropping_iptables_legacy() {
    check("legacy");
}

/// A host whose last rule rejects, as RHEL's iptables-services has it.
#[test]
fn pods_pass_a_last_rule_that_rejects() {
    for kind in ["nft", "legacy"] {
        on_host(move |network| {
            let program = format!("iptables-{kind}");
            run(&format!("{program} -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT"));
            run(&format!("{program} -A FORWARD -j REJECT --reject-with icmp-host-prohibited"));
            // Appended later, and never reached.
            run(&format!("{program} -A FORWARD -i humanz0 -j ACCEPT"));
            assert!(network.is_cut_off(OUTSIDE[0]));
            let forward = BaseChains::open().unwrap();
            assert_eq!(reconcile(&forward).len(), 2);
            assert_passes(network);
            assert_eq!(reconcile(&forward), [""; 0]);
        });
    }
}

#[test]
fn iptables_that_drops_nothing_is_not_changed() {
    on_host(|network| {
        for program in ["iptables-nft", "iptables-legacy"] {
            run(&format!("{program} -A FORWARD -i eth9 -j DROP"));
        }
        assert_eq!(reconcile(&BaseChains::open().unwrap()), [""; 0]);
        assert_passes(network);
        assert!(!run("iptables-nft -S FORWARD").contains("humanz0"));
    });
}

#[test]
fn a_host_without_any_firewall_gets_none() {
    on_host(|_| {
        assert_eq!(reconcile(&BaseChains::open().unwrap()), [""; 0]);
        assert_eq!(run("nft list ruleset"), "");
        // Where nothing has loaded ip_tables, there is no such file.
        let names = std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
        let names = names.unwrap_or_default();
        assert_eq!(names, "", "looking did not make the older tables");
    });
}

#[test]
fn a_legacy_table_without_its_program_is_reported() {
    on_host(|_| {
        run("iptables-legacy -P FORWARD DROP");
        let forward = BaseChains::with_programs(vec![PathBuf::from("/nowhere")]).unwrap();
        let line = "iptables-legacy chain FORWARD: may drop pod traffic and cannot be read: the \
                    program iptables-legacy is not installed (package iptables); \
                    iptables-legacy -S FORWARD # read its rules";
        assert_eq!(reconcile(&forward), [line]);
    });
}

/// Checks the chains that are reported in a ruleset of nft.
fn check_reported(ruleset: &'static str, wanted: &'static [&'static str]) {
    on_host(move |network| {
        run_args("nft", &[ruleset]);
        let before = run("nft list ruleset");
        let lines = reconcile(&BaseChains::open().unwrap());
        assert_eq!(lines.len(), wanted.len(), "{lines:?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.starts_with(wanted), "{line}");
        }
        assert_eq!(run("nft list ruleset"), before, "tables of others are not touched");
        assert_eq!(network.is_cut_off(OUTSIDE[0]), !wanted.is_empty());
    });
}

#[test]
fn a_plain_nft_table_that_drops_is_reported() {
    check_reported(
        "table inet filter { chain forward { type filter hook forward priority 0; policy drop; \
         ct state established accept; iifname \"lan0\" accept; }; }",
        &["nft table inet filter, chain forward: its policy drops pod traffic; nft 'insert rule "],
    );
}

#[test]
fn the_reported_fix_works() {
    on_host(|network| {
        let forward = BaseChains::open().unwrap();
        run_args(
            "nft",
            &[
                "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }",
            ],
        );
        let line = reconcile(&forward).pop().unwrap();
        // As it is: what follows # is for the reader.
        let (_, fix) = line.split_once("drops pod traffic; ").unwrap();
        assert_cut_off(network);
        run_args("sh", &["-c", fix]);
        assert_passes(network);
        assert_eq!(reconcile(&forward), [""; 0]);
    });
}

#[test]
fn a_drop_behind_other_rules_of_the_owner_is_found() {
    check_reported(
        "table inet wall { chain deep { tcp dport 22 accept; drop; }; chain forward { type filter \
         hook forward priority 0; ct state vmap { established : accept, related : accept, invalid \
         : drop }; iifname vmap { \"lan0\" : accept, \"humanz0\" : goto deep }; iif lo accept; oifname \
         { \"lan0\", \"lan1\" } accept; ip saddr { 10.0.0.0/16, 10.2.0.1 } accept; oifname != \"lan0\" \
         goto deep; }; }",
        &[
            "nft table inet wall, chain forward: a rule of chain deep drops pod traffic; nft 'insert rule ",
        ],
    );
}

#[test]
fn a_table_that_accepts_pods_somewhere_is_not_reported() {
    for accept in [
        "chain deep { iifname \"humanz0\" accept; oifname \"humanz0\" accept; }",
        "set trusted { type ifname; elements = { \"humanz0\" }; }; \
         chain deep { iifname @trusted accept; oifname @trusted accept; }",
        "chain deep { iifname { \"lan0\", \"humanz0\" } accept; oifname \"humanz0\" accept; }",
        "chain deep { iifname \"human*\" accept; oifname vmap { \"humanz0\" : accept }; }",
        "chain deep { ip saddr 10.244.0.0/16 accept; ip6 saddr fd00:10::/48 accept; oifname \
         \"humanz0\" accept; }",
        "chain deep { ip saddr { 10.244.0.0/17, 172.16.0.0/12 } accept; ip6 saddr { fd00::/16 } \
         accept; ct state established accept; ct state new oif \"humanz0\" accept; }",
    ] {
        on_host(move |network| {
            let chain =
                "chain forward { type filter hook forward priority 0; policy drop; jump deep; }";
            run_args("nft", &[&format!("table inet filter {{ {accept}; {chain}; }}")]);
            assert_eq!(reconcile(&BaseChains::open().unwrap()), [""; 0]);
            assert_passes(network);
        });
    }
}

#[test]
fn an_own_table_that_accepts_does_not_help_against_a_drop() {
    use humanz::nft::Nft;
    use humanz::plan::firewall::ruleset;

    use super::network::spec;

    on_host(|network| {
        run("iptables-nft -P FORWARD DROP");
        Nft::open().unwrap().replace(&ruleset(&spec()).unwrap()).unwrap();
        assert!(network.is_cut_off(OUTSIDE[0]));
        reconcile(&BaseChains::open().unwrap());
        assert_eq!(network.seen_by(OUTSIDE[0]), HOST[0]);
    });
}
