//! What each argument and option takes: the one place from which the files of all shells are made.

use humanz::settings::flags::VARIABLES;

/// What may be typed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing that could be offered.
    Other,
    Files,
    Words(&'static [&'static str]),
    /// What `humanz-agent names` prints for these words.
    Names(&'static [&'static str]),
    /// The same for the word before it.
    NamesOfKind,
}

use Takes::{Files, Names, NamesOfKind, Other, Words};

const YES_NO: Takes = Words(&["yes", "no"]);
const PODS: Takes = Names(&["pods"]);
const HOSTS: Takes = Names(&["hosts"]);
const STORES: Takes = Names(&["stores"]);
const NETWORKS: Takes = Names(&["networks"]);
const GROUPS: Takes = Names(&["groups"]);
const PROFILES: Takes = Names(&["netprofiles"]);
const RULES: Takes = Names(&["namespacerules"]);
const PINS: Takes = Names(&["pins"]);
const GROUP_POLICIES: Takes = Names(&["grouppolicies"]);
const KINDS: Takes = Words(&[
    "Group",
    "GroupPolicy",
    "NamespaceRule",
    "Network",
    "NetProfile",
    "Pin",
    "Namespace",
    "NetworkPolicy",
    "ClusterNetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
]);

/// Start of the subcommand's path, argument or option, what it takes; the first one that fits counts.
const TABLE: &[(&str, &str, Takes)] = &[
    ("status", "--wait", Other),
    ("ready", "--wait", Other),
    ("nodes roles", "--passwords", Files),
    ("nodes reserve", "wanted", Other),
    ("nodes", "host", HOSTS),
    ("nodes", "hosts", HOSTS),
    ("probe", "hosts", HOSTS),
    ("ipam", "--network", STORES),
    ("ipam free", "address", Names(&["addresses"])),
    ("ipam import", "from", Files),
    ("ipam show", "what", PODS),
    ("endpoint show", "what", PODS),
    ("top", "--seconds", Other),
    ("top", "--count", Other),
    ("doctor", "--bundle", Files),
    ("flows", "--pod", PODS),
    ("explain", "from", PODS),
    ("explain", "to", PODS),
    ("explain", "port", Other),
    ("connectivity", "--host", HOSTS),
    ("connectivity", "--to", Other),
    ("connectivity", "--service", Other),
    ("connectivity", "--outside", Other),
    ("connectivity", "--seconds", Other),
    ("ui", "--listen", Other),
    (
        "names",
        "kind",
        Words(&[
            "pods",
            "hosts",
            "tenants",
            "policies",
            "stores",
            "addresses",
            "networks",
            "groups",
            "grouppolicies",
            "netprofiles",
            "namespacerules",
            "pins",
        ]),
    ),
    ("policy", "--file", Files),
    ("policy diff", "--new", Files),
    ("policy ls", "--group", GROUPS),
    ("policy show", "--group", GROUPS),
    ("policy diff", "--group", GROUPS),
    ("policy test", "--group", GROUPS),
    ("policy test", "--from", PODS),
    ("policy test", "--to", PODS),
    ("policy test", "--protocol", Words(&["tcp", "udp", "sctp"])),
    ("policy show", "name", Names(&["policies"])),
    ("policy rm", "kind", KINDS),
    ("policy rm", "name", NamesOfKind),
    ("policy create", "name", Other),
    ("policy", "name", GROUP_POLICIES),
    ("policy rule-rm", "number", Other),
    ("policy rule-set", "number", Other),
    ("policy rule-set", "--direction", Words(&["in", "out"])),
    ("policy rule-set", "--action", Words(&["allow", "deny"])),
    ("policy rule-set", "--protocol", Words(&["tcp", "udp", "sctp", "icmp", "igmp"])),
    ("policy rule-set", "--peer-group", GROUPS),
    ("policy rule-set", "--peer-network", NETWORKS),
    ("policy rule-set", "--audit", YES_NO),
    ("policy rule-set", "", Other),
    ("policy set", "--audit", YES_NO),
    ("apply", "--file", Files),
    ("policy rule-add", "--direction", Words(&["in", "out"])),
    ("policy rule-add", "--action", Words(&["allow", "deny"])),
    ("policy rule-add", "--protocol", Words(&["tcp", "udp", "sctp", "icmp", "igmp"])),
    ("policy rule-add", "--peer-group", GROUPS),
    ("policy rule-add", "--peer-network", NETWORKS),
    ("policy rule-add", "--priority", Other),
    ("policy rule-add", "--port", Other),
    ("policy rule-add", "--cidr", Other),
    ("policy rule-add", "--except", Other),
    ("tenant", "name", Names(&["tenants"])),
    ("net create", "name", Other),
    ("net", "name", NETWORKS),
    ("net", "--shared", YES_NO),
    ("net", "--nat", YES_NO),
    ("net", "--host-ports", YES_NO),
    ("net", "--profile", PROFILES),
    ("net", "", Other),
    ("group create", "name", Other),
    ("group", "name", GROUPS),
    ("group", "--policies", Names(&["grouppolicies", "--bare"])),
    ("group", "--default", Words(&["allow", "deny"])),
    ("group", "--profile", PROFILES),
    ("profile create", "name", Other),
    ("profile", "name", PROFILES),
    ("profile", "", Other),
    ("ns create", "name", Other),
    ("ns", "name", RULES),
    ("ns", "--tenant", Names(&["tenants"])),
    ("ns", "--group", GROUPS),
    ("ns", "--network", NETWORKS),
    ("ns", "--allow", GROUPS),
    ("pin create", "name", PODS),
    ("pin", "name", PINS),
    ("pin", "--network", NETWORKS),
    ("pin", "--address", Other),
];

/// Settings that are files or folders.
const FILES: [&str; 14] = [
    "--env-file",
    "--etcd-cacert",
    "--etcd-cert",
    "--etcd-key",
    "--etcd-password-file",
    "--encryption-psk-file",
    "--kubeconfig",
    "--policy-file",
    "--plugin-log-file",
    "--ipam-dir",
    "--state-dir",
    "--socket",
    "--cni-config-location",
    "--cni-plugin-location",
];

/// What `argument` of the subcommand `path` takes.
pub fn takes(path: &[&str], argument: &str) -> Takes {
    let settings = VARIABLES.iter().map(|known| known.name.to_ascii_lowercase().replace('_', "-"));
    if path.is_empty() && FILES.contains(&argument) {
        return Files;
    }
    if path.is_empty() && settings.into_iter().any(|known| argument == format!("--{known}")) {
        return Other;
    }
    let fits = |(start, name, _): &&(&str, &str, Takes)| {
        path.starts_with(&start.split(' ').collect::<Vec<_>>())
            && (name.is_empty() || *name == argument)
    };
    let found = TABLE.iter().find(fits);
    found.unwrap_or_else(|| panic!("say what {argument} of {path:?} takes: {}", file!())).2
}
