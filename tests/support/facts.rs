//! The state of a host's kernel, read with iproute2 instead of humanz.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::{Node, Place};

/// The routes that bear humanz's mark, both families: destination → next hop.
pub fn routes(host: &Node) -> BTreeMap<String, String> {
    routes_by(host, "gateway")
}

/// The routes that bear humanz's mark, both families: destination → device.
pub fn devices(host: &Node) -> BTreeMap<String, String> {
    routes_by(host, "dev")
}

fn routes_by(host: &Node, key: &str) -> BTreeMap<String, String> {
    let both = [4, 6].map(|family| json(host, &format!("ip -{family} -j route show proto 104")));
    let text = |route: &Value, key: &str| route[key].as_str().unwrap_or_default().to_owned();
    let routes = both.iter().flat_map(|list| list.as_array().into_iter().flatten());
    routes.map(|route| (text(route, "dst"), text(route, key))).collect()
}

/// `address/length` of every global address of a link, sorted; none if there is no such link.
pub fn addresses(place: &dyn Place, link: &str) -> Vec<String> {
    let shown = json(place, &format!("ip -j address show dev {link}"));
    let infos = shown[0]["addr_info"].as_array().into_iter().flatten();
    let global = infos.filter(|info| info["scope"] == "global");
    let text = |info: &Value| {
        format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"])
    };
    let mut addresses: Vec<String> = global.map(text).collect();
    addresses.sort();
    addresses
}

/// Names of the host's ends of pods' veths.
pub fn veths(host: &Node) -> Vec<String> {
    let shown = json(host, "ip -j link show type veth");
    let names = shown.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
    names.filter(|name| !name.starts_with("eth0")).map(String::from).collect()
}

/// stdout as JSON; `Null` if the command failed or said nothing.
fn json(place: &dyn Place, line: &str) -> Value {
    serde_json::from_str(&place.run(line).stdout).unwrap_or(Value::Null)
}
