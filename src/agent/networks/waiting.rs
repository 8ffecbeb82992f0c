//! Plugins that wait for an address of a network: what is to be had for them, and their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;

use crate::agent::new_pods::BlockRequest;
use crate::lease::blocks::BlockNetwork;
use crate::lease::blocks::session::WantedBlocks;
use crate::net::gather::Gather;
use crate::net::subnet::contains;
use crate::policy::network::NetworkPool;
use crate::policy::network_plan::{BlockAnswer, BlockQuestion, DEADLINE, NetworkPlans};
use crate::policy::{Networks, PinnedAddress, PodName, Scoped, pin};
use crate::sources::BlocksUpdate;

/// How long a plugin waits for a fixed address that another host has: until the pod has ended there.
const PIN_WAIT: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
pub struct WaitingPlugins(Vec<BlockRequest>);

impl WaitingPlugins {
    pub fn ask(&mut self, request: BlockRequest) {
        self.0.push(request);
    }

    /// Blocks that plugins wait for, where this host has the blocks `own`.
    pub fn wanted(
        &self,
        networks: &Networks,
        plans: Option<&NetworkPlans>,
        own: &[IpNetwork],
    ) -> Vec<WantedBlocks> {
        let mut wanted: Vec<WantedBlocks> = Vec::new();
        for BlockRequest { question, .. } in &self.0 {
            let Some(network) = networks.get(&question.network) else { continue };
            let refusal = plans.and_then(|plans| plans.refusal(&question.network));
            if refusal.is_some() || networks.is_gone(&question.network) {
                continue;
            }
            let pinned = pinned(plans, question);
            let is_open =
                |pool: &&NetworkPool| !pinned.iter().any(|it| pool.network().contains(it.address));
            for pool in network.pools.iter().filter(is_open) {
                let (addresses, pool) = (pool.network(), pool.pool());
                let had = own.iter().filter(|block| contains(addresses, **block));
                let is_lacking = had.clone().all(|block| question.full.contains(block));
                if is_lacking && !wanted.iter().any(|it| it.addresses == addresses) {
                    let network = of(networks, &question.network);
                    let count = had.count() + 1;
                    wanted.push(WantedBlocks { network, addresses, pool, count });
                }
            }
        }
        wanted
    }

    /// Blocks for pods with fixed addresses, each with its network, if `networks` have it. A pod's first address comes
    /// first, on every host: of two hosts none has one while the other has another one.
    pub fn pins(
        &self,
        networks: &Networks,
        plans: Option<&NetworkPlans>,
        own: &BTreeSet<IpNetwork>,
    ) -> BTreeMap<IpNetwork, BlockNetwork> {
        let has = |it: &&PinnedAddress| own.contains(&it.block()) || networks.is_gone(&it.network);
        let first = |request: &BlockRequest| {
            let all = pinned(plans, &request.question);
            let first = all.into_iter().find(|it| !has(it))?;
            networks.get(&first.network)?;
            Some((first.block(), of(networks, &first.network)))
        };
        self.0.iter().filter_map(first).gather()
    }

    /// Answers the plugins whose network has an address now, and those that wait in vain.
    pub fn answer(&mut self, plans: Option<&NetworkPlans>, received: &BlocksUpdate) {
        let waiting = std::mem::take(&mut self.0);
        for request in waiting {
            match answer_to(&request, plans, received) {
                Some(answer) => request.answer(&answer),
                None => self.0.push(request),
            }
        }
    }

    /// When one is answered that no event ends the wait of.
    pub fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let late = self.0.iter().flat_map(|it| {
            let answers = [it.asked_at + PIN_WAIT, it.asked_at + DEADLINE.mul_f32(0.91)];
            answers.into_iter().find(|at| *at > now).or(Some(now))
        });
        late.min()
    }
}

/// The network as `networks` know it.
fn of(networks: &Networks, name: &Scoped) -> BlockNetwork {
    BlockNetwork { name: name.to_string(), revision: networks.revision(name) }
}

fn answer_to(
    BlockRequest { question, asked_at, .. }: &BlockRequest,
    plans: Option<&NetworkPlans>,
    received: &BlocksUpdate,
) -> Option<BlockAnswer> {
    let no = |why: String| Some(BlockAnswer { ready: false, why });
    let BlockQuestion { network: name, full, pinned } = question;
    let lacking = plans.and_then(|plans| plans.lacking(name, full, pinned.as_ref()));
    let Some(lacking) = lacking else {
        return no(format!("network {name} is not known on this host"));
    };
    if let Some(why) = plans.and_then(|plans| plans.refusal(name)) {
        return no(format!("network {name}: {why}"));
    }
    let Some(what) = lacking.first() else {
        return Some(BlockAnswer { ready: true, why: String::new() });
    };
    let full = lacking.pools.iter().find(|pool| received.exhausted.contains(*pool));
    if let Some(pool) = full {
        return no(format!("no block of {pool} (network {name}) is free: hosts have all of them"));
    }
    if let Some(why) = &received.trouble {
        return no(format!("this host gets no {what} (network {name}) without etcd: {why}"));
    }
    let (waited, pod) = (asked_at.elapsed(), pinned.as_ref());
    if waited >= PIN_WAIT
        && let Some(why) = lacking.pinned.iter().find_map(|it| taken(received, *it, pod))
    {
        return no(why);
    }
    let is_late = waited > DEADLINE.mul_f32(0.9);
    is_late.then(|| BlockAnswer {
        ready: false,
        why: format!("this host got no {what} (network {name}) in time"),
    })
}

/// Who has the fixed address of `pod`, and what to do.
fn taken(received: &BlocksUpdate, address: IpAddr, pod: Option<&PodName>) -> Option<String> {
    let has = |block: &&IpNetwork| block.contains(address);
    let others = received.others.iter();
    let mut others = others.filter_map(|(host, all)| Some((Some(host), all.iter().find(has)?)));
    let own = || Some((None, received.own.iter().find(has)?));
    let (host, block) = others.next().or_else(own)?;
    let holder = host.map_or("this host".to_owned(), |host| format!("host {host}"));
    match host.zip(pod) {
        Some((host, pod)) if pin::block(address) == *block => Some(format!(
            "{holder} has {address}: end the pod there and let its agent run; if that host is gone, \
             humanz-agent nodes rm {host}, or humanz-agent pin release {pod} --force"
        )),
        None if pin::block(address) == *block => None,
        _ => Some(format!(
            "{holder} has block {block}, which contains {address}, from before it was kept for pins: end its \
             pods there, or pin another address"
        )),
    }
}

/// The fixed addresses that the question is about.
fn pinned<'a>(plans: Option<&'a NetworkPlans>, question: &BlockQuestion) -> Vec<&'a PinnedAddress> {
    let pin = plans.zip(question.pinned.as_ref()).and_then(|(plans, pod)| plans.pin(pod));
    let addresses = pin.iter().flat_map(|pin| &pin.addresses);
    addresses.filter(|it| it.network == question.network).collect()
}
