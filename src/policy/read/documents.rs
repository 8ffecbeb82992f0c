//! Pure. Objects of any kind from files: policies, groups, pods, namespaces, nodes.
//!
//! humanz's own objects stand in files as those of Kubernetes do, with `spec` as in etcd:
//!
//! ```yaml
//! apiVersion: humanz.io/v1
//! kind: Group              # or GroupPolicy, NamespaceRule, Network, NetProfile, Pin
//! metadata: {tenant: blue, name: web}
//! spec: {policies: [front], default: deny}
//! ```

use std::collections::BTreeSet;

use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::kube::yaml;
use crate::net::{Object, Problem, ProblemKind, subnet};
use crate::policy::endpoint::{Endpoint, Endpoints};
use crate::policy::isolation;
use crate::policy::name::{ObjectName, PodName, Scoped};
use crate::policy::network::Networks;
use crate::policy::profile::{ProfileUser, Profiles};
use crate::policy::read::cluster::{Cluster, node};
use crate::policy::read::each::each;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::read::groups::{self, Objects, scoped};
use crate::policy::read::membership::NamespaceRule;
use crate::policy::read::network;
use crate::policy::read::pin;
use crate::policy::read::pod::Pod;
use crate::policy::read::profile;
use crate::policy::read::{Parsed, policy};
use crate::policy::rule::{Origin, Rules};
use crate::policy::snapshot::PolicySnapshot;

/// The `apiVersion` of humanz's own objects.
pub const OWN: &str = "humanz.io/v1";

/// While there is one, no pod of a namespace without one chooses its group or network.
pub const NAMESPACE_RULE: &str = "NamespaceRule";

/// What files say, together.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    pub rules: Rules,
    /// Objects whose rules are not understood as a whole.
    pub unread: BTreeSet<Origin>,
    pub endpoints: Endpoints,
    /// Namespaces and the rules for their pods.
    pub cluster: Cluster,
    pub networks: Networks,
    pub profiles: Profiles,
    pub problems: Vec<Problem>,
}

impl Documents {
    /// With the `group` that the hosts' settings give pods which nothing else puts into one.
    pub fn configured(mut self, group: Option<&Scoped>) -> Documents {
        for pod in &mut self.endpoints.pods {
            self.problems.extend(self.cluster.configure(pod, group));
        }
        let known = PolicySnapshot {
            rules: self.rules.clone(),
            profiles: self.profiles.clone(),
            group: group.cloned(),
            ..PolicySnapshot::default()
        };
        self.problems.extend(known.missing_configured_group());
        self
    }

    /// With what keeps the tenants apart, as if there were no pods but these.
    pub fn isolated(mut self) -> Documents {
        let unplaced = of_no_network(&self.endpoints.pods, &self.networks);
        self.networks = self.networks.beside(unplaced);
        self.endpoints.pods.iter_mut().for_each(|pod| pod.place(&self.networks));
        let isolation = Rules::new(isolation::rules(&self.networks));
        self.rules = Rules::merged(&[&self.rules, &isolation]);
        self
    }
}

/// The objects in a text: JSON, or documents of YAML; those of a list one by one.
///
/// # Errors
/// It is neither.
pub fn objects(text: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    each(text, &mut |object| objects.push(object))?;
    Ok(objects)
}

/// What is said of a text that [`is_blank`].
pub const BLANK: &str = "it has no object; [] says that there are no policies";

/// A text without objects has no empty list either, which says that there are none: what is left of a file that was
/// being written, or whose disk was full, and the null of a filter that found nothing.
pub fn is_blank(text: &str) -> bool {
    fn has_list(value: &Value) -> bool {
        match value {
            Value::Array(all) => all.is_empty() || all.iter().any(has_list),
            other => other.get("items").is_some_and(has_list),
        }
    }
    let json = serde_json::Deserializer::from_slice(text.as_bytes())
        .into_iter()
        .collect::<Result<Vec<_>, _>>();
    let documents = json.or_else(|_| yaml::documents(text));
    !documents.unwrap_or_default().iter().any(has_list)
}

/// What `objects` say, in any order. What is no object of these kinds is a problem.
///
/// `free`: pods may choose their group and network while no namespace has a rule.
pub fn read<'a>(objects: impl IntoIterator<Item = &'a Value>, free: bool) -> Documents {
    read_beside(Parsed::default(), objects, free)
}

/// As [`read`], beside policies that were read before.
pub fn read_beside<'a>(
    policies: Parsed,
    objects: impl IntoIterator<Item = &'a Value>,
    free: bool,
) -> Documents {
    let mut reader = DocumentsReader { parsed: policies, ..DocumentsReader::new(free) };
    objects.into_iter().for_each(|object| reader.note(object));
    reader.finish()
}

/// As [`read`], of the objects in a text.
///
/// # Errors
/// As [`objects`], or it [`is_blank`].
pub fn read_text(text: &str, free: bool) -> Result<Documents, String> {
    let (mut reader, mut has_objects) = (DocumentsReader::new(free), false);
    each(text, &mut |object| {
        has_objects = true;
        reader.note(&object);
    })?;
    if !has_objects && is_blank(text) {
        return Err(BLANK.to_owned());
    }
    Ok(reader.finish())
}

#[derive(Default)]
struct DocumentsReader {
    cluster: Cluster,
    parsed: Parsed,
    groups: Objects,
    policies: Objects,
    networks: Networks,
    profiles: Profiles,
    endpoints: Endpoints,
    /// They need what is said of their namespaces.
    pods: Vec<Pod>,
    pod_problems: Vec<Problem>,
}

fn kind(object: &Value) -> (&str, &str) {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    (text("apiVersion"), text("kind"))
}

impl DocumentsReader {
    fn new(free: bool) -> DocumentsReader {
        DocumentsReader { cluster: Cluster::new(free), ..DocumentsReader::default() }
    }

    fn note(&mut self, object: &Value) {
        if object["kind"] == NAMESPACE_RULE {
            self.cluster.note_rule();
        }
        if let Err(fault) = self.take(object) {
            self.problem(object, &fault);
        }
    }

    fn finish(mut self) -> Documents {
        for pod in std::mem::take(&mut self.pods) {
            let problems = self.cluster.pod(pod, &mut self.endpoints);
            self.pod_problems.extend(problems);
        }
        self.parsed.problems.append(&mut self.pod_problems);
        self.parsed.append(groups::read(&self.groups, &self.policies));
        self.note_overlaps();
        self.note_missing_profiles();
        self.parsed.problems.extend(self.networks.pin_problems());
        Documents {
            rules: Rules::new(self.parsed.rules),
            unread: self.parsed.unread,
            endpoints: self.endpoints,
            cluster: self.cluster,
            networks: self.networks,
            profiles: self.profiles,
            problems: self.parsed.problems,
        }
    }

    fn take(&mut self, object: &Value) -> Result<(), Fault> {
        if let Some(parsed) = policy(object) {
            self.parsed.append(parsed);
            return Ok(());
        }
        match kind(object) {
            ("v1", "Namespace") => {
                let read = self.cluster.namespace(object);
                read.inspect_err(|_| self.close(object))
            }
            ("v1", "Pod") => {
                self.pods.extend(Pod::endpoint(object)?);
                Ok(())
            }
            ("v1", "Node") => {
                self.endpoints.nodes.push(node(object)?);
                Ok(())
            }
            (OWN, own) => self.own(own, object),
            (_, other) => {
                Err(ObjectField::root(object).fault(format!("kind {} is not known", quoted(other))))
            }
        }
    }

    fn own(&mut self, kind: &str, object: &Value) -> Result<(), Fault> {
        let root = ObjectField::root(object);
        let metadata = root.need("metadata")?;
        let name = metadata.need("name")?.name()?;
        // Without it the readers close what it is about, as with any other that they do not understand.
        let spec = &object["spec"];
        let tenant = metadata.get("tenant").map(|field| field.name()).transpose()?;
        let tenant = tenant.unwrap_or_else(|| Networks::default_name().tenant);
        match kind {
            "Group" => {
                let name = Scoped { tenant, name };
                self.assign_profile(object, ProfileUser::Group(name.clone()), &name.tenant);
                self.profiles.note_group(name.clone());
                self.groups.insert(name, spec.clone())
            }
            "GroupPolicy" => self.policies.insert(Scoped { tenant, name }, spec.clone()),
            NAMESPACE_RULE => {
                let rule = NamespaceRule::read(spec).inspect_err(|_| self.close(object))?;
                self.cluster.rules.insert(name, rule);
                None
            }
            "Pin" => {
                let namespace = metadata.need("namespace")?.name()?;
                return self.pin(PodName { namespace, name }, spec);
            }
            "NetProfile" => {
                let name = Scoped { tenant, name };
                let read = profile::read(spec);
                let profile = read.inspect_err(|_| self.profiles.note_unread(name.clone()))?;
                self.profiles.insert(name, profile);
                None
            }
            "Network" => return self.network(Scoped { tenant, name }, object),
            other => return Err(root.fault(format!("kind {} is not known", quoted(other)))),
        };
        Ok(())
    }

    fn network(&mut self, name: Scoped, object: &Value) -> Result<(), Fault> {
        self.assign_profile(object, ProfileUser::Network(name.clone()), &name.tenant);
        let read = network::read(&name, &object["spec"]);
        let network = read.inspect_err(|_| self.networks.note_unread(name.clone()))?;
        if !self.networks.insert(name, network) {
            let why = format!("there are more than {} networks", Networks::LIMIT);
            return Err(ObjectField::root(object).fault(why));
        }
        Ok(())
    }

    /// A pod whose pin is not understood has no other address.
    fn pin(&mut self, pod: PodName, spec: &Value) -> Result<(), Fault> {
        let read = pin::read(spec);
        let addresses = read.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
        if !self.networks.pin(pod, addresses) {
            let why = format!("there are more than {} pins", Networks::PINS_LIMIT);
            return Err(ObjectField::root(spec).fault(why));
        }
        read.map(drop)
    }

    /// A profile that is not understood marks nothing, and is no reason to close a group.
    fn assign_profile(&mut self, object: &Value, user: ProfileUser, tenant: &ObjectName) {
        let spec = &object["spec"];
        let Some(field) = ObjectField::root(spec).get("profile") else { return };
        match scoped(&field, tenant) {
            Ok(profile) => self.profiles.assign(user, profile),
            Err(fault) => self.problem(object, &fault),
        }
    }

    fn note_missing_profiles(&mut self) {
        self.parsed.problems.extend(missing_profiles(&self.profiles));
    }

    /// Networks that share addresses keep what they have; no host takes a block of them.
    fn note_overlaps(&mut self) {
        let problems = self.networks.overlaps().into_iter().map(|overlap| overlap.problem());
        self.parsed.problems.extend(problems);
    }

    /// The pods of the namespace that `object` is about stay in quarantine.
    fn close(&mut self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        name.parse().into_iter().for_each(|name| self.cluster.close(name));
    }

    fn problem(&mut self, object: &Value, fault: &Fault) {
        let subject = Object::named(format!("{} {}", shown(kind(object).1), full_name(object)));
        let problem = Problem::in_object(ProblemKind::Policy, subject, fault);
        match kind(object) {
            ("v1", "Pod") => self.pod_problems.push(problem),
            _ => self.parsed.problems.push(problem),
        }
    }
}

/// `blue/front`, as commands take it.
fn full_name(object: &Value) -> String {
    let text = |name: &str| object["metadata"][name].as_str().filter(|text| !text.is_empty());
    let name = shown(text("name").unwrap_or_default());
    match text("tenant").or(text("namespace")) {
        Some(scope) => format!("{}/{name}", shown(scope)),
        None => name,
    }
}

/// In quotes, if it is no usual name.
fn shown(text: &str) -> String {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match (1..=60).contains(&text.len()) && text.bytes().all(is_usual) {
        true => text.to_owned(),
        false => quoted(text),
    }
}

/// What has a profile that is not there.
pub fn missing_profiles(profiles: &Profiles) -> impl Iterator<Item = Problem> {
    profiles.missing().map(|(user, profile)| {
        let what = format!("profile: NetProfile {profile} does not exist");
        Problem::in_object(ProblemKind::Policy, Object::named(user.to_string()), what)
    })
}

/// The addresses of pods that are in the network of the settings, which no object says.
fn of_no_network(pods: &[Endpoint], networks: &Networks) -> Vec<IpNetwork> {
    let addresses = pods.iter().flat_map(|pod| &pod.addresses);
    let other = addresses.filter(|address| networks.of(**address).is_none());
    other.map(|address| subnet::host(*address)).collect()
}
