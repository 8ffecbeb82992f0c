//! Pure. Parses the texts of all settings and reports every invalid one at once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::cni::config::GuardConf;
use crate::kube::KubeSettings;
use crate::lease::records::Vxlan;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, Object, PerFamily, Problem};
use crate::policy::ObjectSource;
use crate::settings::choices::{
    AGENT_DOWN, BACKENDS, CNI_VERSIONS, ENCRYPTIONS, FLOWS, GUARDS, OBJECTS, POLICIES,
    PolicyChoice, ROUTINGS,
};
use crate::settings::flags::VARIABLES;
use crate::settings::values;
use crate::settings::{
    CniSettings, EncryptionSettings, HostSettings, PLUGINS, PolicySettings, Settings, invalid,
};

/// The text of settings by variable.
pub type Texts = BTreeMap<&'static str, String>;

/// The settings that do not fit this host: its files, its links and its addresses.
pub type HostCheck = fn(&HostSettings) -> Vec<Problem>;

/// The [`HostCheck`] for values alone.
pub fn values_only(_: &HostSettings) -> Vec<Problem> {
    Vec::new()
}

/// The settings in `texts`; a missing or empty text means the default.
///
/// # Errors
/// Every invalid setting, in the order of [`VARIABLES`].
pub fn parse(texts: &Texts, host: HostCheck) -> Result<Settings, Vec<Problem>> {
    let mut parser = Parser { texts, faults: Vec::new(), of_host: HostSettings::default() };
    let settings = parser.settings();
    let mut faults = parser.faults;
    faults.extend(host(&parser.of_host));
    match settings {
        Some(settings) if faults.is_empty() => Ok(settings),
        _ => {
            let position = |fault: &Problem| match fault.subject {
                Object::Setting(variable, _) => VARIABLES.iter().position(|v| v.name == variable),
                _ => None,
            };
            faults.sort_by_key(position);
            Err(faults)
        }
    }
}

/// Parses one variable after the other and continues after an invalid one.
pub(super) struct Parser<'a> {
    texts: &'a Texts,
    faults: Vec<Problem>,
    of_host: HostSettings,
}

impl Parser<'_> {
    pub(super) fn text(&self, variable: &str) -> String {
        let set = self.texts.get(variable).filter(|text| !text.is_empty()).cloned();
        let default = || {
            VARIABLES
                .iter()
                .find(|known| known.name == variable)
                .map(|known| known.default.to_owned())
        };
        set.or_else(default).unwrap_or_default().trim().to_owned()
    }

    pub(super) fn fault(&mut self, variable: &'static str, why: impl fmt::Display) {
        let fault = invalid(variable, &self.text(variable), why);
        self.faults.push(fault);
    }

    /// The parsed variable; an invalid one is recorded and gives `None`.
    pub(super) fn value<T>(
        &mut self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        match parse(&self.text(variable)) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.fault(variable, problem);
                None
            }
        }
    }

    /// As [`Parser::value`]; `Some(None)` if the variable is empty.
    pub(super) fn optional<T>(
        &mut self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Option<T>> {
        self.value(variable, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) })
    }

    fn settings(&mut self) -> Option<Settings> {
        let pools = self.pools();
        let limits = self.limits(&pools);
        let source = self.source(&pools);
        let node_name = self.optional("NODE_NAME", values::node_name);
        let node_addresses = self.node_addresses(&pools);
        let bridge = self.value("BRIDGE_NAME", values::interface);
        let encrypts = ENCRYPTIONS.read(&self.text("ENCRYPTION")) == Ok(true);
        let bridge_name = bridge.clone();
        self.of_host = HostSettings {
            source: source.clone(),
            pools,
            bridge: bridge_name,
            encrypts,
            psk_file: None,
            policy_api: None,
            has_policies: false,
            state_dir: PathBuf::from(&*self.text("STATE_DIR")),
        };
        let mtu_bytes = self.value("MTU", |text| values::mtu(text, pools.v6.is_some()));
        let backend = self.value("BACKEND", |text| BACKENDS.read(text));
        let vxlan = self.vxlan();
        let masquerade = self.value("IP_MASQ", values::boolean);
        let non_masquerade =
            self.value("NON_MASQ_CIDRS", |text| values::list(text, values::subnet));
        let manage_forward = self.value("MANAGE_FORWARD", values::boolean);
        let flowtable = self.value("FLOWTABLE", values::boolean);
        let encryption = self.encryption(vxlan, flowtable);
        let psk_file = self.psk_file(encrypts);
        let guard = self.guard();
        let policy = self.policy(guard.as_ref(), flowtable);
        let manage_sysctl = self.value("MANAGE_SYSCTL", values::boolean);
        let cni = self.cni();
        let socket = self.value("SOCKET", values::path_or_none);
        let metrics = self.optional("METRICS_ADDR", values::loopback);
        let state_dir = self.value("STATE_DIR", values::absolute);
        let seconds = Duration::from_secs(1)..=Duration::from_secs(3600);
        let resync = self.value("RESYNC_INTERVAL", |text| values::duration(text, seconds));
        let seconds = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
        let release = self.value("BLOCK_RELEASE_AFTER", |text| values::duration(text, seconds));
        let probe = self.value("PROBE_INTERVAL", values::interval_or_none);
        let cleanup_on_stop = self.value("CLEANUP_ON_STOP", values::boolean);
        Some(Settings {
            source: source?,
            pools,
            limits,
            node_name: node_name?,
            node_addresses,
            bridge: bridge?,
            mtu_bytes: mtu_bytes?,
            backend: backend?,
            vxlan: vxlan?,
            encryption: encryption?,
            psk_file: psk_file?,
            masquerade: masquerade?,
            non_masquerade: non_masquerade?,
            manage_forward: manage_forward?,
            flowtable: flowtable?,
            guard: guard?,
            policy: policy?,
            manage_sysctl: manage_sysctl?,
            cni: cni?,
            socket: socket?,
            metrics: metrics?,
            state_dir: state_dir?,
            resync: resync?,
            block_release_after: release?,
            probe: probe?,
            cleanup_on_stop: cleanup_on_stop?,
            agentless: false,
        })
    }

    fn guard(&mut self) -> Option<GuardConf> {
        let is_on = self.value("POD_GUARD", |text| GUARDS.read(text));
        let routes = self.value("POD_ROUTING", |text| ROUTINGS.read(text));
        let allowed = self.value("ALLOWED_ADDRESSES", |text| values::list(text, values::subnet));
        Some(GuardConf { is_on: is_on?, routes: routes?, allowed: allowed? })
    }

    /// What goes past the forward hook cannot be judged there.
    fn policy(
        &mut self,
        guard: Option<&GuardConf>,
        flowtable: Option<bool>,
    ) -> Option<Option<PolicySettings>> {
        let choice = self.value("POLICY", |text| POLICIES.read(text));
        let objects = self.value("POLICY_OBJECTS", |text| OBJECTS.read(text));
        let file = self.optional("POLICY_FILE", values::absolute);
        let group = self.optional("POLICY_GROUP", values::group);
        let on_agent_down = self.value("POLICY_ON_AGENT_DOWN", |text| AGENT_DOWN.read(text));
        let mark = self.value("POLICY_MARK", values::mark_bits);
        let flows = self.value("FLOWS", |text| FLOWS.read(text));
        let (objects, file, group) = (objects?, file?, group?);
        let (on_agent_down, mark, flows) = (on_agent_down?, mark?, flows?);
        let choice = choice?;
        if choice == PolicyChoice::Off {
            return Some(None);
        }
        let api = self.policy_api(choice, file.is_some())?;
        self.of_host.policy_api.clone_from(&api);
        self.of_host.has_policies = true;
        let objects = self.policy_objects(choice, objects);
        self.past_policies(guard, flowtable);
        Some(Some(PolicySettings { api, objects, file, group, on_agent_down, mark, flows }))
    }

    /// Where there is one place for them, that is it.
    fn policy_objects(&mut self, choice: PolicyChoice, asked: ObjectSource) -> ObjectSource {
        let is_of_api = self.text("SUBNET_SOURCE") == "kubernetes";
        if is_of_api {
            return ObjectSource::Kubernetes;
        }
        if asked == ObjectSource::Kubernetes && choice != PolicyChoice::Kubernetes {
            let why =
                "objects of the Kubernetes API need POLICY=kubernetes: nothing else reads that";
            self.fault("POLICY_OBJECTS", why);
        }
        asked
    }

    /// The API that policies come from beside the source of subnets.
    fn policy_api(&mut self, choice: PolicyChoice, has_file: bool) -> Option<Option<KubeSettings>> {
        match (self.text("SUBNET_SOURCE").as_ref(), choice, has_file) {
            ("etcd", PolicyChoice::Kubernetes, _) => return self.kubernetes().map(Some),
            ("static", PolicyChoice::Kubernetes, _) => {
                let why = "with SUBNET_SOURCE=static nothing says which pods other hosts have: set that to etcd \
                           or kubernetes, or this to on, with a file of policies (POLICY_FILE)";
                self.fault("POLICY", why);
            }
            ("static", _, false) => {
                let why = "with SUBNET_SOURCE=static POLICY=on needs a file of policies: there is \
                           nothing else to take them from";
                self.fault("POLICY_FILE", why);
            }
            ("kubernetes", _, true) => {
                let why = "with SUBNET_SOURCE=kubernetes policies come from the API alone: create \
                           them there, and leave this empty";
                self.fault("POLICY_FILE", why);
            }
            _ => {}
        }
        Some(None)
    }

    /// Settings with which packets would pass by policies.
    fn past_policies(&mut self, guard: Option<&GuardConf>, flowtable: Option<bool>) {
        if guard.is_some_and(|guard| !guard.is_on || !guard.routes) {
            let variable =
                if self.text("POD_ROUTING") == "host" { "POD_GUARD" } else { "POD_ROUTING" };
            let why = "POLICY=on needs POD_GUARD=on and POD_ROUTING=host: pods of this host would \
                       reach each other by the bridge, past every policy";
            self.fault(variable, why);
        }
        let sources = guard.iter().flat_map(|guard| &guard.allowed);
        if sources.filter(|network| !network.ip().is_multicast()).count() > 0 {
            let why = "with POLICY=on pods send from their own addresses only: policies know a pod by \
                       them, and would not judge what comes from others; multicast groups may stay";
            self.fault("ALLOWED_ADDRESSES", why);
        }
        if flowtable == Some(true) {
            let why = "POLICY=on needs FLOWTABLE=false: what a policy takes away would still reach \
                       connections that pass by the forward chains";
            self.fault("FLOWTABLE", why);
        }
    }

    /// Only etcd has a place for the keys of hosts.
    fn encryption(
        &mut self,
        vxlan: Option<Vxlan>,
        flowtable: Option<bool>,
    ) -> Option<Option<EncryptionSettings>> {
        let is_on = self.value("ENCRYPTION", |text| ENCRYPTIONS.read(text));
        let strict = self.value("ENCRYPTION_STRICT", values::boolean);
        let port = self.value("ENCRYPTION_PORT", values::port);
        let rotate = self.value("ENCRYPTION_ROTATE", values::key_age);
        if !is_on? {
            return Some(None);
        }
        let source = self.text("SUBNET_SOURCE");
        if source != "etcd" {
            let why = format!(
                "hosts learn each other's keys from etcd, and SUBNET_SOURCE is {source}: set it to \
                 etcd, or this to off"
            );
            self.fault("ENCRYPTION", why);
        }
        if flowtable == Some(true) {
            let why = "ENCRYPTION=wireguard needs FLOWTABLE=false: what goes past the chains of the \
                       firewall would go past the rule that keeps clear text in";
            self.fault("FLOWTABLE", why);
        }
        if vxlan.is_some_and(|vxlan| Some(vxlan.port) == port) {
            self.fault("ENCRYPTION_PORT", "VXLAN_PORT is the same: a port has one owner");
        }
        let set = EncryptionSettings { port: port?, strict: strict?, rotate: rotate? };
        if vxlan.is_some_and(|vxlan| vxlan.port == set.rotation_port()) {
            let why = "the port after it is VXLAN_PORT, and needed while a host changes its key";
            self.fault("ENCRYPTION_PORT", why);
        }
        Some(Some(set))
    }

    /// As the other settings of encryption it may be there while that is off.
    fn psk_file(&mut self, encrypts: bool) -> Option<Option<PathBuf>> {
        let file = self.optional("ENCRYPTION_PSK_FILE", values::absolute)?.filter(|_| encrypts);
        self.of_host.psk_file.clone_from(&file);
        Some(file)
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

    fn limits(&mut self, pools: &PerFamily<Pool>) -> PerFamily<IpNetwork> {
        let v4 = self.limit(Family::V4, "IP_SUBNET_LIMIT", pools);
        let v6 = self.limit(Family::V6, "IPV6_SUBNET_LIMIT", pools);
        PerFamily { v4, v6 }
    }

    /// The pool itself unless there is another limit.
    fn limit(
        &mut self,
        family: Family,
        variable: &'static str,
        pools: &PerFamily<Pool>,
    ) -> Option<IpNetwork> {
        let pool = pools.get(family).map(|pool| pool.network());
        if self.text(variable).is_empty() {
            return pool;
        }
        let limit = self.value(variable, |text| values::subnet_of(text, family))?;
        if let Some(pool) = pool.filter(|pool| !subnet::contains(limit, *pool)) {
            self.fault(variable, format!("it must contain the pool {pool}"));
        }
        Some(limit)
    }

    /// `None` if invalid, `Some(None)` if the family is not in use.
    fn pool(
        &mut self,
        family: Family,
        variable: &'static str,
        margin: &'static str,
    ) -> Option<Option<Pool>> {
        let bits = self.value(margin, values::margin);
        if let Some(pool) = self.pool_of_one(family, variable) {
            return Some(Some(pool));
        }
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

    /// `plugin_type`: `None` if it is invalid; then the location is not reported as well.
    fn plugin(&mut self, plugin_type: Option<&str>) -> Option<PathBuf> {
        if self.text("CNI_PLUGIN_LOCATION").is_empty() {
            return Some(PathBuf::from(PLUGINS).join(plugin_type?));
        }
        let path = self.value("CNI_PLUGIN_LOCATION", values::absolute)?;
        let plugin_type = plugin_type?;
        if path.file_name().and_then(|name| name.to_str()) != Some(plugin_type) {
            let problem = format!(
                "the last part must be CNI_TYPE ({plugin_type}), the name that runtimes look for"
            );
            self.fault("CNI_PLUGIN_LOCATION", problem);
        }
        Some(path)
    }
}
