//! Pure. From the keys of the configuration to its values.

use std::path::PathBuf;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::cni::attachment;
use crate::cni::bandwidth::{self, Bandwidth};
use crate::cni::config::vlans::Beside;
use crate::cni::config::{
    DATA_DIR, GuardConf, LOG_FILE, NetConf, RangeConf, RuntimeConfig, VlanConf, document, policy,
    range, reserved,
};
use crate::cni::dns::Dns;
use crate::cni::env::Verb;
use crate::cni::error::{CniError, RefusedRequest};
use crate::cni::json::{self, FieldError, FieldErrors, JsonField};
use crate::cni::name::Name;
use crate::cni::requested::RequestedAddresses;
use crate::cni::result::CniResult;
use crate::cni::route::CniRoute;
use crate::cni::tuning::Tuning;
use crate::cni::version::Version;
use crate::cni::words::Words;
use crate::net::{Family, IfName};

impl NetConf {
    /// Reads the bytes from stdin (at most [`document::MAX_BYTES`]) for `command`. An invalid value gets its
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
        let conf = read(&JsonField::root(&document, &faults), version, name);
        Ok((conf, faults.into_vec()))
    }

    /// The configuration that an ADD would be called with.
    ///
    /// # Errors
    /// Why an ADD refuses it.
    pub fn sound(stdin: &[u8]) -> Result<NetConf, CniError> {
        let (conf, faults) = NetConf::parse(stdin, Verb::Add).map_err(|refused| refused.error)?;
        if faults.is_empty() { Ok(conf) } else { Err(json::error(&faults)) }
    }
}

/// The configuration in `conf`; what is invalid gets its default, and is recorded there.
fn read(conf: &JsonField, version: Version, name: Name) -> NetConf {
    let keys = Keys { conf, ipam: ipam(conf) };
    refuse_unsupported_keys(conf, keys.ipam.as_ref());
    let ranges = range::sets(conf, keys.ipam.as_ref());
    refuse_second_address(conf, &ranges, version);
    let runtime = conf.object("runtimeConfig").map(|runtime| RuntimeConfig::read(&runtime));
    let runtime = runtime.unwrap_or_default();
    let args = conf.object("args").and_then(|args| args.object("cni"));
    let (is_gateway, is_default_gateway) = keys.gateway();
    let mtu = mtu(conf, &ranges);
    let mut read = NetConf {
        version,
        name,
        bridge: conf.get("bridge").and_then(|name| name.parsed()).unwrap_or_else(bridge),
        create_bridge: keys.flag("createBridge", true),
        delegated: keys.flag("delegated", true),
        mtu,
        network: conf.get("network").and_then(|field| networks(&field)).unwrap_or_default(),
        hairpin_mode: keys.flag("hairpinMode", true),
        port_isolation: keys.flag("portIsolation", false),
        mac_spoof_check: keys.flag("macspoofchk", false),
        vlans: VlanConf::default(),
        guard: GuardConf::read(conf),
        policy: policy::read(conf),
        reserved_ports: reserved::read(conf),
        is_gateway,
        is_default_gateway,
        ip_masq: keys.flag("ipMasq", false),
        routes: keys.routes(),
        dns: dns(conf, &runtime),
        data_dir: keys.either("dataDir").and_then(path).unwrap_or_else(|| DATA_DIR.into()),
        log_file: log_file(conf),
        bandwidth: bandwidth(conf, &runtime),
        tuning: tuning(args.as_ref(), &ranges).or(Tuning::read(conf, mtu)),
        mac: conf.get("mac").and_then(|mac| mac.parsed()),
        args: args.as_ref().map(RequestedAddresses::read).unwrap_or_default(),
        labels: args.as_ref().map(Words::labels).unwrap_or_default(),
        prev_result: conf.get("prevResult").and_then(|result| CniResult::read(&result, version)),
        valid_attachments: attachment::read_valid(conf),
        ranges,
        runtime,
    };
    read.vlans = VlanConf::read(conf, &beside(&read));
    read
}

fn beside(conf: &NetConf) -> Beside<'_> {
    Beside {
        bridge: &conf.bridge,
        create_bridge: conf.create_bridge,
        is_gateway: conf.is_gateway,
        has_policy: conf.policy.is_some(),
        has_host_ports: !conf.runtime.port_mappings.is_empty(),
        is_guarded: conf.guard.is_on,
    }
}

/// The keys, of which some may be in `ipam` as well.
struct Keys<'a> {
    conf: &'a JsonField<'a>,
    ipam: Option<JsonField<'a>>,
}

impl<'a> Keys<'a> {
    fn flag(&self, key: &str, default: bool) -> bool {
        self.optional_flag(key).unwrap_or(default)
    }

    fn optional_flag(&self, key: &str) -> Option<bool> {
        self.conf.get(key).and_then(|flag| flag.bool())
    }

    /// The key in `ipam`, otherwise in the configuration itself.
    fn either(&self, key: &str) -> Option<JsonField<'a>> {
        let in_ipam = self.ipam.as_ref().and_then(|ipam| ipam.get(key));
        in_ipam.or_else(|| self.conf.get(key))
    }

    /// `isGateway` and `isDefaultGateway`: the second implies the first, and is the same by default.
    fn gateway(&self) -> (bool, bool) {
        let is_gateway = self.optional_flag("isGateway");
        let is_default = self.optional_flag("isDefaultGateway").or(is_gateway).unwrap_or(true);
        (is_default || is_gateway.unwrap_or(false), is_default)
    }

    fn routes(&self) -> Vec<CniRoute> {
        let read = |field: JsonField<'a>| {
            field.list("routes {dst, gw}", |route| CniRoute::read_configured(&route))
        };
        self.either("routes").and_then(read).unwrap_or_default()
    }
}

fn dns(conf: &JsonField, runtime: &RuntimeConfig) -> Dns {
    let dns = conf.object("dns").map(|dns| Dns::read(&dns)).unwrap_or_default();
    if runtime.dns.is_empty() { dns } else { runtime.dns.clone() }
}

fn bandwidth(conf: &JsonField, runtime: &RuntimeConfig) -> Bandwidth {
    if bandwidth::is_set(conf) { Bandwidth::read(conf) } else { runtime.bandwidth }
}

/// What the container asks for.
fn tuning(args: Option<&JsonField>, ranges: &[Vec<RangeConf>]) -> Tuning {
    args.map(|args| Tuning::read(args, mtu(args, ranges))).unwrap_or_default()
}

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
    if version >= Version::V030 {
        return;
    }
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
