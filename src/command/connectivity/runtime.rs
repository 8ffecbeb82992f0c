//! The runtime's side of CNI: the plugins of this host's configuration, called as libcni calls them.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::settings::CniSettings;
use crate::settings::exit::{self, Exit};

/// Name of the pod's interface.
const IFNAME: &str = "eth0";

/// The network that new pods of this host get.
pub struct RuntimeNetwork {
    name: String,
    version: String,
    plugins: Vec<Value>,
    /// Folder of the plugins.
    folder: PathBuf,
}

/// A container as the plugins know it.
#[derive(Clone, Debug)]
pub struct TestContainer {
    pub id: String,
    /// The file of its network namespace; empty: there is none any more.
    pub netns: String,
    /// A port of the host, and the port of the container that it leads to.
    pub host_port: Option<(u16, u16)>,
}

impl RuntimeNetwork {
    /// # Errors
    /// There is no configuration, or it is none of a network.
    pub fn read(cni: &CniSettings) -> Result<RuntimeNetwork, Exit> {
        let path = cni.config.display();
        let text = fs::read_to_string(&cni.config).map_err(|error| {
            let why = format!("read the CNI configuration {path}: {error}; has the agent of this host become ready?");
            Exit::new(exit::UNAVAILABLE, why)
        })?;
        let invalid = |what: &str| Exit::new(exit::FAILURE, format!("{path}: {what}"));
        let conf: Value = serde_json::from_slice(text.as_bytes())
            .map_err(|error| invalid(&format!("no JSON: {error}")))?;
        let own = |key: &str| {
            let value = conf[key].as_str().map(str::to_owned);
            value.ok_or_else(|| invalid(&format!("{key} is missing")))
        };
        let plugins = match &conf["plugins"] {
            Value::Array(plugins) => plugins.clone(),
            _ => vec![conf.clone()],
        };
        let folder = cni.plugin.parent().unwrap_or(&cni.plugin).to_owned();
        Ok(RuntimeNetwork { name: own("name")?, version: own("cniVersion")?, plugins, folder })
    }

    /// The name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Attaches it; gives the result of the last plugin.
    ///
    /// # Errors
    /// What the plugin that refused says.
    pub fn add(&self, container: &TestContainer) -> Result<Value, String> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            result = self.call("ADD", plugin, container, &result)?;
        }
        Ok(result)
    }

    /// Detaches it. Every plugin is called, whatever others say.
    ///
    /// # Errors
    /// What the first plugin that failed says.
    pub fn del(&self, container: &TestContainer, result: &Value) -> Result<(), String> {
        let plugins = self.plugins.iter().rev();
        let ended = plugins.map(|plugin| self.call("DEL", plugin, container, result).map(drop));
        // All of them, before the first failure is returned.
        ended.collect::<Vec<_>>().into_iter().collect()
    }

    fn call(
        &self,
        verb: &str,
        plugin: &Value,
        container: &TestContainer,
        previous: &Value,
    ) -> Result<Value, String> {
        let kind = plugin["type"].as_str().unwrap_or_default();
        let program = self.folder.join(kind);
        let failed = |why: String| format!("{verb} by {}: {why}", program.display());
        // As libcni does: a path would leave the folder of the plugins.
        if kind.is_empty() || kind.contains('/') {
            return Err(failed("type is no name of a plugin".to_owned()));
        }
        let mut command = Command::new(&program);
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_PATH", &self.folder);
        command.env("CNI_CONTAINERID", &container.id).env("CNI_IFNAME", IFNAME);
        if !container.netns.is_empty() {
            command.env("CNI_NETNS", &container.netns);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let conf = self.configuration(plugin, container, previous).to_string();
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A plugin that ends without reading says why.
            let _unread = stdin.write_all(conf.as_bytes());
        }
        let ended = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        let answer = serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null);
        match ended.status.success() {
            true => Ok(answer),
            false => Err(failed(refusal(&answer, &ended.stderr))),
        }
    }

    /// What a plugin reads. Source: CNI SPEC §4; conventions, "portMappings".
    fn configuration(&self, plugin: &Value, container: &TestContainer, previous: &Value) -> Value {
        let mut conf = plugin.as_object().cloned().unwrap_or_else(Map::new);
        conf.insert("name".into(), json!(self.name));
        conf.insert("cniVersion".into(), json!(self.version));
        if !previous.is_null() {
            conf.insert("prevResult".into(), previous.clone());
        }
        let maps_ports = plugin["capabilities"]["portMappings"] == true;
        if let Some((host, own)) = container.host_port.filter(|_| maps_ports) {
            let mapping = json!({ "hostPort": host, "containerPort": own, "protocol": "tcp" });
            conf.insert("runtimeConfig".into(), json!({ "portMappings": [mapping] }));
        }
        Value::Object(conf)
    }
}

/// `code 11: msg: details`, or the last line of what it wrote for people.
fn refusal(answer: &Value, stderr: &[u8]) -> String {
    match (answer["code"].as_u64(), answer["msg"].as_str(), answer["details"].as_str()) {
        (Some(code), Some(msg), Some(details)) => format!("code {code}: {msg}: {details}"),
        (Some(code), Some(msg), None) => format!("code {code}: {msg}"),
        _ => {
            let said = String::from_utf8_lossy(stderr);
            said.lines().last().unwrap_or("it failed and did not say why").to_owned()
        }
    }
}
