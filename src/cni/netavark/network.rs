//! Pure. podman's network and the CNI configuration of this host that it stands for.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::cni::error::{CniError, code};
use crate::cni::json::{self, FieldErrors, JsonField};

/// The options of podman's network: the file, and the name of the CNI network in it.
const FILE: &str = "config";
const NETWORK: &str = "network";

/// The version of the protocol that calls are made in.
const VERSION: &str = "1.0.0";

/// Which configuration a network of podman asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedNetwork {
    /// podman's name of it.
    pub podman: String,
    pub file: Option<PathBuf>,
    /// The name of the CNI network.
    pub network: Option<String>,
}

impl AskedNetwork {
    /// What is asked for in a network of podman's.
    pub(super) fn read(network: Option<JsonField>) -> AskedNetwork {
        let Some(network) = network else { return AskedNetwork::default() };
        let options = network.object("options");
        let option = |key: &str| {
            let option = options.as_ref().and_then(|options| options.get(key));
            option.and_then(|option| option.filled()).map(str::to_owned)
        };
        let podman =
            network.get("name").and_then(|name| name.text()).unwrap_or_default().to_owned();
        AskedNetwork { podman, file: option(FILE).map(PathBuf::from), network: option(NETWORK) }
    }

    /// What the network on the stdin of `create` asks for.
    pub fn of(document: &Value) -> AskedNetwork {
        AskedNetwork::read(Some(JsonField::root(document, &FieldErrors::default())))
    }

    /// `found` is what is asked for.
    pub fn is(&self, found: &HostNetwork) -> bool {
        self.network.as_ref().is_none_or(|name| *name == found.name())
    }
}

/// A CNI configuration of this host that humanz is in.
#[derive(Clone, Debug, PartialEq)]
pub struct HostNetwork {
    pub file: PathBuf,
    pub(super) conf: Map<String, Value>,
    /// The type of another plugin in it.
    chained: Option<Value>,
}

impl HostNetwork {
    /// The configuration in `text`; `None`: none of its plugins is humanz, of the type `plugin` or written by its agent.
    pub fn read(file: &Path, text: &str, plugin: &str) -> Option<HostNetwork> {
        let document: Map<String, Value> = serde_json::from_slice(text.as_bytes()).ok()?;
        let of_list = document.get("plugins").and_then(Value::as_array);
        let plugins: Vec<&Map<String, Value>> = match of_list {
            Some(list) => list.iter().filter_map(Value::as_object).collect(),
            None => vec![&document],
        };
        let is_ours = |it: &&&Map<String, Value>| {
            it.get("type").is_some_and(|kind| kind == plugin)
                || it.get("managedBy").is_some_and(|who| who == "humanz-agent")
        };
        let ours = plugins.iter().find(is_ours)?;
        let other = plugins.iter().find(|it| !is_ours(it));
        let chained = other.map(|other| other.get("type").cloned().unwrap_or_default());
        let mut conf = (*ours).clone();
        conf.insert("name".into(), document.get("name").cloned().unwrap_or_default());
        conf.insert("cniVersion".into(), json!(VERSION));
        Some(HostNetwork { file: file.to_owned(), conf, chained })
    }

    /// No other plugin is in it.
    pub fn is_alone(&self) -> bool {
        self.chained.is_none()
    }

    /// What containers start with.
    ///
    /// # Errors
    /// Code 2: other plugins are in it too, which netavark does not call.
    pub fn alone(self) -> Result<HostNetwork, CniError> {
        let Some(kind) = &self.chained else { return Ok(self) };
        let file = self.file.display();
        let what = format!(
            "{file}: plugin {kind} is chained with humanz, and netavark calls humanz alone"
        );
        Err(CniError::new(code::UNSUPPORTED_FIELD, what))
    }

    /// What DEL needs of a network whose configuration is gone.
    pub fn gone(asked: &AskedNetwork) -> HostNetwork {
        let name = asked.network.as_deref().unwrap_or("humanz");
        let conf = [("name", name), ("cniVersion", VERSION)];
        let conf = conf.map(|(key, value)| (key.to_owned(), json!(value)));
        HostNetwork { file: PathBuf::new(), conf: conf.into_iter().collect(), chained: None }
    }

    pub fn name(&self) -> &str {
        self.conf.get("name").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The network that podman keeps: addresses come from `found`, and there are no names.
///
/// # Errors
/// Code 2 with everything that was asked for and humanz does not have.
pub fn created(mut document: Value, found: &HostNetwork) -> Result<Value, CniError> {
    let faults = FieldErrors::default();
    refuse(&JsonField::root(&document, &faults));
    let faults = faults.into_vec();
    if !faults.is_empty() {
        return Err(json::error(&faults));
    }
    document["dns_enabled"] = json!(false);
    // podman gives out no address itself.
    document["ipam_options"] = json!({ "driver": "none" });
    document["options"] = json!({ FILE: found.file, NETWORK: found.name() });
    Ok(document)
}

/// What the configuration has already, and what humanz has not.
fn refuse(network: &JsonField) {
    const CONFIGURED: &str = "it is as the CNI configuration of this host has it";
    let is_empty = |value: &Value| {
        *value == false || value == "" || value.as_array().is_some_and(Vec::is_empty)
    };
    for (key, why) in [
        ("subnets", CONFIGURED),
        ("routes", CONFIGURED),
        ("network_interface", CONFIGURED),
        ("ipv6_enabled", CONFIGURED),
        ("internal", "humanz has no network without a way out"),
        ("network_dns_servers", "humanz has no name server"),
    ] {
        if let Some(field) = network.get(key).filter(|field| !is_empty(field.value())) {
            field.unsupported(why);
        }
    }
    for (key, field) in network.object("ipam_options").iter().flat_map(JsonField::entries) {
        if key != "driver" || (field.value() != "" && field.value() != "none") {
            field.unsupported("humanz gives out the addresses itself");
        }
    }
    for (key, option) in network.object("options").iter().flat_map(JsonField::entries) {
        if ![FILE, NETWORK].contains(&key) {
            option.unsupported("the options are config and network");
        }
    }
}
