//! Pure. The rules of a policy of Contiv as those of humanz.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::policy::read::contiv_fields::{Fields, given, name, others, string, text};
use crate::policy::read::contiv_network;

/// The rules of a policy, by their ids.
///
/// # Errors
/// What is not understood.
pub fn rules(all: Option<&BTreeMap<String, Fields>>) -> Result<Value, String> {
    let rules = all.into_iter().flatten().map(|(id, fields)| {
        rule(id, fields).map_err(|why| format!("rule {}: {why}", text(&json!(id))))
    });
    Ok(json!({ "rules": rules.collect::<Result<Vec<_>, _>>()? }))
}

/// The fields of a rule.
const RULE: [&str; 13] = [
    "ruleId",
    "policyName",
    "direction",
    "priority",
    "action",
    "protocol",
    "port",
    "fromEndpointGroup",
    "fromNetwork",
    "fromIpAddress",
    "toEndpointGroup",
    "toNetwork",
    "toIpAddress",
];

fn rule(id: &str, fields: &Fields) -> Result<Value, String> {
    let direction = string(fields, "direction")?;
    // It may say that the rule is about less.
    if let Some(other) = others(fields, &RULE).next() {
        return Err(format!("field {} is not known", text(&json!(other))));
    }
    let mut rule = json!({"id": id, "direction": direction, "action": string(fields, "action")?});
    if let Some(priority) = given(fields, "priority") {
        rule["priority"] = priority.clone();
    }
    if let Some(protocol) = given(fields, "protocol") {
        // A number may stand as a text; 0 is any protocol, as no text is.
        match protocol.as_str().and_then(|text| text.parse::<u8>().ok()) {
            Some(0) => {}
            Some(number) => rule["protocol"] = json!(number),
            None => rule["protocol"] = protocol.clone(),
        }
    }
    if let Some(port) = given(fields, "port") {
        if rule.get("protocol").is_none() {
            return Err(format!("port {} has no protocol", text(port)));
        }
        rule["ports"] = json!([port]);
    }
    if let Some(peer) = peer(direction, fields)? {
        rule["peer"] = peer;
    }
    Ok(rule)
}

/// The other end of a rule, if it is not about all.
fn peer(direction: &str, fields: &Fields) -> Result<Option<Value>, String> {
    let (own, other) = match direction {
        "in" => ("from", "to"),
        "out" => ("to", "from"),
        _ => return Err(format!("direction {} is not in or out", text(&json!(direction)))),
    };
    let end = |of: &str, kind: &str| given(fields, &format!("{of}{kind}"));
    let is_known = |kind: &&str| end(other, kind).is_some();
    if let Some(kind) = ["EndpointGroup", "Network", "IpAddress"].into_iter().find(is_known) {
        return Err(format!("{other}{kind} in a rule with direction {direction}"));
    }
    let peers: [Option<Result<Value, String>>; 3] = [
        end(own, "EndpointGroup").map(|it| Ok(json!({"group": name(it)?}))),
        end(own, "Network").map(|it| Ok(json!({"network": name(it)?}))),
        end(own, "IpAddress").map(|it| Ok(json!({"cidr": cidr(it)?}))),
    ];
    let mut peers = peers.into_iter().flatten();
    let peer = peers.next().transpose()?;
    match peers.next() {
        Some(_) => {
            Err(format!("more than one of {own}EndpointGroup, {own}Network and {own}IpAddress"))
        }
        None => Ok(peer),
    }
}

/// An address, or a subnet, without host bits.
fn cidr(value: &Value) -> Result<String, String> {
    let said = value.as_str().unwrap_or_default();
    let network = match said.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => {
            contiv_network::subnet(said).ok_or_else(|| format!("{} is no subnet", text(value)))?
        }
    };
    Ok(network.to_string())
}
