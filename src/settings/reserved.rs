//! Pure. The ports that humanz itself uses on a host: none of them leads to a pod.

use std::num::NonZeroU16;

use crate::net::{Protocol, ReservedPort};
use crate::settings::Settings;

impl Settings {
    /// Those of this host.
    pub fn reserved_ports(&self) -> Vec<ReservedPort> {
        let port = |number, protocol, host_ip, purpose: &str| {
            let host_port = NonZeroU16::new(number)?;
            Some(ReservedPort { host_port, protocol, host_ip, purpose: purpose.to_owned() })
        };
        let tunnel = self
            .has_tunnels()
            .then(|| port(self.vxlan.port, Protocol::Udp, None, "tunnels (VXLAN_PORT)"))
            .flatten();
        let metrics = self.metrics.and_then(|address| {
            port(address.port(), Protocol::Tcp, Some(address.ip()), "metrics (METRICS_ADDR)")
        });
        let encryption = self.encryption.into_iter().flat_map(|encryption| {
            let ports = [encryption.port, encryption.rotation_port()];
            ports.map(|number| port(number, Protocol::Udp, None, "encryption (ENCRYPTION_PORT)"))
        });
        let encryption = encryption.flatten();
        tunnel.into_iter().chain(encryption).chain(metrics).collect()
    }
}
