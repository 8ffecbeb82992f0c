//! Pure. The ports that humanz itself uses on a host: none of them leads to a pod.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use crate::net::{Protocol, ReservedPort};
use crate::settings::{Settings, Source};

impl Settings {
    /// Those of this host, which has the addresses `own`.
    pub fn reserved_ports(&self, own: &BTreeSet<IpAddr>) -> Vec<ReservedPort> {
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
        let etcd = self.etcd_here(own).filter_map(|address| {
            port(address.port(), Protocol::Tcp, Some(address.ip()), "etcd (ETCD_HOST)")
        });
        tunnel.into_iter().chain(encryption).chain(metrics).chain(etcd).collect()
    }

    /// Where this host itself serves the etcd that it asks: a pod there would get its password.
    fn etcd_here(&self, own: &BTreeSet<IpAddr>) -> impl Iterator<Item = SocketAddr> {
        let endpoints = match &self.source {
            Source::Etcd { server, .. } => server.endpoints.as_slice(),
            _ => &[],
        };
        let address = |endpoint: &String| -> Option<SocketAddr> {
            let authority = endpoint.split("://").last()?;
            authority.replace("localhost:", "127.0.0.1:").parse().ok()
        };
        let is_here =
            move |address: &SocketAddr| own.contains(&address.ip()) || address.ip().is_loopback();
        endpoints.iter().filter_map(address).filter(is_here)
    }
}
