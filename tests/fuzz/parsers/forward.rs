//! Rules of other firewalls, as nftables and as iptables-legacy lists them.

use std::collections::BTreeMap;

use humanz::checks::forward::{Traffic, input, plan, removals};
use humanz::net::{Family, IfName, PerFamily};
use humanz::nft::base_chains::{
    BaseChain, ChainRef, ChainRule, FoundSets, HookChains, decode, expression_list, legacy_text,
};
use humanz::nft::{ChainPolicy, NftChain, TableFamily, found};

/// The first byte selects the format: nftables (even) in datagrams of rules, sets and elements, or the
/// program iptables-save in text.
pub fn forward(data: &[u8]) {
    let Some((first, listed)) = data.split_first() else { return };
    if first % 2 == 0 {
        judged(nftables(listed));
    } else {
        let text = String::from_utf8_lossy(listed);
        for family in Family::BOTH {
            judged(legacy_text::chain(family, "FORWARD", &text));
        }
    }
}

/// All rules of the datagram as those of one chain, which may call itself.
fn nftables(datagram: &[u8]) -> BaseChain {
    let mut known = FoundSets::new();
    let (mut listed, mut entries) = (Vec::new(), Vec::new());
    for reply in super::replies(datagram) {
        let set = found::set(&reply).ok().flatten();
        known.extend(set.map(|set| (set.name.clone(), set)));
        entries.extend(found::entries(&reply).unwrap_or_default());
        listed.extend(found::parts(&reply).map(|(_, attributes)| attributes));
    }
    for set in known.values_mut() {
        let elements = set.shape.as_ref().map(|shape| shape.elements(entries.clone()));
        set.elements = elements.unwrap_or_default();
    }
    let name = |index: u32| (index < 9).then(|| format!("eth{index}"));
    let mut rules: Vec<ChainRule> = Vec::new();
    for rule in &listed {
        let Ok(expressions) = expression_list::expressions(rule) else { continue };
        let _names = expression_list::set_names(&expressions);
        rules.extend(decode::rules(rule, &expressions, &known, &name).unwrap_or_default());
    }
    let place = NftChain {
        family: TableFamily::Inet,
        table: "filter".to_owned(),
        chain: "FORWARD".to_owned(),
    };
    let called: BTreeMap<_, _> =
        ["", "a", "FORWARD"].map(|name| (name.to_owned(), rules.clone())).into();
    BaseChain { place: ChainRef::Nft(place), policy: ChainPolicy::Drop, rules, called }
}

/// The edit of a chain.
fn judged(chain: BaseChain) {
    let name = |text: &str| text.parse::<IfName>().expect("a name");
    let network = |text: &str| text.parse().ok();
    let traffic = Traffic {
        bridge: name("humanz0"),
        uplink: Some(name("eth0")),
        pods_come_by: vec![name("eth0"), name("humanz-vx4")],
        subnets: PerFamily { v4: network("10.244.1.0/24"), v6: network("fd00:0:0:1::/64") },
        pools: PerFamily { v4: network("10.244.0.0/16"), v6: network("fd00::/48") },
        bridged: Family::BOTH.to_vec(),
    };
    let tunnel = input::TunnelTraffic {
        uplink: name("eth0"),
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        udp_port: 10_400,
    };
    let found = HookChains { chains: vec![chain], ..HookChains::default() };
    let others = ["10.244.0.0/24", "10.244.200.0/24", "fd00:0:0:2::/64"].into_iter();
    let others = others.map(|subnet| ("b", subnet.parse().expect("a subnet")));
    let planned = plan(&traffic, others, &found);
    let _problems: Vec<String> = planned.problems.iter().map(ToString::to_string).collect();
    for edit in &planned.edits {
        assert!(edit.place.sees(Family::V4) || edit.place.sees(Family::V6), "{edit:?}");
    }
    let _removals = removals(&traffic.bridge, &found);
    let _problems = input::problems(&tunnel, &found);
}
