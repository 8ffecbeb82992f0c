//! Pure. Since when a host has a subnet, as far as its keys prove it.
//!
//! etcd gives each key the revision of its creation and that of its last change, and no write can set
//! either back. Ownership is therefore decided by creation: a host that writes another host's subnet
//! into its own key, or its own name into another host's claim, gets a later revision than the owner.

use ipnetwork::IpNetwork;

use crate::lease::records::{NodeName, NodeRecord};
use crate::lease::snapshot::{Snapshot, Stored};

/// The right of a host to a subnet: of two rights the smaller one is the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The revision since which the host has the subnet; 0: in a store that lost its data.
    pub since: i64,
    proof: Proof,
}

/// What proves a right; of two of the same revision the first one counts. All keys that a survivor puts
/// back after a loss of data have the same revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// A value that has not changed since.
    Unchanged,
    /// Host key and claim come from one transaction, and the value of one of them changed later.
    OneTransaction,
}

/// The keys that can prove the right of one host to one subnet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    pub host: Option<&'a Stored<IpNetwork>>,
    pub node: Option<&'a Stored<std::sync::Arc<NodeRecord>>>,
    /// The claim of the subnet, whichever host it names.
    pub claim: Option<&'a Stored<NodeName>>,
}

/// The right of `host` to `subnet`; `None` if none of its keys has it.
pub fn right(found: &Snapshot, host: &NodeName, subnet: IpNetwork) -> Option<Right> {
    let evidence = Evidence {
        host: found.hosts.get(host),
        node: found.nodes.get(host),
        claim: found.claims.get(&subnet),
    };
    evidence.right(host, subnet)
}

impl Evidence<'_> {
    pub fn right(&self, host: &NodeName, subnet: IpNetwork) -> Option<Right> {
        let key = self.host.filter(|stored| stored.value == subnet).map(|stored| stored.modified);
        let has = |node: &NodeRecord| node.subnets.iter().any(|had| *had == subnet);
        let node = self.node.filter(|stored| has(&stored.value)).map(|stored| stored.modified);
        let claimed = self.claim.filter(|stored| stored.value == *host);
        let claimed = claimed.map(|stored| stored.modified);
        let written = [key, node, claimed].into_iter().flatten();
        let unchanged = written.map(|since| Right { since, proof: Proof::Unchanged }).min();
        let together = self.host.zip(self.claim).filter(|(host, claim)| {
            host.created == claim.created && (key.is_some() || node.is_some())
        });
        let together =
            together.map(|(_, claim)| Right { since: claim.created, proof: Proof::OneTransaction });
        unchanged.into_iter().chain(together).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::records::Roots;
    use crate::lease::snapshot::Raw;
    use crate::net::subnet::parse;

    const HOST: &str = "/h/h1";
    const EVIL: &str = "/h/evil";
    const CLAIM: &str = "/z/subnets/4/10.0.9.0-24";

    /// The owner of 10.0.9.0/24 among `h1` and `evil`, after these writes: key, value, revisions of
    /// creation and last change.
    fn owner(writes: &[(&str, &str, i64, i64)]) -> &'static str {
        let roots =
            Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() };
        let mut found = Snapshot::default();
        for (key, value, created, modified) in writes {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            found.put(&roots, Raw { key, value, created: *created, modified: *modified });
        }
        let right =
            |name: &str| right(&found, &name.parse().unwrap(), parse("10.0.9.0/24").unwrap());
        match (right("h1"), right("evil")) {
            (Some(one), Some(other)) if one == other => "both",
            (Some(one), Some(other)) if other < one => "evil",
            (None, Some(_)) => "evil",
            (Some(_), _) => "h1",
            (None, None) => "neither",
        }
    }

    /// `evil` is older than h1, and wrote its attack at revision 9.
    const ATTACK: (&str, &str, i64, i64) = (EVIL, "10.0.9.0/24", 2, 9);

    #[test]
    fn an_older_host_that_writes_the_subnet_later_does_not_get_it() {
        let host = (HOST, "10.0.9.0/24", 5, 5);
        assert_eq!(owner(&[host, (CLAIM, "h1", 5, 5), ATTACK]), "h1");
        assert_eq!(owner(&[host, ATTACK]), "h1", "a host of the Python agent");
    }

    #[test]
    fn a_claim_belongs_to_the_host_it_was_created_with() {
        let host = (HOST, "10.0.9.0/24", 5, 5);
        assert_eq!(owner(&[host, (CLAIM, "evil", 5, 8), ATTACK]), "h1", "overwritten");
        assert_eq!(owner(&[host, (CLAIM, "evil", 8, 8), ATTACK]), "h1", "deleted, created anew");
        assert_eq!(owner(&[host, (CLAIM, "evil", 9, 9), (EVIL, "10.0.9.0/24", 9, 9)]), "h1");
    }

    #[test]
    fn a_host_key_that_was_overwritten_and_put_back_has_its_right_by_the_claim() {
        let back = (HOST, "10.0.9.0/24", 5, 11);
        assert_eq!(owner(&[back, (CLAIM, "h1", 5, 5), ATTACK]), "h1");
        assert_eq!(owner(&[back, (CLAIM, "h1", 5, 12), ATTACK]), "h1", "both were overwritten");
        let anew = (HOST, "10.0.9.0/24", 11, 11);
        assert_eq!(owner(&[anew, (CLAIM, "h1", 5, 5), ATTACK]), "h1", "deleted, created anew");
        assert_eq!(owner(&[anew, (CLAIM, "h1", 3, 3), ATTACK]), "h1", "a reservation");
    }

    #[test]
    fn keys_that_were_put_back_together_prove_nothing_for_a_host_that_changed_its_own() {
        let keys = [(HOST, "10.0.9.0/24", 5, 5), (CLAIM, "evil", 5, 8)];
        assert_eq!(owner(&[keys[0], keys[1], (EVIL, "10.0.9.0/24", 5, 9)]), "h1");
    }

    #[test]
    fn an_adopted_subnet_is_as_old_as_the_key_of_the_python_agent() {
        assert_eq!(owner(&[(HOST, "10.0.9.0/24", 3, 3), (CLAIM, "h1", 12, 12), ATTACK]), "h1");
    }

    #[test]
    fn a_claim_alone_is_a_right_and_no_key_is_none() {
        assert_eq!(owner(&[(CLAIM, "h1", 3, 3), ATTACK]), "h1");
        assert_eq!(owner(&[(HOST, "10.0.7.0/24", 3, 3)]), "neither");
    }
}
