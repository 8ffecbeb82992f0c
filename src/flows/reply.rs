//! Pure. What the agent says of flows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::flows::table::{FlowCount, FlowKey, FlowTable};
use crate::netlink::nflog::LoggedPacket;
use crate::netlink::packet::Packet;
use crate::policy::{Transport, Tuple};

/// Everything that was counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsReply {
    pub schema: u32,
    /// They are counted now.
    pub on: bool,
    /// Why connections or denied packets are not learned of now.
    pub faults: Vec<String>,
    /// How often events came faster than they were read: counts are too low since then.
    pub overruns: u64,
    /// Reports of denied packets that were not read in time.
    pub lost_reports: u64,
    pub flows: Vec<FlowEntry>,
    /// What there was no room for.
    pub others: Vec<OtherFlows>,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowEntry {
    pub source: IpAddr,
    pub source_pod: Option<String>,
    pub destination: IpAddr,
    pub destination_pod: Option<String>,
    /// IANA's number.
    pub protocol: u8,
    pub port: Option<u16>,
    /// Type and code.
    pub icmp: Option<(u8, u8)>,
    /// Address and port that it was sent to, if they were translated.
    pub service: Option<(IpAddr, Option<u16>)>,
    /// The words of the rule that reported it; `None` of connections, which were allowed.
    pub report: Option<String>,
    /// Connections; of what was reported packets, a few for each second.
    pub count: u64,
    pub first: SystemTime,
    pub last: SystemTime,
}

/// One line of `/v1/drops`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DropLine {
    /// So many came too fast to be sent.
    Lost {
        lost: u64,
    },
    Packet(LoggedPacket),
}

/// Flows of a pod that were given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherFlows {
    /// `None`: of no pod of this host.
    pub pod: Option<String>,
    pub count: u64,
    pub last: SystemTime,
}

impl FlowEntry {
    fn new(key: &FlowKey, count: &FlowCount) -> FlowEntry {
        let FlowKey { source, destination, transport, service, report } = key;
        let tuple = Tuple {
            source: source.address,
            destination: destination.address,
            transport: *transport,
        };
        let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        FlowEntry {
            source: source.address,
            source_pod: text(&source.pod),
            destination: destination.address,
            destination_pod: text(&destination.pod),
            protocol: tuple.protocol(),
            port: match transport {
                Transport::Port(_, port) => Some(*port),
                _ => None,
            },
            icmp: match transport {
                Transport::Icmp { kind, code } => Some((*kind, *code)),
                _ => None,
            },
            service: *service,
            report: text(report),
            count: count.count,
            first: count.first,
            last: count.last,
        }
    }

    /// As a packet; the port that it came from is not known.
    pub fn packet(&self) -> Packet {
        Packet {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            ports: self.port.map(|port| (0, port)),
            icmp: self.icmp,
        }
    }
}

/// The flows of `table`, the latest ones first, and what there was no room for.
pub fn entries(table: &FlowTable) -> (Vec<FlowEntry>, Vec<OtherFlows>) {
    let mut flows: Vec<FlowEntry> =
        table.flows().map(|(key, count)| FlowEntry::new(key, count)).collect();
    flows.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| b.count.cmp(&a.count)));
    let others = table.others().into_iter().map(|(pod, count)| OtherFlows {
        pod: pod.map(|pod| pod.to_string()),
        count: count.count,
        last: count.last,
    });
    (flows, others.collect())
}
