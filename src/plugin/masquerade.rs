//! Masquerading on a host without an agent: one table for the network, not one rule for each pod.

use crate::cni::config::NetConf;
use crate::cni::error::CniError;
use crate::ipam::RangeSet;
use crate::nft::Nft;
use crate::plan::firewall::{
    FirewallSpec, TableRepair, changes, repair, ruleset, standalone_table,
};
use crate::plugin::failure;

/// Pods of the network reach the outside with the host's address, if the configuration asks for it
/// and no agent sees to it. The subnets in `network` see the pods' own addresses.
///
/// # Errors
/// Code 999 with the kernel's words.
pub fn ensure(conf: &NetConf, sets: &[RangeSet]) -> Result<(), CniError> {
    if !conf.ip_masq || !conf.create_bridge {
        return Ok(());
    }
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    let spec = FirewallSpec {
        table: standalone_table(conf.name.as_str()),
        bridge: conf.bridge.clone(),
        pod_subnets: ranges.map(|range| range.subnet()).collect(),
        pools: conf.network.clone(),
        non_masq_cidrs: Vec::new(),
        node_addresses: Default::default(),
        masquerade: true,
        tunnel_vni: None,
        accept_forward: false,
    };
    let Some(wanted) = ruleset(&spec) else { return Ok(()) };
    let what = format!("masquerade in nftables table {}", spec.table);
    let failed = |error| failure::internal(&what, &error);
    let nft = Nft::open().map_err(failed)?;
    let found = nft.observe(&spec.table).map_err(failed)?;
    match repair(&changes(Some(&wanted), found.as_ref())) {
        TableRepair::Nothing => Ok(()),
        _ => {
            nft.replace(&wanted).map_err(failed)?;
            log::info!("wrote nftables table inet {}", spec.table);
            Ok(())
        }
    }
}
