//! Masquerading on a host without an agent: one table per network, not one rule per pod.

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::RangeSet;
use crate::nft::Nft;
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
    if !conf.ip_masq || !conf.create_bridge {
        return Ok(());
    }
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    let spec = FirewallSpec {
        table: standalone_table(conf.name.as_str()),
        bridge: conf.gateway_device().clone(),
        pod_subnets: ranges.map(|range| range.subnet()).collect(),
        pools: conf.network.clone(),
        non_masq_cidrs: Vec::new(),
        node_addresses: Default::default(),
        masquerade: true,
        tunnel_vni: None,
        encrypts: false,
        own_addresses: Default::default(),
        accept_forward: false,
    };
    let Some(wanted) = ruleset(&spec) else { return Ok(()) };
    let what = format_args!("masquerade in nftables table {}", spec.table);
    let nft = Nft::open().or_internal(what)?;
    let found = nft.observe(&spec.table).or_internal(what)?;
    match repair(Some(&wanted), &changes(Some(&wanted), found.as_ref())) {
        TableRepair::Nothing => return Ok(()),
        TableRepair::Elements(elements) => nft.change_elements(&spec.table, &elements),
        TableRepair::Edits(edits) => nft.edit(&spec.table, &edits),
        TableRepair::Replace | TableRepair::Delete => nft.replace(&wanted),
    }
    .or_else(|_| nft.replace(&wanted))
    .or_internal(what)?;
    log::info!("wrote nftables table inet {}", spec.table);
    Ok(())
}
