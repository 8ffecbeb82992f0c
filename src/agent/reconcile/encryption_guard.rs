//! Keeps the table that keeps clear text in.

use std::num::NonZeroU16;

use crate::agent::applier::Applier;
use crate::agent::reconcile::{Reconcile, own_table};
use crate::agent::trigger::Scope;
use crate::net::Object;
use crate::nft::{CachedTable, Ruleset};
use crate::plan::firewall::changes;
use crate::plan::firewall::encryption::{
    ENCRYPTION_TABLE, EncryptionEnd, EncryptionGuard, keeping_pools, ruleset,
};

/// The table as it was found last.
#[derive(Debug, Default)]
pub struct CachedGuard {
    table: CachedTable,
    /// It was claimed, or cannot be.
    is_claimed: bool,
}

/// Repairs differences, before there is a bridge, a device or a route; false if the table is not as it
/// should be.
pub fn reconcile(run: &Reconcile<'_>, known: &mut CachedGuard, applier: &mut Applier) -> bool {
    let wanted = wanted(run);
    let is_looked_at = run.scope.routes || run.scope.firewall;
    if !is_looked_at || wanted.is_none() && run.scope != Scope::ALL {
        return true;
    }
    let nft = &run.kernel.nft;
    let failures = applier.failures().len();
    let CachedGuard { table: known, is_claimed } = known;
    if wanted.is_some() && !*is_claimed && !applier.is_dry() {
        // Where the kernel cannot, the table is put back when somebody removes it.
        match nft.claim(ENCRYPTION_TABLE) {
            Ok(_) => *is_claimed = true,
            Err(error) => {
                applier.inspect_failed(Object::Table(ENCRYPTION_TABLE.to_owned()), error);
            }
        }
    }
    match known.observe(nft, ENCRYPTION_TABLE) {
        Ok(found) => {
            let kept = match (&wanted, found) {
                (Some(wanted), Some(found)) if !run.in_sync => {
                    Some(own_table::keeping_hosts(wanted, found))
                }
                _ => None,
            };
            let wanted = kept.as_ref().or(wanted.as_ref());
            let changes = match (wanted, found) {
                // It is not known yet where tenants' pods are: at a start, or after a loss of what was kept.
                (Some(wanted), Some(found)) if !run.networks.in_sync => {
                    keeping_pools(wanted, found)
                }
                _ => changes(wanted, found),
            };
            own_table::put_right(nft, ENCRYPTION_TABLE, wanted, &changes, known, applier);
        }
        Err(error) => {
            applier.inspect_failed(Object::Table(ENCRYPTION_TABLE.to_owned()), error);
        }
    }
    applier.failures().len() == failures
}

fn wanted(run: &Reconcile<'_>) -> Option<Ruleset> {
    let encryption = run.settings.encryption?;
    let peers = run.peers.into_iter().flat_map(|peers| peers.by_name.values());
    let peers = peers.filter_map(|peer| {
        let end = peer.wireguard?;
        let ports = [Some(end.port), end.rotation_port].map(|port| port.map(NonZeroU16::get));
        Some(EncryptionEnd { addresses: peer.addresses, ports })
    });
    Some(ruleset(&EncryptionGuard {
        bridge: run.settings.bridge.clone(),
        ports: [encryption.port, encryption.rotation_port()],
        strict: encryption.strict,
        pools: run.pools().collect(),
        peers: peers.collect(),
    }))
}
