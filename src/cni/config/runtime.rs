//! Pure. `runtimeConfig`: what the runtime adds for one container.

use crate::cni::bandwidth::Bandwidth;
use crate::cni::dns::Dns;
use crate::cni::json::JsonField;
use crate::cni::port_mappings;
use crate::cni::requested::RequestedAddresses;
use crate::cni::words::Words;
use crate::net::PortMapping;

/// The capabilities that the runtime passed, of those that the configuration declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeConfig {
    /// `ips` and `mac`.
    pub requested: RequestedAddresses,
    pub dns: Dns,
    pub port_mappings: Vec<PortMapping>,
    pub bandwidth: Bandwidth,
    /// From the pod's annotations.
    pub annotated: RequestedAddresses,
    /// Those of the pod's annotations that are for policies.
    pub words: Words,
}

impl RuntimeConfig {
    pub(super) fn read(field: &JsonField) -> RuntimeConfig {
        let annotations = field.object("io.kubernetes.cri.pod-annotations");
        for key in ["deviceID", "infinibandGUID"] {
            if let Some(device) = field.get(key).filter(|device| device.filled().is_some()) {
                device.unsupported("humanz attaches only veths");
            }
        }
        let bandwidth = field.object("bandwidth");
        let port_mappings = field.get("portMappings").map(|list| port_mappings::read(&list));
        RuntimeConfig {
            requested: RequestedAddresses::read(field),
            dns: field.object("dns").map(|dns| Dns::read_capability(&dns)).unwrap_or_default(),
            port_mappings: port_mappings.unwrap_or_default(),
            bandwidth: bandwidth.map(|limits| Bandwidth::read(&limits)).unwrap_or_default(),
            annotated: annotations.as_ref().map(RequestedAddresses::annotated).unwrap_or_default(),
            words: annotations.as_ref().map(Words::annotated).unwrap_or_default(),
        }
    }
}
