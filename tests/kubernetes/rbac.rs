//! The roles in packaging, as an API server applies them.

use serde_json::Value;

const MANIFEST: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/daemonset-kubernetes.yaml"));

/// One rule of a ClusterRole.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    groups: Vec<String>,
    resources: Vec<String>,
    /// Paths that are no resources; `*` at the end is any rest.
    urls: Vec<String>,
    verbs: Vec<String>,
    /// Objects that somebody's webhook lets nobody change: the API answers as to one who may not.
    sealed: Vec<String>,
}

const BESIDE_ETCD: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/policy-role.yaml"));

const CONTROLLER: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/controller.yaml"));

/// The rules of daemonset-kubernetes.yaml.
pub fn role() -> Vec<Rule> {
    read(MANIFEST)
}

/// Those for hosts that have their subnets from etcd.
pub fn role_beside_etcd() -> Vec<Rule> {
    read(BESIDE_ETCD)
}

/// Those of the controller.
pub fn role_of_controller() -> Vec<Rule> {
    read(CONTROLLER)
}

/// The rules of a ClusterRole.
pub fn rules(role: &Value) -> Vec<Rule> {
    let words = |rule: &Value, field: &str| -> Vec<String> {
        let all = rule[field].as_array().into_iter().flatten();
        all.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let rule = |rule: &Value| Rule {
        groups: words(rule, "apiGroups"),
        resources: words(rule, "resources"),
        urls: words(rule, "nonResourceURLs"),
        verbs: words(rule, "verbs"),
        sealed: Vec::new(),
    };
    role["rules"].as_array().unwrap().iter().map(rule).collect()
}

fn read(manifest: &str) -> Vec<Rule> {
    let role = manifest.split("\n---\n").find(|text| text.contains("\nkind: ClusterRole\n"));
    let mut rules = Vec::new();
    for line in role.unwrap().lines().map(|line| line.trim_start_matches([' ', '-'])) {
        let Some((field, list)) = line.split_once(": [") else { continue };
        let list = list.strip_suffix(']').unwrap().split(", ");
        let words: Vec<String> = list.map(|word| word.trim_matches('"').to_owned()).collect();
        match field {
            "apiGroups" => rules.push(Rule { groups: words, ..Rule::default() }),
            "nonResourceURLs" => rules.push(Rule { urls: words, ..Rule::default() }),
            "resources" => rules.last_mut().unwrap().resources = words,
            "verbs" => rules.last_mut().unwrap().verbs = words,
            _ => {}
        }
    }
    rules
}

impl Rule {
    /// `verb` on the resource at `path`: `/api/v1/pods`, `/apis/GROUP/VERSION/RESOURCE`, or on another path.
    pub fn permits(&self, verb: &str, path: &str) -> bool {
        let is_it = |url: &String| match url.strip_suffix('*') {
            Some(begin) => path.starts_with(begin),
            None => path == url,
        };
        if verb == "get" {
            return self.urls.iter().any(is_it);
        }
        let parts: Vec<&str> = path.split('/').collect();
        let (group, resource) = match parts.as_slice() {
            ["", "api", _, resource] => ("", *resource),
            ["", "apis", group, _, resource] => (*group, *resource),
            _ => return false,
        };
        let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
        has(&self.groups, group) && has(&self.resources, resource) && has(&self.verbs, verb)
    }

    /// Without the objects of these names.
    pub fn sealing(self, names: &[&str]) -> Rule {
        Rule { sealed: names.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// `verb` on the object of that path: `/apis/GROUP/VERSION/RESOURCE/NAME`, or its `/status`.
    pub fn permits_object(&self, verb: &str, path: &str) -> bool {
        let parts: Vec<&str> = path.split('/').collect();
        if verb == "patch" && self.sealed.iter().any(|name| parts.contains(&name.as_str())) {
            return false;
        }
        let (group, resource) = match parts.as_slice() {
            ["", "apis", group, _, resource, _] => (*group, (*resource).to_owned()),
            ["", "apis", group, _, resource, _, inner] => (*group, format!("{resource}/{inner}")),
            _ => return false,
        };
        let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
        has(&self.groups, group) && has(&self.resources, &resource) && has(&self.verbs, verb)
    }

    /// Every pair of resource and verb.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.resources.iter().flat_map(|resource| {
            self.verbs.iter().map(move |verb| (resource.as_str(), verb.as_str()))
        })
    }
}
