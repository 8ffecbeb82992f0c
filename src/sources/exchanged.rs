//! What goes into and comes out of the exchange of members.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::etcd::EtcdSettings;
use crate::lease::records::Roots;
use crate::net::Problem;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::os::random;
use crate::policy::held::PodOwners;
use crate::policy::shares::Excess;
use crate::policy::{Members, Selector};
use crate::sources::shared::Hosts;

/// Longest wait before another attempt after the first failure; doubled for each further one …
const RETRY: Duration = Duration::from_millis(200);

/// … up to this.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// After a start, and after etcd has been away, other hosts have learned of a change after so long: each tries
/// to reach etcd again after [`LONGEST_RETRY`] at the latest.
pub(super) const LEARNED: Duration = Duration::from_secs(15);

/// Hosts that announce members of one group.
pub(super) const HOSTS_LIMIT: usize = 50_000;

/// How to reach etcd.
#[derive(Clone, Debug)]
pub struct ExchangeStart {
    pub etcd: EtcdSettings,
    pub roots: Roots,
    pub host: NodeName,
    /// The members on other hosts that are in force.
    pub kept: Members,
    /// Where it is noted what is sent.
    pub state_dir: PathBuf,
}

/// What this host knows and needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExchangeInputs {
    /// Its own members of every group in use …
    pub own: Members,
    /// … but for these.
    pub excess: Excess,
    /// The groups that its pods' policies need.
    pub needed: BTreeSet<Selector>,
    /// All hosts: what they may say.
    pub hosts: Arc<Hosts>,
    /// The revision of this host's record in etcd: nothing is written once another machine has it.
    pub record: Option<i64>,
    /// The containers of the addresses in `own`, for [`Exchanged::Published`]: another one for each change.
    pub owners: Arc<PodOwners>,
}

/// What became of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchanged {
    Members(ExchangedMembers),
    /// etcd has the members of these containers, and no others, for this host, and other hosts have had the
    /// time to learn of that.
    Published(Arc<PodOwners>),
    /// Why this host's members cannot be published, if not because etcd is away.
    NotPublished(Option<Problem>),
}

/// What other hosts say of their pods, and all hosts of themselves as nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExchangedMembers {
    /// The members of every group that is needed, once they have been read: not the pods of this host.
    pub members: Members,
    /// Needed, and not read yet, or not those of every host.
    pub unread: BTreeSet<Selector>,
    pub problems: Vec<Problem>,
}

impl ExchangedMembers {
    /// These, too, of groups that have been read.
    pub(super) fn add(&mut self, members: &Members) {
        for (selector, more) in members {
            if let Some(found) = self.members.get_mut(selector) {
                Arc::make_mut(found).extend(more.iter().cloned());
            }
        }
    }
}

/// This host is a node as the others are: its pods that reach no node do not reach it either. Its pods are known from
/// elsewhere.
pub(super) fn own_node(own: &Members) -> Members {
    let nodes = own.iter().filter(|(selector, _)| matches!(selector, Selector::Nodes(_)));
    nodes.map(|(selector, found)| (selector.clone(), Arc::clone(found))).gather()
}

/// The wait before another try, after so many failures in a row.
pub fn retry(failures: u32) -> Duration {
    random::jittered(LONGEST_RETRY.min(RETRY * 2u32.saturating_pow(failures.min(8))))
}
