//! Pure. The CNI configuration that the agent writes for the runtimes.

use std::collections::BTreeMap;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use crate::cni::config::GuardConf;
use crate::net::PerFamily;
use crate::settings::{CniSettings, Settings};

/// What the runtimes are to pass on for each pod.
const CAPABILITIES: [&str; 6] =
    ["bandwidth", "dns", "io.kubernetes.cri.pod-annotations", "ips", "mac", "portMappings"];

/// The key that marks a configuration of the agent, and its value. Runtimes and plugins ignore
/// keys that they do not know.
const MANAGED_BY: &str = "managedBy";
const AGENT: &str = "humanz-agent";

/// The text of the configuration file: a list, or the single-plugin form if the file is not a
/// `.conflist`. The keys of the Python agent's file are all there, with its meaning.
///
/// `subnets` are this host's; `mtu_bytes` is that of the pods.
///
/// Source: CNI SPEC §1; `cniVersions` lets old runtimes have an old version and new ones STATUS
/// and GC; `loadOnlyInlinedPlugins` keeps a directory named like the network out of the chain.
pub fn text(settings: &Settings, subnets: &PerFamily<IpNetwork>, mtu_bytes: u32) -> String {
    document(settings, plugin(settings, subnets, mtu_bytes))
}

/// The text of the file with what [`plugin`] gave.
pub fn document(settings: &Settings, plugin: Map<String, Value>) -> String {
    let cni = &settings.cni;
    let list = cni.config.extension().is_some_and(|extension| extension == "conflist");
    let document = if list {
        json!({
            "cniVersion": cni.version.to_string(),
            "cniVersions": versions(cni),
            "name": cni.name,
            "loadOnlyInlinedPlugins": true,
            "plugins": [plugin],
        })
    } else {
        let mut single = Map::new();
        single.insert("cniVersion".into(), json!(cni.version.to_string()));
        single.insert("name".into(), json!(cni.name));
        single.extend(plugin);
        Value::Object(single)
    };
    format!("{document:#}\n")
}

/// `text` is a configuration that an agent wrote.
pub fn is_managed(text: &str) -> bool {
    let Ok(document) = serde_json::from_str::<Value>(text) else { return false };
    let plugins = document["plugins"].as_array().into_iter().flatten();
    [&document].into_iter().chain(plugins).any(|object| object[MANAGED_BY] == AGENT)
}

/// The configured version and the two with which newer runtimes learn STATUS and GC.
fn versions(cni: &CniSettings) -> Vec<String> {
    let mut versions = vec!["0.4.0".to_owned(), "1.0.0".to_owned(), "1.1.0".to_owned()];
    let own = cni.version.to_string();
    if !versions.contains(&own) {
        versions.insert(0, own);
    }
    versions
}

/// The keys of the plugin; `mtu` is that of the pods, in bytes.
pub fn plugin(settings: &Settings, subnets: &PerFamily<IpNetwork>, mtu: u32) -> Map<String, Value> {
    let cni = &settings.cni;
    let mut plugin = Map::new();
    let mut set = |key: &str, value: Value| {
        plugin.insert(key.to_owned(), value);
    };
    let networks: Vec<IpNetwork> = settings.pools.iter().map(|pool| pool.network()).collect();
    let mut subnets = subnets.iter().map(IpNetwork::to_string);
    set("type", json!(cni.plugin_type));
    set(MANAGED_BY, json!(AGENT));
    set("bridge", json!(settings.bridge));
    set("network", json!(networks.first().map(IpNetwork::to_string)));
    set("subnet", json!(subnets.next()));
    let further: Vec<Value> = subnets.map(|subnet| json!([{ "subnet": subnet }])).collect();
    if !further.is_empty() {
        set("ranges", json!(further));
    }
    // What is as usual is left out: an older plugin knows none of it.
    let (guard, usual) = (&settings.guard, GuardConf::default());
    if !guard.is_on {
        set("podGuard", json!(false));
    }
    if guard.routes != usual.routes {
        set("podRouting", json!("bridge"));
    }
    if !guard.allowed.is_empty() {
        let allowed: Vec<String> = guard.allowed.iter().map(IpNetwork::to_string).collect();
        set("allowedAddresses", json!(allowed));
    }
    if let Some(policy) = &settings.policy {
        set("policy", json!(policy.on_agent_down.name()));
    }
    let reserved = settings.reserved_ports();
    if !reserved.is_empty() {
        set("reservedPorts", json!(reserved));
    }
    set("mtu", json!(mtu));
    set("createBridge", json!(false));
    set("dataDir", json!(cni.ipam_dir));
    set("logFile", json!(cni.log_file.as_deref().unwrap_or(Path::new(""))));
    set("capabilities", json!(BTreeMap::from(CAPABILITIES.map(|name| (name, true)))));
    plugin
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Texts, parse, values_only};

    #[test]
    fn only_a_configuration_with_the_key_is_the_agents() {
        let subnets = PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: None };
        for config in ["/etc/cni/net.d/05-humanz.conflist", "/etc/cni/net.d/05-humanz.conf"] {
            let texts = [("ETCD_HOST", "etcd"), ("CNI_CONFIG_LOCATION", config)];
            let texts = Texts::from(texts.map(|(name, text)| (name, text.to_owned())));
            let text = text(&parse(&texts, values_only).unwrap(), &subnets, 1500);
            assert!(is_managed(&text), "{text}");
            assert!(!is_managed(&text.replace(MANAGED_BY, "")), "without the key");
            assert!(!is_managed(&text.replace(AGENT, "me")), "somebody else's");
        }
        for other in ["", "{", "[]", "null", r#"{"plugins":{}}"#, r#"{"plugins":[1]}"#] {
            assert!(!is_managed(other), "{other}");
        }
    }
}
