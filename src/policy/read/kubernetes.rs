//! Pure. What the objects of Kubernetes have in common: names, label selectors, ports.

use serde_json::Value;

use crate::net::gather::Gather;
use crate::net::{Family, Protocol};
use crate::policy::labels::{LabelSelector, Labels, Requirement};
use crate::policy::name::ObjectName;
use crate::policy::read::fields::{Fault, ObjectField, quoted};
use crate::policy::rule::PolicyPeer;
use crate::policy::selector::{Namespaces, Selector};
use crate::policy::service::PortRange;

/// The annotation of a policy that decides nothing, but is counted and logged.
const AUDIT: &str = "humanz.io/audit";

/// Names and marks of an object.
pub struct Metadata {
    /// `None` for objects of the whole cluster.
    pub namespace: Option<ObjectName>,
    pub name: ObjectName,
    pub audit: bool,
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
        Ok(Metadata { namespace, name, audit })
    }
}

/// The labels below `field`, or none. What is no text is left out: no selector can ask for it.
pub fn labels(field: Option<ObjectField<'_>>) -> Labels {
    let entries = field.and_then(|field| field.entries().ok());
    let pair =
        |(key, value): (&str, ObjectField<'_>)| Some((key.into(), value.text().ok()?.into()));
    entries.into_iter().flatten().filter_map(pair).gather()
}

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
    Ok(LabelSelector::new(requirements))
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
