//! Keeps forwarding on.

use ipnetwork::{IpNetwork, NetworkSize};

use crate::agent::applier::Applier;
use crate::agent::reconcile::Reconcile;
use crate::agent::sysctl_record;
use crate::inspect::host_state::HostState;
use crate::net::{Family, IfName, Object};
use crate::os::sysctl;
use crate::plan::guard::guard_sysctls;
use crate::plan::{Describe, Line, bridge_ports};

/// A sysctl that must change.
struct WantedSysctl {
    key: String,
    before: String,
    value: String,
}

impl Describe for WantedSysctl {
    fn line(&self) -> Line {
        Line::changed(Object::Sysctl(self.key.clone())).with(format!(" = {}", self.value))
    }
}

/// Writes only what differs, so that a read-only /proc/sys that is right already does no harm.
pub fn reconcile(run: &Reconcile<'_>, host_state: &HostState, applier: &mut Applier) {
    if !run.settings.manage_sysctl {
        return;
    }
    keep_neighbours(run, applier);
    for (key, value) in wanted(run, host_state) {
        match sysctl::read(&key) {
            Ok(found) if found == value => {}
            Ok(before) => set(run, WantedSysctl { key, before, value: value.to_owned() }, applier),
            Err(error) => applier.inspect_failed(Object::Sysctl(key), error),
        }
    }
}

/// Lets packets of both families through the device of a tunnel, which listens to no router.
///
/// Replies may come another way than the one they were asked on, while a host is being moved and
/// where two hosts see their segments differently: a reverse path filter that is strict (1) drops
/// them, one that is loose (2) does not, and of the host's and the device's the larger counts
/// (kernel: Documentation/networking/ip-sysctl.rst).
pub fn keep_tunnel(run: &Reconcile<'_>, device: &IfName, applier: &mut Applier) {
    const STRICT: Option<&str> = Some("1");
    if !run.settings.manage_sysctl {
        return;
    }
    let of = |family: &str, name: &str, key: &str| format!("net/{family}/conf/{name}/{key}");
    if run.subnets.v4.is_some() {
        set_own(of("ipv4", device.as_str(), "forwarding"), "1", applier);
        let own = sysctl::read(&of("ipv4", device.as_str(), "rp_filter")).ok();
        let all = sysctl::read(&of("ipv4", "all", "rp_filter")).ok();
        if own.as_deref().max(all.as_deref()) == STRICT {
            set_own(of("ipv4", device.as_str(), "rp_filter"), "2", applier);
        }
    }
    if run.subnets.v6.is_some() {
        for (key, value) in [("disable_ipv6", "0"), ("accept_ra", "0"), ("forwarding", "1")] {
            set_own(of("ipv6", device.as_str(), key), value, applier);
        }
    }
}

/// Sets what goes with the guards of pods, once there is the bridge.
pub fn keep_guard(run: &Reconcile<'_>, applier: &mut Applier) {
    if !run.settings.manage_sysctl || !run.settings.guard.is_on {
        return;
    }
    for (key, value) in guard_sysctls(&run.settings.bridge) {
        match sysctl::read(&key) {
            Ok(found) if found == value => {}
            // They go with the bridge.
            Ok(_) if !key.contains("/all/") => set_own(key, value, applier),
            Ok(before) => set(run, WantedSysctl { key, before, value: value.to_owned() }, applier),
            // Without IPv6.
            Err(error) if error.is_missing() => {}
            Err(error) => applier.inspect_failed(Object::Sysctl(key), error),
        }
    }
}

/// Sets what goes with a device of ours.
fn set_own(key: String, value: &str, applier: &mut Applier) {
    match sysctl::read(&key) {
        Ok(found) if found == value => {}
        Ok(before) => {
            let change = WantedSysctl { key, before, value: value.to_owned() };
            applier.apply(&change, || sysctl::write(&change.key, &change.value));
        }
        Err(error) => applier.inspect_failed(Object::Sysctl(key), error),
    }
}

/// Lets a link of ours have IPv6 where new links have none (`default.disable_ipv6`).
///
/// # Errors
/// [`SysctlError`](sysctl::SysctlError).
pub fn allow_ipv6(link: &IfName) -> Result<(), sysctl::SysctlError> {
    let key = format!("net/ipv6/conf/{link}/disable_ipv6");
    match sysctl::read(&key)?.as_str() {
        "0" => Ok(()),
        _ => sysctl::write(&key, "0"),
    }
}

/// Notes the change, then makes it. One that cannot be noted is made: the pods need it.
fn set(run: &Reconcile<'_>, change: WantedSysctl, applier: &mut Applier) {
    applier.apply(&change, || {
        let WantedSysctl { key, before, value } = &change;
        if let Err(error) = sysctl_record::note(&run.settings.state_dir, key, before, value) {
            log::warn!("{error:#}: an uninstallation will leave sysctl {key} as it is");
        }
        sysctl::write(key, value)
    });
}

/// Makes room for every other host and every pod in the table of neighbours: with the kernel's limit
/// of 1024, those of a large segment push each other out, and packets are lost. Never makes it smaller.
///
/// Only the host's own namespace has these settings (kernel: net/core/neighbour.c).
fn keep_neighbours(run: &Reconcile<'_>, applier: &mut Applier) {
    let hosts = run.peers.map_or(0, |peers| peers.by_name.len());
    let pods = run.subnets.iter().map(|subnet| pods(*subnet)).min().unwrap_or(0);
    for (family, _) in run.subnets.entries() {
        let family = match family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        for (limit, least) in [(3, 4 * hosts + 2 * pods), (2, 2 * hosts + pods), (1, hosts)] {
            let key = format!("net/{family}/neigh/default/gc_thresh{limit}");
            let before = sysctl::read(&key).unwrap_or_default();
            if before.parse::<usize>().is_ok_and(|found| found < least) {
                set(run, WantedSysctl { key, before, value: least.to_string() }, applier);
            }
        }
    }
}

/// So many pods of `subnet` the bridge can have at most.
fn pods(subnet: IpNetwork) -> usize {
    match subnet.size() {
        NetworkSize::V4(count) => bridge_ports::MOST.min(count as usize),
        NetworkSize::V6(count) => {
            bridge_ports::MOST.min(usize::try_from(count).unwrap_or(usize::MAX))
        }
    }
}

/// Key below /proc/sys → value.
///
/// A host that forwards IPv6 ignores router advertisements, and with them its own default route,
/// unless `accept_ra` is 2 (kernel: Documentation/networking/ip-sysctl.rst). What turns forwarding
/// on does so for every interface; somebody may have taken one out again.
fn wanted(run: &Reconcile<'_>, host_state: &HostState) -> Vec<(String, &'static str)> {
    let mut wanted = Vec::new();
    if run.subnets.v4.is_some() {
        wanted.push(("net/ipv4/ip_forward".to_owned(), "1"));
        if sysctl::read("net/ipv4/ip_forward").is_ok_and(|value| value == "1") {
            let links = host_state.uplinks.iter().map(IfName::as_str);
            wanted.extend(links.map(|link| (format!("net/ipv4/conf/{link}/forwarding"), "1")));
        }
    }
    if run.subnets.v6.is_some() {
        for uplink in &host_state.uplinks {
            wanted.push((format!("net/ipv6/conf/{uplink}/accept_ra"), "2"));
        }
        wanted.push(("net/ipv6/conf/all/forwarding".to_owned(), "1"));
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_limits_the_pods_of_a_large_subnet() {
        for (subnet, most) in [("10.244.1.0/24", 256), ("10.0.0.0/8", 1023), ("fd10::/64", 1023)] {
            assert_eq!(pods(subnet.parse().unwrap()), most, "{subnet}");
        }
    }
}
