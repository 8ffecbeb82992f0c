//! Pure. The shortcut for packets of established connections: a table of its own, which a kernel
//! without flow tables refuses without harm to the rest.

use std::collections::BTreeSet;

use crate::net::IfName;
use crate::net::gather::Gather;
use crate::nft::{Action, Chain, Flowtable, Hook, Match, NftRule, Ruleset};
use crate::plan::firewall::{PRIORITY_FILTER, base};

/// The agent's table for it.
pub const FLOWS_TABLE: &str = "humanz-flows";

/// The flow table's name.
const FLOWTABLE: &str = "pods";

/// The table that has pods' packets looked up as they come in by `bridge` or one of `others`: the
/// uplinks and the tunnels.
///
/// A connection is added behind all other filters, so that none of its first packets is missed
/// by one: what drops those never lets it become established. Pods of one host share a segment
/// and are not routed.
pub fn ruleset(bridge: &IfName, others: &BTreeSet<IfName>) -> Ruleset {
    let rule = |comment: &str, of_pods| NftRule {
        comment: comment.to_owned(),
        matches: vec![of_pods, Match::Established],
        action: Action::Offload(FLOWTABLE),
    };
    let rules = vec![
        rule("from pods", Match::InputInterface(bridge.clone())),
        rule("to pods", Match::OutputInterface(bridge.clone())),
    ];
    let base = Some(base("filter", Hook::FORWARD, PRIORITY_FILTER + 1));
    Ruleset {
        table: FLOWS_TABLE.to_owned(),
        comment: "written by humanz: packets of established connections take a shortcut".to_owned(),
        sets: Vec::new(),
        flowtable: Some(Flowtable {
            name: FLOWTABLE.to_owned(),
            devices: others.iter().chain([bridge]).cloned().gather(),
        }),
        chains: vec![Chain { name: "forward".to_owned(), base, rules }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn established_connections_of_pods_are_added() {
        let uplinks = ["eth1", "eth0"].map(|name| name.parse().unwrap()).into();
        let ruleset = ruleset(&"humanz0".parse().unwrap(), &uplinks);
        let devices = ruleset.flowtable.unwrap().devices;
        let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["eth0", "eth1", "humanz0"]);
        let rules: Vec<String> = ruleset.chains[0].rules.iter().map(NftRule::to_string).collect();
        let offload = "ct state established counter flow add @pods";
        let wanted = ["iifname", "oifname"].map(|end| format!("{end} \"humanz0\" {offload}"));
        assert_eq!(rules, wanted);
    }
}
