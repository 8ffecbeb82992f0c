//! Subnets of this host that another host has, too: closed for new pods, and vacated once the last pod
//! is gone, so that the host gets others.

use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::active_problems::ProblemSource;
use crate::agent::serve::agent::Agent;
use crate::agent::serve::state::Disputed;
use crate::inspect::holders;
use crate::ipam::import::Sources;
use crate::ipam::{Closed, Store};
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
        self.state.disputed.look_at = looks.then(|| Instant::now() + LOOK);
    }

    /// Looks again for pods in a disputed subnet, when it is time.
    pub(super) fn look_for_pods(&mut self) {
        if self.state.disputed.look_at.is_some_and(|due| due <= Instant::now()) {
            self.follow_dispute();
        }
    }

    fn has_dispute(&self, own: &PerFamily<IpNetwork>) -> bool {
        let trouble = self.state.etcd.trouble.as_ref();
        trouble.is_some_and(|trouble| !trouble.disputed(own).is_empty())
    }

    /// A subnet that an earlier run closed, of which etcd has said nothing yet.
    fn unconfirmed(&self, own: &PerFamily<IpNetwork>) -> Option<Problem> {
        let Disputed { closed, confirmed, .. } = &self.state.disputed;
        let closed = closed.as_ref().filter(|_| !confirmed && !self.has_dispute(own))?;
        let is_own = |closed: &&IpNetwork| own.iter().any(|own| subnet::overlap(*own, **closed));
        let subnet = closed.subnets.iter().find(is_own)?;
        let what = format!(
            "subnet {subnet} stays closed for new pods until etcd says that it is this host's; before \
             this start of the agent: {}",
            closed.why
        );
        let problem = Problem::new(ProblemKind::Lease, Object::named("IPAM store"), what);
        Some(problem.with_fix("bring etcd back"))
    }

    fn close_disputed(&mut self, own: &PerFamily<IpNetwork>) -> anyhow::Result<()> {
        let cni = &self.settings.cni;
        let boot_id = identity::boot_id()?;
        let sources = Sources::usual(&cni.name);
        let store = Store::open(&cni.ipam_dir, &cni.name, &boot_id, sources);
        if !self.state.disputed.known {
            self.state.disputed.closed = store.closed()?;
            self.state.disputed.earlier.clone_from(&self.state.disputed.closed);
            self.state.disputed.known = true;
        }
        let trouble = self.state.etcd.trouble.as_ref();
        let disputed = trouble.map(|trouble| trouble.disputed(own)).unwrap_or_default();
        let why = trouble.map(|trouble| trouble.with_fix());
        // Until etcd has answered, what an earlier run closed may be another host's.
        let opens = if self.state.disputed.confirmed { *own } else { PerFamily::default() };
        let Disputed { closed, earlier, is_no_copy, .. } = &self.state.disputed;
        let former = if *is_no_copy { earlier } else { closed };
        let wanted = wanted(former.as_ref(), &opens, &disputed, why);
        if wanted != self.state.disputed.closed {
            store.close(wanted.as_ref(), WAIT)?;
            self.state.disputed.closed = wanted;
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

/// What is to be closed: `disputed`, and of what is closed the subnets that are not `own`, by etcd.
fn wanted(
    closed: Option<&Closed>,
    own: &PerFamily<IpNetwork>,
    disputed: &[IpNetwork],
    why: Option<String>,
) -> Option<Closed> {
    let is_own = |closed: &IpNetwork| own.iter().any(|own| subnet::overlap(*own, *closed));
    let former = closed.iter().flat_map(|closed| &closed.subnets);
    let former = former.filter(|closed| !is_own(closed) && !disputed.contains(closed));
    let subnets: Vec<IpNetwork> = disputed.iter().chain(former).copied().collect();
    let former_why = closed.map(|closed| closed.why.clone());
    let why = why.filter(|_| !disputed.is_empty()).or(former_why).unwrap_or_default();
    (!subnets.is_empty()).then_some(Closed { subnets, why })
}

fn failure(error: &anyhow::Error) -> Problem {
    let what = format!("a subnet of another host cannot be closed for new pods: {error:#}");
    Problem::new(ProblemKind::ChangeFailed, Object::named("IPAM store"), what)
        .with_fix("make IPAM_DIR a directory that root can read and write")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(closed: &[&str], own: &str, disputed: &[&str], expected: &[&str]) {
        let parse = |texts: &[&str]| -> Vec<IpNetwork> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let closed = Closed { subnets: parse(closed), why: "before".to_owned() };
        let closed = Some(closed).filter(|closed| !closed.subnets.is_empty());
        let own = PerFamily { v4: own.parse().ok(), v6: None };
        let why = (!disputed.is_empty()).then(|| "now".to_owned());
        let found = wanted(closed.as_ref(), &own, &parse(disputed), why);
        let subnets = found.as_ref().map(|closed| closed.subnets.clone()).unwrap_or_default();
        assert_eq!(subnets, parse(expected));
        let why = found.map(|closed| closed.why);
        assert!(why.is_none_or(|why| why == if disputed.is_empty() { "before" } else { "now" }));
    }

    #[test]
    fn a_disputed_subnet_is_closed_and_a_former_one_stays_so() {
        let (own, former) = ("10.244.1.0/24", "10.244.9.0/24");
        check(&[], own, &[], &[]);
        check(&[], own, &[own], &[own]);
        check(&[own], own, &[], &[]);
        check(&[former], own, &[], &[former]);
        check(&[former], own, &[own], &[own, former]);
        check(&[own], "", &[], &[own]);
        check(&[own], "", &[own], &[own]);
    }
}
