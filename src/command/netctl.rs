//! Pure. Options and words of Contiv's `netctl`, and what does the same here.

/// What humanz has in place of a word of netctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetctlMeaning {
    /// An option or a subcommand.
    Word(&'static str),
    /// None; how it is here.
    Sentence(&'static str),
}

use NetctlMeaning::{Sentence, Word};

/// Subcommands behind a group of them, the words there, and what they mean.
type Meanings = [(&'static [&'static str], &'static [&'static str], NetctlMeaning)];

const OBJECTS: [&str; 8] = ["endpoint", "group", "net", "ns", "pin", "policy", "profile", "tenant"];

const IN_NAME: NetctlMeaning = Sentence("the tenant stands in front of the name, as in blue/front");

const OF_ALL: NetctlMeaning =
    Sentence("it lists those of all tenants; tenant show has what is of one");

/// Of any kind of objects.
const OF_VERBS: &Meanings = &[
    (&[], &["-j"], Word("--json")),
    (&["ls"], &["-t", "--tenant", "-a", "--all"], OF_ALL),
    (&["ls"], &["-q", "--quiet"], Sentence("--json has the names of all")),
    (&[], &["-t", "--tenant"], IN_NAME),
];

const OF_NAMESPACES: &Meanings = &[(MAKING, &["-t"], Word("--tenant"))];

const MAKING: &[&str] = &["create", "set"];

const RULES: &[&str] = &["rule-add", "rule-set"];

const GATEWAY: NetctlMeaning = Sentence(
    "there is none to choose: each block that a host takes of the network has its own, the first address of the block",
);

const NO_TAGS: NetctlMeaning =
    Sentence("networks have no tags: the addresses of their pods keep them apart");

const OF_NETWORKS: &Meanings = &[
    (MAKING, &["-s", "-s6", "--subnetv6"], Word("--cidr")),
    (MAKING, &["-g", "--gateway", "-g6", "--gatewayv6"], GATEWAY),
    (MAKING, &["-p", "--pkt-tag", "-tag", "--nw-tag"], NO_TAGS),
    (
        MAKING,
        &["-e", "--encap"],
        Sentence(
            "how packets get to other hosts is a setting of the agents, for all networks: BACKEND",
        ),
    ),
    (MAKING, &["-n", "--nw-type"], Sentence("all networks are of pods, and of one type")),
];

const OF_GROUPS: &Meanings = &[
    (MAKING, &["-p"], Word("--policies")),
    (MAKING, &["-n", "--networkprofile"], Word("--profile")),
    (
        MAKING,
        &["-r", "--ip-pool"],
        Sentence("a group has no addresses of its own: its pods have those of their network"),
    ),
];

const OF_RULES: &Meanings = &[
    (RULES, &["-p"], Word("--priority")),
    (RULES, &["-d"], Word("--direction")),
    (RULES, &["-g", "--from-group", "-e", "--to-group"], Word("--peer-group")),
    (RULES, &["-n", "--from-network", "-o", "--to-network"], Word("--peer-network")),
    (RULES, &["-i", "--from-ip-address", "-s", "--to-ip-address"], Word("--cidr")),
    (RULES, &["-l"], Word("--protocol")),
    (RULES, &["-P"], Word("--port")),
    (RULES, &["-j"], Word("--action")),
];

const OF_PROFILES: &Meanings = &[
    (MAKING, &["-b", "--bandwidth"], Word("--egress-rate")),
    (MAKING, &["-s", "--burst"], Word("--egress-burst")),
    (MAKING, &["-d"], Word("--dscp")),
];

/// Commands of netctl, and what there is here.
const COMMANDS: [(&str, &str); 6] = [
    ("global", "settings are those of the agents, which humanz-agent config shows"),
    ("service", "services are what kube-proxy, or what is in its place, makes of them"),
    ("bgp", NOT_HERE),
    ("app-profile", NOT_HERE),
    ("external-contracts", NOT_HERE),
    ("aci-gw", NOT_HERE),
];

const NOT_HERE: &str = "Contiv has it, humanz does not";

/// What `word` means where netctl would be typed: behind the subcommand `of`, which does not know it.
pub fn meaning(word: &str, of: Option<&str>) -> Option<NetctlMeaning> {
    let Some(of) = of else {
        return COMMANDS.iter().find(|(name, _)| *name == word).map(|(_, what)| Sentence(what));
    };
    let (object, verb) = of.split_once(' ').unwrap_or((of, ""));
    if !word.starts_with('-') {
        return argument(object, verb);
    }
    let own: &Meanings = match object {
        "net" => OF_NETWORKS,
        "ns" => OF_NAMESPACES,
        "group" => OF_GROUPS,
        "policy" => OF_RULES,
        "profile" => OF_PROFILES,
        _ => &[],
    };
    let of_verbs = if OBJECTS.contains(&object) { OF_VERBS } else { &[] };
    let is_it = |(verbs, words, _): &&(&[&str], &[&str], _)| {
        (verbs.is_empty() || verbs.contains(&verb)) && words.contains(&word)
    };
    own.iter().chain(of_verbs).find(is_it).map(|(.., meaning)| *meaning)
}

/// What was meant with an argument too many.
fn argument(object: &str, verb: &str) -> Option<NetctlMeaning> {
    match (object, verb) {
        ("group", "create") => Some(Sentence(
            "a group is of no network: the rule of a namespace says in which its pods are (ns create --network)",
        )),
        ("policy", "rule-add") => {
            Some(Sentence("rules have no names: policy rule-ls shows the number of each"))
        }
        ("apply", "") | ("policy", "apply") => Some(Sentence("files stand behind -f")),
        ("net" | "group" | "profile" | "ns" | "pin" | "tenant" | "endpoint", "ls") => {
            Some(Sentence("it lists all; show has one"))
        }
        _ => None,
    }
}
