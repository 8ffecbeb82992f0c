//! Pure. `runtimeConfig`: what the runtime adds for this one container.

use std::collections::BTreeMap;

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
    /// `io.kubernetes.cri.pod-annotations`.
    pub pod_annotations: BTreeMap<String, String>,
}

impl RuntimeConfig {
    pub(super) fn read(field: &Field) -> RuntimeConfig {
        let annotations = field.object("io.kubernetes.cri.pod-annotations");
        let annotations = annotations.iter().flat_map(Field::entries);
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
            pod_annotations: annotations
                .filter_map(|(key, value)| Some((key.to_owned(), value.text()?.to_owned())))
                .collect(),
        }
    }
}
