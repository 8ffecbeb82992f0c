//! `policy diff --live`: the connections that run on this host and that a change would cut.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use serde_json::{Value, json};

use crate::command::policy::here::HostPolicies;
use crate::net::Family;
use crate::netlink::connections::{self, Connection};
use crate::policy::running::{ConnectionOutcome, RuleChange};
use crate::policy::{Direction, Rule, Tuple};
use crate::settings::exit::Exit;

/// Lines of text for each list; JSON has all.
const LINES: usize = 50;

/// The connections that run on a host.
pub struct Live<'a> {
    host: &'a HostPolicies,
    connections: Vec<Connection>,
}

/// What a change does to them.
#[derive(Debug, Default)]
pub struct Affected {
    cut: Vec<AffectedConnection>,
    not_known: Vec<AffectedConnection>,
    /// How many have an end elsewhere.
    away: usize,
}

/// One connection, as people know it.
#[derive(Debug)]
struct AffectedConnection {
    connection: Connection,
    tuple: Tuple,
    source_pod: Option<String>,
    destination_pod: Option<String>,
    direction: Direction,
    rule: String,
}

impl<'a> Live<'a> {
    /// Lists the connections of `host`.
    ///
    /// # Errors
    /// This user may not ask the kernel.
    pub fn list(host: &'a HostPolicies) -> Result<Live<'a>, Exit> {
        let mut all = Vec::new();
        for family in Family::BOTH {
            all.extend(connections::of_family(family, |_| true).context("list connections")?);
        }
        Ok(Live { host, connections: all })
    }

    /// What `change` does to them.
    pub fn affected(&self, change: &RuleChange<'_>) -> Affected {
        let mut affected = Affected::default();
        for connection in &self.connections {
            let Some(outcome) = change.outcome(connection) else { continue };
            affected.away += usize::from(change.leads_away(connection));
            match outcome {
                ConnectionOutcome::Lives => {}
                ConnectionOutcome::Cut(direction, rule) => {
                    affected.cut.push(self.named(connection, direction, rule));
                }
                ConnectionOutcome::NotKnown(direction, rule) => {
                    affected.not_known.push(self.named(connection, direction, rule));
                }
            }
        }
        affected
    }

    fn named(
        &self,
        connection: &Connection,
        direction: Direction,
        rule: &Rule,
    ) -> AffectedConnection {
        let tuple = Tuple::of(connection);
        let name = |address: IpAddr| self.host.pod_name(address);
        AffectedConnection {
            connection: *connection,
            tuple,
            source_pod: name(tuple.source),
            destination_pod: name(tuple.destination),
            direction,
            rule: rule.to_string(),
        }
    }
}

impl Affected {
    /// Nothing is cut for certain.
    pub fn cuts_nothing(&self) -> bool {
        self.cut.is_empty()
    }

    pub fn text(&self) -> String {
        let mut text = "\nconnections that run on this host and would be cut:\n".to_owned();
        text += &lines(&self.cut);
        if !self.not_known.is_empty() {
            text += "connections that would be cut if that rule matches, which this host does not know:\n";
            text += &lines(&self.not_known);
        }
        if self.away > 0 {
            text += &format!(
                "{} connections have an end elsewhere: another host judges the ends of its own pods, \
                 so ask there, too\n",
                self.away
            );
        }
        text
    }

    pub fn json(&self) -> Value {
        let objects = |all: &[AffectedConnection]| -> Vec<Value> {
            all.iter().map(AffectedConnection::json).collect()
        };
        json!({"cut": objects(&self.cut), "notKnown": objects(&self.not_known), "elsewhere": self.away})
    }
}

fn lines(all: &[AffectedConnection]) -> String {
    let mut text: String = all.iter().take(LINES).map(|one| format!("  {one}\n")).collect();
    if all.is_empty() {
        text += "  none\n";
    }
    if let Some(more) = all.len().checked_sub(LINES + 1) {
        text += &format!("  and {} more (--json has all)\n", more + 1);
    }
    text
}

impl AffectedConnection {
    fn json(&self) -> Value {
        json!({
            "source": self.tuple.source,
            "source_pod": self.source_pod,
            "source_port": self.connection.source_port,
            "destination": self.tuple.destination,
            "destination_pod": self.destination_pod,
            "port": self.connection.answering_port,
            "protocol": self.tuple.protocol(),
            "direction": self.direction.name(),
            "rule": self.rule,
        })
    }
}

impl fmt::Display for AffectedConnection {
    /// `shop/web 10.1.0.2:40000 -> shop/db 10.1.0.3:5432 tcp: NetworkPolicy shop/db ingress default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod =
            |pod: &Option<String>| pod.as_ref().map(|pod| format!("{pod} ")).unwrap_or_default();
        let source = match self.connection.source_port {
            Some(port) => SocketAddr::new(self.tuple.source, port).to_string(),
            None => self.tuple.source.to_string(),
        };
        let (from, to) = (pod(&self.source_pod), pod(&self.destination_pod));
        write!(f, "{from}{source} -> {to}{}: {}", self.tuple.target(), self.rule)
    }
}
