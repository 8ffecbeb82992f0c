//! Pure. What other programs have on the host that keeps packets from pods.

mod address_conflicts;
mod configurations;
mod former_stores;
mod masquerades;
pub mod runtimes;
mod sysctls;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;

pub use self::former_stores::FormerStore;
pub use self::runtimes::ContainerRuntime;
use crate::checks::limits;
use crate::checks::service_manager::ServiceManager;
use crate::net::{IfName, PerFamily, Problem, Severity};
use crate::os::disk_space::FreeSpace;
pub use sysctls::UNREAD;

/// What is on the host besides what humanz made.
#[derive(Clone, Debug, Default)]
pub struct FoundOnHost {
    /// Names of the files beside our CNI configuration, and its own.
    pub configurations: Vec<String>,
    /// Addresses of links that are not ours.
    pub addresses: Vec<(IfName, IpNetwork)>,
    /// Static routes of others, except those through our bridge.
    pub routes: Vec<IpNetwork>,
    /// A kube-proxy has made chains here.
    pub kube_proxy: bool,
    /// Chains of iptables that masquerade one pod, and the pod's address.
    pub masquerades: Vec<(String, IpAddr)>,
    /// Stores of pod networks whose pods are on our bridge.
    pub former_stores: Vec<FormerStore>,
    /// What container runtimes are configured for.
    pub runtimes: Vec<ContainerRuntime>,
    /// Where humanz writes, and what it holds.
    pub disks: Vec<(PathBuf, &'static str, FreeSpace)>,
    /// Values of the [`SYSCTLS`] that exist, in their order, or [`UNREAD`].
    pub sysctls: [Option<String>; SYSCTLS.len()],
}

/// What pods need.
#[derive(Clone, Debug)]
pub struct Needs {
    pub plugin: PathBuf,
    /// Our CNI configuration.
    pub configuration: PathBuf,
    pub pools: PerFamily<IpNetwork>,
    /// This host's pod subnets.
    pub subnets: PerFamily<IpNetwork>,
    /// Why the operator sets the forwarding sysctls, if so: MANAGE_SYSCTL=false.
    pub forwarding_is_others: Option<&'static str>,
    /// What runs the agent.
    pub manager: ServiceManager,
}

/// The sysctls that are checked, below /proc/sys.
pub const SYSCTLS: [&str; 7] = [
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];

/// What keeps packets from pods.
pub fn problems(needs: &Needs, found: &FoundOnHost) -> Vec<Problem> {
    let name = needs.configuration.file_name().unwrap_or_default().to_string_lossy();
    let configurations = configurations::before(&name, &found.configurations);
    let runtimes = {
        let Needs { plugin, configuration, manager, .. } = needs;
        let set_place = |variable: &str, place: &Path| manager.set_place(variable, place);
        runtimes::problems(&found.runtimes, plugin, configuration, set_place)
    };
    let conflicts = address_conflicts::inside(&needs.pools, &found.addresses, &found.routes);
    let stores = former_stores::problems(&needs.subnets, &found.former_stores);
    let masquerades = masquerades::of_subnets(&needs.subnets, &found.masquerades);
    let value = |key: &str| {
        let at = SYSCTLS.iter().position(|sysctl| *sysctl == key)?;
        found.sysctls[at].as_deref()
    };
    let forwarding = match needs.forwarding_is_others {
        Some(why) => sysctls::forwarding(&needs.subnets, why, &value),
        None => Vec::new(),
    };
    let settings = sysctls::problems(&needs.subnets, found.kube_proxy, &value);
    let mut all: Vec<Problem> = Vec::new();
    all.extend(configurations);
    all.extend(runtimes);
    all.extend(full_disks(&found.disks));
    all.extend(conflicts);
    all.extend(stores);
    all.extend(masquerades);
    all.extend(forwarding);
    all.extend(settings);
    all
}

/// What humanz writes fails there.
fn full_disks(disks: &[(PathBuf, &'static str, FreeSpace)]) -> Vec<Problem> {
    let found = disks.iter().filter_map(|(path, what, space)| limits::space(path, what, space));
    found.filter(|problem| problem.severity() == Severity::Error).collect()
}
