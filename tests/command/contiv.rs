//! `policy from-contiv` with what `netctl … inspect` prints of each kind, put into etcd and read back.

use serde_json::{Value, json};

use crate::support::{Cluster, Ended, Node};
use crate::{refused, run};

const SETTINGS: &[(&str, &str)] = &[("IPV6_SUBNET", "fd10::/48"), ("POLICY", "on")];

/// What `netctl KIND inspect` printed of several objects.
const INSPECTED: [(&str, &str); 9] = [
    ("tenant", include_str!("contiv/tenant.json")),
    ("network", include_str!("contiv/network.json")),
    ("group", include_str!("contiv/group.json")),
    ("policy", include_str!("contiv/policy.json")),
    ("rule", include_str!("contiv/rule.json")),
    ("netprofile", include_str!("contiv/netprofile.json")),
    ("ext-contracts", include_str!("contiv/ext-contracts.json")),
    ("service", include_str!("contiv/service.json")),
    ("others", include_str!("contiv/others.json")),
];

/// What is said of what humanz has not.
const NOTES: [&str; 15] = [
    "Group blue/redis: its pods get network \"app\" by the rule of their namespace: --network of humanz-agent ns create",
    "Group blue/redis: ipPool \"10.50.0.10-10.50.0.99\" is left out: pods have any address of their network",
    "Group blue/redis: extContractsGrps [\"web-contracts\"] is left out: humanz has no external contracts",
    "Group blue/web: its pods get network \"app\" by the rule of their namespace: --network of humanz-agent ns create",
    "Network blue/app: gateway \"10.50.255.254\" is left out: each block has its own",
    "Network blue/app: ipv6Gateway \"fd00:50::fe\" is left out: each block has its own",
    "Network blue/legacy: 10.51.1.0/24 has 4 blocks (/26): no more hosts have pods of it at a time; a wider one, or \
     smaller blocks",
    "Network blue/legacy: gateway \"10.51.1.1\" is left out: each block has its own",
    "Network blue/legacy: pktTag 112 is left out: networks need no tag between hosts",
    "Network default/contivh1: left out: it is of the hosts, which have their own addresses",
    "external contracts \"blue:web-contracts\" is left out: humanz has nothing of its kind",
    "service load balancer \"blue:web\" is left out: humanz has nothing of its kind",
    "application profile \"blue:shop\" is left out: humanz has nothing of its kind",
    "BGP neighbour \"k8-node1\" is left out: humanz has nothing of its kind",
    "settings of the cluster \"global\" is left out: humanz has nothing of its kind",
];

fn from_contiv(host: &Node, kinds: &[&str]) -> Ended {
    let files: String = kinds.iter().map(|kind| format!(" -f /root/{kind}.json")).collect();
    run(host, &format!("policy from-contiv{files}"), SETTINGS)
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "humanz.io/v1", "kind": kind,
        "metadata": {"tenant": "blue", "name": name}, "spec": spec})
}

/// What all of it is here.
fn wanted() -> Value {
    let rules = |all: Value| json!({ "rules": all });
    json!([
        object("Group", "redis", json!({"policies": ["redis", "egress"], "profile": "gold"})),
        object("Group", "web", json!({"policies": []})),
        object(
            "GroupPolicy",
            "egress",
            rules(json!([
                {"id": "1", "direction": "out", "action": "deny", "priority": 1, "peer": {"cidr": "10.0.0.0/8"}},
                {"id": "2", "direction": "out", "action": "allow", "priority": 5, "peer": {"network": "v6"}},
                {"id": "3", "direction": "out", "action": "allow", "priority": 5, "protocol": "tcp", "ports": [53],
                    "peer": {"cidr": "fd00:53::53/128"}},
            ]))
        ),
        object(
            "GroupPolicy",
            "redis",
            rules(json!([
                {"id": "1", "direction": "in", "action": "deny", "priority": 1},
                {"id": "2", "direction": "in", "action": "allow", "priority": 10, "protocol": "tcp", "ports": [6379],
                    "peer": {"group": "web"}},
                {"id": "3", "direction": "in", "action": "allow", "priority": 10, "protocol": "icmp",
                    "peer": {"network": "legacy"}},
                {"id": "4", "direction": "in", "action": "allow", "priority": 20, "protocol": "udp", "ports": [161],
                    "peer": {"cidr": "10.51.1.0/24"}},
            ]))
        ),
        object(
            "NetProfile",
            "gold",
            json!({"dscp": 46, "egressRate": "10M", "egressBurst": 1_600_000})
        ),
        object("Network", "app", json!({"subnets": ["10.50.0.0/16", "fd00:50::/64"]})),
        object("Network", "legacy", json!({"subnets": ["10.51.1.0/24"]})),
        object("Network", "v6", json!({"subnets": ["fd00:52::/100"]})),
    ])
}

/// Each kind in a file of its own, as an operator keeps them.
#[test]
fn what_netctl_inspects_of_every_kind_is_taken_over_or_said_to_be_left_out() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    for (kind, text) in INSPECTED {
        host.write(&format!("/root/{kind}.json"), text);
    }
    let converted = from_contiv(host, &INSPECTED.map(|(kind, _)| kind));
    assert!(converted.succeeded(), "{converted}");
    let mut said: Vec<&str> = converted.stderr.lines().collect();
    said.sort_unstable();
    let mut notes = NOTES.map(|note| format!("humanz-agent: {note}"));
    notes.sort_unstable();
    assert_eq!(said, notes);
    let objects: Value = serde_json::from_str(&converted.stdout).unwrap();
    assert_eq!(objects, wanted());

    // Into etcd, and out of it again, by the same reader as everything else.
    host.write("/root/policies.json", &converted.stdout);
    let applied = run(host, "apply -f /root/policies.json", SETTINGS).ok();
    assert_eq!(applied.lines().filter(|line| line.starts_with("+ ")).count(), 8, "{applied}");
    let exported: Value = serde_json::from_str(&run(host, "export", SETTINGS).ok()).unwrap();
    assert_eq!(exported, wanted());
    assert_eq!(run(host, "apply -f /root/policies.json", SETTINGS).ok(), "nothing differs\n");

    // Alone, each kind that humanz has not is nothing, and is said; a half of what belongs together is refused.
    for (kind, _) in &INSPECTED[6..] {
        let alone = from_contiv(host, &[kind]);
        assert_eq!(alone.stdout.trim(), "[]", "{alone}");
        assert!(
            alone.succeeded() && alone.stderr.contains("humanz has nothing of its kind"),
            "{alone}"
        );
    }
    run(host, "group rm blue/redis", SETTINGS).ok();
    run(host, "policy rm GroupPolicy blue/redis", SETTINGS).ok();
    run(host, "policy rm GroupPolicy blue/egress", SETTINGS).ok();
    host.write("/root/half.json", &from_contiv(host, &["group"]).stdout);
    let half = run(host, "apply -f /root/half.json", SETTINGS);
    refused(&half, 1, &["nothing was changed", "blue/redis", "blue/egress"]);
}
