//! Pure. The plugin's configuration: what the runtime writes to stdin.
//!
//! Keys match in any case and null is absent, as in the runtimes' JSON library. Unknown keys are
//! ignored; the values of known ones must be valid, and all errors are reported at once.

mod document;
mod guard;
mod policy;
mod range;
mod reserved;
mod runtime;
mod vlans;

use std::collections::BTreeSet;
use std::path::PathBuf;

use ipnetwork::IpNetwork;
use serde_json::Value;

pub use document::MAX_BYTES;
pub use guard::GuardConf;
pub use policy::AgentDown;
pub use range::RangeConf;
pub use runtime::RuntimeConfig;
pub use vlans::VlanConf;

use crate::cni::attachment::{self, Attachment};
use crate::cni::bandwidth::{self, Bandwidth};
use crate::cni::config::vlans::Beside;
use crate::cni::dns::Dns;
use crate::cni::env::Verb;
use crate::cni::error::RefusedRequest;
use crate::cni::json::{FieldError, FieldErrors, JsonField};
use crate::cni::name::Name;
use crate::cni::requested::RequestedAddresses;
use crate::cni::result::CniResult;
use crate::cni::route::CniRoute;
use crate::cni::tuning::Tuning;
use crate::cni::version::Version;
use crate::cni::words::Words;
use crate::net::{Family, IfName, Mac, ReservedPort};

/// A network's configuration with what the runtime added for one call.
#[derive(Clone, Debug, PartialEq)]
pub struct NetConf {
    /// `cniVersion`, also of the reply.
    pub version: Version,
    pub name: Name,
    pub bridge: IfName,
    /// `createBridge`: create a missing bridge. False in the agent's configuration.
    pub create_bridge: bool,
    /// `delegated`: pods may be in the networks of tenants that the agent knows.
    pub delegated: bool,
    /// `network`: the pod networks of all hosts, to which nothing is masqueraded.
    pub network: Vec<IpNetwork>,
    /// `mtu`, bytes: absent, the bridge's. (That of pods is in `tuning`.)
    pub mtu: Option<u32>,
    /// `hairpinMode`: a pod may reach itself through a service.
    pub hairpin_mode: bool,
    /// `portIsolation`: the bridge forwards nothing between pods of this host.
    pub port_isolation: bool,
    /// `macspoofchk`: the bridge drops frames from foreign MACs.
    pub mac_spoof_check: bool,
    /// `vlan`, `vlanTrunk`, `preserveDefaultVlan`.
    pub vlans: VlanConf,
    /// What pods may send.
    pub guard: GuardConf,
    /// `policy`; `None`: the network has no policies.
    pub policy: Option<AgentDown>,
    /// `reservedPorts`: ports of the host that lead to no pod.
    pub reserved_ports: Vec<ReservedPort>,
    /// `isGateway`: the bridge has the gateways' addresses.
    pub is_gateway: bool,
    /// `isDefaultGateway`: pods get a default route for each family, unless `routes` has one.
    pub is_default_gateway: bool,
    /// `ipMasq`: packets to destinations outside `network` and the pods' subnet are masqueraded.
    pub ip_masq: bool,
    /// Range sets; a pod gets one address from each.
    pub ranges: Vec<Vec<RangeConf>>,
    pub routes: Vec<CniRoute>,
    /// `dns`, for the result; the runtime's takes precedence over the network's.
    pub dns: Dns,
    /// `dataDir`: the parent of the stores of all networks.
    pub data_dir: PathBuf,
    /// `logFile`; none for the empty text.
    pub log_file: Option<PathBuf>,
    /// `ingressRate` … `egressBurst`; if the configuration has none of them, the runtime's `bandwidth`.
    pub bandwidth: Bandwidth,
    /// `args.cni` takes precedence over the configuration.
    pub tuning: Tuning,
    /// `mac`: the MAC of pods that request no other.
    pub mac: Option<Mac>,
    /// `args.cni`.
    pub args: RequestedAddresses,
    /// Labels in `args.cni`.
    pub labels: Words,
    /// `runtimeConfig`.
    pub runtime: RuntimeConfig,
    /// `prevResult`.
    pub prev_result: Option<CniResult>,
    /// `cni.dev/valid-attachments`; `None` if absent.
    pub valid_attachments: Option<BTreeSet<Attachment>>,
}

impl NetConf {
    /// The interface of the host that has the gateways' addresses.
    pub fn gateway_device(&self) -> &IfName {
        self.vlans.gateway.as_ref().unwrap_or(&self.bridge)
    }

    /// Reads the bytes from stdin (at most [`MAX_BYTES`]) for `command`. An invalid value gets its
    /// default and is listed: the caller decides whether it matters.
    ///
    /// # Errors
    /// Code 6: not a JSON object, or an invalid `cniVersion`. Code 1: an unsupported version, or one
    /// without `command`. Code 7: an invalid `name`.
    pub fn parse(
        stdin: &[u8],
        command: Verb,
    ) -> Result<(NetConf, Vec<FieldError>), RefusedRequest> {
        let latest = |error| RefusedRequest { version: Version::LATEST, error };
        let document = document::parse(stdin).map_err(latest)?;
        let version = document::version(&document, command).map_err(latest)?;
        let refused = |error| RefusedRequest { version, error };
        document::serves(version, command).map_err(refused)?;
        let name = document::name(&document).map_err(refused)?;
        let faults = FieldErrors::default();
        let conf = NetConf::read(&JsonField::root(&document, &faults), version, name);
        Ok((conf, faults.into_vec()))
    }

    fn read(conf: &JsonField, version: Version, name: Name) -> NetConf {
        let flag = |key: &str| conf.get(key).and_then(|flag| flag.bool());
        let ipam = ipam(conf);
        let either = |key: &str| {
            let in_ipam = ipam.as_ref().and_then(|ipam| ipam.get(key));
            in_ipam.or_else(|| conf.get(key))
        };
        refuse_unsupported_keys(conf, ipam.as_ref());
        let is_gateway = flag("isGateway");
        let is_default_gateway = flag("isDefaultGateway").or(is_gateway).unwrap_or(true);
        let ranges = range::sets(conf, ipam.as_ref());
        if version < Version::V030 {
            refuse_second_address(conf, &ranges, version);
        }
        let routes = either("routes").and_then(|routes| {
            routes.list("routes {dst, gw}", |route| CniRoute::read_configured(&route))
        });
        let runtime = conf.object("runtimeConfig").map(|runtime| RuntimeConfig::read(&runtime));
        let runtime = runtime.unwrap_or_default();
        let dns = conf.object("dns").map(|dns| Dns::read(&dns)).unwrap_or_default();
        let args = conf.object("args").and_then(|args| args.object("cni"));
        let prev_result = conf.get("prevResult");
        let mtu = mtu(conf, &ranges);
        let of_args = |args| Tuning::read(args, crate::cni::config::mtu(args, &ranges));
        let tuned = args.as_ref().map(of_args).unwrap_or_default();
        let tuning = tuned.or(Tuning::read(conf, mtu));
        let bridge = conf.get("bridge").and_then(|name| name.parsed()).unwrap_or_else(bridge);
        let create_bridge = flag("createBridge").unwrap_or(true);
        let is_gateway = is_default_gateway || is_gateway.unwrap_or(false);
        let (guard, policy) = (GuardConf::read(conf), policy::read(conf));
        let beside = Beside {
            bridge: &bridge,
            create_bridge,
            is_gateway,
            has_policy: policy.is_some(),
            has_host_ports: !runtime.port_mappings.is_empty(),
            is_guarded: guard.is_on,
        };
        NetConf {
            version,
            name,
            vlans: VlanConf::read(conf, &beside),
            bridge,
            create_bridge,
            delegated: flag("delegated").unwrap_or(true),
            mtu,
            network: conf.get("network").and_then(|field| networks(&field)).unwrap_or_default(),
            hairpin_mode: flag("hairpinMode").unwrap_or(true),
            port_isolation: flag("portIsolation").unwrap_or(false),
            mac_spoof_check: flag("macspoofchk").unwrap_or(false),
            guard,
            policy,
            reserved_ports: reserved::read(conf),
            is_gateway,
            is_default_gateway,
            ip_masq: flag("ipMasq").unwrap_or(false),
            ranges,
            routes: routes.unwrap_or_default(),
            dns: if runtime.dns.is_empty() { dns } else { runtime.dns.clone() },
            data_dir: either("dataDir").and_then(path).unwrap_or_else(|| DATA_DIR.into()),
            log_file: log_file(conf),
            bandwidth: match bandwidth::is_set(conf) {
                true => Bandwidth::read(conf),
                false => runtime.bandwidth,
            },
            tuning,
            mac: conf.get("mac").and_then(|mac| mac.parsed()),
            labels: args.as_ref().map(Words::labels).unwrap_or_default(),
            args: args.map(|args| RequestedAddresses::read(&args)).unwrap_or_default(),
            runtime,
            prev_result: prev_result.and_then(|result| CniResult::read(&result, version)),
            valid_attachments: attachment::read_valid(conf),
        }
    }
}

/// `dataDir` by default: it does not survive a reboot, nor do the interfaces of the addresses.
pub const DATA_DIR: &str = "/run/humanz/ipam";

/// `logFile` by default.
pub const LOG_FILE: &str = "/var/log/humanz.log";

/// `bridge` by default.
fn bridge() -> IfName {
    "humanz0".parse().expect("it is a name")
}

/// The object `ipam`, for configurations of `bridge` with `host-local`.
fn ipam<'a>(conf: &JsonField<'a>) -> Option<JsonField<'a>> {
    let ipam = conf.object("ipam")?;
    if let Some(kind) = ipam.get("type") {
        let name = kind.text();
        if name.is_some_and(|name| name != "host-local") {
            return kind.refuse(
                "\"host-local\": humanz allocates addresses itself and runs no other plugin",
            );
        }
    }
    Some(ipam)
}

/// Refuses known keys of features that humanz does not have. If they were ignored, a pod would be
/// less isolated than its owner believes, or would not work.
fn refuse_unsupported_keys(conf: &JsonField, ipam: Option<&JsonField>) {
    let keys = [
        ("disableContainerInterface", "humanz sets every interface up"),
        ("forceAddress", "humanz removes no address of a bridge; remove it by hand"),
    ];
    let refuse = |field: &JsonField, instead: &str| {
        if !is_off(field.value()) {
            field.unsupported(instead);
        }
    };
    for (key, instead) in keys {
        conf.get(key).into_iter().for_each(|field| refuse(&field, instead));
    }
    let file = ipam.and_then(|ipam| ipam.get("resolvConf"));
    file.into_iter().for_each(|field| refuse(&field, "write nameservers and domains into dns"));
    // promiscMode alone is ignored: hairpinMode replaces it.
    let on = |key: &str| conf.get(key).is_some_and(|flag| flag.value() == &Value::Bool(true));
    if on("promiscMode") && on("hairpinMode") {
        conf.fault_at("promiscMode", "cannot be used together with hairpinMode; drop it");
    }
}

/// The value turns the feature off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// A result before 0.3.0 can have one address of each family.
fn refuse_second_address(conf: &JsonField, ranges: &[Vec<RangeConf>], version: Version) {
    for family in Family::BOTH {
        let count = sets_of(ranges, family);
        if count > 1 {
            let text = format!("{count} sets are {family}, and CNI {version} has one address each");
            conf.fault_at("ranges", text);
        }
    }
}

/// The number of range sets of `family`.
fn sets_of(ranges: &[Vec<RangeConf>], family: Family) -> usize {
    let of = |range: &RangeConf| Family::of(range.subnet.ip()) == family;
    ranges.iter().filter(|set| set.first().is_some_and(of)).count()
}

/// `mtu`: 0 is absent. The least is the minimum of the family.
///
/// Source: RFC 791 §3.2 (68 bytes), RFC 8200 §5 (1280 bytes).
fn mtu(conf: &JsonField, ranges: &[Vec<RangeConf>]) -> Option<u32> {
    let field = conf.get("mtu")?;
    if field.value().as_u64() == Some(0) {
        return None;
    }
    let least = if sets_of(ranges, Family::V6) > 0 { 1280 } else { 68 };
    let mtu = field.value().as_u64().and_then(|mtu| u32::try_from(mtu).ok());
    mtu.filter(|mtu| (least..=65535).contains(mtu))
        .or_else(|| field.refuse(&format!("0 (the bridge's) or {least} to 65535 bytes")))
}

/// One subnet, or a list of them.
fn networks(field: &JsonField) -> Option<Vec<IpNetwork>> {
    if field.value().is_array() {
        field.list("subnets", |member| member.network())
    } else {
        Some(vec![field.network()?])
    }
}

fn log_file(conf: &JsonField) -> Option<PathBuf> {
    match conf.get("logFile") {
        Some(field) => path(field),
        None => Some(LOG_FILE.into()),
    }
}

/// An absolute path; `None` if the text is empty.
fn path(field: JsonField) -> Option<PathBuf> {
    let text = field.filled()?;
    if text.starts_with('/') && !text.contains('\0') {
        return Some(text.into());
    }
    field.refuse("an absolute path")
}

#[cfg(test)]
mod tests;
