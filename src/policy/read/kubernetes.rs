//! Pure. What the objects of Kubernetes have in common: names, label selectors, ports.

use serde_json::Value;

use crate::net::gather::Gather;
use crate::net::nearest::nearest;
use crate::net::{Family, Protocol};
use crate::policy::labels::{LabelSelector, Labels, Requirement};
use crate::policy::name::ObjectName;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::rule::PolicyPeer;
use crate::policy::selector::{Namespaces, Selector};
use crate::policy::service::PortRange;

/// The annotation of a policy that decides nothing, but is counted and logged. It is the one that policies have.
const AUDIT: &str = "humanz.io/audit";
const PREFIX: &str = "humanz.io/";

/// Names and marks of an object.
pub struct Metadata {
    /// `None` for objects of the whole cluster.
    pub namespace: Option<ObjectName>,
    pub name: ObjectName,
    pub audit: bool,
    /// Marks that look like ours and have no effect.
    pub faults: Vec<Fault>,
}

impl Metadata {
    /// # Errors
    /// Its name or namespace cannot be read.
    pub fn read(object: &Value) -> Result<Metadata, Fault> {
        let metadata = ObjectField::root(object).need("metadata")?;
        let namespace = metadata.get("namespace").map(|field| field.name()).transpose()?;
        let name = metadata.need("name")?.name()?;
        let audit = metadata.get("annotations").and_then(|annotations| annotations.get(AUDIT));
        let audit = audit.is_some_and(|audit| audit.text() == Ok("true"));
        Ok(Metadata { namespace, name, audit, faults: marks(&metadata) })
    }
}

/// What is wrong with the annotations and labels by which a policy asks something of humanz.
fn marks(metadata: &ObjectField<'_>) -> Vec<Fault> {
    let of = |name| metadata.get(name).and_then(|field| field.entries().ok()).into_iter().flatten();
    let annotations =
        of("annotations").filter_map(|(key, value)| match key.strip_prefix(PREFIX)? {
            "audit" => {
                let is_flag = matches!(value.text(), Ok("true" | "false"));
                (!is_flag).then(|| value.fault("must be \"true\" or \"false\""))
            }
            word => Some(value.fault(match nearest(word, &["audit"]) {
                Some(_) => format!("is not known; did you mean {AUDIT}?"),
                None => format!("is not known; there is {AUDIT}"),
            })),
        });
    let labels = of("labels").filter(|(key, _)| *key == AUDIT);
    let labels = labels.map(|(_, value)| value.fault("is an annotation, not a label"));
    annotations.chain(labels).collect()
}

/// The labels below `field`, or none. What is no text is left out: no selector can ask for it.
pub fn labels(field: Option<ObjectField<'_>>) -> Labels {
    let entries = field.and_then(|field| field.entries().ok());
    let pair =
        |(key, value): (&str, ObjectField<'_>)| Some((key.into(), value.text().ok()?.into()));
    entries.into_iter().flatten().filter_map(pair).gather()
}

/// The longest selector, in bytes of its keys and values: hosts that share its members repeat it with each change.
const SELECTOR_LIMIT: usize = 8 * 1024;

/// A `LabelSelector`; an empty one selects everything.
///
/// # Errors
/// What is not known, or no label.
pub fn label_selector(field: &ObjectField<'_>) -> Result<LabelSelector, Fault> {
    field.only(&["matchLabels", "matchExpressions"])?;
    let mut requirements = Vec::new();
    if let Some(labels) = field.get("matchLabels") {
        for (key, value) in labels.entries()? {
            let key = key.to_owned().try_into().map_err(|error| value.fault(format!("{error}")))?;
            requirements.push(Requirement::In(key, [label_value(&value)?].into()));
        }
    }
    for expression in field.list("matchExpressions")? {
        requirements.push(requirement(&expression)?);
    }
    let selector = LabelSelector::new(requirements);
    match selector.bytes() {
        bytes if bytes > SELECTOR_LIMIT => Err(field
            .fault(format!("has {bytes} bytes of keys and values, more than {SELECTOR_LIMIT}"))),
        _ => Ok(selector),
    }
}

fn requirement(field: &ObjectField<'_>) -> Result<Requirement, Fault> {
    field.only(&["key", "operator", "values"])?;
    let key = field.need("key")?;
    let key = key.text()?.to_owned().try_into().map_err(|error| key.fault(format!("{error}")))?;
    let values = field.list("values")?;
    let operator = field.need("operator")?;
    let listed = || -> Result<_, Fault> {
        match values.is_empty() {
            true => Err(field.fault("values must not be empty")),
            false => values.iter().map(label_value).collect(),
        }
    };
    match operator.text()? {
        "In" => Ok(Requirement::In(key, listed()?)),
        "NotIn" => Ok(Requirement::NotIn(key, listed()?)),
        "Exists" | "DoesNotExist" if !values.is_empty() => Err(field.fault("values must be empty")),
        "Exists" => Ok(Requirement::Exists(key)),
        "DoesNotExist" => Ok(Requirement::DoesNotExist(key)),
        other => Err(operator.fault(format!("{} is not known", quoted(other)))),
    }
}

fn label_value(field: &ObjectField<'_>) -> Result<crate::policy::labels::LabelValue, Fault> {
    field.text()?.to_owned().try_into().map_err(|error| field.fault(format!("{error}")))
}

/// All pods of the namespaces that a `LabelSelector` selects.
///
/// # Errors
/// Those of [`label_selector`].
pub fn namespaces(field: &ObjectField<'_>) -> Result<Selector, Fault> {
    let namespaces = Namespaces::Labelled(label_selector(field)?);
    Ok(Selector::Pods { namespaces, labels: LabelSelector::default() })
}

/// The network of `cidr` without those of `except`.
///
/// # Errors
/// One of them is no CIDR.
pub fn ip_block(field: &ObjectField<'_>) -> Result<PolicyPeer, Fault> {
    field.only(&["cidr", "except"])?;
    let cidr = field.need("cidr")?.network()?;
    let mut except = Vec::new();
    for item in field.list("except")? {
        let network = item.network()?;
        if Family::of(network.ip()) != Family::of(cidr.ip()) {
            return Err(item.fault("is of another family than cidr"));
        }
        except.push(network);
    }
    Ok(PolicyPeer::Network { cidr, except })
}

/// # Errors
/// It is no protocol that has ports.
pub fn protocol(field: &ObjectField<'_>) -> Result<Protocol, Fault> {
    match field.text()? {
        "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(field.fault(format!("{} is not TCP, UDP or SCTP", quoted(other)))),
    }
}

/// Ports from the number in `first` to the one in `last`.
///
/// # Errors
/// They are no ports, or the wrong way round.
pub fn port_range(first: &ObjectField<'_>, last: &ObjectField<'_>) -> Result<PortRange, Fault> {
    let (from, to) = (first.number(1..=u16::MAX)?, last.number(1..=u16::MAX)?);
    PortRange::new(from, to).ok_or_else(|| last.fault(format!("is below {from}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_is_no_longer_than_what_hosts_repeat_to_each_other() {
        let read = |values: usize| {
            let values: Vec<String> = (0..values).map(|at| format!("v{at:0>31}")).collect();
            let selector = json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": values}]});
            label_selector(&ObjectField::root(&selector))
                .map(drop)
                .map_err(|fault| fault.to_string())
        };
        assert_eq!(read(255), Ok(()));
        let why = read(256).unwrap_err();
        assert!(why.ends_with("has 8195 bytes of keys and values, more than 8192"), "{why}");
    }

    #[test]
    fn marks_that_are_not_known_are_reported_and_the_policy_is_enforced() {
        let read = |metadata: Value| {
            let object = json!({"metadata": metadata, "spec": {"podSelector": {}}});
            let parsed = crate::policy::read::network_policy::read(&object);
            assert!(parsed.rules.iter().all(|rule| !rule.audit), "{:?}", parsed.rules);
            assert_eq!(parsed.rules.len(), 1, "it isolates");
            parsed.problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
        };
        let with = |annotations: Value| {
            read(json!({"namespace": "shop", "name": "db", "annotations": annotations}))
        };
        assert_eq!(with(json!({"app.io/x": "y", "humanz.io/audit": "false"})), [""; 0]);
        for (key, value, what) in [
            ("humanz.io/audti", "true", "is not known; did you mean humanz.io/audit?"),
            ("humanz.io/group", "web", "is not known; there is humanz.io/audit"),
            ("humanz.io/audit", "yes", "must be \"true\" or \"false\""),
        ] {
            let whole = format!("NetworkPolicy shop/db: metadata.annotations[{key:?}]: {what}");
            assert_eq!(with(json!({key: value})), [whole]);
        }
        let label =
            json!({"namespace": "shop", "name": "db", "labels": {"humanz.io/audit": "true"}});
        let what = "metadata.labels[\"humanz.io/audit\"]: is an annotation, not a label";
        assert_eq!(read(label), [format!("NetworkPolicy shop/db: {what}")]);
        let many =
            (0..9_000).map(|at| (format!("humanz.io/\u{1b}[2J{at}{}", "x".repeat(300)), json!("")));
        let found = with(Value::Object(many.collect()));
        assert_eq!((found.len(), &*found[8]), (9, "NetworkPolicy shop/db: 8992 further faults"));
        assert!(found.iter().all(|it| it.len() < 270 && !it.chars().any(char::is_control)));
    }
}
