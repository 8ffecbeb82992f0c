//! Keeps the table of policies.

mod known_table;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::agent::applier::Applier;
use crate::agent::reconcile::policy::known_table::KnownTable;
use crate::agent::reconcile::{Reconcile, store_unusable};
use crate::agent::trigger::Scope;
use crate::inspect::{Kernel, host_state, nft_parts, pods};
use crate::ipam::ReadEntries;
use crate::net::Object;
use crate::net::gather::Gather;
use crate::netlink::NetlinkError;
use crate::nft::Nft;
use crate::os::files::FileError;
use crate::os::{files, random};
use crate::plan::Line;
use crate::plan::policy_table::{FoundPolicy, plan};
use crate::policy::ask::{self, Index, LocalPod};
use crate::policy::compile::address::has_pod;
use crate::policy::compile::{Compiler, POLICY_TABLE, PolicyTable};
use crate::policy::described::DescribedPods;
use crate::policy::held::PodOwners;
use crate::policy::local::Pods;
use crate::settings::Settings;

/// After each plan the table is looked at again, until nothing differs; more times than a plan has
/// transactions and leftovers mean that somebody else writes, too.
const ATTEMPTS: usize = 8;

/// What was found out by earlier reconciles.
#[derive(Debug, Default)]
pub struct CachedPolicy {
    table: KnownTable,
    compiler: Compiler,
    entries: ReadEntries,
    /// The addresses by which pods may reach this host.
    own: BTreeSet<IpAddr>,
    /// `None`: they have not been read yet.
    pub pods: Option<Pods>,
    /// What policies say of `pods`, as far as the table is made of that.
    pub described: DescribedPods,
    /// What plugins go by while there is no agent, as it was written; `None`: nothing is known of it.
    index: Option<Index>,
    /// The pods that were taken out of quarantine; `None`: what was in force at the start has not been
    /// looked at.
    released: Option<Arc<PodOwners>>,
    /// The table was there when it was looked at last; `None`: it has not been.
    is_there: Option<bool>,
}

impl CachedPolicy {
    /// The pods whose policies are in force.
    pub fn released(&self) -> Arc<PodOwners> {
        self.released.clone().unwrap_or_default()
    }

    /// The containers of `pods` whose policies are not in force.
    pub fn not_released(&self, pods: &Pods) -> BTreeSet<String> {
        let released = self.released();
        let is_released = |pod: &LocalPod| {
            pod.addresses.iter().all(|it| released.get(it) == Some(&pod.container_id))
        };
        let others = pods.iter().filter(|pod| !is_released(pod));
        others.map(|pod| pod.container_id.clone()).gather()
    }

    /// The kernel has no table.
    pub fn has_no_table(&self) -> bool {
        self.is_there == Some(false)
    }

    /// Plugins open no pod with one of these addresses from now on.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn narrow_index(
        &mut self,
        settings: &Settings,
        held: &BTreeSet<IpAddr>,
    ) -> Result<(), FileError> {
        let Some(index) = &mut self.index else {
            // That of an earlier life of the agent does not know what is about to be sent.
            return files::remove(&ask::index(&settings.cni.ipam_dir));
        };
        if held.is_subset(&index.held) {
            return Ok(());
        }
        let narrowed = Index { open: index.open.clone(), held: &index.held | held };
        let text = serde_json::to_vec(&narrowed).unwrap_or_default();
        files::replace(&ask::index(&settings.cni.ipam_dir), &text, 0o600)?;
        *index = narrowed;
        Ok(())
    }
}

/// How much of a reconcile is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum PolicyWork {
    /// Until what pods may do is in force: the rest is left to a later one.
    InForce,
    /// And what plugins go by while there is no agent.
    Index,
    /// And what is of no use any longer goes.
    Whole,
    /// And the store of addresses is read again.
    WithStore,
}

/// Makes the table as it should be; false if policies are on and the table is not in force.
pub fn reconcile(
    run: &Reconcile<'_>,
    work: PolicyWork,
    cache: &mut CachedPolicy,
    applier: &mut Applier,
) -> bool {
    let look = work == PolicyWork::WithStore;
    if run.settings.policy.is_none() {
        if look {
            cache.table.forget();
            remove(run.kernel, applier);
            (cache.index, cache.released, cache.is_there) = (None, None, None);
            cache.described = DescribedPods::default();
            let _reported = write_index(&ask::index(&run.settings.cni.ipam_dir), None, applier);
        }
        return true;
    }
    if run.scope == Scope::ALL {
        cache.table.forget();
    }
    if look && let Err(error) = read_pods(run, cache) {
        applier.inspection_failed(Object::named("pods of this host"), &error);
    }
    match keep(run, work, cache, applier) {
        Ok(in_force) => in_force,
        Err(error) => {
            report(run, &error, applier);
            false
        }
    }
}

/// What the kernel lacks for the table, if that is why it is not as it should be.
fn report(run: &Reconcile<'_>, error: &anyhow::Error, applier: &mut Applier) {
    let missing = nft_parts::missing(&run.kernel.nft, true).unwrap_or_default();
    if missing.is_empty() {
        applier.inspect_failed(Object::Table(POLICY_TABLE.to_owned()), error);
    }
    missing.into_iter().for_each(|problem| applier.failed(problem));
}

fn read_pods(run: &Reconcile<'_>, cache: &mut CachedPolicy) -> anyhow::Result<()> {
    let network = &run.settings.cni.name;
    let store = pods::store(run.settings, network)?;
    let is_known = cache.pods.is_some() && cache.released.is_some() && run.scope != Scope::ALL;
    if is_known && store.is_as_read(&cache.entries) {
        return Ok(());
    }
    let contents =
        store.contents_after(&mut cache.entries).with_context(|| store_unusable(run.settings))?;
    let pods =
        Pods::of(network, &contents.entries, cache.pods.as_ref().unwrap_or(&Pods::default()));
    if cache.released.is_none() {
        // After the store was read: an address that is freed meanwhile is in the table no longer.
        let found = cache.table.observe(&run.kernel.nft)?.map(FoundPolicy::table);
        let is_released = |address: IpAddr| found.as_ref().is_none_or(|it| has_pod(it, address));
        let released = pods.owners().filter(|(address, _)| is_released(*address));
        let released = released.map(|(address, container)| (address, container.to_owned()));
        cache.released = Some(Arc::new(released.gather()));
    }
    if cache.pods.as_ref() != Some(&pods) {
        cache.pods = Some(pods);
    }
    Ok(())
}

fn keep(
    run: &Reconcile<'_>,
    work: PolicyWork,
    cache: &mut CachedPolicy,
    applier: &mut Applier,
) -> anyhow::Result<bool> {
    let nft = &run.kernel.nft;
    let CachedPolicy { table, compiler, pods, described, index, released, own, .. } = cache;
    let Some(policies) = run.policies else { return Ok(true) };
    let no_pods = Pods::default();
    let is_there = table.observe(nft)?.is_some();
    cache.is_there = Some(is_there);
    if policies.known.is_none() || (pods.is_none() && is_there) {
        // What was in force stays so until a source has said something, and the pods are known; where
        // nothing was, pods that run are not cut off before that, and none can start.
        return Ok(is_there);
    }
    let pods = pods.as_ref().unwrap_or(&no_pods);
    let subnets: Vec<_> = run.pod_subnets().collect();
    if own.is_empty() || run.scope.links {
        *own = host_state::as_seen_by_pods(&run.kernel.rtnl, &run.settings.bridge)?;
    }
    policies.describe(pods, described);
    let nothing = PodOwners::new();
    let before = released.as_deref().unwrap_or(&nothing);
    let wanted = policies.table(described, before, (&subnets, own), compiler);
    let open = policies.index(described);
    let file = ask::index(&run.settings.cni.ipam_dir);
    // It is never wider than the table.
    if is_outdated(index.as_ref(), &open, work) {
        *index = None;
        if !write_index(&file, None, applier) {
            return Ok(false);
        }
    }
    put_in_force(nft, table, wanted, work, applier)?;
    policies.release(described, released.get_or_insert_default());
    let is_due = work != PolicyWork::InForce && index.as_ref() != Some(&open);
    if is_due && write_index(&file, Some(&open), applier) {
        *index = Some(open);
    }
    Ok(true)
}

/// It opens what `open` does not, or is to be the same.
fn is_outdated(index: Option<&Index>, open: &Index, work: PolicyWork) -> bool {
    index.is_none_or(|index| match work {
        PolicyWork::InForce => !index.is_within(open),
        _ => index != open,
    })
}

/// Changes the table until nothing differs, or nothing that decides.
fn put_in_force(
    nft: &Nft,
    table: &mut KnownTable,
    wanted: &PolicyTable,
    work: PolicyWork,
    applier: &mut Applier,
) -> anyhow::Result<()> {
    let first_epoch = wanted.mark_bits().epoch(random::below(u32::MAX as usize) as u32);
    let mut refused = None;
    if !applier.is_dry() {
        table.claim(nft)?;
    }
    for _ in 0..ATTEMPTS {
        match step(nft, table, wanted, first_epoch, applier) {
            // The first plan puts everything in force; what is left to later ones is of no use any longer.
            Ok(is_same) if is_same || work < PolicyWork::Whole && table.is_as_made(nft)? => {
                return Ok(());
            }
            Ok(_) => {}
            // Somebody else has changed a table while this one was read or written.
            Err(error) => refused = Some(error.into()),
        }
    }
    Err(refused.unwrap_or_else(|| anyhow::anyhow!("another program changes it again and again")))
}

/// True if nothing differs.
fn step(
    nft: &Nft,
    table: &mut KnownTable,
    wanted: &PolicyTable,
    first_epoch: u32,
    applier: &mut Applier,
) -> Result<bool, NetlinkError> {
    let found = table.compare(nft, wanted)?;
    let plan = plan(wanted, found, first_epoch);
    if plan.transactions.is_empty() {
        return Ok(true);
    }
    applier.attempt(&plan.changes, || table.edit(nft, &plan.transactions, wanted))?;
    Ok(applier.is_dry())
}

/// `None`: there is none any longer. False if that failed.
fn write_index(file: &Path, index: Option<&Index>, applier: &mut Applier) -> bool {
    let text = index.map(|index| serde_json::to_vec(index).unwrap_or_default());
    let written = match text {
        _ if applier.is_dry() => return true,
        Some(text) => files::replace(file, &text, 0o600),
        None => files::remove(file),
    };
    if let Err(error) = &written
        && !applier.is_store_unusable()
    {
        let index = Object::File("index of policies", file.to_owned());
        applier.inspect_failed(index, error);
    }
    written.is_ok()
}

/// Removes the table.
pub fn remove(kernel: &Kernel, applier: &mut Applier) {
    let table = || Object::Table(POLICY_TABLE.to_owned());
    match kernel.nft.tables() {
        Ok(tables) if tables.iter().any(|name| name == POLICY_TABLE) => {
            applier.apply(&Line::removed(table()), || kernel.nft.delete(POLICY_TABLE));
        }
        Ok(_) => {}
        Err(error) => applier.inspect_failed(table(), error),
    }
}
