//! What the running kernel can do, found out by trying it.

use std::process::Command;
use std::sync::OnceLock;

/// WireGuard (Linux 5.6, as a module).
pub fn has_wireguard() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    let script = "ip link add w0 type wireguard";
    *HAS.get_or_init(|| runs(script))
}

/// Bridges can keep VLANs apart (CONFIG_BRIDGE_VLAN_FILTERING), and there are interfaces for VLANs.
pub fn filters_vlans() -> bool {
    static FILTERS: OnceLock<bool> = OnceLock::new();
    let script = "ip link add b0 type bridge vlan_filtering 1 && ip link add link b0 name b0.5 type vlan id 5";
    *FILTERS.get_or_init(|| runs(script))
}

/// A bridge's port can be locked to the MACs that are pinned to it (Linux 5.18). An older kernel takes the
/// flag, and does not show it.
pub fn locks_ports() -> bool {
    static LOCKS: OnceLock<bool> = OnceLock::new();
    let script = "ip link add b0 type bridge && ip link add p0 type veth peer name p1 && ip link set p0 master b0 && \
                  ip link set p0 type bridge_slave locked on && ip -d link show p0 | grep -q 'locked on'";
    *LOCKS.get_or_init(|| runs(script))
}

/// nftables see what leaves a device (Linux 5.16).
pub fn has_egress_hook() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    let script = "nft 'add table netdev t; add chain netdev t c { type filter hook egress device lo priority 0; }'";
    *HAS.get_or_init(|| runs(script))
}

/// The script runs, in a network namespace of its own.
fn runs(script: &str) -> bool {
    let tried = Command::new("unshare").args(["--net", "sh", "-c", script]).output();
    tried.expect("run unshare (package util-linux)").status.success()
}
