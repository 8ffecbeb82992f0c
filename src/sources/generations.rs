//! Pure. Which of two statements of a host about its members is the newer one.
//!
//! All that a host says has one number, its generation, in a key beside it: each change puts a larger one in
//! the same transaction. The revisions of etcd cannot serve for that: an etcd that was restored from an older
//! state gives them to other writes. Hosts remember the generation that they received last, and an older one
//! changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::net::gather::Gather;
use crate::net::node_name::NodeName;

/// What was learned of other hosts.
#[derive(Clone, Debug, Default)]
pub struct KnownGenerations {
    /// The largest generation of each host.
    newest: BTreeMap<NodeName, u64>,
    /// Some are larger than when they were noted last.
    has_more: bool,
    /// Hosts of which etcd has an older one.
    behind: BTreeSet<NodeName>,
}

/// The generation in `value`; 0, older than any, if there is none.
pub fn parse(value: Option<&[u8]>) -> u64 {
    let text = value.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The generation after `own`, with `in_etcd` there, at `now` since 1970. Larger than those that a host had before
/// it lost its files, if its clock was not ahead.
pub fn next(own: u64, in_etcd: u64, now: Duration) -> u64 {
    let now = u64::try_from(now.as_micros()).unwrap_or(0);
    own.max(in_etcd).saturating_add(1).max(now)
}

impl KnownGenerations {
    pub fn new(newest: BTreeMap<NodeName, u64>) -> KnownGenerations {
        KnownGenerations { newest, ..KnownGenerations::default() }
    }

    /// Whether what `host` says in etcd, `generation`, is at least as new as all that was learned of it.
    pub fn receive(&mut self, host: &NodeName, generation: u64) -> bool {
        let is_current = self.is_current(host, generation);
        if is_current {
            self.behind.remove(host);
            self.has_more |= self.newest.insert(host.clone(), generation) != Some(generation);
        } else {
            self.behind.insert(host.clone());
        }
        is_current
    }

    /// [`KnownGenerations::receive`], without an effect.
    pub fn is_current(&self, host: &NodeName, generation: u64) -> bool {
        self.newest.get(host).is_none_or(|newest| generation >= *newest)
    }

    /// What is to be noted now.
    pub fn noting(&mut self) -> &BTreeMap<NodeName, u64> {
        self.has_more = false;
        &self.newest
    }

    pub fn is_noted(&self) -> bool {
        !self.has_more
    }

    pub fn hosts(&self) -> BTreeSet<NodeName> {
        self.newest.keys().cloned().gather()
    }

    /// Hosts of which etcd has less than was received.
    pub fn behind(&self) -> &BTreeSet<NodeName> {
        &self.behind
    }

    /// Forgets all other hosts.
    pub fn retain(&mut self, is_host: impl Fn(&NodeName) -> bool) {
        self.newest.retain(|host, _| is_host(host));
        self.behind.retain(is_host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_said_before_is_never_received_again() {
        let (h1, h2): (NodeName, NodeName) = ("h1".parse().unwrap(), "h2".parse().unwrap());
        let mut received = KnownGenerations::default();
        assert!(received.receive(&h1, 0), "a host without a generation");
        assert!(received.receive(&h1, 7) && received.receive(&h1, 7) && received.receive(&h2, 3));
        assert!(
            !received.receive(&h1, 6) && !received.receive(&h1, 0),
            "restored from an older state"
        );
        assert_eq!(received.behind(), &[h1.clone()].into());
        assert!(received.receive(&h1, 8) && received.behind().is_empty());
        assert!(!received.receive(&h1, 7));
        received.retain(|host| *host == h2);
        assert!(received.behind().is_empty());
        assert!(received.receive(&h1, 1), "another host with the name of one that was removed");
        assert!(!received.is_noted());
        let mut again = KnownGenerations::new(received.noting().clone());
        assert!(received.is_noted() && received.receive(&h2, 3) && received.is_noted());
        assert!(!again.receive(&h2, 2) && again.is_noted());
    }

    #[test]
    fn generations_only_grow() {
        let at = Duration::from_micros;
        assert_eq!(next(0, 0, at(1000)), 1000);
        assert_eq!(next(1000, 1000, at(1000)), 1001);
        assert_eq!(next(2000, 0, at(1000)), 2001, "the clock was set back");
        assert_eq!(next(0, 2000, at(1000)), 2001, "the files are lost, and the clock was set back");
        assert_eq!(next(5, u64::MAX, at(1000)), u64::MAX);
        for bad in [&b""[..], b"-1", b"1.5", b"\xff", b"18446744073709551616", b"1 "] {
            assert_eq!(parse(Some(bad)), 0, "{bad:?}");
        }
        assert_eq!(parse(None), 0);
        assert_eq!(parse(Some(b"18446744073709551615")), u64::MAX);
    }
}
