//! Pure. The ports that humanz itself uses on a host: none of them leads to a pod.

use std::num::NonZeroU16;

use crate::net::{Protocol, ReservedPort};
use crate::plan::peer_routes::LocalBackend;
use crate::settings::Settings;

impl Settings {
    /// Those of this host.
    pub fn reserved_ports(&self) -> Vec<ReservedPort> {
        let port = |number, protocol, host_ip, purpose: &str| {
            let host_port = NonZeroU16::new(number)?;
            Some(ReservedPort { host_port, protocol, host_ip, purpose: purpose.to_owned() })
        };
        let has_tunnels = self.backend != LocalBackend::Direct && self.has_others();
        let tunnel = has_tunnels
            .then(|| port(self.vxlan.port, Protocol::Udp, None, "tunnels (VXLAN_PORT)"))
            .flatten();
        let metrics = self.metrics.and_then(|address| {
            port(address.port(), Protocol::Tcp, Some(address.ip()), "metrics (METRICS_ADDR)")
        });
        tunnel.into_iter().chain(metrics).collect()
    }
}
