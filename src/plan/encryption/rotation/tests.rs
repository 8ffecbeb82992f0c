use super::*;

const NAMES: [&str; 4] = ["h1", "h2", "h3", "h4"];

fn key(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

fn peer(host: usize, (first, second): (u8, Option<u8>)) -> EncryptedPeer {
    EncryptedPeer {
        key: key(first),
        address: "192.0.2.1".parse().unwrap(),
        addresses: crate::net::PerFamily::default(),
        port: 10401,
        rotation_port: Some(10402),
        next: second.map(key),
        host: NAMES[host].parse().unwrap(),
        alive: true,
        subnets: Vec::new(),
        mtu_bytes: None,
    }
}

fn found(number: u8, handshake: bool, received_bytes: u64) -> WireguardPeer {
    WireguardPeer {
        key: key(number),
        preshared: None,
        endpoint: None,
        keepalive_secs: 25,
        last_handshake: handshake.then_some(Duration::from_secs(1000)),
        received_bytes,
        sent_bytes: 0,
        allowed: std::collections::BTreeSet::new(),
    }
}

fn sessions(first: &[WireguardPeer], second: &[WireguardPeer]) -> Sessions {
    Sessions::of([first, second], Duration::from_secs(1010))
}

fn seen<'a>(own: Stage, peers: &'a [EncryptedPeer], sessions: &'a Sessions) -> Rotation<'a> {
    Rotation { own, is_due: true, is_contested: false, peers, sessions, now: Duration::ZERO }
}

fn blockers(watch: &RotationWatch) -> Vec<Blocker> {
    watch.blocked(Duration::ZERO).into_iter().map(|(_, blocker)| blocker).collect()
}

/// Steps after this many seconds.
fn after(watch: &mut RotationWatch, seen: Rotation<'_>, seconds: u64) -> Option<RotationStep> {
    watch.step(&Rotation { now: Duration::from_secs(seconds), ..seen })
}

#[test]
fn a_host_begins_when_it_is_due_and_no_other_host_changes_or_cannot_follow() {
    let none = Sessions::default();
    let step = |peers: &[EncryptedPeer], change: &dyn Fn(&mut Rotation<'_>)| {
        let (mut watch, mut seen) = (RotationWatch::default(), seen(Stage::Steady, peers, &none));
        change(&mut seen);
        let step = watch.step(&seen);
        (step, blockers(&watch))
    };
    let fine = [peer(1, (2, None))];
    assert_eq!(step(&fine, &|_| {}), (Some(RotationStep::Begin), vec![]));
    assert_eq!(step(&fine, &|seen| seen.is_due = false), (None, vec![]));
    assert_eq!(step(&fine, &|seen| seen.is_contested = true).1, [Blocker::Contested]);
    let older = [EncryptedPeer { rotation_port: None, ..fine[0].clone() }];
    assert_eq!(step(&older, &|_| {}).1, [Blocker::Older("h2".parse().unwrap())]);
    let changes = [peer(1, (2, Some(9)))];
    assert_eq!(step(&changes, &|_| {}).1, [Blocker::Changes("h2".parse().unwrap())]);
    let dead = [EncryptedPeer { alive: false, ..changes[0].clone() }];
    assert_eq!(step(&dead, &|_| {}).0, Some(RotationStep::Begin), "it is down");
    let sends = sessions(&[found(2, true, 0)], &[]);
    let silent_agent = |seen: &mut Rotation<'_>| seen.now = Duration::ZERO;
    let mut watch = RotationWatch::default();
    let mut only_agent = seen(Stage::Steady, &dead, &sends);
    silent_agent(&mut only_agent);
    assert_eq!(watch.step(&only_agent), None, "its kernel sends on");
}

#[test]
fn a_host_that_is_behind_is_waited_for_and_one_that_is_down_is_not() {
    let peers = [peer(1, (2, None)), peer(2, (3, None))];
    for (own, step) in
        [(Stage::Leaving, RotationStep::TakeOver), (Stage::Returning, RotationStep::Finish)]
    {
        let both = [found(2, true, 0), found(3, true, 0)];
        let one = [found(2, true, 0), found(3, false, 0)];
        let (left, other) = if own == Stage::Leaving { (0, 1) } else { (1, 0) };
        let devices = |of_left: &[WireguardPeer], of_other: &[WireguardPeer]| {
            let mut devices = [&[][..], &[]];
            devices[left] = of_left;
            devices[other] = of_other;
            sessions(devices[0], devices[1])
        };
        let (behind, down, right) =
            (devices(&both, &one), devices(&one, &one), devices(&both, &both));
        let mut watch = RotationWatch::default();
        assert_eq!(after(&mut watch, seen(own, &peers, &behind), 0), None);
        assert_eq!(after(&mut watch, seen(own, &peers, &behind), 700), None);
        assert_eq!(blockers(&watch), [Blocker::Behind("h3".parse().unwrap())]);
        let blocked = watch.blocked(Duration::from_secs(700));
        let problem = problem(own, &blocked, 10402).unwrap();
        assert!(problem.what.contains("host h3 is not reached by the other device"), "{problem}");
        assert!(problem.fix.unwrap().contains("port 10402"));
        for fine in [down, right] {
            let mut watch = RotationWatch::default();
            assert_eq!(after(&mut watch, seen(own, &peers, &fine), 0), None, "held");
            assert_eq!(after(&mut watch, seen(own, &peers, &fine), 20), Some(step));
        }
    }
}

#[test]
fn a_host_that_still_sends_by_the_device_that_is_left_is_waited_for() {
    let peers = [peer(1, (2, None))];
    let at = |bytes| sessions(&[found(2, true, bytes)], &[found(2, true, 0)]);
    let mut watch = RotationWatch::default();
    let (first, more, little) = (at(1000), at(1500), at(1800));
    assert_eq!(after(&mut watch, seen(Stage::Leaving, &peers, &first), 0), None);
    assert_eq!(after(&mut watch, seen(Stage::Leaving, &peers, &more), 20), None);
    assert_eq!(blockers(&watch), [Blocker::Sends("h2".parse().unwrap())]);
    assert_eq!(after(&mut watch, seen(Stage::Leaving, &peers, &little), 30), None, "held anew");
    assert_eq!(
        after(&mut watch, seen(Stage::Leaving, &peers, &little), 40),
        Some(RotationStep::TakeOver)
    );
}

#[test]
fn what_waits_longer_than_is_normal_is_a_problem() {
    let all = [
        (Blocker::Contested, 0),
        (Blocker::Older("h2".parse().unwrap()), 0),
        (Blocker::Changes("h2".parse().unwrap()), 3600),
        (Blocker::Behind("h2".parse().unwrap()), 600),
        (Blocker::Sends("h2".parse().unwrap()), 600),
    ];
    for (blocker, seconds) in all {
        let of = |waited| {
            let blocked = [(Duration::from_secs(waited), blocker.clone())];
            problem(Stage::Steady, &blocked, 10402)
        };
        assert!(of(seconds).is_some(), "{blocker:?}");
        assert!(seconds == 0 || of(seconds - 1).is_none(), "{blocker:?}");
    }
    let older = |number| Blocker::Older(format!("h{number}").parse().unwrap());
    let many: Vec<_> = (0..1000).map(|number| (Duration::ZERO, older(number))).collect();
    let problem = problem(Stage::Steady, &many, 1).unwrap();
    assert!(problem.what.ends_with("and 995 more"), "{problem}");
}

/// A host as its kernel, its file and etcd have it.
#[derive(Debug, Default)]
struct Host {
    file: (u8, Option<u8>),
    published: (u8, Option<u8>),
    /// The keys of its devices, and for each the other hosts' keys there.
    devices: [Option<u8>; 2],
    known: [BTreeMap<usize, u8>; 2],
    /// Handshakes: with which host, by which of its own keys and of the other's.
    shaken: [BTreeMap<usize, (u8, u8)>; 2],
    routes: BTreeMap<usize, usize>,
    received: [BTreeMap<usize, u64>; 2],
    watch: RotationWatch,
    is_due: bool,
}

/// Hosts whose agents, records and handshakes come in any order, and a packet of each to each after every one.
struct Model {
    hosts: Vec<Host>,
    seconds: u64,
    random: u64,
    fresh_key: u8,
}

impl Model {
    fn new(count: usize, seed: u64) -> Model {
        let host = |number: usize| {
            let key = number as u8 + 1;
            Host { file: (key, None), published: (key, None), ..Host::default() }
        };
        let hosts = (0..count).map(host).collect();
        let mut model = Model { hosts, seconds: 0, random: seed, fresh_key: 100 };
        for _ in 0..2 {
            (0..count).for_each(|host| model.reconcile(host));
            for one in 0..count {
                (0..count).for_each(|two| model.shake(one, two, 0));
            }
        }
        model
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % limit
    }

    fn peers(&self, own: usize) -> Vec<EncryptedPeer> {
        let others = (0..self.hosts.len()).filter(|other| *other != own);
        others.map(|other| peer(other, self.hosts[other].published)).collect()
    }

    /// What the agent does: devices, peers, routes, and perhaps a step.
    fn reconcile(&mut self, own: usize) {
        let peers = self.peers(own);
        let number =
            |peer: &EncryptedPeer| NAMES.iter().position(|name| *name == peer.host.as_str());
        let (first, second) = self.hosts[own].file;
        let stage = Stage::of(&first, second.as_ref());
        let seconds = on_second(&peers, stage);
        let needs = stage != Stage::Steady || !seconds.is_empty();
        let wanted = [Some(first), needs.then(|| second.unwrap_or(first))];
        let host = &mut self.hosts[own];
        for (device, (peers, wanted)) in [&peers, &seconds].into_iter().zip(wanted).enumerate() {
            if wanted.is_none() {
                continue;
            }
            if host.devices[device] != wanted {
                host.shaken[device].clear();
            }
            host.devices[device] = wanted;
            host.known[device] =
                peers.iter().map(|peer| (number(peer).unwrap(), peer.key.0[0])).collect();
            let known = host.known[device].clone();
            host.shaken[device].retain(|other, (_, theirs)| known.get(other) == Some(theirs));
        }
        let device = |device: usize| -> Vec<WireguardPeer> {
            let of = host.known[device].iter().map(|(other, key)| {
                let received = host.received[device].get(other).copied().unwrap_or_default();
                found(*key, host.shaken[device].contains_key(other), received)
            });
            of.collect()
        };
        let sessions = sessions(&device(0), &device(1));
        let way = |peer: &EncryptedPeer| {
            (number(peer).unwrap(), usize::from(uses_second(stage, peer, &sessions)))
        };
        host.routes = peers.iter().map(way).collect();
        if !needs {
            host.devices[1] = None;
            host.shaken[1].clear();
        }
        let seen = Rotation {
            is_due: host.is_due,
            now: Duration::from_secs(self.seconds),
            ..seen(stage, &peers, &sessions)
        };
        match host.watch.step(&seen) {
            None => {}
            Some(RotationStep::Begin) => {
                self.fresh_key += 1;
                host.file.1 = Some(self.fresh_key);
                host.is_due = false;
            }
            Some(RotationStep::TakeOver) => host.file = (host.file.1.unwrap(), host.file.1),
            Some(RotationStep::Finish) => host.file.1 = None,
        }
    }

    /// What the agent publishes is what its devices have, as its last reconcile left them.
    fn publish(&mut self, own: usize) {
        let host = &mut self.hosts[own];
        let (first, second) = host.file;
        let devices = (host.devices[0].unwrap_or(first), second.and(host.devices[1]));
        host.published = devices;
    }

    fn shake(&mut self, one: usize, two: usize, device: usize) {
        let knows = |from: usize, to: usize| self.hosts[from].known[device].get(&to).copied();
        let keys = [one, two].map(|host| self.hosts[host].devices[device]);
        if let [Some(first), Some(second)] = keys
            && one != two
            && knows(one, two) == Some(second)
            && knows(two, one) == Some(first)
        {
            self.hosts[one].shaken[device].insert(two, (first, second));
            self.hosts[two].shaken[device].insert(one, (second, first));
        }
    }

    fn send(&mut self, from: usize, to: usize) {
        let device = self.hosts[from].routes[&to];
        let there = self.hosts[to].shaken[device].get(&from).copied();
        let here = self.hosts[from].shaken[device].get(&to).map(|(own, theirs)| (*theirs, *own));
        assert!(
            here.is_some() && here == there,
            "lost: {from} -> {to} by {device}: {:#?}",
            self.hosts
        );
        *self.hosts[to].received[device].entry(from).or_default() += 1000;
    }

    /// One thing happens, and a packet goes from each host to each.
    fn happen(&mut self) {
        let count = self.hosts.len();
        self.seconds += self.below(3) as u64;
        let own = self.below(count);
        match self.below(8) {
            0..=2 => self.reconcile(own),
            3 | 4 => self.publish(own),
            5 | 6 => {
                let (other, device) = (self.below(count), self.below(2));
                self.shake(own, other, device);
            }
            // The agent is killed, and starts again.
            _ => self.hosts[own].watch = RotationWatch::default(),
        }
        for from in 0..count {
            (0..count).filter(|to| *to != from).for_each(|to| self.send(from, to));
        }
    }
}

#[test]
fn in_any_order_of_agents_records_handshakes_and_crashes_nothing_is_lost() {
    for seed in 0..200 {
        let mut model = Model::new(2 + seed as usize % 3, seed);
        let old: Vec<u8> = model.hosts.iter().map(|host| host.file.0).collect();
        // One host, or all of them at the same time.
        let changing = if seed % 2 == 0 { 1 } else { model.hosts.len() };
        model.hosts[..changing].iter_mut().for_each(|host| host.is_due = true);
        let mut happened = 0;
        let is_done = |model: &Model| {
            let mut each = model.hosts.iter().zip(&old).enumerate();
            each.all(|(number, (host, old))| {
                let is_changed = number >= changing || host.file.0 != *old;
                is_changed && host.file.1.is_none() && host.devices[1].is_none()
            })
        };
        while !is_done(&model) {
            model.happen();
            happened += 1;
            assert!(happened < 1_000_000, "{seed}: it never ends: {:#?}", model.hosts);
        }
    }
}

const DAY: u64 = 24 * 3600;

/// h2 is stolen. What it pretends stands in its record, in the handshakes it makes and leaves, and in what it sends.
#[test]
fn a_host_that_pretends_a_reason_to_wait_for_ever_delays_a_change_by_a_day() {
    let (right, changes) = (peer(1, (2, None)), peer(1, (2, Some(9))));
    let older = EncryptedPeer { rotation_port: None, ..right.clone() };
    for pretends in [changes, older] {
        let (peers, none, mut watch) = ([pretends], Sessions::default(), RotationWatch::default());
        let mut at = |seconds| after(&mut watch, seen(Stage::Steady, &peers, &none), seconds);
        assert_eq!((at(0), at(DAY - 1)), (None, None));
        assert_eq!(at(DAY), Some(RotationStep::Begin));
    }
    let peers = [right];
    let (first, more) = ([found(2, true, 0)], [found(2, true, 9999)]);
    for (own, step) in
        [(Stage::Leaving, RotationStep::TakeOver), (Stage::Returning, RotationStep::Finish)]
    {
        let devices = |left: &[WireguardPeer]| match own {
            Stage::Leaving => sessions(left, &[]),
            _ => sessions(&[], left),
        };
        let mut watch = RotationWatch::default();
        let mut at = |left: &[WireguardPeer], seconds| {
            after(&mut watch, seen(own, &peers, &devices(left)), seconds)
        };
        assert_eq!((at(&first, 0), at(&first, DAY - 1), at(&first, DAY)), (None, None, None));
        assert_eq!(at(&more, DAY + 20), Some(step), "it sends all the time");
    }
}

/// A thousand hosts that change one after the other are no host that does not finish.
#[test]
fn each_host_is_waited_for_from_its_own_change_on() {
    let (none, mut watch) = (Sessions::default(), RotationWatch::default());
    for turn in 0..1000 {
        let peers = [peer(1 + turn as usize % 3, (2, Some(9)))];
        let now = turn * 120;
        assert_eq!(after(&mut watch, seen(Stage::Steady, &peers, &none), now), None, "{turn}");
        let blocked = watch.blocked(Duration::from_secs(now));
        assert_eq!(problem(Stage::Steady, &blocked, 1), None, "{turn}");
    }
}

/// `limit` and `age` in hours. `byte`: what decides how much earlier a key is due.
fn check_age(limit: u64, byte: u8, age: u64, is_due: bool) {
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let made_secs = 1_800_000_000 / 256 * 256 + u64::from(byte);
    assert_eq!(is_old(made_secs, hours(age), hours(limit)), is_due, "{limit} {byte} {age}");
}

#[test]
fn a_key_is_old_after_a_week_or_up_to_an_eighth_earlier() {
    const WEEK: u64 = 168;
    check_age(WEEK, 0, 0, false);
    check_age(WEEK, 0, 167, false);
    check_age(WEEK, 0, 168, true);
    check_age(WEEK, 0, 24 * 365, true);
    check_age(WEEK, 255, 146, false);
    check_age(WEEK, 255, 147, true);
    check_age(WEEK, 51, 163, false);
    check_age(WEEK, 51, 164, true);
    check_age(1, 255, 0, false);
    check_age(1, 255, 1, true);
    check_age(8760, 0, 8759, false);
}
