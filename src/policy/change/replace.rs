//! Pure. The rules of a host with those of changed objects in place of the ones of their names.
//!
//! A host knows rules, and of groups not which policies they list: a rule for a group says that the group lists the
//! policy that the rule stands in.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::net::Problem;
use crate::net::gather::Gather;
use crate::policy::name::Scoped;
use crate::policy::network::DEFAULT;
use crate::policy::read::fields::quoted;
use crate::policy::read::{documents, policy};
use crate::policy::rule::{Origin, PolicyKind, Rule, Rules, Tier};
use crate::policy::selector::Selector;

const GROUP: &str = "Group";
const GROUP_POLICY: &str = "GroupPolicy";

/// What holds after a change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replaced {
    pub rules: Rules,
    /// What is wrong with the changed objects.
    pub problems: Vec<Problem>,
    /// Changed policies of groups that no group lists, as far as rules say.
    pub unlisted: Vec<Scoped>,
}

/// `rules` with those of the objects `new` in place of the ones of the same objects.
///
/// # Errors
/// An object is no policy and no group, or nothing of it is understood; a group lists a policy that is neither in
/// `rules` nor among `new`.
pub fn replaced(rules: &Rules, new: &[Value]) -> Result<Replaced, String> {
    new.iter().try_for_each(refuse_other)?;
    let listed = ListedPolicies::of(rules);
    let changed = ChangedGroups::of(new);
    let (mut objects, mut known) = (Vec::new(), Vec::new());
    for object in new {
        match of_kind(object, GROUP) {
            Some(group) => {
                let (unread, of_host) = changed.divide(object, &group, &listed)?;
                objects.push(with_policies(object, unread));
                known.extend(of_host.iter().flat_map(|policy| listed.rules(policy, &group)));
            }
            None => objects.push(object.clone()),
        }
    }
    objects.extend(changed.unchanged_groups(&listed));
    let read = documents::read(&objects, true);
    let is_changed = |rule: &Rule| match rule.tier {
        Tier::Group => changed.has(rule),
        _ => new.iter().any(|object| is_of(&rule.origin, object)),
    };
    let mut all: Vec<Rule> = rules.iter().filter(|rule| !is_changed(rule)).cloned().collect();
    // What closes a group is there already where it was closed before.
    let more: Vec<Rule> = read.rules.iter().filter(|rule| !all.contains(rule)).cloned().collect();
    all.extend(more.into_iter().chain(known));
    let unlisted = changed.unlisted(&listed);
    Ok(Replaced { rules: Rules::new(all), problems: read.problems, unlisted })
}

/// The policies that groups list, as far as rules say.
#[derive(Default)]
struct ListedPolicies<'a> {
    by_group: BTreeMap<&'a Scoped, BTreeSet<Scoped>>,
    /// Each with its rules for one of its groups.
    rules: BTreeMap<Scoped, Vec<&'a Rule>>,
}

impl<'a> ListedPolicies<'a> {
    fn of(rules: &'a Rules) -> ListedPolicies<'a> {
        let mut listed = ListedPolicies::default();
        for rule in rules.iter() {
            let (Some(policy), Some(group)) = (policy_of(rule), group_of(rule)) else { continue };
            listed.by_group.entry(group).or_default().insert(policy.clone());
            let of_one = listed.rules.entry(policy).or_default();
            if of_one.first().is_none_or(|first| first.subject == rule.subject) {
                of_one.push(rule);
            }
        }
        listed
    }

    fn rules(&self, policy: &Scoped, group: &Scoped) -> impl Iterator<Item = Rule> {
        let subject = Selector::Group(group.clone());
        let rules = self.rules.get(policy).into_iter().flatten();
        rules.map(move |rule| Rule { subject: subject.clone(), ..(*rule).clone() })
    }
}

/// Groups, with the policies that they list, and policies among changed objects.
struct ChangedGroups {
    groups: BTreeMap<Scoped, BTreeSet<Scoped>>,
    policies: BTreeSet<Scoped>,
}

impl ChangedGroups {
    fn of(new: &[Value]) -> ChangedGroups {
        let mut changed = ChangedGroups { groups: BTreeMap::new(), policies: BTreeSet::new() };
        for object in new {
            changed.policies.extend(of_kind(object, GROUP_POLICY));
            let Some(group) = of_kind(object, GROUP) else { continue };
            let lists = names(object).filter_map(|name| in_tenant(&group, name)).gather();
            changed.groups.insert(group, lists);
        }
        changed
    }

    fn has(&self, rule: &Rule) -> bool {
        group_of(rule).is_some_and(|group| self.groups.contains_key(group))
            || policy_of(rule).is_some_and(|policy| self.policies.contains(&policy))
    }

    /// What `group` lists: the names that are read with it, and the policies that the host has rules of.
    ///
    /// # Errors
    /// One that is in neither.
    fn divide(
        &self,
        object: &Value,
        group: &Scoped,
        listed: &ListedPolicies<'_>,
    ) -> Result<(Vec<Value>, BTreeSet<Scoped>), String> {
        let (mut unread, mut known) = (Vec::new(), BTreeSet::new());
        if names(object).any(|name| in_tenant(group, name).is_none()) {
            // The reader takes none of such a list.
            return Ok((names(object).cloned().collect(), known));
        }
        for name in names(object) {
            match in_tenant(group, name) {
                Some(policy)
                    if listed.rules.contains_key(&policy) && !self.policies.contains(&policy) =>
                {
                    known.insert(policy);
                }
                Some(policy) if !self.policies.contains(&policy) => {
                    return Err(format!(
                        "{GROUP} {group} lists {GROUP_POLICY} {policy}, of which this host has no rules: add it \
                         (humanz-agent policy export prints those in etcd)"
                    ));
                }
                _ => unread.push(name.clone()),
            }
        }
        Ok((unread, known))
    }

    /// The groups that stay, with the changed policies that they list alone.
    fn unchanged_groups(&self, listed: &ListedPolicies<'_>) -> Vec<Value> {
        let kept = listed.by_group.iter().filter(|(group, _)| !self.groups.contains_key(**group));
        let object = |(group, lists): (&&Scoped, &BTreeSet<Scoped>)| {
            let lists: Vec<&str> =
                lists.intersection(&self.policies).map(|policy| policy.name.as_str()).collect();
            let metadata = json!({"tenant": group.tenant.as_str(), "name": group.name.as_str()});
            (!lists.is_empty()).then(|| {
                json!({"apiVersion": documents::OWN, "kind": GROUP, "metadata": metadata,
                    "spec": {"policies": lists}})
            })
        };
        kept.filter_map(object).collect()
    }

    fn unlisted(&self, listed: &ListedPolicies<'_>) -> Vec<Scoped> {
        let is_listed = |policy: &&Scoped| {
            listed.rules.contains_key(*policy)
                || self.groups.values().any(|lists| lists.contains(*policy))
        };
        self.policies.iter().filter(|policy| !is_listed(policy)).cloned().collect()
    }
}

/// It is a policy or a group, and something of it is understood.
fn refuse_other(object: &Value) -> Result<(), String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    match policy(object) {
        Some(parsed) if parsed.rules.is_empty() => match parsed.problems.first() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(()),
        },
        Some(_) => Ok(()),
        None if of_kind(object, GROUP).or_else(|| of_kind(object, GROUP_POLICY)).is_some() => {
            Ok(())
        }
        None => Err(format!(
            "take {} {} of {} out: it is no policy and no group that is understood, and pods are judged as they are \
             now",
            quoted(kind),
            quoted(object["metadata"]["name"].as_str().unwrap_or_default()),
            quoted(object["apiVersion"].as_str().unwrap_or_default()),
        )),
    }
}

/// The tenant and name of a humanz object of this kind; `None`: it is another, or has no name.
fn of_kind(object: &Value, kind: &str) -> Option<Scoped> {
    let is_it = object["apiVersion"] == documents::OWN && object["kind"] == kind;
    let metadata = &object["metadata"];
    let tenant = match &metadata["tenant"] {
        Value::Null => DEFAULT,
        tenant => tenant.as_str()?,
    };
    let names = is_it.then(|| (tenant, metadata["name"].as_str()));
    let (tenant, name) = names?;
    Some(Scoped { tenant: tenant.parse().ok()?, name: name?.parse().ok()? })
}

fn names(group: &Value) -> impl Iterator<Item = &Value> {
    group["spec"]["policies"].as_array().into_iter().flatten()
}

fn in_tenant(group: &Scoped, name: &Value) -> Option<Scoped> {
    Some(Scoped { tenant: group.tenant.clone(), name: name.as_str()?.parse().ok()? })
}

/// `group` with these policies alone; what is no list stays as it is, and is not understood.
fn with_policies(group: &Value, policies: Vec<Value>) -> Value {
    let mut group = group.clone();
    if group["spec"]["policies"].is_array() {
        group["spec"]["policies"] = Value::Array(policies);
    }
    group
}

fn group_of(rule: &Rule) -> Option<&Scoped> {
    match &rule.subject {
        Selector::Group(group) if rule.tier == Tier::Group => Some(group),
        _ => None,
    }
}

fn policy_of(rule: &Rule) -> Option<Scoped> {
    let Origin { source: PolicyKind::GroupPolicy, namespace: Some(tenant), name, .. } =
        &rule.origin
    else {
        return None;
    };
    Some(Scoped { tenant: tenant.clone(), name: name.clone() })
}

fn is_of(origin: &Origin, object: &Value) -> bool {
    let metadata = &object["metadata"];
    object["kind"] == origin.source.name()
        && metadata["name"] == origin.name.as_str()
        && origin
            .namespace
            .as_ref()
            .is_none_or(|own| metadata["namespace"].as_str().unwrap_or("default") == own.as_str())
}
