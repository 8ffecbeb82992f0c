//! Pure. What policies say of the path at its two ends.

use crate::checks::explain::hop::{AGENT, HERE, Hop};
use crate::net::Problem;
use crate::net::shell::word;
use crate::policy::Scoped;

/// What is known of policies on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPolicies {
    /// Why this is not what an agent knows.
    pub note: Option<String>,
    /// What was judged: `tcp/5432`; `None`: an echo request, for want of a port.
    pub service: Option<String>,
    /// The table is there.
    pub in_force: bool,
    /// Where the connection comes from.
    pub egress: PolicyEnd,
    /// Where it goes to.
    pub ingress: PolicyEnd,
    /// What was judged as the other end may be a service's address, which the kernel does not judge.
    pub may_be_service: bool,
    /// Connections that the kernel follows between the two: judged in this epoch, and not yet.
    pub live: [usize; 2],
    /// Annotations and labels of pods of this host that have no effect: they look like humanz's, or ask for what the
    /// pods may not have.
    pub pod_words: Vec<Problem>,
}

/// What one end says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyEnd {
    /// It is no pod that policies are about.
    NoPod,
    /// Only its own node reaches it; why.
    Quarantine(String),
    Decided(PolicyDecision),
    /// No policies are known: what holds of the pod.
    NoPolicies(String),
    /// What is judged is a pod behind a service; why it is not known which.
    Behind(String),
    /// Why that cannot be known here, and the host that knows it.
    Unknown(String, String),
}

/// The rule that decides, and what it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDecision {
    pub allowed: bool,
    /// `denied: NetworkPolicy shop/db ingress default`.
    pub text: String,
    /// The object to look at.
    pub policy: Option<String>,
    /// The network that is kept apart from those of other tenants: the same is decided for every protocol and port,
    /// and no policy changes it.
    pub apart: Option<Scoped>,
    /// The rule's counter and its packets, on this host.
    pub counter: Option<(String, u64)>,
    /// What audited policies would do.
    pub audit: Option<String>,
    /// The host that decides, if that is not this one: it may know more.
    pub host: Option<String>,
}

const EGRESS: &str = "policy-egress";

const ASK_POD: &str = "if it is a service, ask for a pod that serves it";

/// The hops of both ends, which have these names.
pub fn hops(policies: &PathPolicies, [from, to]: [&str; 2]) -> Vec<Hop> {
    let says_so = |end: &PolicyEnd| matches!(end, PolicyEnd::NoPolicies(_));
    let is_said = says_so(&policies.egress) || says_so(&policies.ingress);
    let missing = (!policies.in_force && !is_said).then(|| {
        let seen = "the table inet humanz-policy is not there: nothing is denied now";
        Hop::odd("policy", HERE, seen, AGENT)
    });
    let note = policies.note.iter().map(|note| {
        Hop::odd("policy", HERE, note, "start the agent: policies may have changed since")
    });
    let ends = [(EGRESS, &policies.egress, from), ("policy-ingress", &policies.ingress, to)];
    let ends = ends.into_iter().filter_map(|(name, end, place)| hop(policies, name, end, place));
    missing.into_iter().chain(note).chain(ends).chain(live(policies)).collect()
}

fn hop(policies: &PathPolicies, name: &'static str, end: &PolicyEnd, place: &str) -> Option<Hop> {
    let what = policies.service.as_deref().unwrap_or("an echo request");
    Some(match end {
        PolicyEnd::NoPod => return None,
        PolicyEnd::Quarantine(why) => {
            let seen = format!("in quarantine, only its own node reaches it: {why}");
            Hop::lost(name, place, seen, "humanz-agent status # says what it waits for")
        }
        PolicyEnd::NoPolicies(what_holds) => {
            let fix = "humanz-agent status # says why no policies could be read";
            Hop::odd(name, place, what_holds, fix)
        }
        PolicyEnd::Behind(why) => Hop::odd(name, place, format!("{what}: {why}"), ASK_POD),
        PolicyEnd::Unknown(why, host) => {
            let fix = format!("run the same explain on {host}, which decides at this end");
            Hop::odd(name, place, format!("{what}: {why}"), fix)
        }
        PolicyEnd::Decided(decision) if name == EGRESS && policies.may_be_service => {
            let seen = format!(
                "{what} {}, if that address itself answers: behind a service's address the pod is judged, \
                 and no ipBlock matches the service",
                text(decision)
            );
            Hop::odd(name, place, seen, ASK_POD)
        }
        PolicyEnd::Decided(decision) => {
            let seen = format!("{what} {}", text(decision));
            let knows_port = policies.service.is_some();
            match (decision.allowed, knows_port || decision.apart.is_some()) {
                (true, _) => Hop::fine(name, place, seen),
                (false, true) => Hop::lost(name, place, seen, denied(decision)),
                (false, false) => {
                    let fix = "give a port after the two ends, to judge a connection";
                    Hop::odd(name, place, seen, fix)
                }
            }
        }
    })
}

/// What allows it.
fn denied(decision: &PolicyDecision) -> String {
    match (&decision.apart, &decision.policy) {
        (Some(network), _) => format!(
            "humanz-agent net set {network} --shared yes # opens this network to all tenants, which are apart"
        ),
        (None, Some(policy)) => format!(
            "humanz-agent policy show {} # has what it allows: a rule must allow this",
            word(policy)
        ),
        (None, None) => "a rule must allow this".to_owned(),
    }
}

fn text(decision: &PolicyDecision) -> String {
    let counter = decision.counter.as_ref();
    let counter = counter.map(|(name, packets)| format!(" ({name}: {packets} packets)"));
    let audit = decision.audit.as_ref().map(|audit| format!("; audited: {audit}"));
    let host =
        decision.host.as_ref().map(|host| format!("; by what this host knows: {host} decides"));
    let parts = [counter, audit, host];
    decision.text.clone() + &parts.into_iter().flatten().collect::<String>()
}

/// Whether running connections have been judged by the present rules.
fn live(policies: &PathPolicies) -> Option<Hop> {
    let [judged, waiting] = policies.live;
    (judged + waiting > 0).then(|| {
        let seen = format!(
            "running connections: {judged} allowed by the present rules, {waiting} judged with \
             the next packet"
        );
        Hop::fine("policy-live", HERE, seen)
    })
}
