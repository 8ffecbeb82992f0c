//! Pure. The CNI configuration that the agent writes for the runtimes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use crate::cni::config::GuardConf;
use crate::net::PerFamily;
use crate::net::gather::Gather;
use crate::settings::flags::VARIABLES;
use crate::settings::{CniSettings, Settings, Texts};

/// What the runtimes are to pass on for each pod.
const CAPABILITIES: [&str; 6] =
    ["bandwidth", "dns", "io.kubernetes.cri.pod-annotations", "ips", "mac", "portMappings"];

/// The key that marks a configuration of the agent, and its value. Runtimes and plugins ignore
/// keys that they do not know.
const MANAGED_BY: &str = "managedBy";
const AGENT: &str = "humanz-agent";

/// The key of a configuration that `init` wrote for a machine without an agent: the settings that it was called with.
const OF_INIT: &str = "humanzInit";

/// The text of the configuration file: a list, or the single-plugin form if the file is not a
/// `.conflist`. The keys of the Python agent's file are all there, with its meaning.
///
/// `subnets` are this host's; `mtu_bytes` is that of the pods.
///
/// Source: CNI SPEC §1; `cniVersions` lets old runtimes have an old version and new ones STATUS
/// and GC; `loadOnlyInlinedPlugins` keeps a directory named like the network out of the chain.
pub fn text(
    settings: &Settings,
    subnets: &PerFamily<IpNetwork>,
    mtu_bytes: u32,
    own: &BTreeSet<IpAddr>,
) -> String {
    document(settings, plugin(settings, subnets, mtu_bytes, own))
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
    let Ok(document) = serde_json::from_slice::<Value>(text.as_bytes()) else { return false };
    let plugins = document["plugins"].as_array().into_iter().flatten();
    [&document].into_iter().chain(plugins).any(|object| object[MANAGED_BY] == AGENT)
}

/// `text` is a configuration that an agent wrote, also one that left no mark yet: of the plugin that is called `plugin`.
pub fn is_ours(text: &str, plugin: &str) -> bool {
    let Ok(document) = serde_json::from_slice::<Value>(text.as_bytes()) else { return false };
    let plugins = document["plugins"].as_array().into_iter().flatten();
    is_managed(text) || [&document].into_iter().chain(plugins).any(|it| it["type"] == plugin)
}

/// Marks `plugin` as written by `init` with `texts`, of which the defaults and what is of etcd are left out.
pub fn mark_init(plugin: &mut Map<String, Value>, texts: &Texts) {
    let is_default = |name: &str, text: &str| {
        VARIABLES.iter().any(|known| known.name == name && known.default == text)
    };
    let kept = texts.iter().filter(|(name, text)| {
        !["ETCD_", "KUBE"].iter().any(|of| name.starts_with(of)) && !is_default(name, text)
    });
    let kept = kept.map(|(name, text)| ((*name).to_owned(), json!(text)));
    plugin.insert(OF_INIT.to_owned(), Value::Object(kept.gather()));
}

/// The settings of the `init` that wrote `text`; `None` if it was not written by one. Also of a text that is no JSON
/// any more, if that part of it is.
pub fn of_init(text: &str) -> Option<BTreeMap<String, String>> {
    let (_, behind) = text.split_once(&format!("\"{OF_INIT}\""))?;
    let value = behind.trim_start().strip_prefix(':')?;
    serde_json::Deserializer::from_slice(value.as_bytes()).into_iter().next()?.ok()
}

/// What a runtime passes to the plugin of the agent's or `init`'s part of `text`: with the network's name and version.
pub fn passed(text: &str) -> Option<Value> {
    let document = serde_json::from_slice::<Value>(text.as_bytes()).ok()?;
    let mut own = match document.get("plugins") {
        Some(plugins) => plugins.as_array()?.iter().find(|it| it[MANAGED_BY] == AGENT)?.clone(),
        None => document.clone(),
    };
    let passed = own.as_object_mut()?;
    for key in ["cniVersion", "name"] {
        passed.insert(key.to_owned(), document[key].clone());
    }
    Some(own)
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

/// The keys of the plugin; `mtu` is that of the pods, in bytes, and `own` the addresses of this host.
pub fn plugin(
    settings: &Settings,
    subnets: &PerFamily<IpNetwork>,
    mtu: u32,
    own: &BTreeSet<IpAddr>,
) -> Map<String, Value> {
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
    let reserved = settings.reserved_ports(own);
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
            let text = text(&parse(&texts, values_only).unwrap(), &subnets, 1500, &BTreeSet::new());
            assert!(is_managed(&text), "{text}");
            assert!(!is_managed(&text.replace(MANAGED_BY, "")), "without the key");
            assert!(!is_managed(&text.replace(AGENT, "me")), "somebody else's");
        }
        for other in [
            "",
            "{",
            r#"{"humanzInit":{}}"#,
            "[]",
            "null",
            r#"{"plugins":{}}"#,
            r#"{"plugins":[1]}"#,
        ] {
            assert!(!is_managed(other), "{other}");
        }
    }

    #[test]
    fn the_port_of_an_etcd_at_an_address_of_this_host_is_in_it() {
        let subnets = PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: None };
        let settings =
            parse(&[("ETCD_HOST", "192.0.2.11".to_owned())].into(), values_only).unwrap();
        let own = |address: &str| BTreeSet::from([address.parse().unwrap()]);
        let has_it = |own| text(&settings, &subnets, 1500, &own).contains("2379");
        assert!(has_it(own("192.0.2.11")) && !has_it(own("192.0.2.12")));
    }

    /// The text that `init` writes with these settings, as a list and as a single plugin.
    fn written(texts: &Texts) -> [String; 2] {
        ["/05-humanz.conflist", "/05-humanz.conf"].map(|config| {
            let mut texts = texts.clone();
            texts.insert("CNI_CONFIG_LOCATION", config.to_owned());
            let settings = parse(&texts, values_only).unwrap();
            let subnets = PerFamily { v4: "10.4.0.0/24".parse().ok(), v6: None };
            let mut plugin = plugin(&settings, &subnets, 1500, &BTreeSet::new());
            mark_init(&mut plugin, &texts);
            document(&settings, plugin)
        })
    }

    #[test]
    fn what_init_was_called_with_is_read_back_and_no_secret_is_written() {
        let texts = [
            ("SUBNET_SOURCE", "static"),
            ("SUBNET", "10.4.0.0/24"),
            ("POD_GUARD", "on"),
            ("ETCD_HOST", "https://user:secret@etcd"),
        ];
        let texts = Texts::from(texts.map(|(name, text)| (name, text.to_owned())));
        for text in written(&texts) {
            let found = of_init(&text).unwrap();
            let names: Vec<&str> = found.keys().map(String::as_str).collect();
            assert_eq!(names, ["CNI_CONFIG_LOCATION", "SUBNET", "SUBNET_SOURCE"], "{text}");
            assert!(!text.contains("secret"), "{text}");
            // A comma too many elsewhere.
            let broken = text.replacen('{', "{,", 1);
            assert_eq!(of_init(&broken), Some(found), "{broken}");
            assert_eq!(passed(&broken), None);
            let passed = passed(&text).unwrap();
            assert_eq!((&passed["type"], &passed["name"]), (&json!("humanz"), &json!("humanz")));
        }
    }

    #[test]
    fn what_is_not_of_init_is_not_taken_for_it() {
        let subnets = PerFamily { v4: "10.244.1.0/24".parse().ok(), v6: None };
        let texts = Texts::from([("ETCD_HOST", "etcd".to_owned())]);
        assert_eq!(
            of_init(&text(&parse(&texts, values_only).unwrap(), &subnets, 1500, &BTreeSet::new())),
            None
        );
        for other in [
            "",
            r#""humanzInit""#,
            r#""humanzInit":"#,
            r#""humanzInit": 1"#,
            r#""humanzInit": {"SUBNET": 1}"#,
            r#""humanzInit": {"SUBNET": "10.4.0.0/24""#,
        ] {
            assert_eq!(of_init(other), None, "{other}");
        }
        for other in ["", "[]", "1", r#"{"plugins":[1]}"#, r#"{"plugins":1}"#] {
            assert_eq!(passed(other), None, "{other}");
        }
        let deep = format!(r#""humanzInit": {{"SUBNET": {}"#, "[".repeat(100_000));
        assert_eq!(of_init(&deep), None);
    }
}
