//! The table in the kernel: it is read back as it was written, and packets meet in it what `evaluate`
//! says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use humanz::net::{AddressRange, Family, Protocol};
use humanz::nft::{ElementChange, FoundTable, Nft, TableWatch};
use humanz::plan::policy_table::{FoundPolicy, PolicyPlan, plan};
use humanz::policy::compile::{POLICY_TABLE, PolicyTable, compile};
use humanz::policy::{Rules, Transport, Tuple, evaluate};
use humanz_test_support::netns::run_args;
use humanz_test_support::wait::patience;
use nix::sys::resource::{UsageWho, getrusage};

use super::agreement::expected;
use super::network::{Network, Probe, alone};
use super::quarantine::compiled;
use super::random::Random;
use super::world::{HOSTS, PORTS, World, own_addresses};

const FIRST_EPOCH: u32 = 1 << 16;

pub fn observe(nft: &Nft) -> Option<FoundPolicy> {
    let table = nft.observe(POLICY_TABLE).unwrap()?;
    let counters = nft.counters(POLICY_TABLE).unwrap().into_keys().collect();
    Some(FoundPolicy::new(table, counters))
}

/// Makes the table found into `wanted`; what is of no use any longer goes with a second plan. What is
/// known without reading it again is what is read.
pub fn bring(nft: &Nft, wanted: &PolicyTable) {
    for _ in 0..2 {
        let found = observe(nft);
        let changes = plan(wanted, found.as_ref(), FIRST_EPOCH);
        nft.edit(POLICY_TABLE, &changes.transactions).unwrap();
        let mut known = found.unwrap_or_else(FoundPolicy::empty);
        changes.transactions.iter().for_each(|edits| known.note(edits, wanted));
        assert_eq!(comparable(&known), comparable(&observe(nft).unwrap()));
    }
    assert_eq!(plan(wanted, observe(nft).as_ref(), FIRST_EPOCH), PolicyPlan::default());
}

/// Without the kernel's numbers of rules.
fn comparable(policy: &FoundPolicy) -> (FoundTable, BTreeSet<String>) {
    let mut table = policy.table();
    table.chains.iter_mut().flat_map(|chain| &mut chain.rules).for_each(|rule| rule.handle = 0);
    (table, BTreeSet::clone(policy.counters()))
}

#[test]
fn changes_of_others_are_distinguished_from_own_ones_and_from_those_of_other_tables() {
    alone(|| {
        let nft = Nft::open().unwrap();
        let mut random = Random::new(9);
        let mut next = || World::random(&mut random).on_host(0, compile);
        bring(&nft, &next());
        let mut watch = TableWatch::open(&nft, POLICY_TABLE).unwrap();
        let mut since = nft.generation().unwrap();
        assert_eq!(watch.unchanged_until(since), Some(since), "nothing happened");
        for _ in 0..20 {
            bring(&nft, &next());
            run_args(
                "nft",
                &["add table ip other; add chain ip other c; add rule ip other c drop"],
            );
            run_args("nft", &["add table inet other; add set inet other s { type mark; }"]);
            let now = nft.generation().unwrap();
            assert_eq!(watch.unchanged_until(since), Some(now), "own changes, and other tables");
            since = now;
        }
        let name = "inet humanz-policy";
        for damage in [
            format!("add element {name} epoch {{ 0x00990000 }}"),
            format!("flush map {name} in4; add counter {name} mine"),
            format!("add rule {name} stamp accept"),
            format!("add rule {name} judged accept"),
            format!("add table {name} {{ flags dormant; }}"),
            format!("chain {name} forward {{ policy drop; }}"),
            format!("add table ip other; delete table {name}; add table ip other2"),
        ] {
            run_args("nft", &[&damage]);
            run_args("nft", &["add counter ip other c"]);
            assert_eq!(watch.unchanged_until(since), None, "{damage}");
            since = nft.generation().unwrap();
            assert_eq!(watch.unchanged_until(since), Some(since), "{damage}");
            bring(&nft, &next());
        }
        let before = since;
        run_args("nft", &["add table ip other3"]);
        let now = nft.generation().unwrap();
        let mut late = TableWatch::open(&nft, POLICY_TABLE).unwrap();
        assert_ne!(late.unchanged_until(before), Some(now), "what was not received");
    });
}

/// The chain for pods that connect to their node leads to one that looks into maps: the kernel takes neither before
/// the other one is there.
#[test]
fn a_host_gets_its_second_family_and_loses_it_again() {
    alone(|| {
        let nft = Nft::open().unwrap();
        let (v4, v6) = ("10.244.1.0/24", "fd00:10:1::/64");
        for subnets in [&[v4][..], &[v4, v6], &[v6], &[v6, v4], &[v4]] {
            bring(&nft, &compiled(&[], subnets));
        }
    });
}

#[test]
fn any_table_is_read_back_as_it_was_written_and_becomes_any_other() {
    alone(|| {
        let nft = Nft::open().unwrap();
        for seed in 0..60 {
            let mut random = Random::new(seed);
            bring(&nft, &World::random(&mut random).on_host(0, compile));
        }
        let listed = run_args("nft", &["list", "table", "inet", POLICY_TABLE]);
        for line in [
            "/16 accept comment \"judged in this epoch\"",
            "ct original ip saddr 10.244.1.0/24 jump from4",
            "ct reply ip6 saddr fd00:10:1::/64 jump to6",
            "ct original ip saddr vmap @out4",
            "ct state invalid,untracked jump alone",
            "ip6 daddr fd00:10:1::/64 ip6 daddr != @open6 goto untracked",
            "counter name \"untracked\" drop",
            "log prefix \"humanz: no connection \" group 71",
            "ct original ip saddr . ct reply ip saddr @self4",
            "counter name \"unknown\" drop",
            "limit rate 10/second burst 20 packets log prefix \"humanz: unknown pod \" group 71",
            "ct mark set ct mark & 0x",
            "ct original ip saddr 10.244.1.0/24 goto node4",
            "ct direction reply counter packets 0 bytes 0 accept",
            "iifname \"lo\" counter packets 0 bytes 0 accept",
        ] {
            assert!(listed.contains(line), "{line}\n{listed}");
        }
    });
}

#[test]
fn damage_is_repaired() {
    alone(|| {
        let nft = Nft::open().unwrap();
        let wanted = World::random(&mut Random::new(5)).on_host(0, compile);
        bring(&nft, &wanted);
        for damage in [
            "flush table inet humanz-policy",
            "flush chain inet humanz-policy forward",
            "flush chain inet humanz-policy input",
            "flush chain inet humanz-policy input; delete chain inet humanz-policy input",
            "flush set inet humanz-policy epoch",
            "flush chain inet humanz-policy judged",
            "insert rule inet humanz-policy judged accept",
            "flush map inet humanz-policy in4",
            "add rule inet humanz-policy stamp accept",
            "insert rule inet humanz-policy forward accept",
            "add chain inet humanz-policy mine",
            "add set inet humanz-policy mine { type ipv4_addr; }",
            "add counter inet humanz-policy mine",
            "add table inet humanz-policy { flags dormant; }",
            "chain inet humanz-policy forward { policy drop; }",
            "flush chain inet humanz-policy from4; delete map inet humanz-policy out4",
            "flush chain inet humanz-policy from4; delete map inet humanz-policy out4; \
             add set inet humanz-policy out4 { type inet_service; }",
            "delete table inet humanz-policy",
        ] {
            run_args("nft", &[damage]);
            assert_ne!(plan(&wanted, observe(&nft).as_ref(), 1 << 16), PolicyPlan::default());
            bring(&nft, &wanted);
        }
    });
}

/// Runs `task` and prints how long it took, and the CPU time of this thread in user and kernel.
fn timed<T>(what: &str, task: impl FnOnce() -> T) -> T {
    let cpu = || getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let (before, start) = (cpu(), Instant::now());
    let outcome = task();
    let (elapsed, after) = (start.elapsed(), cpu());
    let user = after.user_time() - before.user_time();
    let kernel = after.system_time() - before.system_time();
    println!("{what}: {elapsed:?}, user {user}, kernel {kernel}");
    outcome
}

/// 250 pods, 1,000 policies, 3,000 rules.
#[test]
fn a_large_table_is_loaded_at_once() {
    alone(|| {
        let nft = Nft::open().unwrap();
        let world = super::large::world(250, 1000, 3);
        let wanted = timed("compiled", || world.on_host(0, compile));
        let changes = timed("planned", || plan(&wanted, None, FIRST_EPOCH));
        timed("loaded", || nft.edit(POLICY_TABLE, &changes.transactions).unwrap());
        let found = timed("read", || observe(&nft));
        let again = timed("compared", || plan(&wanted, found.as_ref(), FIRST_EPOCH));
        assert_eq!(again, PolicyPlan::default());
        println!("{} edits", changes.transactions.iter().flatten().count());
        let table = found.as_ref().unwrap().table();
        let peers = table.sets.iter();
        let peers =
            peers.filter(|set| set.name.starts_with("pods4")).max_by_key(|set| set.elements.len());
        let peers = peers.unwrap();
        let change = ElementChange {
            set: peers.name.clone(),
            shape: peers.shape.clone().unwrap(),
            added: [AddressRange::single("10.245.200.200".parse().unwrap()).into()].into(),
            removed: BTreeSet::new(),
        };
        timed("a peer added", || nft.change_elements(POLICY_TABLE, &[change]).unwrap());
    });
}

/// What packets can show here: of ICMP pings, and nothing that does not leave its pod.
fn can_be_sent(tuple: &Tuple) -> bool {
    if tuple.source == tuple.destination {
        return false;
    }
    match tuple.transport {
        Transport::Port(_, port) => PORTS.contains(&port),
        Transport::Icmp { kind, code } => {
            code == 0 && kind == if tuple.source.is_ipv4() { 8 } else { 128 }
        }
        Transport::Other(_) => false,
    }
}

#[test]
fn packets_meet_what_evaluate_says() {
    const WORLDS: u64 = 24;
    const CONNECTIONS: usize = 100;
    let network = Network::new();
    let mut verdicts: BTreeMap<bool, usize> = BTreeMap::new();
    let mut to_own_node: BTreeMap<bool, usize> = BTreeMap::new();
    let mut sctp: BTreeMap<(Family, bool), usize> = BTreeMap::new();
    let mut by_service = 0;
    for seed in 0..WORLDS {
        let mut random = Random::new(1000 + seed);
        let world = World::random(&mut random);
        for (place, host) in network.hosts.iter().enumerate() {
            let wanted = world.on_host(place, compile);
            host.inside(|| bring(&Nft::open().unwrap(), &wanted));
        }
        let mut tuples: BTreeSet<Tuple> = BTreeSet::new();
        while tuples.len() < CONNECTIONS {
            let tuple = world.connection(&mut random);
            if can_be_sent(&tuple) {
                tuples.insert(tuple);
            }
        }
        let wanted = tuples.iter().map(|tuple| {
            let judgement = evaluate(&world.rules, &world.endpoints, tuple);
            (0..HOSTS.len()).all(|host| expected(&world, host, tuple, &judgement))
        });
        let wanted: Vec<bool> = wanted.collect();
        let mut probes: Vec<Probe> = Vec::new();
        for (number, tuple) in tuples.iter().enumerate() {
            // What is judged is the connection behind the translation, so that the verdict is the same.
            let service = (number % 2 == 0).then(|| network.probe_by_service(tuple)).flatten();
            by_service += usize::from(service.is_some());
            probes.push(service.unwrap_or_else(|| network.probe(tuple)));
        }
        let end = Instant::now() + Duration::from_secs(10) * patience();
        let mut arrived = vec![false; probes.len()];
        let mut settled = Instant::now();
        let mut again = Instant::now();
        // What is allowed arrives; what is not gets time to.
        while Instant::now() < end && settled.elapsed() < Duration::from_millis(150) * patience() {
            for (probe, arrived) in probes.iter_mut().zip(&mut arrived) {
                *arrived = *arrived || network.has_arrived(probe);
            }
            if wanted.iter().zip(&arrived).any(|(wanted, arrived)| *wanted && !*arrived) {
                settled = Instant::now();
            }
            // One packet may be lost, as while its neighbour is looked for.
            if again.elapsed() > Duration::from_millis(300) * patience() {
                again = Instant::now();
                let lost = probes.iter().zip(&arrived).filter(|(_, arrived)| !**arrived);
                lost.for_each(|(probe, _)| probe.send());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for ((tuple, wanted), arrived) in tuples.iter().zip(&wanted).zip(&arrived) {
            let judgement = evaluate(&world.rules, &world.endpoints, tuple);
            assert_eq!(
                arrived, wanted,
                "seed {seed}, {tuple}: egress {}, ingress {}",
                judgement.egress, judgement.ingress
            );
            *verdicts.entry(*wanted).or_default() += 1;
            if matches!(tuple.transport, Transport::Port(Protocol::Sctp, _)) {
                *sctp.entry((Family::of(tuple.source), *wanted)).or_default() += 1;
            }
            let is_own = |host: &usize| {
                world.is_local(*host, tuple.source)
                    && own_addresses(*host).contains(&tuple.destination)
            };
            if (0..HOSTS.len()).any(|host| is_own(&host)) {
                *to_own_node.entry(*wanted).or_default() += 1;
            }
        }
    }
    println!(
        "connections denied, allowed: {verdicts:?}; to own nodes: {to_own_node:?}, by services: {by_service}; of SCTP: {sctp:?}"
    );
    assert!(sctp.len() == 4 && sctp.values().all(|count| *count > 30), "{sctp:?}");
    assert!(by_service > 200, "{by_service}");
    assert!(to_own_node.len() == 2, "{to_own_node:?}");
    assert!(verdicts.values().sum::<usize>() >= 2000 && verdicts[&false] > 300, "{verdicts:?}");
    let empty = World { rules: Rules::default(), ..World::random(&mut Random::new(0)) };
    network.hosts[0].inside(|| bring(&Nft::open().unwrap(), &empty.on_host(0, compile)));
}
