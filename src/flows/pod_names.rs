//! Pure. Which addresses are those of this host's pods, and whose.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::flows::table::{FlowKey, FlowParty};
use crate::net::Protocol;
use crate::netlink::connections::Connection;
use crate::netlink::packet::Packet;
use crate::policy::view::View;
use crate::policy::{Transport, Tuple};

/// The pods of a host by their addresses.
#[derive(Debug, Default)]
pub struct PodNames {
    /// What they were made of.
    view: Option<Arc<View>>,
    names: HashMap<IpAddr, Arc<str>>,
}

impl PodNames {
    /// Takes in what is known now.
    pub fn update(&mut self, view: Option<Arc<View>>) {
        let is_same = match (&self.view, &view) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old.pods == new.pods,
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            let pods = view.iter().flat_map(|view| view.pods.iter());
            let names = pods.flat_map(|pod| {
                let name: Arc<str> = pod.pod.as_ref().unwrap_or(&pod.container_id).as_str().into();
                pod.addresses.iter().map(move |address| (*address, Arc::clone(&name)))
            });
            self.names = names.collect();
        }
        self.view = view;
    }

    /// No pod is known, or none is there.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The flow of a connection, if one of its ends is in a subnet of this host's pods.
    pub fn flow(&self, connection: &Connection) -> Option<FlowKey> {
        let Tuple { source, destination, transport } = Tuple::of(connection);
        let is_translated = connection.destination != connection.answers
            || connection.answering_port.is_some_and(|port| connection.port != Some(port));
        let service = is_translated.then_some((connection.destination, connection.port));
        let [source, destination] = self.parties(source, destination)?;
        Some(FlowKey { source, destination, transport, service, report: None })
    }

    /// The flow of a packet that a rule with this prefix reported.
    pub fn reported(&self, packet: &Packet, prefix: &str) -> Option<FlowKey> {
        let Packet { source, destination, protocol, ports, icmp } = *packet;
        let transport = match (Protocol::of_number(protocol), ports, icmp) {
            (Some(protocol), Some((_, port)), _) => Transport::Port(protocol, port),
            (_, _, Some((kind, code))) => Transport::Icmp { kind, code },
            _ => Transport::Other(protocol),
        };
        let [source, destination] = self.parties(source, destination)?;
        let report = Some(prefix.into());
        Some(FlowKey { source, destination, transport, service: None, report })
    }

    fn parties(&self, source: IpAddr, destination: IpAddr) -> Option<[FlowParty; 2]> {
        let ends = [source, destination];
        let party = |address: IpAddr| FlowParty { address, pod: self.names.get(&address).cloned() };
        ends.iter().any(|address| self.is_here(*address)).then(|| ends.map(party))
    }

    fn is_here(&self, address: IpAddr) -> bool {
        let has = |subnet: &IpNetwork| subnet.contains(address);
        self.names.contains_key(&address)
            || self.view.as_ref().is_some_and(|view| view.subnets.iter().any(has))
    }
}
