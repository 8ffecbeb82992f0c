//! Pure. The state of a host without an agent: what an agent would mend is not there.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::net::subnet::gateway;
use crate::plan::firewall::AGENT_TABLE;
use crate::plan::{Line, Sign};

/// Hosts whose route or tunnel is among what waits in `drift` are not reached, and pods are not let
/// through by a table that is.
pub fn correct(value: &mut Value, drift: &[Line]) {
    let waiting = drift.iter().filter(|line| line.sign != Sign::Removed);
    let waiting: BTreeMap<&str, &Line> = waiting.map(|line| (object(&line.what), line)).collect();
    for peer in value["peers"].as_array_mut().into_iter().flatten() {
        if let Some(line) = objects(peer).iter().find_map(|object| waiting.get(object.as_str())) {
            peer["reachable"] = false.into();
            peer["fault"] = format!("not there: {}", line.what).into();
        }
    }
    let table = format!("nft table inet {AGENT_TABLE}");
    if let Some(line) = waiting.get(table.as_str())
        && value["firewall"]["ok"] == true
    {
        let fault = format!("not as it should be: {line}");
        value["firewall"] = serde_json::json!({ "ok": false, "fault": fault });
    }
}

/// What a line is about, without its values.
fn object(what: &str) -> &str {
    let end = [" via ", " port ", " (", ": "].iter().filter_map(|end| what.find(end)).min();
    &what[..end.unwrap_or(what.len())]
}

/// What must be there for a host to be reached, as lines name it.
fn objects(peer: &Value) -> Vec<String> {
    let texts = |key: &str| {
        let list = peer[key].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
    };
    let subnets = texts("subnets");
    let gateways =
        subnets.iter().filter_map(|subnet| subnet.parse::<IpNetwork>().ok()).map(gateway);
    let mut objects: Vec<String> = gateways.map(|at| format!("neighbour {at}")).collect();
    objects.extend(subnets.iter().map(|subnet| format!("route {subnet}")));
    objects.extend(texts("via").into_iter().filter(|via| via.starts_with("tunnel ")));
    objects
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_agent_would_mend_is_not_there() {
        let check = |line: Line, reached: [bool; 2], firewall: bool| {
            let peer = |subnet: &str, via: &str| json!({ "subnets": [subnet], "via": [via], "reachable": true });
            let mut value = json!({
                "peers": [
                    peer("10.244.2.0/24", "direct via 192.0.2.12"),
                    peer("10.244.20.0/24", "tunnel to 203.0.113.1"),
                ],
                "firewall": { "ok": true, "fault": null },
            });
            correct(&mut value, std::slice::from_ref(&line));
            let found = [0, 1].map(|at| value["peers"][at]["reachable"] == true);
            assert_eq!((found, value["firewall"]["ok"] == true), (reached, firewall), "{line}");
        };
        check(Line::added("route 10.244.2.0/24 via 192.0.2.12"), [false, true], true);
        check(Line::changed("route 10.244.20.0/24 via 10.244.20.1"), [true, false], true);
        check(Line::removed("route 10.244.2.0/24 via 192.0.2.99"), [true, true], true);
        let tunnel = "tunnel to 203.0.113.1 port 4789 (mac 0a:58:0a:f4:01:00)";
        check(Line::added(tunnel), [true, false], true);
        check(Line::added("tunnel to 203.0.113.12 (mac 0a:58:0a:f4:01:00)"), [true, true], true);
        let neighbour = "neighbour 10.244.20.1 (mac 0a:58:0a:f4:01:00) of the tunnel";
        check(Line::added(neighbour), [true, false], true);
        check(Line::added("nft table inet humanz"), [true, true], false);
        check(Line::changed("nft table inet humanz: dormant"), [true, true], false);
        check(Line::changed("nft table inet humanz-hostports: x"), [true, true], true);
    }
}
