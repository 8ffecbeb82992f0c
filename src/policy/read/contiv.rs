//! Pure. Objects of Contiv, as `netctl … inspect` and `ls --json` print them, as objects of humanz.
//!
//! What one of them says and the other has not is noted, where it changes nothing that a rule decides. What is not
//! understood fails as a whole: half of a policy lets pass what all of it does not.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::policy::name::{ObjectName, Scoped};
use crate::policy::network::DEFAULT;
use crate::policy::read::contiv_fields::{Fields, given, name, others, string, text};
use crate::policy::read::contiv_network;
use crate::policy::read::contiv_rules::rules;

/// Objects of humanz, and what Contiv's say that they do not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    pub objects: Vec<Value>,
    pub notes: Vec<String>,
}

/// What is found in order, by kind and name.
#[derive(Default)]
struct ContivObjects {
    objects: BTreeMap<(&'static str, Scoped), Fields>,
    rules: BTreeMap<Scoped, BTreeMap<String, Fields>>,
    notes: Vec<String>,
    faults: Vec<String>,
}

/// The objects in `documents`, each an object or a list of them.
///
/// # Errors
/// Everything that is not understood.
pub fn convert(documents: Vec<Value>) -> Result<Converted, Vec<String>> {
    let mut found = ContivObjects::default();
    for document in documents {
        match document {
            Value::Array(all) => all.into_iter().for_each(|one| found.take(one)),
            one => found.take(one),
        }
    }
    found.converted()
}

impl ContivObjects {
    fn take(&mut self, document: Value) {
        let Value::Object(mut fields) = document else {
            return self.faults.push(format!("{} is no object of Contiv", text(&document)));
        };
        // `inspect` has the state beside the object.
        if let Some(Value::Object(config)) = fields.remove("Config") {
            fields = config;
        }
        let taken = match kind(&fields) {
            Some("Rule") => self.rule(fields),
            Some("Tenant") => Ok(()),
            Some(kind) => self.object(kind, fields),
            None => {
                let key = fields.get("key").map(text).unwrap_or_else(|| "an object".to_owned());
                let named = FOREIGN.iter().find(|(field, _)| fields.contains_key(*field));
                let kind = named.map(|(_, kind)| *kind).unwrap_or_default();
                self.notes.push(format!("{kind}{key} is left out: humanz has nothing of its kind"));
                Ok(())
            }
        };
        self.faults.extend(taken.err());
    }

    fn object(&mut self, kind: &'static str, fields: Fields) -> Result<(), String> {
        let name = match kind {
            "Network" => "networkName",
            "Group" => "groupName",
            "GroupPolicy" => "policyName",
            _ => "profileName",
        };
        let name = scoped(&fields, name)?;
        match self.objects.insert((kind, name.clone()), fields.clone()) {
            Some(before) if before != fields => Err(format!("{kind} {name} is there twice")),
            _ => Ok(()),
        }
    }

    fn rule(&mut self, fields: Fields) -> Result<(), String> {
        let policy = scoped(&fields, "policyName")?;
        let id = string(&fields, "ruleId")?.to_owned();
        let rules = self.rules.entry(policy.clone()).or_default();
        match rules.insert(id.clone(), fields.clone()) {
            Some(before) if before != fields => {
                Err(format!("rule {} of GroupPolicy {policy} is there twice", text(&json!(id))))
            }
            _ => Ok(()),
        }
    }

    fn converted(mut self) -> Result<Converted, Vec<String>> {
        let mut objects = Vec::new();
        for policy in self.rules.keys() {
            let key = ("GroupPolicy", policy.clone());
            self.objects.entry(key).or_default();
        }
        for ((kind, name), fields) in &self.objects {
            let subject = format!("{kind} {name}");
            let mut notes = Vec::new();
            let spec = match *kind {
                "Network" => contiv_network::spec(name, fields, &mut notes),
                "Group" => group(fields, &mut notes),
                "GroupPolicy" => rules(self.rules.get(name)),
                _ => profile(fields, &mut notes),
            };
            let known: &[&str] = match *kind {
                "Network" => &contiv_network::FIELDS,
                "Group" => &GROUP,
                "GroupPolicy" => &["policyName"],
                _ => &PROFILE,
            };
            notes.extend(
                others(fields, known).map(|it| format!("{} is left out", text(&json!(it)))),
            );
            self.notes.extend(notes.iter().map(|note| format!("{subject}: {note}")));
            match spec {
                Ok(Value::Null) => {}
                Ok(spec) => objects.push(json!({"apiVersion": "humanz.io/v1", "kind": kind,
                    "metadata": {"tenant": name.tenant, "name": name.name}, "spec": spec})),
                Err(why) => self.faults.push(format!("{subject}: {why}")),
            }
        }
        match self.faults.is_empty() {
            true => Ok(Converted { objects, notes: self.notes }),
            false => Err(self.faults),
        }
    }
}

/// Our kind of the object with these fields.
fn kind(fields: &Fields) -> Option<&'static str> {
    let has = |field: &str| fields.contains_key(field);
    Some(match () {
        () if has("ruleId") => "Rule",
        () if has("groupName") => "Group",
        () if has("profileName") => "NetProfile",
        () if has("networkName") && (has("subnet") || has("ipv6Subnet") || has("encap")) => {
            "Network"
        }
        () if has("policyName") => "GroupPolicy",
        () if has("tenantName") && fields.len() <= TENANT.len() => {
            fields.keys().all(|field| TENANT.contains(&field.as_str())).then_some("Tenant")?
        }
        () => return None,
    })
}

/// Kinds that humanz has not, by a field that each object of them has: keys of several kinds are the same.
const FOREIGN: [(&str, &str); 5] = [
    ("serviceName", "service load balancer "),
    ("contractsGroupName", "external contracts "),
    ("appProfileName", "application profile "),
    ("hostname", "BGP neighbour "),
    ("fwdMode", "settings of the cluster "),
];

/// The fields of a tenant, which consists of its objects here.
const TENANT: [&str; 5] = ["key", "tenantName", "defaultNetwork", "link-sets", "links"];

/// The fields of a group, and of a profile.
const GROUP: [&str; 8] = [
    "groupName",
    "networkName",
    "policies",
    "netProfile",
    "ipPool",
    "extContractsGrps",
    "groupTag",
    "cfgdTag",
];
const PROFILE: [&str; 4] = ["profileName", "DSCP", "bandwidth", "burst"];

fn group(fields: &Fields, notes: &mut Vec<String>) -> Result<Value, String> {
    let mut spec = json!({});
    match fields.get("policies") {
        None | Some(Value::Null) => {}
        Some(Value::Array(all)) => {
            spec["policies"] = all.iter().map(name).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(format!("policies: {} is no list", text(other))),
    }
    if let Some(profile) = given(fields, "netProfile") {
        spec["profile"] = name(profile)?;
    }
    if let Some(network) = given(fields, "networkName") {
        let network = text(network);
        notes.push(format!(
            "its pods get network {network} by the rule of their namespace: --network of humanz-agent ns create"
        ));
    }
    for (field, why) in [
        ("ipPool", "pods have any address of their network"),
        ("extContractsGrps", "humanz has no external contracts"),
    ] {
        notes.extend(
            given(fields, field).map(|it| format!("{field} {} is left out: {why}", text(it))),
        );
    }
    Ok(spec)
}

fn profile(fields: &Fields, notes: &mut Vec<String>) -> Result<Value, String> {
    let mut spec = json!({});
    if let Some(dscp) = given(fields, "DSCP") {
        spec["dscp"] = dscp.clone();
    }
    let rate = given(fields, "bandwidth").map(bandwidth).transpose()?;
    let burst = given(fields, "burst").map(|burst| {
        let kilobytes = burst.as_u64().and_then(|number| number.checked_mul(8000));
        kilobytes.ok_or_else(|| format!("burst {} is no number of kilobytes", text(burst)))
    });
    match (rate, burst.transpose()?) {
        (Some(rate), burst) => {
            spec["egressRate"] = json!(rate);
            burst.into_iter().for_each(|bits| spec["egressBurst"] = json!(bits));
        }
        (None, Some(_)) => notes.push("burst is left out: there is no bandwidth".to_owned()),
        (None, None) => {}
    }
    Ok(spec)
}

/// `10 Mbps` as `10M`.
fn bandwidth(value: &Value) -> Result<String, String> {
    let wrong =
        || format!("bandwidth {} is not a number with bps, kbps, mbps or gbps", text(value));
    let said = value.as_str().ok_or_else(wrong)?.to_ascii_lowercase();
    let digits = said.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = said.split_at(digits);
    let unit = match unit.trim_start() {
        "bps" => "",
        "k" | "kb" | "kbps" => "k",
        "m" | "mb" | "mbps" => "M",
        "g" | "gb" | "gbps" => "G",
        _ => return Err(wrong()),
    };
    if number.is_empty() { Err(wrong()) } else { Ok(format!("{number}{unit}")) }
}

fn scoped(fields: &Fields, field: &str) -> Result<Scoped, String> {
    let tenant =
        given(fields, "tenantName").map_or(Ok(DEFAULT), |_| string(fields, "tenantName"))?;
    let parse = |text: &str| text.parse::<ObjectName>().map_err(|error| error.to_string());
    Ok(Scoped { tenant: parse(tenant)?, name: parse(string(fields, field)?)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read::documents;

    fn converted(documents: Value) -> Converted {
        let converted = convert(vec![documents]).unwrap();
        let read = documents::read(&converted.objects, true);
        assert_eq!(read.problems, [], "{converted:?}");
        converted
    }

    fn spec(documents: Value) -> Value {
        converted(documents).objects[0]["spec"].clone()
    }

    fn rule(mut fields: Value) -> Value {
        let base =
            json!({"key": "blue:web:1", "tenantName": "blue", "policyName": "web", "ruleId": "1"});
        for (field, value) in base.as_object().unwrap() {
            fields[field] = value.clone();
        }
        fields
    }

    fn refused(documents: Value) -> String {
        convert(vec![documents]).unwrap_err().join("; ")
    }

    #[test]
    fn rules_mean_what_they_meant() {
        for (fields, wanted) in [
            (
                json!({"direction": "in", "action": "allow", "protocol": "tcp", "port": 6379, "priority": 10,
                    "fromEndpointGroup": "web", "toNetwork": "", "toIpAddress": ""}),
                json!({"id": "1", "direction": "in", "action": "allow", "protocol": "tcp", "ports": [6379],
                    "priority": 10, "peer": {"group": "web"}}),
            ),
            (
                json!({"direction": "out", "action": "deny", "protocol": "", "port": 0, "priority": 0,
                    "toIpAddress": "10.1.2.3/24"}),
                json!({"id": "1", "direction": "out", "action": "deny", "peer": {"cidr": "10.1.2.0/24"}}),
            ),
            (
                json!({"direction": "out", "action": "deny", "protocol": "17", "toIpAddress": "fd00::1"}),
                json!({"id": "1", "direction": "out", "action": "deny", "protocol": 17,
                    "peer": {"cidr": "fd00::1/128"}}),
            ),
            (
                json!({"direction": "in", "action": "deny", "protocol": "0"}),
                json!({"id": "1", "direction": "in", "action": "deny"}),
            ),
            (
                json!({"direction": "in", "action": "deny", "protocol": "icmp", "fromNetwork": "back"}),
                json!({"id": "1", "direction": "in", "action": "deny", "protocol": "icmp",
                    "peer": {"network": "back"}}),
            ),
        ] {
            assert_eq!(spec(rule(fields))["rules"], json!([wanted]));
        }
    }

    #[test]
    fn a_rule_that_is_not_understood_converts_nothing() {
        let base = json!({"direction": "in", "action": "allow"});
        for (field, value, why) in [
            ("direction", json!("both"), "direction \"both\" is not in or out"),
            ("action", json!(7), "action is 7"),
            ("toEndpointGroup", json!("db"), "toEndpointGroup in a rule with direction in"),
            ("fromIpAddress", json!("anywhere"), "\"anywhere\" is no subnet"),
            ("fromEndpointGroup", json!("a b"), "\"a b\" is not a name"),
            ("fromEndpointGroup", json!({"x": 1}), "is not a name"),
            ("port", json!(80), "port 80 has no protocol"),
            ("matchEndpointGroup", json!("web"), "field \"matchEndpointGroup\" is not known"),
        ] {
            let mut fields = rule(base.clone());
            fields[field] = value;
            let refused = refused(json!([fields, rule(base.clone())]));
            assert!(
                refused.contains("blue/web: rule \"1\"") || refused.contains("there twice"),
                "{refused}"
            );
            let mut alone = rule(base.clone());
            alone[field] = fields[field].clone();
            assert!(self::refused(alone).contains(why), "{field}");
        }
        let both = rule(
            json!({"direction": "in", "action": "allow", "fromNetwork": "a", "fromIpAddress": "::1"}),
        );
        assert!(refused(both).contains("more than one of"));
    }

    #[test]
    fn networks_have_blocks_for_some_hosts_and_say_what_is_left_out() {
        let network = |fields: Value| {
            let mut all = json!({"key": "blue:front", "tenantName": "blue", "networkName": "front",
                "encap": "vxlan", "nwType": "data"});
            fields
                .as_object()
                .unwrap()
                .iter()
                .for_each(|(field, value)| all[field] = value.clone());
            all
        };
        for (fields, wanted) in [
            (json!({"subnet": "10.1.0.0/16"}), json!({"subnets": ["10.1.0.0/16"]})),
            (
                json!({"subnet": "10.1.1.10-10.1.1.20/24", "ipv6Subnet": "fd00:1::/100"}),
                json!({"subnets": ["10.1.1.0/24", "fd00:1::/100"]}),
            ),
            (
                json!({"subnet": "10.1.1.0/27"}),
                json!({"subnets": ["10.1.1.0/27"], "blocks": {"v4": 29}}),
            ),
        ] {
            assert_eq!(spec(network(fields)), wanted);
        }
        let notes = converted(network(
            json!({"subnet": "10.1.1.0/24", "gateway": "10.1.1.254", "pktTag": 7,
            "colour": "\u{1b}[31m"}),
        ));
        let notes = notes.notes.join("; ");
        for part in
            ["gateway \"10.1.1.254\" is left out", "4 blocks (/26)", "pktTag 7", "\"colour\""]
        {
            assert!(notes.contains(part), "{notes}");
        }
        for (fields, why) in [
            (json!({"subnet": "10.1.1.0/29"}), "too small"),
            (json!({"subnet": "10.1.1.0"}), "is no subnet"),
            (json!({"subnet": ["10.1.1.0/24"]}), "is no subnet"),
            (json!({"ipv6Subnet": "fd00::/126"}), "too small"),
            (
                json!({"subnet": "10.1.1.0/24", "tenantName": "default", "networkName": "default"}),
                "IP_SUBNET",
            ),
        ] {
            assert!(refused(network(fields.clone())).contains(why), "{fields}");
        }
        let infra = converted(network(json!({"subnet": "10.1.1.0/24", "nwType": "infra"})));
        assert!(infra.objects.is_empty() && infra.notes[0].contains("left out"), "{infra:?}");
    }

    #[test]
    fn groups_and_profiles_are_taken_over() {
        let group = json!({"Config": {"key": "blue:web", "tenantName": "blue", "groupName": "web", "policies": [],
            "networkName": "front", "netProfile": "", "ipPool": "10.1.1.1-10.1.1.9"}, "Oper": {"numEndpoints": 2}});
        let found = converted(json!([group, {"key": "blue", "tenantName": "blue"}]));
        assert_eq!(found.objects.len(), 1);
        assert!(
            found.notes[0].contains("network \"front\" by the rule of their namespace"),
            "{found:?}"
        );
        assert!(found.notes[1].contains("ipPool"), "{found:?}");
        let profile = |bandwidth: Value, burst: Value| {
            json!({"key": "blue:gold", "tenantName": "blue", "profileName": "gold", "DSCP": 46,
                "bandwidth": bandwidth, "burst": burst})
        };
        assert_eq!(
            spec(profile(json!("10 Mbps"), json!(250))),
            json!({"dscp": 46, "egressRate": "10M", "egressBurst": 2_000_000})
        );
        assert_eq!(spec(profile(json!(""), json!(250))), json!({"dscp": 46}));
        assert_eq!(spec(profile(json!("2gbps"), json!(0)))["egressRate"], "2G");
        for bad in
            [json!("mbps"), json!("10 parsecs"), json!(10), json!("-1 mbps"), json!("1.5 mbps")]
        {
            assert!(refused(profile(bad.clone(), json!(0))).contains("bandwidth"), "{bad}");
        }
        assert!(refused(profile(json!("1 mbps"), json!(u64::MAX))).contains("burst"));
        assert!(refused(profile(json!("1 mbps"), json!(-1))).contains("burst"));
    }

    #[test]
    fn what_is_none_of_contivs_objects_is_refused_or_left_out() {
        for (bad, why) in [
            (json!("text"), "is no object"),
            (json!([[]]), "is no object"),
            (json!({"groupName": "web"}), ""),
            (json!({"groupName": "a/b", "tenantName": "blue"}), "is not a name"),
            (json!({"groupName": "web", "tenantName": ["x"]}), "tenantName"),
            (json!({"groupName": "web", "policies": "front"}), "is no list"),
            (json!({"groupName": "web", "policies": [{"a": 1}]}), "is not a name"),
            (json!({"ruleId": "", "policyName": "web"}), "ruleId"),
        ] {
            if why.is_empty() {
                assert_eq!(converted(bad).objects[0]["metadata"]["tenant"], "default");
            } else {
                assert!(refused(bad.clone()).contains(why), "{bad}");
            }
        }
        let bgp = converted(json!({"key": "h1\n", "hostname": "h1", "as": "65001"}));
        assert!(
            bgp.objects.is_empty()
                && bgp.notes[0].starts_with("BGP neighbour \"h1\\n\" is left out"),
            "{bgp:?}"
        );
        let twice = |policies: Value| json!({"groupName": "web", "policies": policies});
        assert_eq!(converted(json!([twice(json!([])), twice(json!([]))])).objects.len(), 1);
        assert!(refused(json!([twice(json!([])), twice(json!(["a"]))])).contains("there twice"));
    }
}
