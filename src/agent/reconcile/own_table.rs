//! Puts a table of ours right.

use crate::agent::applier::Applier;
use crate::net::Object;
use crate::netlink::NetlinkError;
use crate::nft::{CachedTable, FoundTable, Nft, Ruleset};
use crate::plan::Line;
use crate::plan::firewall::{TableChange, TableRepair, repair};

/// Carries out `changes`, which turn what `known` has of the table into `wanted`.
pub fn put_right(
    nft: &Nft,
    table: &str,
    wanted: Option<&Ruleset>,
    changes: &[TableChange],
    known: &mut CachedTable,
    applier: &mut Applier,
) {
    if changes.is_empty() {
        return;
    }
    applier.apply_together(changes, || match (repair(wanted, changes), wanted) {
        (TableRepair::Elements(elements), _) => {
            nft.change_elements(table, &elements)?;
            known.note_changes(nft, table, &elements);
            Ok(())
        }
        (TableRepair::Edits(edits), Some(wanted)) => match nft.edit(table, &edits) {
            // Somebody else uses what is to go, in a way that cannot be seen here.
            Err(NetlinkError::Refused(refused)) => {
                log::warn!("rewriting table inet {table}: {refused}");
                nft.replace(wanted)
            }
            outcome => outcome,
        },
        (TableRepair::Replace, Some(wanted)) => nft.replace(wanted),
        (TableRepair::Delete, _) => nft.delete(table),
        (TableRepair::Nothing, _) | (TableRepair::Edits(_) | TableRepair::Replace, None) => Ok(()),
    });
}

/// `wanted` with the hosts that are in the table and perhaps only not known yet.
pub fn keeping_hosts(wanted: &Ruleset, found: &FoundTable) -> Ruleset {
    let mut kept = wanted.clone();
    for set in &mut kept.sets {
        let present = found.sets.iter().find(|present| present.name == set.name);
        let same = present.filter(|present| present.shape.as_ref() == Some(&set.shape));
        set.elements.extend(same.into_iter().flat_map(|present| present.elements.iter().cloned()));
    }
    kept
}

/// Removes `table`, if it is there.
pub fn remove(nft: &Nft, table: &str, applier: &mut Applier) {
    if nft.observe(table).is_ok_and(|found| found.is_some()) {
        let line = Line::removed(Object::Table(table.to_owned()));
        applier.apply(&line, || nft.delete(table));
    }
}
