//! Pure. Writing a result, in any version.

use serde_json::{Map, Value, json};

use crate::cni::error::{CniError, code};
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::cni::version::Version;
use crate::net::Family;

/// `result` in the words of `version`.
pub(super) fn result(result: &CniResult, version: Version) -> Result<Value, CniError> {
    let mut object = Map::from_iter([("cniVersion".to_owned(), json!(version.as_str()))]);
    object.extend(if version < Version::V030 {
        by_family(result, version)?
    } else {
        by_list(result, version)
    });
    if !result.dns.is_empty() {
        object.insert("dns".to_owned(), result.dns.to_json());
    }
    Ok(Value::Object(object))
}

/// 0.1.0 and 0.2.0: `ip4` and `ip6`.
fn by_family(result: &CniResult, version: Version) -> Result<Map<String, Value>, CniError> {
    let mut object = Map::new();
    for (key, family) in [("ip4", Family::V4), ("ip6", Family::V6)] {
        let mut ips = result.ips.iter();
        if let Some(first) = ips.find(|ip| Family::of(ip.address.ip()) == family) {
            object.insert(key.to_owned(), half(result, first, version));
        }
    }
    if object.is_empty() {
        let msg = format!("cannot convert the result to CNI {version}: it has no address");
        return Err(CniError::new(code::INCOMPATIBLE_VERSION, msg));
    }
    Ok(object)
}

/// What 0.2.0 says of one family: `{ip, gateway, routes}`.
fn half(result: &CniResult, ip: &IpConfig, version: Version) -> Value {
    let mut object = json!({ "ip": ip.address.to_string() });
    if let Some(gateway) = ip.gateway {
        object["gateway"] = json!(gateway.to_string());
    }
    let family = Family::of(ip.address.ip());
    let routes = result.routes.iter().filter(|route| route.family() == family);
    let routes: Vec<Value> = routes.map(|route| route.to_json(version)).collect();
    if !routes.is_empty() {
        object["routes"] = json!(routes);
    }
    object
}

/// 0.3.0 and later: `interfaces`, `ips` and `routes`.
fn by_list(result: &CniResult, version: Version) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |key: &str, list: Vec<Value>| {
        if !list.is_empty() {
            object.insert(key.to_owned(), json!(list));
        }
    };
    put("interfaces", result.interfaces.iter().map(|found| interface(found, version)).collect());
    put("ips", result.ips.iter().map(|ip| address(ip, version)).collect());
    put("routes", result.routes.iter().map(|route| route.to_json(version)).collect());
    object
}

fn interface(interface: &Interface, version: Version) -> Value {
    let mut object = json!({ "name": interface.name });
    let mut put = |key: &str, text: &Option<String>| {
        if let Some(text) = text {
            object[key] = json!(text);
        }
    };
    put("mac", &interface.mac);
    put("sandbox", &interface.sandbox);
    // 1.0.0 has no such keys either, but the reference library writes them there.
    if version >= Version::V100 {
        put("socketPath", &interface.socket_path);
        put("pciID", &interface.pci_id);
        if let Some(mtu) = interface.mtu {
            object["mtu"] = json!(mtu);
        }
    }
    object
}

fn address(ip: &IpConfig, version: Version) -> Value {
    let mut object = json!({ "address": ip.address.to_string() });
    if version < Version::V100 {
        object["version"] = json!(match Family::of(ip.address.ip()) {
            Family::V4 => "4",
            Family::V6 => "6",
        });
    }
    if let Some(gateway) = ip.gateway {
        object["gateway"] = json!(gateway.to_string());
    }
    if let Some(place) = ip.interface {
        object["interface"] = json!(place);
    }
    object
}
