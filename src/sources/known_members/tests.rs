use std::path::PathBuf;
use std::time::Duration;

use crate::etcd::EtcdSettings;
use crate::policy::{Member, Scoped};
use crate::sources::known_members::*;
use crate::sources::shared::HostAddresses;

/// What happens to host h1, which needs the group of every pod. Host h2 has 10.244.2.0/24, and so on.
#[derive(Clone, Copy)]
enum Step {
    /// etcd has this of a host: its generation, its members (without 10.244.), and the announcement.
    Says(&'static str, u64, &'static [&'static str]),
    /// Somebody deletes a host's announcement.
    Unannounced(&'static str),
    /// The watch shows the announcement of a host.
    Shown(&'static str),
    /// All is read, as at the start and after a failure.
    Read,
    /// The same, with more announcements than there may be.
    ReadCrowded,
    /// A look at the hosts that are behind.
    Look,
    Seconds(u64),
    Removed(&'static str),
    Added(&'static str),
    NoHosts,
    Unneeded,
    Needed,
}

use Step::*;

struct Scene<'a> {
    start: &'a ExchangeStart,
    known: KnownMembers<'a>,
    etcd: BTreeMap<String, Vec<u8>>,
    needed: BTreeSet<Selector>,
    now: Instant,
}

fn start(kept: &[&str]) -> ExchangeStart {
    let members = Arc::new(members(kept));
    let kept = kept.iter().map(|_| (Selector::every_pod(), Arc::clone(&members)));
    ExchangeStart {
        etcd: EtcdSettings::default(),
        roots: Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/humanz/v1".into() },
        host: name("h1"),
        kept: kept.collect(),
        state_dir: PathBuf::new(),
    }
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn members(addresses: &[&str]) -> BTreeSet<Member> {
    let address = |text: &&str| format!("10.244.{text}").parse().unwrap();
    let member = |text| Member { addresses: vec![address(text)], ports: Vec::new() };
    addresses.iter().map(member).collect()
}

fn network(name: &str) -> Selector {
    let [tenant, name] = ["red", name].map(|text| text.parse().unwrap());
    Selector::Network(Scoped { tenant, name })
}

fn host(number: impl std::fmt::Display) -> (NodeName, HostAddresses) {
    let subnets = [format!("10.244.{number}.0/24"), format!("fd10:244:0:{number}::/64")];
    let subnets = subnets.map(|text| text.parse().unwrap()).into();
    (name(&format!("h{number}")), HostAddresses { subnets, nodes: Vec::new() })
}

impl<'a> Scene<'a> {
    /// `noted`: the generations that were received before the start.
    fn new(start: &'a ExchangeStart, hosts: u8, noted: &[(&str, u64)]) -> Self {
        let noted = noted.iter().map(|(host, generation)| (name(host), *generation)).collect();
        let mut known = KnownMembers::new(start, KnownGenerations::new(noted));
        known.hosts = Arc::new((1..=hosts).map(host).collect());
        let needed = [Selector::every_pod()].into();
        Scene { start, known, etcd: BTreeMap::new(), needed, now: Instant::now() }
    }

    fn put(&mut self, host: &str, generation: u64, value: impl Into<Vec<u8>>) {
        let (roots, host) = (&self.start.roots, name(host));
        let group = GroupId::of(&Selector::every_pod());
        self.etcd.insert(roots.members(&host, group.as_str()), value.into());
        self.etcd.insert(roots.members_generation(&host), generation.to_string().into());
        self.etcd.insert(self.announcement(host.as_str()), Vec::new());
    }

    fn announcement(&self, host: &str) -> String {
        let group = GroupId::of(&Selector::every_pod());
        self.start.roots.announcements(group.as_str()) + host
    }

    fn found(&self, reading: &MembersReading) -> Vec<Option<Vec<u8>>> {
        let keys = reading.keys(&self.start.roots);
        keys.iter().map(|key| self.etcd.get(key).cloned()).collect()
    }

    fn read(&mut self, reading: MembersReading) {
        let found = self.found(&reading);
        self.known.take(reading, found);
    }

    fn read_all(&mut self, is_crowded: bool) {
        self.known.need(&self.needed);
        let range = self.announcement("");
        let keys = self.etcd.keys().filter(|key| key.starts_with(&range));
        let keys: Vec<_> = keys.map(|key| key.clone().into_bytes()).collect();
        let groups: Vec<_> = self.known.groups.keys().cloned().collect();
        let reading = self.known.reading_announced(&groups, vec![(!is_crowded).then_some(keys)]);
        self.read(reading);
        self.known.complete(self.now);
    }

    fn set_hosts(&mut self, change: impl FnOnce(&mut Hosts)) {
        change(Arc::make_mut(&mut self.known.hosts));
        self.known.forget_removed();
    }

    fn step(&mut self, step: Step) {
        match step {
            Says(host, generation, addresses) => {
                let value = shared::write(&Selector::every_pod(), &members(addresses));
                self.put(host, generation, value);
            }
            Unannounced(host) => drop(self.etcd.remove(&self.announcement(host))),
            Shown(host) => {
                let key = self.announcement(host);
                self.read(self.known.reading_of([key.as_bytes()].into_iter()));
            }
            Read => self.read_all(false),
            ReadCrowded => self.read_all(true),
            Look => {
                let behind = self.known.reading_behind();
                let found = self.found(&behind);
                self.read(self.known.reading_back(behind, &found));
            }
            Seconds(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.known.end_wait(self.now);
            }
            Removed(host) => self.set_hosts(|hosts| drop(hosts.remove(&name(host)))),
            Added(added) => self.set_hosts(|hosts| hosts.extend([host(&added[1..])])),
            NoHosts => self.set_hosts(Hosts::clear),
            Unneeded => self.needed.clear(),
            Needed => drop(self.needed.insert(Selector::every_pod())),
        }
    }

    fn received(&self) -> ExchangedMembers {
        self.known.received(&self.needed, None)
    }

    /// Members, whether those of all hosts, and problems, as text.
    fn outcome(&self) -> String {
        let ExchangedMembers { members, unread, problems } = self.received();
        let text = |member: &Member| format!(" {}", member.addresses[0]).replace("10.244.", "");
        let mut outcome = match members.get(&Selector::every_pod()) {
            None => "unknown".to_owned(),
            Some(members) => {
                let of = ["all:", "some:"][unread.len()];
                of.to_owned() + &members.iter().map(text).collect::<String>()
            }
        };
        for problem in problems {
            let word = ["older state", "more hosts announce", "is ignored"];
            let word = word.into_iter().find(|word| problem.what.contains(word));
            outcome += &format!("; {} {}", problem.subject, word.unwrap_or(&problem.what));
        }
        outcome.replace(&format!("group {}", Selector::every_pod()), "group")
    }
}

fn check(sentence: &str, kept: &[&str], noted: &[(&str, u64)], steps: &[Step], outcome: &str) {
    let start = start(kept);
    let mut scene = Scene::new(&start, 3, noted);
    steps.iter().for_each(|step| scene.step(*step));
    assert_eq!(scene.outcome(), outcome, "{sentence}");
}

#[test]
fn members_come_and_go_as_their_hosts_say() {
    let check = |sentence: &str, kept: &[&str], steps: &[Step], outcome: &str| {
        check(sentence, kept, &[], steps, outcome);
    };
    let said = Says("h2", 7, &["2.2"]);
    check("a group is unknown until it was read", &[], &[said], "unknown");
    check(
        "it has the members of all hosts",
        &[],
        &[said, Says("h3", 1, &["3.3"]), Read],
        "all: 2.2 3.3",
    );
    let anew = Says("h2", 8, &["2.3"]);
    check("what a host says anew replaces that", &[], &[said, Read, anew, Shown("h2")], "all: 2.3");
    let of_others = [Says("h9", 1, &["9.9"]), Says("h1", 1, &["1.1"]), Read];
    check("no host that does not exist is received, nor this one", &[], &of_others, "all:");
    let hidden = [said, Unannounced("h2"), Read];
    check("no host looks where nothing is announced", &[], &hidden, "all:");
    check("but where there was a member in force", &["2.2"], &hidden, "all: 2.2");
    let gone = [said, Read, Unannounced("h2"), Shown("h2")];
    check("who deletes an announcement takes no member away", &[], &gone, "all: 2.2");
    let unneeded = [said, Read, Unneeded];
    check("while etcd is away an unneeded group stays known", &[], &unneeded, "all: 2.2");
    let again = [said, Read, Unneeded, Read, Needed];
    check("later it is not, and has to be read again", &[], &again, "unknown");
}

#[test]
fn a_host_that_is_behind_changes_nothing_and_holds_up_new_groups_for_a_while() {
    let older = Says("h2", 5, &["2.66"]);
    let known = [Says("h2", 7, &["2.2"]), Read, older];
    let check_known = |sentence: &str, more: &[Step], outcome: &str| {
        check(sentence, &[], &[], &[&known[..], more].concat(), outcome);
    };
    check_known("it keeps what was known", &[Shown("h2")], "all: 2.2; host h2 older state");
    check_known("also when all is read again", &[Read], "all: 2.2; host h2 older state");
    check_known(
        "an hour later, too",
        &[Read, Look, Seconds(3600)],
        "all: 2.2; host h2 older state",
    );
    let other = [Unneeded, Read, Needed, Read];
    check_known("a group that is needed again is a new one", &other, "some:; host h2 older state");
    let kept = ["2.2", "3.3"];
    let start = [older, Says("h3", 1, &["3.4"]), Read];
    let outcome = "all: 2.2 3.4; host h2 older state";
    check("it keeps what was in force before the start", &kept, &[("h2", 7)], &start, outcome);

    let first = [older, Says("h3", 1, &["3.3"]), Read];
    let check_first = |sentence: &str, more: &[Step], outcome: &str| {
        check(sentence, &[], &[("h2", 7)], &[&first[..], more].concat(), outcome);
    };
    let partly = "some: 3.3; host h2 older state";
    check_first("a group that is read first beside it is partly known", &[], partly);
    check_first("it is while that host says nothing else", &[Look, Shown("h2"), Read], partly);
    check_first("for 14 seconds", &[Seconds(14)], partly);
    let ended = "all: 3.3; host h2 older state";
    check_first("no wait is longer than 15", &[Seconds(15)], ended);
    check_first("and never again for the same", &[Seconds(15), Read, Look], ended);
    let back = Says("h2", 8, &["2.2"]);
    check_first("a look finds that the host is back", &[back, Look], "all: 2.2 3.3");
    check_first("or its announcement shows that", &[back, Shown("h2")], "all: 2.2 3.3");
    check_first("or all is read again", &[back, Read], "all: 2.2 3.3");
    check_first("a host that was removed is not behind", &[Removed("h2")], "all: 3.3");
    let hidden = [older, Unannounced("h2"), Read];
    let outcome = "some:; host h2 older state";
    check("a host is behind that announces nothing", &[], &[("h2", 7)], &hidden, outcome);
}

#[test]
fn a_removed_host_is_forgotten() {
    let said = Says("h2", 1, &["2.2"]);
    check("with its members", &[], &[], &[said, Read, Removed("h2")], "all:");
    let received = [("h2", 7), ("h3", 7)];
    let another = [said, Removed("h2"), Added("h2"), Read];
    check("another one has its name", &[], &received[..1], &another, "all: 2.2");
    let one = [said, Says("h3", 1, &["3.3"]), Read, Removed("h2")];
    let outcome = "some:; host h3 older state";
    check("a further host that is behind is waited for", &[], &received, &one, outcome);
    let none = [said, NoHosts, Read, Added("h2"), Read];
    let outcome = "some:; host h2 older state";
    check("but none while no host is known", &[], &received[..1], &none, outcome);
}

#[test]
fn of_a_crowded_group_the_hosts_that_exist_are_read() {
    let said = [Says("h2", 1, &["2.2"]), Unannounced("h2"), Says("h1", 1, &["1.1"])];
    let check = |sentence: &str, more: &[Step], outcome: &str| {
        check(sentence, &[], &[], &[&said[..], more].concat(), outcome);
    };
    let crowded = "all: 2.2; group more hosts announce";
    check("all but this one are looked up", &[ReadCrowded], crowded);
    check("that ends with the crowd", &[ReadCrowded, Read], "all: 2.2");
}

#[test]
fn more_members_than_the_limit_leave_a_group_unread() {
    let start = start(&[]);
    let mut scene = Scene::new(&start, 50, &[]);
    let address = |number: u16| format!("fd10:244:0:99::{number:x}").parse().unwrap();
    let member = |number| Member { addresses: vec![address(number)], ports: Vec::new() };
    let value = shared::write(&Selector::every_pod(), &(1..=4096).map(member).collect());
    for number in 2..=50 {
        let value = value.replace(":99:", &format!(":{number}:"));
        scene.put(&format!("h{number}"), 1, value);
    }
    scene.step(Read);
    let ExchangedMembers { members, unread, problems } = scene.received();
    assert!(members.is_empty() && problems.len() == 1);
    assert!(problems[0].what.contains("more than 200000 members"), "{}", problems[0].what);
    assert_eq!(unread, [Selector::every_pod()].into());
}

#[test]
fn problems_are_bounded() {
    for (wrong, behind) in [(0, 99), (20, 79), (99, 0)] {
        let names: Vec<String> = (2..=100).map(|number| format!("h{number}")).collect();
        let noted: Vec<_> = names[..behind].iter().map(|name| (name.as_str(), 7)).collect();
        let start = start(&[]);
        let mut scene = Scene::new(&start, 100, &noted);
        names.iter().for_each(|name| scene.put(name, 1, "{"));
        scene.step(Read);
        let count = |word: &str| scene.outcome().matches(word).count();
        assert_eq!(count("is ignored"), wrong.min(PROBLEMS_LIMIT));
        assert_eq!(count("older state"), behind.min(PROBLEMS_LIMIT - wrong.min(PROBLEMS_LIMIT)));
    }
    let start = start(&[]);
    let mut scene = Scene::new(&start, 3, &[]);
    let away = EtcdError::Unreachable("etcd is away".into());
    let problems = |scene: &Scene| scene.known.received(&scene.needed, Some(&away)).problems.len();
    assert_eq!(problems(&scene), 1);
    scene.step(Unneeded);
    assert_eq!(problems(&scene), 0, "a host that needs no group misses nothing");
    let mut scene = Scene::new(&start, 3, &[]);
    let groups = (0..99).map(|group| network(&format!("n{group}")));
    scene.known.crowded = groups.collect();
    assert_eq!(problems(&scene), PROBLEMS_LIMIT, "of groups that too many hosts announce");
}

#[test]
fn further_groups_make_the_first_wait_no_longer() {
    let start = start(&[]);
    let noted = BTreeMap::from([(name("h2"), 7)]);
    let mut known = KnownMembers::new(&start, KnownGenerations::new(noted));
    known.hosts = Arc::new((1..=2).map(host).collect());
    let [every, network] = [Selector::every_pod(), network("front")];
    let (first, both) =
        (BTreeSet::from([every]), BTreeSet::from([Selector::every_pod(), network.clone()]));
    let begin = Instant::now();
    let after = |seconds| begin + Duration::from_secs(seconds);
    for (needed, now) in [(&first, after(0)), (&both, after(10))] {
        known.need(needed);
        let groups = known.unread();
        let reading = known.reading_announced(&groups, vec![Some(Vec::new()); groups.len()]);
        let nothing = reading.keys(&start.roots).iter().map(|_| None).collect();
        known.take(reading, nothing);
        known.complete(now);
    }
    for (now, unread, next) in [
        (0, both.clone(), Some(15)),
        (15, BTreeSet::from([network]), Some(25)),
        (25, BTreeSet::new(), None),
    ] {
        known.end_wait(after(now));
        assert_eq!(known.received(&both, None).unread, unread, "after {now} s");
        assert_eq!(known.wait_until(), next.map(after), "after {now} s");
    }
}
