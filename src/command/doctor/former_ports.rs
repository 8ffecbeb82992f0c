//! Host ports that the reference plugin `portmap` has left: they lead to an address that another pod has, or will have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::left_chains;
use crate::command::doctor::context::DoctorContext;
use crate::inspect::former_stores;
use crate::net::{Family, Object, Problem, ProblemKind};
use crate::nft::base_chains::{ChainRule, Comparison, FoundSets, PacketAddress, PacketField};
use crate::nft::{NftChain, TableFamily, Verdict};

/// The chain with a rule for each container. Source: TopLevelDNATChainName of `portmap`.
const CONTAINERS: &str = "CNI-HOSTPORT-DNAT";

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let former = former_stores::inspect(&context.host.kernel.rtnl, context.settings());
    // A container may have its address in a store that could not be read, or is still to be imported.
    match context.host.unread_stores() {
        [] if former.is_ok_and(|stores| stores.iter().all(|it| it.is_imported)) => {
            Family::BOTH.into_iter().filter_map(|family| of_family(context, family)).collect()
        }
        _ => Vec::new(),
    }
}

fn of_family(context: &DoctorContext<'_>, family: Family) -> Option<Problem> {
    let subnet = context.host.subnets.get(family)?;
    // Its store may have been imported into a network of another name.
    let is_attached = |container_id: &str| {
        context.host.attachments().iter().any(|pod| pod.entry.container_id == container_id)
    };
    let containers = rules(context, family, CONTAINERS);
    let chains: BTreeSet<&str> = containers
        .iter()
        .filter(|rule| {
            rule.comment.as_deref().and_then(container).is_some_and(|it| !is_attached(it))
        })
        .filter_map(chain_of_container)
        .filter(|chain| is_of_subnet(&rules(context, family, chain), *subnet))
        .collect();
    if chains.is_empty() {
        return None;
    }
    let chains: Vec<&str> = chains.into_iter().collect();
    let (program, listed) = (left_chains::program(family), left_chains::list(&chains));
    let what = format!(
        "{program} chains of a former portmap plugin lead host ports to addresses of {subnet} whose containers are \
         gone, and which other pods get: {listed}"
    );
    let fix = left_chains::removal(family, &chains);
    Some(Problem::new(ProblemKind::HostPort, Object::named("host ports"), what).with_fix(fix))
}

/// Those of a chain of iptables-nft in its table `nat`; none if it is not there.
fn rules(context: &DoctorContext<'_>, family: Family, chain: &str) -> Vec<ChainRule> {
    let table = if family == Family::V4 { TableFamily::Ip } else { TableFamily::Ip6 };
    let place = NftChain { family: table, table: "nat".to_owned(), chain: chain.to_owned() };
    let found = context.host.kernel.forward.nft_rules(&place, &mut FoundSets::new());
    found.ok().flatten().unwrap_or_default()
}

/// The container in the comment `dnat name: "NETWORK" id: "CONTAINER"`.
fn container(comment: &str) -> Option<&str> {
    let names = comment.strip_prefix("dnat name: \"")?.strip_suffix('"')?;
    names.split_once("\" id: \"").map(|(_, container_id)| container_id)
}

/// The chain with its ports: `CNI-DN-` and 21 digits of a hash.
fn chain_of_container(rule: &ChainRule) -> Option<&str> {
    let Verdict::Jump(chain) = &rule.verdict else { return None };
    let hash = chain.strip_prefix("CNI-DN-")?;
    hash.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(chain)
}

/// The rules ask whether the container itself is the client, or its neighbours are, by their addresses.
fn is_of_subnet(rules: &[ChainRule], subnet: IpNetwork) -> bool {
    let compared = rules.iter().flat_map(|rule| &rule.matches);
    let mut clients = compared.filter_map(|it| match (&it.field, &it.test) {
        (PacketField::Address(PacketAddress::Source, family, _), Comparison::Begins(bytes)) => {
            Some(first_address(*family, bytes))
        }
        _ => None,
    });
    clients.any(|address| subnet.contains(address))
}

/// The first address that begins with these bytes.
fn first_address(family: Family, bytes: &[u8]) -> IpAddr {
    let mut octets = [0; 16];
    octets.iter_mut().zip(bytes).for_each(|(octet, byte)| *octet = *byte);
    match family {
        Family::V4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        Family::V6 => IpAddr::from(octets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_of_portmap_names_the_container() {
        assert_eq!(container("dnat name: \"cbr0\" id: \"c1\""), Some("c1"));
        for other in ["", "dnat name: \"cbr0\"", "name: \"cbr0\" id: \"c1\""] {
            assert_eq!(container(other), None, "{other}");
        }
    }
}
