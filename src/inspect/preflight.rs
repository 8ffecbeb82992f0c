//! Checks settings against this host: files, the bridge's name, its own addresses.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::etcd;
use crate::inspect::{identity, last_policies, last_settings, preshared_secret, state_file};
use crate::kube::{self, KubeSettings};
use crate::lease::{LeaseError, Saved};
use crate::net::{PerFamily, Problem};
use crate::netlink::link::Link;
use crate::netlink::rtnl::Rtnl;
use crate::netlink::wireguard::Wireguard;
use crate::plan::tunnel;
use crate::settings::{HostSettings, STATE_FILE, Source, invalid};

/// Every setting that does not fit this host. What cannot be read is not reported: the start fails with
/// the reason.
pub fn check(settings: &HostSettings) -> Vec<Problem> {
    let mut faults = check_for_dry_run(settings);
    let rtnl = Rtnl::open().ok();
    faults.extend(rtnl.and_then(|rtnl| pool_around_host(settings, &rtnl)));
    faults.extend(pools_over_networks(settings));
    faults
}

/// The same without addresses inside the pool: the other pod network may still be there, and the dry run
/// reports them among what it finds.
pub fn check_for_dry_run(settings: &HostSettings) -> Vec<Problem> {
    let mut faults = unusable_files(settings);
    let rtnl = Rtnl::open().ok();
    faults.extend(rtnl.as_ref().and_then(|rtnl| foreign_bridge(settings, rtnl)));
    faults.extend(rtnl.and_then(|rtnl| former_bridge(settings, &rtnl)));
    faults.extend(no_wireguard(settings));
    faults
}

/// Pools that would grow over networks of tenants, as far as this host knows both from an earlier run of its agent:
/// what etcd has now counts once that answers.
fn pools_over_networks(settings: &HostSettings) -> Vec<Problem> {
    let (folder, pools) = (&settings.state_dir, settings.pools);
    let is_etcd = matches!(settings.source, Some(Source::Etcd { .. }));
    let saved = state_file::read(&folder.join(STATE_FILE)).ok().flatten();
    let is_own =
        |saved: &Saved| identity::machine_id(folder).ok() == Some(saved.machine_id.clone());
    let saved = saved.filter(|it| is_etcd && settings.has_policies && is_own(it));
    let theirs = saved.and_then(|saved| Some(saved.snapshot.config.as_ref()?.value.pools()));
    let Some(theirs) = theirs else { return Vec::new() };
    let grown = pools.entries().filter_map(|(family, wide)| {
        let narrow = theirs.get(family).filter(|narrow| wide.widens(narrow))?;
        Some((narrow.network(), wide.network()))
    });
    let grown: Vec<_> = grown.collect();
    if grown.is_empty() {
        return Vec::new();
    }
    let tenants = last_policies::tenant_pools(folder);
    let refused = grown.into_iter().filter_map(|(narrow, wide)| {
        let error = LeaseError::CannotGrow { narrow, wide, why: tenants.refuses(wide)? };
        let variable = if wide.is_ipv4() { "IP_SUBNET" } else { "IPV6_SUBNET" };
        Some(invalid(variable, &wide.to_string(), &error).with_fix(error.fix()))
    });
    refused.collect()
}

/// Certificates, key, password, kubeconfig and secret that cannot be used.
fn unusable_files(settings: &HostSettings) -> Vec<Problem> {
    let mut faults = match &settings.source {
        Some(Source::Etcd { server, .. }) => etcd::check_files(server).0,
        Some(Source::Kubernetes(api)) => unknown_api(api).into_iter().collect(),
        Some(Source::Static(_)) | None => Vec::new(),
    };
    faults.extend(settings.policy_api.as_ref().and_then(unknown_api));
    faults.extend(settings.psk_file.as_deref().and_then(|path| preshared_secret::read(path).err()));
    faults
}

fn unknown_api(api: &KubeSettings) -> Option<Problem> {
    let wrong = kube::check(api).err()?;
    let path = api.kubeconfig.as_ref().map(|path| path.display().to_string());
    Some(invalid("KUBECONFIG", &path.unwrap_or_default(), wrong))
}

/// An address of NODE_IP that no interface has.
pub fn missing_address(node_addresses: &PerFamily<IpAddr>, rtnl: &Rtnl) -> Option<Problem> {
    let here = rtnl.addresses(None).ok()?;
    let is_here = |wanted: &&IpAddr| here.iter().any(|found| found.address.ip() == **wanted);
    let missing = node_addresses.iter().find(|wanted| !is_here(wanted))?;
    let why = "no interface of this host has this address";
    let fix = "ip address show # set one that it has, or add this one first";
    Some(invalid("NODE_IP", &missing.to_string(), why).with_fix(fix))
}

fn foreign_bridge(settings: &HostSettings, rtnl: &Rtnl) -> Option<Problem> {
    let name = settings.bridge.as_ref()?;
    let link = rtnl.link(name).ok().flatten()?;
    let kind = match link.kind.as_deref() {
        Some("bridge") => return None,
        Some(kind) => format!("a {kind}"),
        None => "a physical device".to_owned(),
    };
    let why = format!("this interface exists and is {kind}, not a bridge");
    Some(
        invalid("BRIDGE_NAME", name.as_str(), why)
            .with_fix(format!("ip link show {name} # choose another BRIDGE_NAME")),
    )
}

/// The kernel would encrypt nothing.
fn no_wireguard(settings: &HostSettings) -> Option<Problem> {
    let is_missing = settings.encrypts && matches!(Wireguard::open(), Ok(None));
    is_missing.then(|| {
        let why = "this kernel has no WireGuard (Linux 5.6 has it, and some distributions as a package \
                   of modules)";
        let fix = "modprobe wireguard # says what is missing; ENCRYPTION=off is clear text";
        invalid("ENCRYPTION", "wireguard", why).with_fix(fix)
    })
}

/// The pool covers an address of this host: it could no longer reach its own segment. (The bridge's
/// own are meant to be there; if its name is wrong it is not known which they are.)
fn pool_around_host(settings: &HostSettings, rtnl: &Rtnl) -> Option<Problem> {
    let found =
        inside_pools(settings, rtnl).into_iter().find(|it| !is_former_bridge(settings, it))?;
    let (pool, address) = (found.pool, found.address);
    let link = found.link.map_or("an interface".to_owned(), |link| link.name.to_string());
    let variable = if pool.is_ipv4() { "IP_SUBNET" } else { "IPV6_SUBNET" };
    let why = format!("contains {address}, an address of this host on {link}");
    let fix = format!(
        "ip address # choose an unused pool, or remove {link} if it is left from another pod network"
    );
    Some(invalid(variable, &pool.to_string(), why).with_fix(fix))
}

/// The bridge has another name now, and the one before is there, perhaps with pods.
fn former_bridge(settings: &HostSettings, rtnl: &Rtnl) -> Option<Problem> {
    let name = settings.bridge.as_ref()?;
    let found =
        inside_pools(settings, rtnl).into_iter().find(|it| is_former_bridge(settings, it))?;
    let (former, address) = (found.link?.name, found.address);
    let why = format!("this host's bridge is {former}, which has {address}");
    let fix = format!(
        "ip link show master {former} # lists its pods: drain the host, stop the agent, ip link delete {former}, start \
         the agent; or set BRIDGE_NAME={former}"
    );
    Some(invalid("BRIDGE_NAME", name.as_str(), why).with_fix(fix))
}

/// An address inside a pool.
struct AddressInPool {
    pool: IpNetwork,
    address: IpNetwork,
    link: Option<Link>,
}

/// Those of other interfaces than the bridge and tunnels.
fn inside_pools(settings: &HostSettings, rtnl: &Rtnl) -> Vec<AddressInPool> {
    let Some(name) = &settings.bridge else { return Vec::new() };
    let bridge = rtnl.link(name).ok().flatten().map(|link| link.index);
    let addresses = rtnl.addresses(None).unwrap_or_default();
    let foreign = addresses.into_iter().filter(|found| Some(found.index) != bridge);
    let inside = foreign.filter_map(|found| {
        let mut pools = settings.pools.iter().map(|pool| pool.network());
        let pool = pools.find(|pool| pool.contains(found.address.ip()))?;
        let link = rtnl.link_by_index(found.index).ok().flatten();
        let is_tunnel = link.as_ref().is_some_and(tunnel::is_marked);
        (!is_tunnel).then_some(AddressInPool { pool, address: found.address, link })
    });
    inside.collect()
}

/// It is of the bridge that this host was served with last.
fn is_former_bridge(settings: &HostSettings, found: &AddressInPool) -> bool {
    let folder = &settings.state_dir;
    let machine_id = identity::machine_id(folder).ok();
    let texts = machine_id.and_then(|machine_id| last_settings::read(folder, &machine_id));
    let former = texts.and_then(|texts| texts.get("BRIDGE_NAME").cloned());
    former.is_some() && former.as_deref() == found.link.as_ref().map(|link| link.name.as_str())
}
