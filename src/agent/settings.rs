//! Pure. The settings of the agent: flags over environment over defaults, every fault at once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::agent::choices::{BACKENDS, CNI_VERSIONS, Giver, SOURCES};
use crate::agent::cli::VARIABLES;
use crate::agent::values;
use crate::cni::version::Version;
use crate::lease::kube::{KubeSettings, Server};
use crate::lease::records::{self, NodeName, Roots, Vxlan};
use crate::lease::registry::EtcdSettings;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, IfName, PerFamily};

/// Everything the agent was told, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where this host's subnet comes from.
    pub source: Source,
    /// The cluster's pods: one pool for each family in use, at least one.
    pub pools: PerFamily<Pool>,
    /// Name of this host in etcd, if given.
    pub node_name: Option<NodeName>,
    /// Addresses of this host for the others, where given.
    pub node_addresses: PerFamily<IpAddr>,
    /// The bridge.
    pub bridge: IfName,
    /// MTU in bytes; `None`: that of the way to the other hosts.
    pub mtu_bytes: Option<u32>,
    /// How pods of other hosts are reached.
    pub backend: Backend,
    /// What this network's tunnels are told by.
    pub vxlan: Vxlan,
    /// Masquerade what leaves the pool.
    pub masquerade: bool,
    /// Destinations that are not masqueraded although outside the pool.
    pub non_masquerade: Vec<IpNetwork>,
    /// Let forwarded pod traffic through foreign rules.
    pub manage_forward: bool,
    /// Packets of established connections take the kernel's shortcut.
    pub flowtable: bool,
    /// Turn on forwarding.
    pub manage_sysctl: bool,
    /// The configuration for the runtimes.
    pub cni: CniSettings,
    /// Where the agent tells how it is; `None`: nowhere.
    pub socket: Option<PathBuf>,
    /// Where it gives its metrics to any process of the host.
    pub metrics: Option<SocketAddr>,
    /// Directory of the last known good state.
    pub state_dir: PathBuf,
    /// Time between full passes.
    pub resync: Duration,
    /// Time between two echo requests to each other host; `None`: none are sent.
    pub probe: Option<Duration>,
    /// Remove everything when stopped.
    pub cleanup_on_stop: bool,
}

impl Settings {
    /// Where the cluster's pods have their addresses.
    pub fn pool_networks(&self) -> PerFamily<IpNetwork> {
        let network = |pool: &Pool| pool.network();
        PerFamily {
            v4: self.pools.v4.as_ref().map(network),
            v6: self.pools.v6.as_ref().map(network),
        }
    }

    /// The file of the last known good state.
    pub fn state_file(&self) -> PathBuf {
        self.state_dir.join("state.json")
    }

    /// There can be other hosts.
    pub fn has_others(&self) -> bool {
        !matches!(self.source, Source::Static(_))
    }
}

/// How this host reaches the pods of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Through a route via the host, which must be on the same segment.
    Direct,
    /// Through a tunnel.
    Vxlan,
    /// Through a route to hosts on the same segment, through a tunnel to the others.
    Auto,
}

impl From<Backend> for records::Backend {
    fn from(backend: Backend) -> records::Backend {
        match backend {
            Backend::Direct => records::Backend::Direct,
            Backend::Vxlan => records::Backend::Vxlan,
            Backend::Auto => records::Backend::Auto,
        }
    }
}

/// Where this host's subnet comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Leased from etcd.
    Etcd {
        /// How to reach it.
        server: EtcdSettings,
        /// Where the keys are.
        roots: Roots,
    },
    /// Given by Kubernetes: the podCIDRs of the nodes.
    Kubernetes(KubeSettings),
    /// Given by the operator; there is no etcd and there are no other hosts.
    Static(PerFamily<IpNetwork>),
}

/// What runtimes are told, and where.
#[derive(Clone, Debug)]
pub struct CniSettings {
    /// `cniVersion`.
    pub version: Version,
    /// Name of the network.
    pub name: String,
    /// Name of the plugin: the last part of `plugin`.
    pub plugin_type: String,
    /// The file to write.
    pub config: PathBuf,
    /// The plugin to install.
    pub plugin: PathBuf,
    /// The plugin's log; `None` for no log.
    pub log_file: Option<PathBuf>,
    /// The store of pod addresses.
    pub ipam_dir: PathBuf,
}

/// The settings that must fit a host, as far as they could be read.
#[derive(Clone, Debug, Default)]
pub struct OfHost {
    /// Where the subnet comes from. After a fault it may lack members of etcd.
    pub source: Option<Source>,
    /// What pods of all hosts get their addresses from.
    pub pools: PerFamily<Pool>,
    /// The bridge.
    pub bridge: Option<IfName>,
}

/// A setting that is wrong: variable, value, what is wrong and what is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The variable.
    pub variable: &'static str,
    /// What it was set to; empty if it was not.
    pub value: String,
    /// What is wrong, and what would be right.
    pub wrong: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.value.is_empty() {
            write!(f, "{} is not set: {}", self.variable, self.wrong)
        } else {
            let value = values::without_secrets(&self.value);
            write!(f, "{}={value}: {}", self.variable, self.wrong)
        }
    }
}

/// The settings that `given` (flags, by variable), `environment` and the defaults make. `look`
/// gives the faults that only the host shows.
///
/// # Errors
/// Every [`Fault`] there is, in the order of [`VARIABLES`].
pub fn read(
    given: &BTreeMap<&'static str, String>,
    environment: &dyn Fn(&str) -> Option<String>,
    look: &dyn Fn(&OfHost) -> Vec<Fault>,
) -> Result<Settings, Vec<Fault>> {
    let mut reader = Reader { given, environment, faults: Vec::new(), of_host: OfHost::default() };
    let settings = reader.settings();
    let mut faults = reader.faults;
    faults.extend(look(&reader.of_host));
    match settings {
        Some(settings) if faults.is_empty() => Ok(settings),
        _ => {
            let position = |fault: &Fault| VARIABLES.iter().position(|v| v.name == fault.variable);
            faults.sort_by_key(position);
            Err(faults)
        }
    }
}

/// The text that holds for a variable: flag, else environment, else default.
pub fn text(
    given: &BTreeMap<&'static str, String>,
    environment: &dyn Fn(&str) -> Option<String>,
    variable: &str,
) -> String {
    let default = || {
        let known = VARIABLES.iter().find(|known| known.name == variable);
        known.map(|known| known.default.to_owned()).unwrap_or_default()
    };
    let set = given.get(variable).cloned().or_else(|| environment(variable));
    set.filter(|value| !value.is_empty()).unwrap_or_else(default)
}

/// Reads one variable after the other and goes on after a fault.
struct Reader<'a> {
    given: &'a BTreeMap<&'static str, String>,
    environment: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<Fault>,
    of_host: OfHost,
}

impl Reader<'_> {
    fn text(&self, variable: &str) -> String {
        text(self.given, self.environment, variable).trim().to_owned()
    }

    fn fault(&mut self, variable: &'static str, wrong: impl Into<String>) {
        let value = self.text(variable);
        self.faults.push(Fault { variable, value, wrong: wrong.into() });
    }

    /// The variable through `parse`; a fault is noted and gives `None`.
    fn value<T>(
        &mut self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(&self.text(variable)) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.fault(variable, wrong);
                None
            }
        }
    }

    /// As [`Reader::value`], but nothing set is nothing wanted.
    fn optional<T>(
        &mut self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Option<T>> {
        self.value(variable, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) })
    }

    fn settings(&mut self) -> Option<Settings> {
        let pools = self.pools();
        let source = self.source(&pools);
        let node_name = self.optional("NODE_NAME", values::node_name);
        let node_addresses = self.node_addresses(&pools);
        let bridge = self.value("BRIDGE_NAME", values::interface);
        self.of_host = OfHost { source: source.clone(), pools, bridge: bridge.clone() };
        let mtu_bytes = self.value("MTU", |text| values::mtu(text, pools.v6.is_some()));
        let backend = self.value("BACKEND", |text| BACKENDS.read(text));
        let vxlan = self.vxlan();
        let masquerade = self.value("IP_MASQ", values::boolean);
        let non_masquerade =
            self.value("NON_MASQ_CIDRS", |text| values::list(text, values::subnet));
        let manage_forward = self.value("MANAGE_FORWARD", values::boolean);
        let flowtable = self.value("FLOWTABLE", values::boolean);
        let manage_sysctl = self.value("MANAGE_SYSCTL", values::boolean);
        let cni = self.cni();
        let socket = self.value("SOCKET", values::path_or_none);
        let metrics = self.optional("METRICS_ADDR", values::loopback);
        let state_dir = self.value("STATE_DIR", values::absolute);
        let seconds = Duration::from_secs(1)..=Duration::from_secs(3600);
        let resync = self.value("RESYNC_INTERVAL", |text| values::duration(text, seconds));
        let probe = self.value("PROBE_INTERVAL", values::interval_or_none);
        let cleanup_on_stop = self.value("CLEANUP_ON_STOP", values::boolean);
        Some(Settings {
            source: source?,
            pools,
            node_name: node_name?,
            node_addresses,
            bridge: bridge?,
            mtu_bytes: mtu_bytes?,
            backend: backend?,
            vxlan: vxlan?,
            masquerade: masquerade?,
            non_masquerade: non_masquerade?,
            manage_forward: manage_forward?,
            flowtable: flowtable?,
            manage_sysctl: manage_sysctl?,
            cni: cni?,
            socket: socket?,
            metrics: metrics?,
            state_dir: state_dir?,
            resync: resync?,
            probe: probe?,
            cleanup_on_stop: cleanup_on_stop?,
        })
    }

    fn vxlan(&mut self) -> Option<Vxlan> {
        let vni = self.value("VXLAN_VNI", values::vni);
        let port = self.value("VXLAN_PORT", values::port);
        Some(Vxlan { vni: vni?, port: port? })
    }

    fn pools(&mut self) -> PerFamily<Pool> {
        let v4 = self.pool(Family::V4, "IP_SUBNET", "IP_SUBNET_MARGIN");
        let v6 = self.pool(Family::V6, "IPV6_SUBNET", "IPV6_SUBNET_MARGIN");
        if v4 == Some(None) && v6 == Some(None) {
            self.fault("IP_SUBNET", "no pool is left; set IPV6_SUBNET or give IP_SUBNET a subnet");
        }
        PerFamily { v4: v4.flatten(), v6: v6.flatten() }
    }

    /// `None` after a fault, `Some(None)` if the family is not wanted.
    fn pool(
        &mut self,
        family: Family,
        variable: &'static str,
        margin: &'static str,
    ) -> Option<Option<Pool>> {
        let bits = self.value(margin, values::margin);
        if matches!(self.text(variable).as_str(), "" | "none") {
            return Some(None);
        }
        let network = self.value(variable, |text| values::subnet_of(text, family))?;
        match Pool::new(network, bits?) {
            Ok(pool) => Some(Some(pool)),
            Err(error) => {
                self.fault(margin, error.to_string());
                None
            }
        }
    }

    fn node_addresses(&mut self, pools: &PerFamily<Pool>) -> PerFamily<IpAddr> {
        let Some(addresses) = self.value("NODE_IP", values::address_per_family) else {
            return PerFamily::default();
        };
        for (family, address) in addresses.entries() {
            let inside = pools.get(family).filter(|pool| pool.network().contains(*address));
            if let Some(pool) = inside {
                let pool = pool.network();
                self.fault("NODE_IP", format!("{address} lies inside the pod pool {pool}"));
            }
        }
        addresses
    }

    fn source(&mut self, pools: &PerFamily<Pool>) -> Option<Source> {
        match self.value("SUBNET_SOURCE", |text| SOURCES.read(text))? {
            Giver::Etcd => self.etcd(),
            Giver::Kubernetes => self.kubernetes().map(Source::Kubernetes),
            Giver::Operator => self.fixed(pools).map(Source::Static),
        }
    }

    fn kubernetes(&mut self) -> Option<KubeSettings> {
        let kubeconfig = self.optional("KUBECONFIG", values::absolute);
        let api = self.optional("KUBE_API", Server::parse);
        Some(KubeSettings { kubeconfig: kubeconfig?, api: api? })
    }

    fn etcd(&mut self) -> Option<Source> {
        if self.text("ETCD_HOST").is_empty() {
            self.fault("ETCD_HOST", "name the etcd members (host, host:port or URL), or serve this host alone with --standalone");
        }
        let endpoints = self.value("ETCD_HOST", values::endpoints);
        let cacert = self.optional("ETCD_CACERT", values::absolute);
        let cert = self.optional("ETCD_CERT", values::absolute);
        let key = self.optional("ETCD_KEY", values::absolute);
        let is_set = |variable: &&&str| !self.text(variable).is_empty();
        if let Some(file) = ["ETCD_CACERT", "ETCD_CERT", "ETCD_KEY"].iter().find(is_set) {
            self.refuse_plain(endpoints.as_deref().unwrap_or_default(), file);
        }
        self.needs("ETCD_CERT", "ETCD_KEY", "its key");
        self.needs("ETCD_KEY", "ETCD_CERT", "its certificate");
        let user = self.optional("ETCD_USER", |text| Ok(text.to_owned()));
        let password_file = self.optional("ETCD_PASSWORD_FILE", values::absolute);
        self.needs("ETCD_USER", "ETCD_PASSWORD_FILE", "the file with its password");
        self.needs("ETCD_PASSWORD_FILE", "ETCD_USER", "the name of the user");
        let bounds = Duration::from_secs(1)..=Duration::from_secs(60);
        let timeout = self.value("ETCD_TIMEOUT", |text| values::duration(text, bounds));
        let roots = self.roots();
        let server = EtcdSettings {
            // After a fault nobody connects, but the files can be looked at.
            endpoints: endpoints.unwrap_or_default(),
            ca: cacert?,
            cert: cert?,
            key: key?,
            user: user?,
            password_file: password_file?,
            timeout: timeout?,
        };
        Some(Source::Etcd { server, roots: roots? })
    }

    /// Who names a file for TLS, `file`, wants no connection without it.
    fn refuse_plain(&mut self, endpoints: &[String], file: &str) {
        if let Some(plain) = endpoints.iter().find(|endpoint| !endpoint.starts_with("https://")) {
            let host = plain.trim_start_matches("http://");
            let wrong = format!(
                "{file} is set, but the connection to {plain} would not be encrypted: write \
                 https://{host}"
            );
            self.fault("ETCD_HOST", wrong);
        }
    }

    /// `variable` is worth nothing without `other`, which is `what`.
    fn needs(&mut self, variable: &str, other: &'static str, what: &str) {
        if !self.text(variable).is_empty() && self.text(other).is_empty() {
            self.fault(other, format!("{variable} is set, so {what} is needed too"));
        }
    }

    fn roots(&mut self) -> Option<Roots> {
        let hosts = self.value("ETCD_PREFIX", values::key);
        let counter = self.value("ETCD_COUNTER_KEY", values::key);
        let humanz = self.value("HUMANZ_PREFIX", values::key);
        let (hosts, counter, humanz) = (hosts?, counter?, humanz?);
        let below = |key: &str, prefix: &str| key.starts_with(prefix);
        if below(&humanz, &hosts) || below(&hosts, &humanz) {
            self.fault(
                "HUMANZ_PREFIX",
                format!("{humanz} and ETCD_PREFIX {hosts} must not begin with each other"),
            );
        }
        for prefix in [&hosts, &humanz] {
            if below(&counter, prefix) {
                self.fault("ETCD_COUNTER_KEY", format!("must not begin with the prefix {prefix}"));
            }
        }
        Some(Roots { hosts, counter, humanz })
    }

    fn fixed(&mut self, pools: &PerFamily<Pool>) -> Option<PerFamily<IpNetwork>> {
        let mut subnets = self.value("SUBNET", values::subnet_per_family)?;
        for family in Family::BOTH {
            match (subnets.get(family), pools.get(family)) {
                (None, Some(pool)) => subnets.set(family, Some(pool.subnet(1))),
                (Some(subnet), Some(pool)) if !subnet::contains(pool.network(), *subnet) => {
                    let pool = pool.network();
                    self.fault("SUBNET", format!("{subnet} lies outside the pool {pool}"));
                }
                (Some(subnet), None) => {
                    self.fault(
                        "SUBNET",
                        format!("{subnet} is {family}, but there is no {family} pool"),
                    );
                }
                _ => {}
            }
        }
        Some(subnets)
    }

    fn cni(&mut self) -> Option<CniSettings> {
        let version = self.value("CNI_VERSION", |text| CNI_VERSIONS.read(text));
        let name = self.value("CNI_NAME", values::cni_name);
        let plugin_type = self.value("CNI_TYPE", values::plugin_type);
        let config = self.value("CNI_CONFIG_LOCATION", values::config_file);
        let plugin = self.plugin(plugin_type.as_deref());
        let log_file = self.value("PLUGIN_LOG_FILE", values::path_or_none);
        let ipam_dir = self.value("IPAM_DIR", values::absolute);
        Some(CniSettings {
            version: version?,
            name: name?,
            plugin_type: plugin_type?,
            config: config?,
            plugin: plugin?,
            log_file: log_file?,
            ipam_dir: ipam_dir?,
        })
    }

    /// `plugin_type`: `None` after a fault, which is not told of the place as well.
    fn plugin(&mut self, plugin_type: Option<&str>) -> Option<PathBuf> {
        if self.text("CNI_PLUGIN_LOCATION").is_empty() {
            return Some(PathBuf::from("/opt/cni/bin").join(plugin_type?));
        }
        let path = self.value("CNI_PLUGIN_LOCATION", values::absolute)?;
        let plugin_type = plugin_type?;
        if path.file_name().and_then(|name| name.to_str()) != Some(plugin_type) {
            let wrong = format!(
                "the last part must be CNI_TYPE ({plugin_type}), the name that runtimes look for"
            );
            self.fault("CNI_PLUGIN_LOCATION", wrong);
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests;
