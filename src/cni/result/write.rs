//! Pure. Writing a result, in any version.

use serde_json::{Value, json};

use crate::cni::error::{CniError, code};
use crate::cni::json::object;
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::cni::version::Version;
use crate::net::Family;

impl CniResult {
    /// The result in the format of `version`. Keys that a version does not have are left out: 0.3.0 to
    /// 0.4.0 have `dst` and `gw` of a route and no `mtu` of an interface; 0.1.0 and 0.2.0 have one
    /// address of each family, the first.
    ///
    /// # Errors
    /// Code 1: 0.1.0 and 0.2.0 need an address.
    pub fn to_json(&self, version: Version) -> Result<Value, CniError> {
        let mut document = match version < Version::V030 {
            true => by_family(self, version)?,
            false => by_list(self, version),
        };
        document["cniVersion"] = json!(version.as_str());
        if !self.dns.is_empty() {
            document["dns"] = self.dns.to_json();
        }
        Ok(document)
    }
}

/// 0.1.0 and 0.2.0: `ip4` and `ip6`.
fn by_family(result: &CniResult, version: Version) -> Result<Value, CniError> {
    let first = |family| {
        let first = result.ips.iter().find(|ip| Family::of(ip.address.ip()) == family)?;
        let routes = result.routes.iter().filter(|route| route.family() == family);
        let routes: Vec<Value> = routes.map(|route| route.to_json(version)).collect();
        Some(object([
            ("ip", Some(json!(first.address.to_string()))),
            ("gateway", first.gateway.map(|gateway| json!(gateway.to_string()))),
            ("routes", filled(routes)),
        ]))
    };
    let (v4, v6) = (first(Family::V4), first(Family::V6));
    if v4.is_none() && v6.is_none() {
        let msg = format!("cannot convert the result to CNI {version}: it has no address");
        return Err(CniError::new(code::INCOMPATIBLE_VERSION, msg));
    }
    Ok(object([("ip4", v4), ("ip6", v6)]))
}

/// 0.3.0 and later: `interfaces`, `ips` and `routes`.
fn by_list(result: &CniResult, version: Version) -> Value {
    let interfaces = result.interfaces.iter().map(|found| interface(found, version));
    let ips = result.ips.iter().map(|ip| address(ip, version));
    let routes = result.routes.iter().map(|route| route.to_json(version));
    object([
        ("interfaces", filled(interfaces.collect())),
        ("ips", filled(ips.collect())),
        ("routes", filled(routes.collect())),
    ])
}

fn filled(list: Vec<Value>) -> Option<Value> {
    (!list.is_empty()).then_some(Value::Array(list))
}

fn interface(interface: &Interface, version: Version) -> Value {
    let text = |text: &Option<String>| text.as_ref().map(|text| json!(text));
    // 1.0.0 does not have these keys either, but the reference library writes them there.
    let newer = version >= Version::V100;
    object([
        ("name", Some(json!(interface.name))),
        ("mac", text(&interface.mac)),
        ("sandbox", text(&interface.sandbox)),
        ("socketPath", text(&interface.socket_path).filter(|_| newer)),
        ("pciID", text(&interface.pci_id).filter(|_| newer)),
        ("mtu", interface.mtu.map(Value::from).filter(|_| newer)),
    ])
}

fn address(ip: &IpConfig, version: Version) -> Value {
    let family = match Family::of(ip.address.ip()) {
        Family::V4 => "4",
        Family::V6 => "6",
    };
    object([
        ("address", Some(json!(ip.address.to_string()))),
        ("version", (version < Version::V100).then(|| json!(family))),
        ("gateway", ip.gateway.map(|gateway| json!(gateway.to_string()))),
        ("interface", ip.interface.map(Value::from)),
    ])
}
