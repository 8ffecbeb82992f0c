//! Pure. Pods of the Kubernetes API, with what policies ask of them.

use std::net::IpAddr;

use serde_json::Value;

use crate::net::Protocol;
use crate::net::node_name::NodeName;
use crate::policy::endpoint::NamedPort;
use crate::policy::labels::Labels;
use crate::policy::name::ObjectName;
use crate::policy::read::fields::{Fault, ObjectField};
use crate::policy::read::kubernetes::{labels, protocol};

/// A pod as its object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub namespace: ObjectName,
    pub name: ObjectName,
    /// That of a static pod is its node's, not the one of its mirror in the API.
    pub uid: Option<String>,
    pub labels: Labels,
    /// Those by which a pod may ask for a group or a network.
    pub annotations: Labels,
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<NamedPort>,
    /// `None` until it is scheduled.
    pub host: Option<NodeName>,
    /// It has addresses of its own: it is not in its host's network, and has not ended.
    pub is_endpoint: bool,
}

/// Prefixes of the annotations that are kept.
const ANNOTATIONS: [&str; 2] = ["humanz.io/", "io.contiv."];

/// The annotation of a mirror pod (kubelet, `ConfigMirrorAnnotationKey`).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A UID, in bytes; Kubernetes' have 36.
const UID_LIMIT: usize = 253;

/// Labels and annotations of a pod, in bytes. Those that Kubernetes and its tools set take some hundred.
const LABELS_LIMIT: usize = 64 * 1024;

/// Addresses of a pod; Kubernetes gives one of each family.
const ADDRESSES_LIMIT: usize = 16;

/// Named ports of a pod: each is kept, and published, with each selector that finds the pod.
const PORTS_LIMIT: usize = 128;

impl Pod {
    /// # Errors
    /// It has no name or namespace, an invalid host, or more than a pod may have.
    pub fn read(object: &Value) -> Result<Pod, Fault> {
        let root = ObjectField::root(object);
        let (metadata, spec) = (root.need("metadata")?, root.need("spec")?);
        let status = root.get("status");
        let phase = status.as_ref().and_then(|status| status.get("phase"));
        let ended = phase.is_some_and(|phase| matches!(phase.text(), Ok("Succeeded" | "Failed")));
        let host_network = spec.get("hostNetwork").is_some_and(|field| field.flag() == Ok(true));
        let host = spec.get("nodeName").filter(|field| field.text() != Ok(""));
        let host = host.map(|host| {
            host.text()?.parse::<NodeName>().map_err(|error| host.fault(format!("{error}")))
        });
        let mut annotations = labels(metadata.get("annotations"));
        annotations.retain(|key, _| ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix)));
        let pod = Pod {
            namespace: metadata.need("namespace")?.name()?,
            name: metadata.need("name")?.name()?,
            uid: uid(&metadata),
            labels: labels(metadata.get("labels")),
            annotations,
            addresses: status.map(|status| addresses(&status)).unwrap_or_default(),
            ports: ports(&spec),
            host: host.transpose()?,
            is_endpoint: !ended && !host_network,
        };
        // Without its labels it would be another pod.
        metadata.get("labels").map(|labels| labels.entries().map(drop)).transpose()?;
        let texts = pod.labels.iter().chain(&pod.annotations);
        let bytes: usize = texts.map(|(key, value)| key.len() + value.len()).sum();
        if bytes > LABELS_LIMIT {
            return Err(metadata.fault(format!("has more than {LABELS_LIMIT} bytes of labels")));
        }
        if pod.addresses.len() > ADDRESSES_LIMIT || pod.ports.len() > PORTS_LIMIT {
            return Err(root.fault("has too many addresses or ports"));
        }
        Ok(pod)
    }

    /// One with a host and addresses; `None` if it is in its host's network, without addresses, or at its
    /// end, whose address may be another's.
    ///
    /// # Errors
    /// It has no name, namespace or host: it is no endpoint.
    pub fn endpoint(object: &Value) -> Result<Option<Pod>, Fault> {
        let pod = Pod::read(object)?;
        if !pod.is_endpoint || pod.addresses.is_empty() {
            return Ok(None);
        }
        match pod.host {
            Some(_) => Ok(Some(pod)),
            None => Err(ObjectField::root(object).fault("spec.nodeName is missing")),
        }
    }
}

/// What kubelets pass to runtimes: of static pods `kubernetes.io/config.hash`, which the mirror has as
/// `config.mirror`.
fn uid(metadata: &ObjectField<'_>) -> Option<String> {
    let mirrored = metadata.get("annotations").and_then(|all| all.get(MIRROR));
    let uid = mirrored.or_else(|| metadata.get("uid"))?;
    let uid = uid.text().ok().filter(|uid| (1..=UID_LIMIT).contains(&uid.len()));
    uid.map(str::to_owned)
}

pub fn address(field: &ObjectField<'_>) -> Option<IpAddr> {
    field.text().ok()?.parse().ok()
}

/// `podIPs`, or the one of old API servers.
fn addresses(status: &ObjectField<'_>) -> Vec<IpAddr> {
    let all = status.list("podIPs").unwrap_or_default();
    let all: Vec<IpAddr> = all.iter().filter_map(|field| address(&field.get("ip")?)).collect();
    if all.is_empty() {
        status.get("podIP").as_ref().and_then(address).into_iter().collect()
    } else {
        all
    }
}

/// Ports with names, of containers and of init containers that stay.
fn ports(spec: &ObjectField<'_>) -> Vec<NamedPort> {
    let stays = |container: &ObjectField<'_>| {
        container.get("restartPolicy").is_some_and(|policy| policy.text() == Ok("Always"))
    };
    let containers = spec.list("containers").unwrap_or_default();
    let sidecars = spec.list("initContainers").unwrap_or_default();
    let sidecars = sidecars.into_iter().filter(stays);
    let ports = containers.into_iter().chain(sidecars);
    let ports = ports.flat_map(|container| container.list("ports").unwrap_or_default());
    ports.filter_map(|port| named_port(&port)).collect()
}

fn named_port(field: &ObjectField<'_>) -> Option<NamedPort> {
    let name = field.get("name")?.name().ok()?;
    let port = field.get("containerPort")?.number(1..=u16::MAX).ok()?;
    let protocol =
        field.get("protocol").map_or(Ok(Protocol::Tcp), |field| protocol(&field)).ok()?;
    Some(NamedPort { name, protocol, port })
}
