//! Pure. Networks whose objects are gone, or have other addresses, while hosts have blocks of them.
//!
//! Whoever removes a network is refused while a host has blocks of it, and who takes their addresses from it. So etcd has
//! lost its data and gets it back piece by piece, has older ones, or somebody has written the key: pods with these
//! addresses stay what they were, and apart from others.

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;

use super::{Networks, TenantNetwork};
use crate::net::subnet::{contains, overlap};
use crate::net::{Family, Object, Problem, ProblemKind};
use crate::policy::name::Scoped;

/// Prefix lengths of blocks by default.
const USUAL_BLOCKS: [(Family, u8); 2] = [(Family::V4, 26), (Family::V6, 122)];

impl Networks {
    /// Of networks that are not there any longer, or have other addresses now, what `before` knew, as far as it has
    /// some of `blocks` and no other network has its addresses now.
    pub fn keep_served(&mut self, before: &Networks, blocks: &BTreeSet<IpNetwork>) {
        for (name, network) in before.iter().filter(|(_, network)| network.has_some(blocks)) {
            let is_free = |(other, known): (&Scoped, &TenantNetwork)| {
                let mut pools = known.networks();
                other == name || !pools.any(|its| network.networks().any(|it| overlap(it, its)))
            };
            let is_whole = self.get(name).is_some_and(|now| !network.strands(now, blocks));
            let now = self.get(name).cloned();
            if !is_whole
                && self.by_name.iter().all(is_free)
                && self.insert(name.clone(), network.clone())
            {
                self.gone.insert(name.clone());
                let revision = self.revisions.remove(name);
                self.moved.extend(now.map(|now| (name.clone(), (now, revision))));
            }
        }
    }

    /// Forgets those that are gone and have none of `blocks`: where they have other addresses now, they have these.
    /// False if there were none.
    pub fn forget_gone(&mut self, blocks: &BTreeSet<IpNetwork>) -> bool {
        let is_held = |name: &Scoped| match (self.by_name.get(name), self.moved.get(name)) {
            (Some(network), Some((now, _))) => network.strands(now, blocks),
            (Some(network), None) => network.has_some(blocks),
            (None, _) => false,
        };
        let (kept, ended): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.gone).into_iter().partition(is_held);
        self.gone = kept;
        for name in &ended {
            self.by_name.remove(name);
            if let Some((now, revision)) = self.moved.remove(name) {
                self.by_name.insert(name.clone(), now);
                self.revisions.extend(revision.map(|revision| (name.clone(), revision)));
            }
        }
        !ended.is_empty()
    }

    /// Some are there for the blocks that hosts have of them alone.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// No source has it: pods run in the blocks that hosts have of it, and no host takes one more.
    pub fn is_gone(&self, name: &Scoped) -> bool {
        self.gone.contains(name)
    }

    /// What is wrong with networks that are gone. `of_api`: a controller writes them to etcd, and `net create` is refused.
    pub fn gone_problems(&self, of_api: bool) -> impl Iterator<Item = Problem> {
        self.gone.iter().filter_map(move |name| {
            let is_moved = self.moved.contains_key(name);
            Some(problem(name, self.get(name)?, (is_moved, of_api)))
        })
    }
}

impl TenantNetwork {
    fn has_some(&self, blocks: &BTreeSet<IpNetwork>) -> bool {
        self.networks().any(|pool| blocks.iter().any(|block| contains(pool, *block)))
    }

    /// Some of `blocks` are of this network, and not of what it is `now`.
    fn strands(&self, now: &TenantNetwork, blocks: &BTreeSet<IpNetwork>) -> bool {
        let has = |network: &TenantNetwork, block| network.networks().any(|it| contains(it, block));
        blocks.iter().any(|block| has(self, *block) && !has(now, *block))
    }

    /// The options of `net create` that make it again.
    fn options(&self) -> String {
        let mut words: Vec<String> = self.networks().map(|pool| format!("--cidr {pool}")).collect();
        for (family, usual) in USUAL_BLOCKS {
            let block = self.pools.get(family).map(|pool| pool.pool().host_prefix());
            let option = if family == Family::V4 { "--block-v4" } else { "--block-v6" };
            words.extend(block.filter(|it| *it != usual).map(|it| format!("{option} {it}")));
        }
        words.extend(self.pins.iter().map(|pins| format!("--pins {pins}")));
        words.extend(self.mtu.map(|mtu| format!("--pod-mtu {mtu}")));
        let flags = [
            (self.shared, "--shared yes"),
            (!self.nat, "--nat no"),
            (!self.host_ports, "--host-ports no"),
        ];
        words.extend(flags.iter().filter(|(is_given, _)| *is_given).map(|it| it.1.to_owned()));
        words.join(" ")
    }
}

fn problem(name: &Scoped, network: &TenantNetwork, (moved, of_api): (bool, bool)) -> Problem {
    let subject = Object::named(format!("Network {name}"));
    let (change, of) = match moved {
        true => ("has other addresses now", "with the former ones"),
        false => ("is gone", "of it"),
    };
    let what = format!(
        "Network {name} {change}, and this host has blocks {of}: it stays as it was, without further blocks, until \
         they are given back"
    );
    let options = network.options();
    let fix = match (of_api, moved) {
        (true, _) => "kubectl get networks.humanz.io # apply its custom resource again: humanz-agent controller writes it to etcd".into(),
        (false, false) => format!("humanz-agent net create {name} {options} # makes it again"),
        (false, true) => format!("humanz-agent net set {name} {options} # has the former ones again"),
    };
    Problem::new(ProblemKind::Policy, subject, what).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn networks(specs: &[(&str, &str)]) -> Networks {
        let object = |(name, spec): &(&str, &str)| {
            format!(
                "---\n{{apiVersion: humanz.io/v1, kind: Network, metadata: {{tenant: blue, name: {name}}}, spec: {spec}}}\n"
            )
        };
        let text: String = specs.iter().map(object).collect();
        let read = documents::read(&documents::objects(&text).unwrap(), true);
        assert_eq!(read.problems, []);
        read.networks
    }

    fn blocks(all: &[&str]) -> BTreeSet<IpNetwork> {
        all.iter().map(|block| block.parse().unwrap()).collect()
    }

    const FRONT: &str =
        r#"{subnets: [10.32.0.0/16, "fd00:32::/64"], blocks: {v4: 28}, nat: false}"#;

    #[test]
    fn a_network_of_which_there_are_blocks_stays_until_they_are_given_back() {
        let before = networks(&[("front", FRONT), ("back", "{subnets: [10.33.0.0/16]}")]);
        let own = blocks(&["10.32.3.16/28"]);
        let mut now = networks(&[("new", "{subnets: [10.34.0.0/16]}")]);
        now.keep_served(&before, &own);
        let names: Vec<String> = now.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["blue/front", "blue/new"]);
        let problems: Vec<Problem> = now.gone_problems(false).collect();
        let of_api = now.gone_problems(true).next().and_then(|problem| problem.fix);
        assert!(of_api.unwrap().contains("custom resource"));
        assert_eq!(problems.len(), 1);
        assert_eq!(
            problems[0].fix.as_deref(),
            Some(
                "humanz-agent net create blue/front --cidr 10.32.0.0/16 --cidr fd00:32::/64 \
                 --block-v4 28 --nat no # makes it again"
            )
        );
        // Once more, and after a start.
        let text = serde_json::to_string(&now).unwrap();
        let read: Networks = serde_json::from_str(&text).unwrap();
        let mut again = networks(&[]);
        again.keep_served(&read, &own);
        assert!(again.iter().any(|(name, _)| again.is_gone(name)));
        assert!(!again.forget_gone(&own) && again.forget_gone(&blocks(&["10.34.0.0/26"])));
        assert!(again.is_empty() && again.gone_problems(false).next().is_none());
    }

    #[test]
    fn a_network_that_is_there_or_whose_addresses_another_one_has_is_not_gone() {
        let before = networks(&[("front", FRONT)]);
        let own = blocks(&["10.32.3.16/28"]);
        for now in [("front", "{subnets: [10.32.0.0/17]}"), ("other", "{subnets: [10.32.3.0/24]}")]
        {
            let mut now = networks(&[now]);
            let said = now.clone();
            now.keep_served(&before, &own);
            assert_eq!(now, said);
        }
    }

    #[test]
    fn a_network_with_other_addresses_keeps_the_former_ones_until_its_blocks_are_given_back() {
        let before = networks(&[("front", FRONT)]);
        let [tenant, name] = ["blue", "front"].map(|text| text.parse().unwrap());
        let name = Scoped { tenant, name };
        for subnets in ["{subnets: [10.40.0.0/16]}", "{subnets: [10.32.0.0/20]}"] {
            let said = networks(&[("front", subnets)]).as_of([(name.clone(), 7)].into());
            let own = blocks(&["10.32.3.16/28", "10.32.128.16/28"]);
            let mut now = said.clone();
            now.keep_served(&before, &own);
            assert!(now.get(&name) == before.get(&name) && now.is_gone(&name), "{subnets}");
            assert_eq!(now.revision(&name), None, "no block is taken of it");
            let [problem] = &now.gone_problems(false).collect::<Vec<_>>()[..] else { panic!() };
            assert!(problem.what.contains("has other addresses now"), "{problem}");
            assert!(
                problem.fix.as_ref().unwrap().contains("net set blue/front --cidr 10.32.0.0/16 ")
            );
            // Once more, and after a start.
            let text = serde_json::to_string(&now).unwrap();
            let read: Networks = serde_json::from_str(&text).unwrap();
            assert_eq!(read, now);
            let mut again = said.clone();
            again.keep_served(&read, &own);
            assert_eq!(again, now);
            assert_eq!(networks(&[]).and(&again), now);
            assert_eq!(said.clone().and(&again), said, "another source has it");
            assert!(!again.forget_gone(&own) && again.forget_gone(&blocks(&[])));
            assert_eq!(again, said);
        }
        // What is left has its block, too.
        let mut now = networks(&[("front", "{subnets: [10.32.0.0/20]}")]);
        now.keep_served(&before, &blocks(&["10.32.3.16/28", "10.32.128.16/28"]));
        assert!(now.forget_gone(&blocks(&["10.32.3.16/28"])) && !now.has_gone());
    }

    #[test]
    fn what_another_source_has_is_not_gone() {
        let (before, own) = (networks(&[("front", FRONT)]), blocks(&["10.32.3.16/28"]));
        let mut gone = networks(&[]);
        gone.keep_served(&before, &own);
        for merged in [before.clone().and(&gone), gone.clone().and(&before)] {
            assert_eq!(merged, before);
        }
        let merged = networks(&[]).and(&gone);
        assert_eq!(merged, gone);
    }
}
