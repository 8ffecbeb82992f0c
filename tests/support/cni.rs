//! The container runtime's side of CNI: how libcni runs plugins.

use serde_json::{Value, json};

use super::node::{Node, Place, command};
use super::process::Ended;

/// The plugin directory of runtimes.
pub const PLUGINS: &str = "/opt/cni/bin";
const CONFIGURATIONS: &str = "/etc/cni/net.d";

/// A network configuration list.
#[derive(Clone)]
pub struct Network {
    pub name: String,
    pub version: String,
    pub plugins: Vec<Value>,
}

/// One interface of one container.
#[derive(Clone)]
pub struct Attachment {
    pub container: String,
    pub netns: String,
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// The runtime configuration; a plugin gets the parts that its `capabilities` name.
    pub runtime: Value,
}

/// The error of a plugin.
#[derive(Debug)]
pub struct Failure {
    /// 0 if stdout was no error object.
    pub code: u64,
    pub ended: Ended,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "code {}: {}", self.code, self.ended)
    }
}

impl Network {
    /// The first file in the host's configuration folder, as containerd chooses.
    pub fn of(host: &Node) -> Self {
        let files = host.list(CONFIGURATIONS);
        let names = [".conf", ".conflist", ".json"];
        let mut usable = files.iter().filter(|file| names.iter().any(|end| file.ends_with(end)));
        let file = usable.next().unwrap_or_else(|| panic!("{}: no CNI configuration", host.name()));
        Self::parse(&host.read(&format!("{CONFIGURATIONS}/{file}")).unwrap())
    }

    /// A list, or a single plugin's configuration.
    pub fn parse(text: &str) -> Self {
        let conf: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e} in {text}"));
        let own = |key: &str| conf[key].as_str().expect(key).to_owned();
        let plugins = match &conf["plugins"] {
            Value::Array(plugins) => plugins.clone(),
            _ => vec![conf.clone()],
        };
        Self { name: own("name"), version: own("cniVersion"), plugins }
    }

    /// The same, asked for in another version.
    pub fn with_version(&self, version: &str) -> Self {
        Self { version: version.into(), ..self.clone() }
    }

    pub fn add(&self, host: &Node, to: &Attachment) -> Result<Value, Box<Failure>> {
        let mut result = Value::Null;
        for plugin in &self.plugins {
            result = self.exec(host, "ADD", plugin, Some(to), &result)?;
        }
        Ok(result)
    }

    /// `result`: the result of ADD, `Null` if unknown.
    pub fn check(&self, host: &Node, of: &Attachment, result: &Value) -> Result<(), Box<Failure>> {
        for plugin in &self.plugins {
            self.exec(host, "CHECK", plugin, Some(of), result)?;
        }
        Ok(())
    }

    pub fn del(&self, host: &Node, of: &Attachment, result: &Value) -> Result<(), Box<Failure>> {
        for plugin in self.plugins.iter().rev() {
            self.exec(host, "DEL", plugin, Some(of), result)?;
        }
        Ok(())
    }

    pub fn gc(&self, host: &Node, valid: &[&Attachment]) -> Result<(), Box<Failure>> {
        let entry = |a: &&Attachment| json!({"containerID": a.container, "ifname": a.ifname});
        let list: Vec<Value> = valid.iter().map(entry).collect();
        for plugin in &self.plugins {
            let mut plugin = plugin.clone();
            plugin["cni.dev/valid-attachments"] = json!(list);
            plugin["cni.dev/attachments"] = json!(list);
            self.exec(host, "GC", &plugin, None, &Value::Null)?;
        }
        Ok(())
    }

    pub fn status(&self, host: &Node) -> Result<(), Box<Failure>> {
        for plugin in &self.plugins {
            self.exec(host, "STATUS", plugin, None, &Value::Null)?;
        }
        Ok(())
    }

    /// The command and its stdin, for a test that wants to treat it otherwise.
    pub fn invocation(
        &self,
        verb: &str,
        plugin: &Value,
        of: Option<&Attachment>,
        previous: &Value,
    ) -> (std::process::Command, String) {
        let kind = plugin["type"].as_str().expect("type");
        let mut command = command(&format!("{PLUGINS}/{kind}"));
        command.env("CNI_COMMAND", verb).env("CNI_PATH", PLUGINS);
        let mut conf = plugin.clone();
        conf["name"] = json!(self.name);
        conf["cniVersion"] = json!(self.version);
        if !previous.is_null() {
            conf["prevResult"] = previous.clone();
        }
        if let Some(of) = of {
            command.env("CNI_CONTAINERID", &of.container).env("CNI_NETNS", &of.netns);
            command.env("CNI_IFNAME", &of.ifname).env("CNI_ARGS", &of.args);
            let offered = of.runtime.as_object().into_iter().flatten();
            let wanted = offered.filter(|(key, _)| plugin["capabilities"][key.as_str()] == true);
            let config: serde_json::Map<_, _> =
                wanted.map(|(k, v)| (k.clone(), v.clone())).collect();
            if !config.is_empty() {
                conf["runtimeConfig"] = Value::Object(config);
            }
        }
        (command, conf.to_string())
    }

    fn exec(
        &self,
        host: &Node,
        verb: &str,
        plugin: &Value,
        of: Option<&Attachment>,
        previous: &Value,
    ) -> Result<Value, Box<Failure>> {
        let (mut command, input) = self.invocation(verb, plugin, of, previous);
        let ended = host.run_command(&mut command, &input);
        let answer = serde_json::from_str(&ended.stdout).unwrap_or(Value::Null);
        if ended.succeeded() {
            return Ok(answer);
        }
        Err(Box::new(Failure { code: answer["code"].as_u64().unwrap_or(0), ended }))
    }
}

impl Attachment {
    /// `eth0` of a container whose namespace has its name.
    pub fn new(container: &str) -> Self {
        Self {
            container: container.into(),
            netns: format!("/run/netns/{container}"),
            ifname: "eth0".into(),
            args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={container}"),
            runtime: Value::Null,
        }
    }
}
