//! Pure. Pods that stay in quarantine although their policies are known: other hosts know members of groups
//! by their addresses, and may not know yet whose an address is; or the policies are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::net::gather::Gather;
use crate::policy::ask::LocalPod;

/// The container that has each address.
pub type PodOwners = BTreeMap<IpAddr, String>;

/// Where other hosts know this one's pods from.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// They know them by other ways, or there are none.
    Off,
    On(Arc<Published>),
}

/// Of which containers etcd says that they have an address, as a member of some group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What etcd had last, and other hosts have learned of; `None`: that is not known.
    committed: Option<PodOwners>,
    /// What was sent since, and may be there or not; no container: several.
    perhaps: BTreeMap<IpAddr, Option<String>>,
    #[serde(skip)]
    sent: Option<Arc<PodOwners>>,
}

/// Why a pod is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HeldReason {
    /// What etcd has of this host's pods is not known.
    MembersUnknown,
    /// Other hosts may take it for an earlier pod.
    FormerOwner,
    /// A rule denies a group in which other hosts do not know it yet.
    NotPublished,
    /// Its namespace's policies take more of the table than they may.
    TooManyLines,
}

impl Published {
    /// To be called before `owners` are sent.
    pub fn send(&mut self, owners: &Arc<PodOwners>) {
        self.sent = Some(Arc::clone(owners));
        for (address, owner) in &**owners {
            self.perhaps
                .entry(*address)
                .and_modify(|known| *known = known.take().filter(|known| known == owner))
                .or_insert_with(|| Some(owner.clone()));
        }
    }

    /// etcd has `owners`, and other hosts have had the time to learn of that; what was sent later may be
    /// there, too.
    pub fn commit(&mut self, owners: &Arc<PodOwners>) {
        self.committed = Some(PodOwners::clone(owners));
        if self.sent.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, owners)) {
            (self.sent, self.perhaps) = (None, BTreeMap::new());
        }
    }

    pub fn is_known(&self) -> bool {
        self.committed.is_some()
    }

    /// The addresses that other hosts may know.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let committed = self.committed.iter().flat_map(|owners| owners.keys());
        committed.chain(self.perhaps.keys()).copied().gather()
    }

    fn has(&self, address: &IpAddr, owner: &str) -> bool {
        self.committed.as_ref().and_then(|all| all.get(address)).is_some_and(|it| it == owner)
    }

    /// Other hosts may take `address` for that of another than `owner`.
    fn may_be_of_another(&self, address: &IpAddr, owner: &str) -> bool {
        let committed = self.committed.as_ref().and_then(|all| all.get(address));
        let perhaps = self.perhaps.get(address);
        committed.is_some_and(|it| it != owner)
            || perhaps.is_some_and(|it| it.as_deref() != Some(owner))
    }
}

impl Sharing {
    /// The same value in memory.
    pub fn is_same(&self, other: &Sharing) -> bool {
        match (self, other) {
            (Sharing::Off, Sharing::Off) => true,
            (Sharing::On(one), Sharing::On(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Why `pod` is held. `is_denied`: it is in a group that rules deny. One that was `released` once stays so: it
    /// has its address already, and a rule that comes later reaches it when its host has published it.
    pub fn hold(
        &self,
        pod: &LocalPod,
        is_denied: impl FnOnce() -> bool,
        released: &PodOwners,
    ) -> Option<HeldReason> {
        let Sharing::On(published) = self else { return None };
        let owner = &pod.container_id;
        if pod.addresses.iter().any(|address| published.may_be_of_another(address, owner)) {
            return Some(HeldReason::FormerOwner);
        }
        let is_released = |address: &IpAddr| released.get(address) == Some(owner);
        if pod.addresses.iter().all(is_released) {
            return None;
        }
        if !published.is_known() {
            return Some(HeldReason::MembersUnknown);
        }
        if pod.addresses.iter().all(|address| published.has(address, owner)) {
            return None;
        }
        is_denied().then_some(HeldReason::NotPublished)
    }
}

impl fmt::Display for HeldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeldReason::MembersUnknown => {
                "what etcd has of this host's members of groups is not known"
            }
            HeldReason::FormerOwner => "other hosts may still know its address as a former pod's",
            HeldReason::NotPublished => {
                "a rule denies a group in which other hosts do not know it yet"
            }
            HeldReason::TooManyLines => {
                "the NetworkPolicies of its namespace take more lines of this host's table than they may"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> IpAddr {
        "10.1.2.3".parse().unwrap()
    }

    fn owners(owner: Option<&str>) -> Arc<PodOwners> {
        Arc::new(owner.map(|owner| (address(), owner.to_owned())).into_iter().collect())
    }

    #[test]
    fn what_was_sent_may_be_there_until_it_or_something_later_is() {
        let mut published = Published::default();
        let check = |published: &Published, is_known: bool, others: &[(&str, bool)]| {
            assert_eq!(published.is_known(), is_known);
            for (owner, wanted) in others {
                assert_eq!(published.may_be_of_another(&address(), owner), *wanted, "{owner}");
            }
        };
        check(&published, false, &[("a", false)]);
        let [a, nothing, b] = [owners(Some("a")), owners(None), owners(Some("b"))];
        published.send(&a);
        check(&published, false, &[("a", false), ("b", true)]);
        published.commit(&a);
        check(&published, true, &[("a", false), ("b", true)]);
        assert!(published.has(&address(), "a"));
        published.send(&nothing);
        published.send(&b);
        check(&published, true, &[("a", true), ("b", true)]);
        // Something older than what was sent last: that may be there, too.
        published.commit(&nothing);
        check(&published, true, &[("a", true), ("b", false)]);
        assert!(!published.has(&address(), "b"));
        published.send(&a);
        check(&published, true, &[("a", true), ("b", true)]);
        let text = serde_json::to_string(&published).unwrap();
        let read: Published = serde_json::from_str(&text).unwrap();
        check(&read, true, &[("a", true), ("b", true)]);
        published.commit(&a);
        check(&published, true, &[("a", false), ("b", true)]);
        // Others may not have learned of the withdrawal.
        published.send(&b);
        check(&published, true, &[("a", true), ("b", true)]);
        assert!(!published.has(&address(), "b"));
        published.commit(&b);
        assert!(published.has(&address(), "b"));
        check(&published, true, &[("a", true), ("b", false)]);
        assert_eq!(published.addresses(), [address()].into());
    }
}
