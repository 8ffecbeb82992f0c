//! Pure. Addresses that another pod network gave to pods that are on the bridge.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

use crate::net::shell::word;
use crate::net::{Family, Object, PerFamily, Problem, ProblemKind};

/// What the pods of one such network have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerStore {
    /// The folder of host-local.
    pub folder: PathBuf,
    /// Its name is CNI_NAME: the plugin imports it, or it is the plugin's own. Of others, `addresses` are those that the
    /// store does not have.
    pub is_imported: bool,
    pub addresses: Vec<IpAddr>,
}

/// One problem for each folder and family with addresses that new pods get too, or that have no gateway here.
pub fn problems(
    subnets: &PerFamily<IpNetwork>,
    stores: &[FormerStore],
) -> impl Iterator<Item = Problem> {
    let of_store = |store| subnets.entries().filter_map(move |(_, it)| problem(*it, store));
    stores.iter().flat_map(of_store)
}

fn problem(subnet: IpNetwork, store: &FormerStore) -> Option<Problem> {
    let is_meant = |address: &&IpAddr| {
        let of_family = Family::of(**address) == Family::of(subnet.ip());
        of_family && subnet.contains(**address) != store.is_imported
    };
    let meant: Vec<&IpAddr> = store.addresses.iter().filter(is_meant).collect();
    let first = meant.first()?;
    let listed = match meant.len() {
        1 => first.to_string(),
        more => format!("{first} and {} more", more - 1),
    };
    let shown = store.folder.display();
    let (what, fix) = if store.is_imported {
        (
            format!("pods on the bridge have addresses outside {subnet}, and no gateway: {listed}"),
            "humanz-agent ipam ls # lists them: start them again, or give this host their subnet: SUBNET, or humanz-agent nodes \
             reserve, for which a host that has another one is stopped and removed (nodes rm) before"
                .to_owned(),
        )
    } else {
        (
            format!(
                "a former pod network has given {listed} to pods on the bridge ({shown}), and CNI_NAME is not its \
                 name: new pods get them as well"
            ),
            format!("humanz-agent ipam import {}", word(shown)),
        )
    };
    let subject = Object::File("store", store.folder.clone());
    Some(Problem::new(ProblemKind::AddressConflict, subject, what).with_fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_imported: bool, addresses: &[&str], wanted: &[&str]) {
        let subnets = PerFamily {
            v4: Some("10.4.0.0/24".parse().unwrap()),
            v6: Some("fd04::/64".parse().unwrap()),
        };
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let store = FormerStore { folder: "/networks/a b".into(), is_imported, addresses };
        let found: Vec<Problem> = problems(&subnets, &[store]).collect();
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (problem, wanted) in found.iter().zip(wanted) {
            assert!(problem.what.contains(wanted), "{problem:?}");
            let imports =
                problem.fix.as_deref() == Some("humanz-agent ipam import '/networks/a b'");
            assert_eq!(imports, !is_imported, "{problem:?}");
        }
    }

    #[test]
    fn addresses_of_this_host_are_those_of_its_new_pods() {
        check(false, &[], &[]);
        check(false, &["10.5.0.2", "fd05::2"], &[]);
        check(false, &["10.4.0.2"], &["has given 10.4.0.2 to pods"]);
        check(false, &["10.4.0.2", "10.4.0.3", "10.5.0.2"], &["given 10.4.0.2 and 1 more to pods"]);
    }

    #[test]
    fn other_addresses_have_no_gateway() {
        check(true, &["10.4.0.2", "fd04::2"], &[]);
        check(true, &["10.4.0.2", "10.5.0.2"], &["outside 10.4.0.0/24, and no gateway: 10.5.0.2"]);
        check(true, &["10.5.0.2", "fd05::2"], &["10.5.0.2", "fd05::2"]);
    }
}
