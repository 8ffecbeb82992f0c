//! Pure. Replies of CNI as netavark reads them.

use serde_json::{Map, Value, json};

pub const API_VERSION: &str = "1.0.0";

/// An error, as podman shows it.
pub fn failed(msg: &str, details: Option<&str>) -> Value {
    match details {
        Some(details) => json!({ "error": format!("{msg}: {details}") }),
        None => json!({ "error": msg }),
    }
}

/// A result of CNI 1.0.0 or an error of it.
pub fn translated(reply: &Value) -> Value {
    match reply["msg"].as_str() {
        Some(msg) => failed(msg, reply["details"].as_str()),
        None => status_block(reply),
    }
}

/// The interfaces in the container with their addresses, and name servers.
fn status_block(result: &Value) -> Value {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut interfaces = Map::new();
    for (place, interface) in list(&result["interfaces"]).iter().enumerate() {
        let Some(name) = interface["name"].as_str().filter(|_| interface["sandbox"].is_string())
        else {
            continue;
        };
        let ips = list(&result["ips"]);
        let own = ips.iter().filter(|ip| ip["interface"] == place);
        let subnets: Vec<Value> =
            own.map(|ip| json!({ "ipnet": ip["address"], "gateway": ip["gateway"] })).collect();
        let interface = json!({ "mac_address": interface["mac"], "subnets": subnets });
        interfaces.insert(name.to_owned(), interface);
    }
    let dns = &result["dns"];
    json!({
        "dns_search_domains": list(&dns["search"]),
        "dns_server_ips": list(&dns["nameservers"]),
        "interfaces": interfaces,
    })
}
