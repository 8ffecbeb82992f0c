//! What is wrong on this host now, and since when; what begins and what ends is logged.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::net::{Object, Problem, ProblemKind, Severity};

/// Where problems are looked for; each result of a check replaces its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemSource {
    /// A reload that was refused.
    Settings,
    /// Changes that failed, and what could not be inspected.
    Reconcile,
    /// The links to the other hosts.
    Uplinks,
    /// Other bridges with the mark of ours.
    Bridges,
    /// etcd or the Kubernetes API.
    Store,
    /// Certificates, key and password.
    StoreFiles,
    /// Records of other hosts that cannot be parsed.
    Records,
    /// The pools of the network and those of the settings.
    Pools,
    /// Subnets that another host has, too.
    Disputed,
    /// Plugin and CNI configuration, as runtimes find them.
    CniFiles,
    /// Files that another program changes, too.
    ContestedFiles,
    /// Firewalls of other programs.
    Firewall,
    /// Host ports whose packets go elsewhere.
    HostPorts,
    /// Objects of policies, and what cannot be enforced of them.
    Policies,
    /// What this host says of its members of groups.
    Members,
    /// Members of groups that are more than a namespace's policies may find.
    Shares,
    /// Blocks of tenants' networks.
    Blocks,
    /// Networks of tenants without a free address.
    FullNetworks,
    /// What plugins go by to place pods in networks.
    NetworkPlans,
    /// Networks of tenants with addresses of hosts.
    NetworkAddresses,
    /// Pods whose policies are not in force.
    QuarantinedPods,
    /// Annotations and labels of pods that look like ours, or ask for what the pods may not have.
    PodWords,
    /// Routes to other hosts.
    PeerRoutes,
    /// The thread that asks other hosts.
    Probes,
    /// Addresses for pods.
    PoolUse,
    /// Everything else on the host.
    Host,
}

/// So many problems of one check are logged one by one: one can concern all hosts.
const LINES: usize = 20;

/// What is wrong now: one entry for each check, kind and subject. Where a check finds several of one
/// kind about one subject they are numbered.
#[derive(Debug, Default)]
pub struct ActiveProblems {
    by_check: Mutex<BTreeMap<ProblemSource, FoundProblems>>,
}

type FoundProblems = BTreeMap<(ProblemKind, Object, usize), Problem>;

impl ActiveProblems {
    /// `found` is everything that is wrong now, as far as `check` goes.
    pub fn set(&self, check: ProblemSource, found: impl IntoIterator<Item = Problem>) {
        let mut all = self.lock();
        let before = all.remove(&check).unwrap_or_default();
        let now = dated(found, &before);
        let (begun, ended) = (changed(&now, &before), missing(&before, &now));
        if !now.is_empty() {
            all.insert(check, now);
        }
        drop(all);
        log_all("", &begun);
        log_all("no longer: ", &ended);
    }

    /// `found` is wrong besides what `check` has found before, as far as was looked now.
    pub fn add(&self, check: ProblemSource, found: impl IntoIterator<Item = Problem>) {
        let mut all = self.lock();
        let before = all.entry(check).or_default();
        let now = dated(found, before);
        let begun = changed(&now, before);
        before.extend(now);
        drop(all);
        log_all("", &begun);
    }

    /// What `check` found.
    pub fn of(&self, check: ProblemSource) -> Vec<Problem> {
        self.lock().get(&check).into_iter().flat_map(|found| found.values().cloned()).collect()
    }

    /// How many there are, without what is only good to know.
    pub fn count(&self) -> usize {
        let all = self.lock();
        let problems = all.values().flat_map(FoundProblems::values);
        problems.filter(|problem| problem.severity() < Severity::Note).count()
    }

    /// Everything: the worst first, causes before their effects.
    pub fn all(&self) -> Vec<Problem> {
        let mut all: Vec<Problem> =
            self.lock().values().flat_map(|found| found.values().cloned()).collect();
        sort(&mut all);
        all
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProblemSource, FoundProblems>> {
        self.by_check.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worst first, causes before their effects.
pub fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| (problem.severity(), problem.kind));
}

/// A problem that was there `before` began then; one that says itself when it began is believed.
fn dated(found: impl IntoIterator<Item = Problem>, before: &FoundProblems) -> FoundProblems {
    let now = SystemTime::now();
    let mut dated = FoundProblems::new();
    for problem in found {
        let key = |number| (problem.kind, problem.subject.clone(), number);
        let number = (0..).find(|number| !dated.contains_key(&key(*number))).unwrap_or_default();
        let known = before.get(&key(number)).and_then(|problem| problem.since);
        let since = problem.since.or(known).unwrap_or(now);
        dated.insert(key(number), problem.with_since(since).with_usual_fix());
    }
    dated
}

/// Those of `now` that `before` does not have, or has in other words.
fn changed(now: &FoundProblems, before: &FoundProblems) -> Vec<Problem> {
    let same =
        |key, problem: &Problem| before.get(key).is_some_and(|known| known.what == problem.what);
    let changed = now.iter().filter(|(key, problem)| !same(key, problem));
    changed.map(|(_, problem)| problem.clone()).collect()
}

fn missing(before: &FoundProblems, now: &FoundProblems) -> Vec<Problem> {
    let gone = before.iter().filter(|(key, _)| !now.contains_key(key));
    gone.map(|(_, problem)| problem.clone()).collect()
}

fn log_all(prefix: &str, problems: &[Problem]) {
    let level = |problem: &Problem| match (prefix, problem.severity()) {
        ("", Severity::Error) => log::Level::Error,
        ("", Severity::Warning) => log::Level::Warn,
        _ => log::Level::Info,
    };
    for problem in problems.iter().take(LINES) {
        log::log!(level(problem), "{prefix}{problem}");
    }
    if let Some(first) = problems.get(LINES) {
        log::log!(level(first), "{prefix}{} more of this kind", problems.len() - LINES);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn problem(subject: &str, what: &str) -> Problem {
        Problem::new(ProblemKind::InspectFailed, Object::named(subject), what)
    }

    fn times(active: &ActiveProblems) -> Vec<(String, Option<SystemTime>)> {
        active.all().into_iter().map(|problem| (problem.what, problem.since)).collect()
    }

    #[test]
    fn a_problem_keeps_its_time_while_its_words_change() {
        let active = ActiveProblems::default();
        active.set(ProblemSource::Host, [problem("a", "one"), problem("b", "two")]);
        let [(_, first), _] = &times(&active)[..] else { panic!("two problems") };
        assert!(first.is_some());
        std::thread::sleep(Duration::from_millis(5));
        active.set(ProblemSource::Host, [problem("a", "1"), problem("c", "three")]);
        let found = times(&active);
        assert_eq!(found[0], ("1".to_owned(), *first));
        assert!(found[1].1 > *first && found[1].0 == "three");
    }

    #[test]
    fn a_problem_without_a_fix_gets_that_of_its_kind() {
        let active = ActiveProblems::default();
        let found = |what| Problem::new(ProblemKind::Policy, Object::named(what), what);
        active.set(ProblemSource::Policies, [found("a"), found("b").with_fix("that")]);
        let fixes: Vec<_> = active.all().into_iter().map(|problem| problem.fix.unwrap()).collect();
        assert!(fixes[0].contains("policy ls"), "{fixes:?}");
        assert_eq!(fixes[1], "that");
    }

    #[test]
    fn a_check_replaces_its_own_results_only() {
        let active = ActiveProblems::default();
        active.set(ProblemSource::Host, [problem("a", "host")]);
        active.set(ProblemSource::Firewall, [problem("a", "firewall")]);
        active.add(ProblemSource::Host, [problem("a", "host"), problem("b", "more")]);
        assert_eq!(times(&active).len(), 3);
        active.set(ProblemSource::Host, []);
        assert_eq!(active.all(), active.of(ProblemSource::Firewall));
    }

    #[test]
    fn two_findings_about_one_subject_are_two() {
        let active = ActiveProblems::default();
        active.set(ProblemSource::Host, [problem("a", "one"), problem("a", "two")]);
        assert_eq!(active.all().len(), 2);
    }

    #[test]
    fn errors_come_first_and_causes_before_effects() {
        let active = ActiveProblems::default();
        let of = |kind: ProblemKind| Problem::new(kind, Object::named("x"), kind.name());
        use ProblemKind::{EtcdRecord, HostUnreachable, InterfaceDown};
        active.set(ProblemSource::Host, [of(EtcdRecord), of(HostUnreachable), of(InterfaceDown)]);
        let kinds: Vec<_> = active.all().into_iter().map(|problem| problem.kind).collect();
        assert_eq!(kinds, [InterfaceDown, HostUnreachable, EtcdRecord]);
    }
}
