//! Pure. Chains that the reference plugin `bridge` has left: they masquerade what a pod sends to pods of other
//! hosts, whichever pod has the address now.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::net::{Family, Object, PerFamily, Problem, ProblemKind};

/// Chains that the text lists; the fix has all.
const LISTED: usize = 3;

/// One problem for each family. `chains`: names, each with the address of its pod.
pub fn of_subnets(
    subnets: &PerFamily<IpNetwork>,
    chains: &[(String, IpAddr)],
) -> impl Iterator<Item = Problem> {
    subnets.entries().filter_map(move |(family, subnet)| {
        let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let inside = chains.iter().filter(|(_, address)| subnet.contains(*address));
        let names: Vec<&str> = inside.map(|(name, _)| name.as_str()).collect();
        let more = match names.len() {
            0 => return None,
            count if count <= LISTED => String::new(),
            count => format!(" and {} more", count - LISTED),
        };
        let listed = names[..names.len().min(LISTED)].join(", ");
        let what = format!(
            "{program} chains of a former bridge plugin masquerade pods of {subnet}: {listed}{more}"
        );
        let all: String = names.iter().map(|name| format!(" -e {name}")).collect();
        let fix = format!("{program}-save -t nat | grep -v{all} | {program}-restore");
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
