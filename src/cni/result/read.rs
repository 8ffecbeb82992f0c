//! Pure. Reading a result, of any version.

use std::str::FromStr;

use serde_json::Value;

use crate::cni::dns::Dns;
use crate::cni::error::CniError;
use crate::cni::json::{FieldError, FieldErrors, JsonField};
use crate::cni::result::{CniResult, Interface, IpConfig};
use crate::cni::route::CniRoute;
use crate::cni::version::{Version, listed};
use crate::net::Family;

impl CniResult {
    /// The result in `document`, of `version`: the network's. A result with a version of its own must
    /// have the same.
    ///
    /// # Errors
    /// Code 6 with every error.
    ///
    /// Source: CNI SPEC, section 5 "Result types", of each version.
    pub fn from_json(document: &Value, version: Version) -> Result<CniResult, CniError> {
        let errors = FieldErrors::default();
        let result = CniResult::read(&JsonField::root(document, &errors), version);
        let errors: Vec<String> = errors.into_vec().iter().map(FieldError::to_string).collect();
        result.ok_or_else(|| CniError::decode(format!("invalid result: {}", errors.join("; "))))
    }

    /// `None` after an error.
    pub(in crate::cni) fn read(field: &JsonField, version: Version) -> Option<CniResult> {
        let before = field.error_count();
        if !field.value().is_object() {
            return field.refuse("an object");
        }
        check_version(field, version);
        let mut result = if version < Version::V030 { by_family(field) } else { by_list(field) };
        result.dns = field.object("dns").map(|dns| Dns::read(&dns)).unwrap_or_default();
        (field.error_count() == before).then_some(result)
    }
}

/// A result without a version has the network's.
fn check_version(field: &JsonField, version: Version) {
    let Some(own) = field.get("cniVersion") else { return };
    let Some(text) = own.filled() else { return };
    if Version::from_str(text) != Ok(version) {
        let supported = listed();
        own.refuse::<()>(&format!("{version} as the network's (supported are {supported})"));
    }
}

/// 0.1.0 and 0.2.0: `ip4` and `ip6`.
fn by_family(field: &JsonField) -> CniResult {
    let mut result = CniResult::default();
    for (key, family) in [("ip4", Family::V4), ("ip6", Family::V6)] {
        let Some(half) = field.object(key) else { continue };
        result.routes.extend(routes(&half));
        result.ips.extend(ip(&half, "ip", Some(family)));
    }
    result
}

/// 0.3.0 and later: `interfaces`, `ips` and `routes`.
fn by_list(field: &JsonField) -> CniResult {
    let list = field.get("interfaces");
    let interfaces = list.and_then(|list| list.list("interfaces", |member| interface(&member)));
    let list = field.get("ips");
    let ips = list.and_then(|list| list.list("addresses", |member| ip(&member, "address", None)));
    let result = CniResult {
        interfaces: interfaces.unwrap_or_default(),
        ips: ips.unwrap_or_default(),
        routes: routes(field),
        dns: Dns::default(),
    };
    for (place, ip) in result.ips.iter().enumerate() {
        if ip.interface.is_some_and(|index| index >= result.interfaces.len()) {
            let count = result.interfaces.len();
            let path = format!("ips[{place}].interface");
            field.fault_at(&path, format!("points past the {count} interfaces"));
        }
    }
    result
}

fn routes(field: &JsonField) -> Vec<CniRoute> {
    let list = field.get("routes");
    let routes = list.and_then(|list| list.list("routes", |route| CniRoute::read(&route)));
    routes.unwrap_or_default()
}

fn interface(field: &JsonField) -> Option<Interface> {
    if !field.value().is_object() {
        return field.refuse("an object {name, mac, sandbox}");
    }
    let text = |key: &str| field.get(key)?.filled().map(str::to_owned);
    let mtu = field.get("mtu").and_then(|mtu| mtu.number(0..=u32::MAX));
    let name = match field.get("name") {
        Some(name) => name.text()?.to_owned(),
        None => return field.fault("name is missing"),
    };
    Some(Interface {
        name,
        mac: text("mac"),
        mtu: mtu.filter(|mtu| *mtu != 0),
        sandbox: text("sandbox"),
        socket_path: text("socketPath"),
        pci_id: text("pciID"),
    })
}

/// An address that stands under `key`, of `family` if that is given.
fn ip(field: &JsonField, key: &str, family: Option<Family>) -> Option<IpConfig> {
    if !field.value().is_object() {
        return field.refuse(&format!("an object {{{key}, gateway}}"));
    }
    let Some(address) = field.get(key) else {
        return field.fault(format!("{key} is missing"));
    };
    let gateway = field.get("gateway").and_then(|gateway| gateway.address());
    let interface = field.get("interface").and_then(|index| index.number(0..=u32::MAX));
    let found = address.cidr()?;
    if let Some(family) = family.filter(|family| *family != Family::of(found.ip())) {
        return address.refuse(&format!("an {family} address with a prefix length"));
    }
    Some(IpConfig {
        address: found,
        gateway,
        interface: interface.and_then(|index| usize::try_from(index).ok()),
    })
}
