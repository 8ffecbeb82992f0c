//! Pure. Chains that the reference plugin `bridge` has left: they masquerade what a pod sends to pods of other
//! hosts, whichever pod has the address now.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::checks::left_chains;
use crate::net::{Object, PerFamily, Problem, ProblemKind};

/// One problem for each family. `chains`: names, each with the address of its pod.
pub fn of_subnets(
    subnets: &PerFamily<IpNetwork>,
    chains: &[(String, IpAddr)],
) -> impl Iterator<Item = Problem> {
    subnets.entries().filter_map(move |(family, subnet)| {
        let inside = chains.iter().filter(|(_, address)| subnet.contains(*address));
        let names: Vec<&str> = inside.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return None;
        }
        let (program, listed) = (left_chains::program(family), left_chains::list(&names));
        let what = format!(
            "{program} chains of a former bridge plugin masquerade pods of {subnet}: {listed}"
        );
        let fix = left_chains::removal(family, &names);
        let subject = Object::named("address translation");
        Some(Problem::new(ProblemKind::OldMasquerade, subject, what).with_fix(fix))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_this_hosts_pods_are_listed_and_removed_by_name() {
        let subnets = PerFamily { v4: Some("10.88.0.0/16".parse().unwrap()), v6: None };
        let chain = |name: &str, address: &str| (name.to_owned(), address.parse().unwrap());
        let other = chain("CNI-0", "10.89.0.2");
        let texts = |chains: &[(String, IpAddr)]| -> Vec<String> {
            of_subnets(&subnets, chains).map(|problem| problem.to_string()).collect()
        };
        assert_eq!(texts(std::slice::from_ref(&other)), Vec::<String>::new());
        assert_eq!(
            texts(&[other, chain("CNI-a", "10.88.0.2"), chain("CNI-b", "10.88.7.3")]),
            ["iptables chains of a former bridge plugin masquerade pods of 10.88.0.0/16: CNI-a, \
              CNI-b; iptables-save -t nat | grep -v -e CNI-a -e CNI-b | iptables-restore"]
        );
        let many: Vec<_> = ["CNI-a", "CNI-b", "CNI-c", "CNI-d"]
            .map(|name| chain(name, "10.88.0.2"))
            .into_iter()
            .collect();
        assert!(texts(&many)[0].contains("CNI-c and 1 more; "), "{:?}", texts(&many));
    }
}
