//! `policy diff --live`: the connections that run on this host and that a change would cut.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use serde_json::{Value, json};

use crate::command::call::{Call, complain};
use crate::command::policy::found;
use crate::inspect::{Host, HostList};
use crate::net::Family;
use crate::netlink::connections::{self, Connection};
use crate::policy::partial::Knowledge;
use crate::policy::read::documents::Documents;
use crate::policy::rule::{Origin, Tier};
use crate::policy::running::{ConnectionOutcome, RuleChange};
use crate::policy::view::View;
use crate::policy::{Direction, Members, PolicySnapshot, Rule, Rules, Tuple, members};
use crate::settings::exit::{self, Exit};

/// Lines of text for each list; JSON has all.
const LINES: usize = 50;

/// Kinds that say which policies there are, and not what pods are like.
const POLICIES: [&str; 6] = [
    "NetworkPolicy",
    "ClusterNetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
    GROUP,
    GROUP_POLICY,
];
const GROUP: &str = "Group";
const GROUP_POLICY: &str = "GroupPolicy";

/// The host, with the connections that run.
pub struct Live {
    view: View,
    known: PolicySnapshot,
    own: BTreeSet<IpAddr>,
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

impl Live {
    /// Looks at this host.
    ///
    /// # Errors
    /// Policies are off, or this user may not ask agent and kernel.
    pub fn look(call: &mut Call<'_>) -> Result<Live, Exit> {
        let settings = call.load()?.settings;
        let (view, note) = found::view(&settings)?;
        note.into_iter().for_each(|note| complain(&note));
        let host = Host::inspect(&settings, HostList::Saved)?;
        let own = host.addresses()?.iter().map(|found| found.address.ip()).collect();
        let mut all = Vec::new();
        for family in Family::BOTH {
            all.extend(connections::of_family(family, |_| true).context("list connections")?);
        }
        let known = view.known.as_deref().cloned().unwrap_or_default();
        Ok(Live { view, known, own, connections: all })
    }

    /// What the objects `new` do to connections that run. `before` and `after` are those of files without
    /// and with them: they tell of groups, and of pods of other hosts.
    ///
    /// # Errors
    /// They change more than policies, or groups of which the files do not have all.
    pub fn affected(
        &self,
        new: &[Value],
        before: &Documents,
        after: &Documents,
    ) -> Result<Affected, Exit> {
        let rules = self.changed(new, before, after)?;
        let pods = self.view.endpoints();
        // Of a selector that is not among them, this host did not ask what it finds elsewhere.
        let members = self.known.members.clone();
        let then = self.members_then(members.clone(), &rules, after);
        let knowledge = |rules, members| Knowledge {
            rules,
            members,
            pods: &pods,
            subnets: &self.view.subnets,
            own: &self.own,
        };
        let change = RuleChange {
            before: knowledge(&self.known.rules, &members),
            after: knowledge(&rules, &then),
        };
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
        Ok(affected)
    }

    /// The rules that hold here, with those of `new` in place of the ones of the same objects.
    fn changed(&self, new: &[Value], before: &Documents, after: &Documents) -> Result<Rules, Exit> {
        let kinds: BTreeSet<&str> =
            new.iter().filter_map(|object| object["kind"].as_str()).collect();
        let refused = |why: String| Exit::new(exit::SETTINGS, why);
        if let Some(kind) = kinds.iter().find(|kind| !POLICIES.contains(kind)) {
            let why = "--live judges this host's pods as they are now";
            return Err(refused(format!("{why}: take objects of kind {kind} out of --new")));
        }
        let changes_groups = kinds.contains(GROUP) || kinds.contains(GROUP_POLICY);
        let files: BTreeSet<Origin> =
            before.rules.iter().map(|rule| rule.origin.object()).collect();
        let is_missing = |rule: &&Rule| {
            rule.tier == Tier::Group && changes_groups && !files.contains(&rule.origin.object())
        };
        if let Some(rule) = self.known.rules.iter().find(is_missing) {
            let why = "groups are read together with their policies, and -f lacks";
            let hint = "humanz-agent policy export prints those in etcd";
            return Err(refused(format!("{why} {}: {hint}", rule.origin)));
        }
        let is_changed = |rule: &&Rule| match rule.tier {
            Tier::Group => changes_groups,
            _ => new.iter().any(|object| is_of(&rule.origin, object)),
        };
        let kept = self.known.rules.iter().filter(|rule| !is_changed(rule));
        let added = after.rules.iter().filter(is_changed);
        Ok(Rules::new(kept.chain(added).cloned().collect()))
    }

    /// With what the files say of selectors that no rule had: what they find on other hosts is not known
    /// where the files have no pods.
    fn members_then(&self, mut members: Members, rules: &Rules, after: &Documents) -> Members {
        if after.endpoints.pods.is_empty() {
            return members;
        }
        let mut wanted = members::peers(rules.iter());
        wanted.retain(|selector| !members.contains_key(selector));
        members.extend(members::find(&wanted, &after.endpoints));
        members
    }

    fn named(
        &self,
        connection: &Connection,
        direction: Direction,
        rule: &Rule,
    ) -> AffectedConnection {
        let tuple = Tuple::of(connection);
        let name = |address: IpAddr| {
            let pod = self.view.pods.iter().find(|pod| pod.addresses.contains(&address))?;
            Some(pod.pod.clone().unwrap_or_else(|| pod.container_id.clone()))
        };
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

fn is_of(origin: &Origin, object: &Value) -> bool {
    let metadata = &object["metadata"];
    object["kind"] == origin.source.name()
        && metadata["name"] == origin.name.as_str()
        && origin
            .namespace
            .as_ref()
            .is_none_or(|own| metadata["namespace"].as_str().unwrap_or("default") == own.as_str())
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
