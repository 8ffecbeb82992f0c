//! Masquerading on a host without an agent: one table per network, not one rule per pod.

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::RangeSet;
use crate::nft::{Nft, Ruleset};
use crate::plan::firewall::{
    FirewallSpec, TableRepair, changes, repair, ruleset, standalone_table,
};
use crate::plugin::failure::OrInternal;

/// Masquerades what the network's pods send to destinations outside `network`, if the
/// configuration asks for it and the host has no agent.
///
/// # Errors
/// Code 999: the kernel refused.
pub fn ensure(conf: &NetConf, sets: &[RangeSet]) -> Result<(), CniError> {
    let Some(Compared { nft, wanted, repair }) = compare(conf, sets)? else { return Ok(()) };
    let table = &wanted.table;
    match repair {
        TableRepair::Nothing => return Ok(()),
        TableRepair::Elements(elements) => nft.change_elements(table, &elements),
        TableRepair::Edits(edits) => nft.edit(table, &edits),
        TableRepair::Replace | TableRepair::Delete => nft.replace(&wanted),
    }
    .or_else(|_| nft.replace(&wanted))
    .or_internal(format_args!("masquerade in nftables table {table}"))?;
    log::info!("wrote nftables table inet {table}");
    Ok(())
}

/// Whether [`ensure`] would change something.
///
/// # Errors
/// Code 999: the kernel refused an answer.
pub fn missing(conf: &NetConf, sets: &[RangeSet]) -> Result<bool, CniError> {
    let compared = compare(conf, sets)?;
    Ok(compared.is_some_and(|compared| !matches!(compared.repair, TableRepair::Nothing)))
}

/// The table as it should be, and what makes it so.
struct Compared {
    nft: Nft,
    wanted: Ruleset,
    repair: TableRepair,
}

/// `None`: the plugin masquerades nothing.
fn compare(conf: &NetConf, sets: &[RangeSet]) -> Result<Option<Compared>, CniError> {
    if !conf.ip_masq || !conf.create_bridge {
        return Ok(None);
    }
    let Some(wanted) = ruleset(&spec(conf, sets)) else { return Ok(None) };
    let what = format_args!("masquerade in nftables table {}", wanted.table);
    let nft = Nft::open().or_internal(what)?;
    let found = nft.observe(&wanted.table).or_internal(what)?;
    let repair = repair(Some(&wanted), &changes(Some(&wanted), found.as_ref()));
    Ok(Some(Compared { nft, wanted, repair }))
}

fn spec(conf: &NetConf, sets: &[RangeSet]) -> FirewallSpec {
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    FirewallSpec {
        table: standalone_table(conf.name.as_str()),
        bridge: conf.gateway_device().clone(),
        pod_subnets: ranges.map(|range| range.subnet()).collect(),
        pools: conf.network.clone(),
        has_others: false,
        non_masq_cidrs: Vec::new(),
        node_addresses: Default::default(),
        masquerade: true,
        tunnel_vni: None,
        encrypts: false,
        own_addresses: Default::default(),
        tunnel_addresses: Vec::new(),
        accept_forward: false,
    }
}
