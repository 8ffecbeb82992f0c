//! Brings one Network of the API to where it should be in etcd.
//!
//! etcd is read first, then the object, and every change of etcd holds only if nothing of policies was changed since:
//! so a controller that has not learned for a while that an object was changed or deleted puts nothing back. Who deletes
//! changes etcd in any case, before it lets the object go.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::controller::condition::StatusCondition;
use crate::controller::seen::SeenObject;
use crate::controller::start::ControllerStart;
use crate::controller::step::{NetworkStep, refused, step};
use crate::controller::writes;
use crate::etcd::Etcd;
use crate::kube::Api;
use crate::sources::{Change, StoredHosts, StoredName, StoredPolicies, read_stored};

/// How often others may change something meanwhile.
const TRIES: u32 = 10;

/// What is needed to bring networks to where they should be.
pub struct Settling<'a> {
    pub start: &'a ControllerStart,
    pub etcd: &'a Etcd,
    pub api: &'a Api,
    /// Custom resources that networks may refer to, and that refer to networks.
    pub custom: Arc<BTreeMap<StoredName, Value>>,
}

/// What etcd had of policies, and when.
struct ReadPolicies {
    stored: StoredPolicies,
    range: String,
    revision: i64,
}

impl Settling<'_> {
    /// Brings `network` there; gives it as it is then, and what its status should say. `None`: it is gone or going.
    ///
    /// # Errors
    /// etcd or the API does not answer or refuses.
    pub async fn settle(
        &self,
        network: &SeenObject,
    ) -> Result<Option<(SeenObject, StatusCondition)>, String> {
        for _ in 0..TRIES {
            let read = self.read().await?;
            let Some(now) = writes::read(self.api, network).await.map_err(api)? else {
                return Ok(None);
            };
            let there = read.stored.objects(&read.range).0;
            match step(&now, &there) {
                NetworkStep::Leave => return Ok(None),
                NetworkStep::Stay(condition) => return Ok(Some((now, condition))),
                NetworkStep::Hold => drop(writes::hold(self.api, &now, true).await.map_err(api)?),
                NetworkStep::Put(change) => {
                    if let Err(faults) = self.change(&read, change, &now).await? {
                        let condition = refused(&faults, &now, &there);
                        return Ok(Some((now, condition)));
                    }
                }
                NetworkStep::Remove(change) => match self.change(&read, change, &now).await? {
                    Err(faults) => return Ok(Some((now, StatusCondition::not_removed(&faults)))),
                    Ok(true) => drop(writes::hold(self.api, &now, false).await.map_err(api)?),
                    Ok(false) => {}
                },
            }
        }
        Err(format!("{}: policies in etcd or the object keep changing", network.subject()))
    }

    async fn read(&self) -> Result<ReadPolicies, String> {
        let range = self.start.roots.policies_range();
        let (stored, revision) = read_stored(self.etcd, &range).await.map_err(etcd)?;
        Ok(ReadPolicies { stored, range, revision })
    }

    /// What hosts have, if `change` is of networks and these credentials may know.
    async fn stored_hosts(&self, change: &Change) -> Result<Option<StoredHosts>, String> {
        if !change.has_networks() {
            return Ok(None);
        }
        let found = self.etcd.read_if_permitted().await.map_err(etcd)?;
        Ok(found.map(|found| StoredHosts::of(&found, &self.start.roots)))
    }

    /// Makes `change` by the checks that an operator's has; false if etcd was changed meanwhile. Inside: why it cannot be.
    async fn change(
        &self,
        read: &ReadPolicies,
        change: Change,
        network: &SeenObject,
    ) -> Result<Result<bool, Vec<String>>, String> {
        let change = Change { custom: Some(Arc::clone(&self.custom)), ..change };
        let hosts = self.stored_hosts(&change).await?;
        let pools = &self.start.pools;
        let pools = hosts.as_ref().map_or(pools.clone(), |hosts| hosts.pools_beside(pools));
        let mut planned = match change.plan(&read.stored, &read.range, read.revision, &pools) {
            Ok(planned) => planned,
            Err(faults) => return Ok(Err(faults)),
        };
        if let Some(Err(faults)) = hosts.as_ref().map(|hosts| planned.spare_hosts(hosts)) {
            return Ok(Err(faults));
        }
        if !planned.other_uses.is_empty() {
            let (blocks, revision) = self.etcd.held_blocks().await.map_err(etcd)?;
            let range = self.start.roots.blocks_range();
            if let Err(faults) = planned.spare_blocks(&blocks, &range, revision) {
                return Ok(Err(faults));
            }
        }
        let what = format!("change policies for {}", network.subject());
        let committed = self.etcd.commit(&what, &planned.transaction).await.map_err(etcd)?;
        if committed.is_some() {
            for (name, effect) in &planned.effects {
                log::info!("etcd: {name} {effect:?}");
            }
        }
        Ok(Ok(committed.is_some()))
    }
}

pub fn etcd(error: impl ToString) -> String {
    format!("etcd: {}", error.to_string())
}

pub fn api(error: impl ToString) -> String {
    format!("the Kubernetes API: {}", error.to_string())
}
