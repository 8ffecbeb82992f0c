//! Pure. Which group and network a pod is in, and what may say so.
//!
//! In this order: annotation, label, the rule of its namespace, and of groups the settings (`POLICY_GROUP`). A pod's
//! own words and the settings count only as far as the rule of its namespace allows: who may create pods in a
//! namespace could else take another group's rights.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cni::pod_keys::{GROUP, NETWORK, TENANT};
use crate::policy::labels::Labels;
use crate::policy::name::{ObjectName, Scoped};
use crate::policy::network::Networks;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::groups::scoped;

/// What a pod, its namespace and this host say.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    pub name: &'a ObjectName,
    pub annotations: &'a Labels,
    pub labels: &'a Labels,
    pub namespace: Option<&'a NamespaceRule>,
    /// Whether a pod may choose where its namespace has no rule: on hosts where only the administrator starts
    /// pods, while there is no rule for any namespace.
    pub free: bool,
}

/// A pod's group and network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    pub group: Option<Scoped>,
    pub network: Option<Scoped>,
}

/// Why a pod is not in the group or network that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No name.
    #[error("{0} {1} is not a name")]
    Name(&'static str, String),
    /// The rule of its namespace does not allow it; at last what that allows, as options of `ns set`.
    #[error("{0} {1} is not allowed for pods of this namespace")]
    NotAllowed(&'static str, Scoped, String),
    /// There is none.
    #[error("{0} {1} is not allowed for pods of this namespace, which has no NamespaceRule")]
    NoRule(&'static str, Scoped),
    /// The list of its networks.
    #[error("humanz.io/networks {0}: {1}")]
    Interfaces(String, &'static str),
}

impl Refusal {
    /// What lets a pod of `namespace` have it, if anything does.
    pub fn fix(&self, namespace: &ObjectName) -> Option<String> {
        let typed = |verb, asked: &Scoped| {
            format!("humanz-agent ns {verb} --allow {asked} # by an administrator, who allows it")
        };
        match self {
            // `set` has all that is allowed from then on.
            Refusal::NotAllowed(_, asked, before) => {
                Some(typed(format!("set {namespace}{before}"), asked))
            }
            Refusal::NoRule(_, asked) => {
                Some(typed(format!("create {namespace} --tenant {}", asked.tenant), asked))
            }
            Refusal::Name(..) | Refusal::Interfaces(..) => None,
        }
    }
}

/// What the administrator says of the pods of a namespace.
///
/// ```json
/// {"tenant": "blue", "group": "web", "network": "front", "allow": ["db", "green/web", "*"],
///  "pods": [{"match": "db-*", "group": "db", "network": "back"}]}
/// ```
///
/// `tenant` (default `default`) completes names without one; `pods` come before `group` and
/// `network`, the first match first; `allow` are the groups and networks that pods may ask for
/// themselves, beside those that the rule gives them; `*`: all of the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRule {
    tenant: ObjectName,
    all: Membership,
    pods: Vec<(String, Membership)>,
    allow: Vec<Scoped>,
    allow_tenant: bool,
}

impl NamespaceRule {
    /// # Errors
    /// A field that is not understood: nothing of the rule holds then.
    pub fn read(object: &Value) -> Result<NamespaceRule, Fault> {
        let object = ObjectField::root(object);
        object.only(&["tenant", "network", "group", "allow", "pods", "schema"])?;
        let tenant = object.get("tenant").map(|field| field.name()).transpose()?;
        let tenant = tenant.unwrap_or_else(default_tenant);
        let mut rule = NamespaceRule {
            all: membership(&object, &tenant)?,
            tenant,
            pods: Vec::new(),
            allow: Vec::new(),
            allow_tenant: false,
        };
        for field in object.list("allow")? {
            match field.text()? {
                "*" => rule.allow_tenant = true,
                _ => rule.allow.push(scoped(&field, &rule.tenant)?),
            }
        }
        for field in object.list("pods")? {
            field.only(&["match", "group", "network"])?;
            let pattern = field.need("match")?.text()?.to_owned();
            rule.pods.push((pattern, membership(&field, &rule.tenant)?));
        }
        Ok(rule)
    }

    /// What it gives the pod `name`.
    fn given(&self, name: &ObjectName) -> Membership {
        let pods = self.pods.iter().find(|(pattern, _)| is_match(pattern, name.as_str()));
        let own = pods.map(|(_, own)| own.clone()).unwrap_or_default();
        Membership {
            group: own.group.or_else(|| self.all.group.clone()),
            network: own.network.or_else(|| self.all.network.clone()),
        }
    }

    /// The networks that it puts pods into, but for that of the settings.
    pub fn networks(&self) -> impl Iterator<Item = &Scoped> {
        let own = Networks::default_name();
        let all = self.pods.iter().map(|(_, one)| one).chain([&self.all]);
        all.filter_map(|one| one.network.as_ref()).filter(move |network| **network != own)
    }

    /// What it allows, as `ns set` has it typed.
    fn allowed(&self) -> String {
        let tenant = self.allow_tenant.then(|| " --allow '*'".to_owned());
        let each = self.allow.iter().map(|one| format!(" --allow {one}"));
        tenant.into_iter().chain(each).collect()
    }

    fn allows(&self, asked: &Scoped, given: Option<&Scoped>) -> bool {
        let tenant = self.allow_tenant && asked.tenant == self.tenant;
        tenant || given == Some(asked) || self.allow.contains(asked)
    }
}

/// The group and network of a pod, and why it is not in what it asks for. A pod that asks for what it may not have is
/// where it would be without asking: none leaves a group, its policies and its rate by asking for another one.
pub fn assign(claims: &Claims<'_>) -> (Membership, Option<Refusal>) {
    let given = claims.namespace.map(|rule| rule.given(claims.name)).unwrap_or_default();
    let or_given = |asked: Result<Option<Scoped>, Refusal>, given| match asked {
        Ok(found) => (found, None),
        Err(refusal) => (given, Some(refusal)),
    };
    let (group, no_group) = or_given(one(claims, "group", GROUP, given.group.clone()), given.group);
    let (network, no_network) =
        or_given(one(claims, "network", NETWORK, given.network.clone()), given.network);
    (Membership { group, network }, no_group.or(no_network))
}

/// A pod that nothing else puts into a group is in the `group` of the settings.
///
/// # Errors
/// Its namespace has a `rule`, which does not allow that.
pub fn configured(rule: Option<&NamespaceRule>, group: &Scoped) -> Result<Scoped, Refusal> {
    match rule {
        Some(rule) if !rule.allows(group, None) => {
            Err(Refusal::NotAllowed("POLICY_GROUP: group", group.clone(), rule.allowed()))
        }
        _ => Ok(group.clone()),
    }
}

/// The network alone, whatever group the pod asks for.
///
/// # Errors
/// It asks for one that it may not have.
pub fn network(claims: &Claims<'_>) -> Result<Option<Scoped>, Refusal> {
    let given = claims.namespace.map(|rule| rule.given(claims.name)).unwrap_or_default();
    one(claims, "network", NETWORK, given.network)
}

/// What the pod asks for, if it may have that, or else what it is `given`.
fn one(
    claims: &Claims<'_>,
    what: &'static str,
    keys: [&str; 2],
    given: Option<Scoped>,
) -> Result<Option<Scoped>, Refusal> {
    match asked(claims, what, keys)? {
        Some(asked) => may(claims, what, asked, given.as_ref()).map(Some),
        None => Ok(given),
    }
}

/// `asked`, if the pod may have it. The network of the settings is that of every pod without another one.
fn may(
    claims: &Claims<'_>,
    what: &'static str,
    asked: Scoped,
    given: Option<&Scoped>,
) -> Result<Scoped, Refusal> {
    match claims.namespace {
        Some(rule) if rule.allows(&asked, given) => Ok(asked),
        Some(rule) => Err(Refusal::NotAllowed(what, asked, rule.allowed())),
        None if claims.free || what == "network" && asked == Networks::default_name() => Ok(asked),
        None => Err(Refusal::NoRule(what, asked)),
    }
}

/// What the pod asks for, by annotation or else by label.
fn asked(
    claims: &Claims<'_>,
    what: &'static str,
    keys: [&str; 2],
) -> Result<Option<Scoped>, Refusal> {
    word(claims, keys).map(|text| scoped_by(claims, what, &text)).transpose()
}

/// What the pod says, by annotation or else by label.
fn word(claims: &Claims<'_>, keys: [&str; 2]) -> Option<Box<str>> {
    let from = |words: &'_ Labels| keys.iter().find_map(|key| words.get(*key).cloned());
    let text = from(claims.annotations).or_else(|| from(claims.labels));
    text.filter(|text| !text.is_empty())
}

/// `text` as a name, completed by the tenant that the pod says, or that of its namespace.
fn scoped_by(claims: &Claims<'_>, what: &'static str, text: &str) -> Result<Scoped, Refusal> {
    let tenant = match word(claims, TENANT) {
        Some(text) => text.parse().map_err(|_| Refusal::Name("tenant", quoted(&text)))?,
        None => claims.namespace.map_or_else(default_tenant, |rule| rule.tenant.clone()),
    };
    let value = Value::from(text);
    let bad = |_| Refusal::Name(what, quoted(text));
    scoped(&ObjectField::root(&value), &tenant).map_err(bad)
}

/// The pod asks for one network.
pub fn asks_for_network(claims: &Claims<'_>) -> bool {
    word(claims, NETWORK).is_some()
}

/// The network that a pod calls `text`.
///
/// # Errors
/// It is no name, or the pod may not have it.
pub fn allowed_network(claims: &Claims<'_>, text: &str) -> Result<Scoped, Refusal> {
    let asked = scoped_by(claims, "network", text)?;
    let given = claims.namespace.and_then(|rule| rule.given(claims.name).network);
    may(claims, "network", asked, given.as_ref())
}

fn default_tenant() -> ObjectName {
    Networks::default_name().tenant
}

fn membership(field: &ObjectField<'_>, tenant: &ObjectName) -> Result<Membership, Fault> {
    let named = |name| field.get(name).map(|field| scoped(&field, tenant)).transpose();
    Ok(Membership { group: named("group")?, network: named("network")? })
}

/// `pattern` with `*` for any characters; linear in both.
fn is_match(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            let Some(at) = rest.find(before) else { return false };
            rest = &rest[at + before.len()..];
        }
    }
    match last {
        None => rest.is_empty(),
        Some(last) => rest.ends_with(last),
    }
}
