//! Subnets of this host that another host has, too: closed for new pods, and vacated once the last pod
//! is gone, so that the host gets others.

use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::serve::closed_subnets::{ClosedSubnets, Opens, StoreClosed};
use crate::inspect::holders;
use crate::ipam::Store;
use crate::ipam::import::Sources;
use crate::net::{Object, PerFamily, Problem, ProblemKind, subnet};
use crate::os::identity;

/// Time between two looks for pods in a disputed subnet.
const LOOK: Duration = Duration::from_secs(1);

/// How long the store's lock is waited for.
const WAIT: Duration = Duration::from_secs(2);

impl Agent {
    /// Closes the subnets that are disputed now, opens those that are this host's, and looks whether a
    /// disputed one is free of pods.
    pub(super) fn follow_dispute(&mut self) {
        let own = self.state.subnets.or_else(|| self.registry.remembered());
        let Some(own) = own else { return };
        let outcome = self.close_disputed(&own);
        let retry = outcome.is_err();
        let problem = outcome.err().map(|error| failure(&error)).or_else(|| self.unconfirmed(&own));
        self.shared.problems.set(ProblemSource::Disputed, problem);
        let looks = retry || self.has_dispute(&own);
        self.state.closed.look_at = looks.then(|| Instant::now() + LOOK);
    }

    /// Looks again for pods in a disputed subnet, when it is time.
    pub(super) fn check_pods(&mut self) {
        if self.state.closed.look_at.is_some_and(|due| due <= Instant::now()) {
            self.follow_dispute();
        }
    }

    fn has_dispute(&self, own: &PerFamily<IpNetwork>) -> bool {
        let trouble = self.state.etcd.trouble.as_ref();
        trouble.is_some_and(|trouble| !trouble.disputed(own).is_empty())
    }

    /// A subnet that an earlier run closed, of which etcd has said nothing yet.
    fn unconfirmed(&self, own: &PerFamily<IpNetwork>) -> Option<Problem> {
        let ClosedSubnets { store, opens, .. } = &self.state.closed;
        if *opens == Opens::Own || self.has_dispute(own) {
            return None;
        }
        let closed = store.as_ref()?.now.as_ref()?;
        let is_own = |closed: &&IpNetwork| own.iter().any(|own| subnet::overlap(*own, **closed));
        let subnet = closed.subnets.iter().find(is_own)?;
        let what = format!(
            "subnet {subnet} stays closed for new pods until etcd says that it is this host's; before \
             this start of the agent: {}",
            closed.why
        );
        let problem = Problem::new(ProblemKind::Lease, Object::named("IPAM store"), what);
        Some(problem.with_fix("humanz-agent status # it opens by itself once etcd answers: see what is wrong with etcd"))
    }

    fn close_disputed(&mut self, own: &PerFamily<IpNetwork>) -> anyhow::Result<()> {
        let cni = &self.settings.cni;
        let boot_id = identity::boot_id()?;
        let sources = Sources::usual(&cni.name);
        let store = Store::open(&cni.ipam_dir, &cni.name, &boot_id, sources);
        let trouble = self.state.etcd.trouble.as_ref();
        let disputed = trouble.map(|trouble| trouble.disputed(own)).unwrap_or_default();
        let why = trouble.map(|trouble| trouble.with_fix());
        let ClosedSubnets { store: known, opens, .. } = &mut self.state.closed;
        let known = match known {
            Some(known) => known,
            unread => unread.insert(StoreClosed::new(store.closed()?)),
        };
        let wanted = known.wanted(*opens, own, &disputed, why);
        if wanted != known.now {
            store.close(wanted.as_ref(), WAIT)?;
            known.now = wanted;
        }
        let moves = trouble.is_some_and(|trouble| trouble.ends_without_pods());
        let is_vacant = moves && {
            // A lost store, or that of another network, does not show every running pod.
            let bridge = self.kernel.rtnl.link(&self.settings.bridge)?;
            let running = bridge.map(|bridge| holders::any(&self.kernel.rtnl, bridge.index));
            let taken = store.taken()?;
            !running.transpose()?.unwrap_or_default()
                && !taken.iter().any(|pod| own.iter().any(|subnet| subnet.contains(*pod)))
        };
        self.registry.set_vacated(if is_vacant { *own } else { PerFamily::default() });
        Ok(())
    }
}

fn failure(error: &anyhow::Error) -> Problem {
    let what = format!("a subnet of another host cannot be closed for new pods: {error:#}");
    Problem::new(ProblemKind::ChangeFailed, Object::named("IPAM store"), what)
        .with_fix("humanz-agent config # make IPAM_DIR a directory that root can read and write")
}
