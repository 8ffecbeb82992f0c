//! Pure. `runtimeConfig`: what the runtime adds for this one container.

use serde_json::Value;

use crate::cni::bandwidth::Bandwidth;
use crate::cni::dns::Dns;
use crate::cni::json::Field;
use crate::cni::wishes::Wishes;

/// The capabilities that a runtime passed; only those that the configuration declares get here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeConfig {
    /// `ips` and `mac`.
    pub wishes: Wishes,
    /// `dns`.
    pub dns: Dns,
    /// `portMappings` as given.
    pub port_mappings: Option<Value>,
    /// `bandwidth`.
    pub bandwidth: Bandwidth,
    /// What the pod's annotations ask for.
    pub annotated: Wishes,
}

impl RuntimeConfig {
    pub(super) fn read(field: &Field) -> RuntimeConfig {
        let annotations = field.object("io.kubernetes.cri.pod-annotations");
        for key in ["deviceID", "infinibandGUID"] {
            if let Some(device) = field.get(key).filter(|device| device.filled().is_some()) {
                device.unsupported("humanz attaches veths alone");
            }
        }
        let bandwidth = field.object("bandwidth");
        RuntimeConfig {
            wishes: Wishes::read(field),
            dns: field.object("dns").map(|dns| Dns::read_capability(&dns)).unwrap_or_default(),
            port_mappings: field.get("portMappings").map(|raw| raw.value().clone()),
            bandwidth: bandwidth.map(|limits| Bandwidth::read(&limits)).unwrap_or_default(),
            annotated: annotations.map(|found| Wishes::annotated(&found)).unwrap_or_default(),
        }
    }
}
