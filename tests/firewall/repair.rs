//! Foreign changes of our tables are detected, reported and repaired; correct tables are not
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use humanz::net::{AddressRange, Family};
use humanz::nft::{CachedTable, Chain, ElementChange, Field, Match, Nft, Ruleset, Set, TableEdit};
use humanz::plan::Describe;
use humanz::plan::firewall::{FirewallSpec, TableChange, TableRepair, changes, repair, ruleset};

use super::network::{HOST, OTHER_POD, OUTSIDE, POD, on_host, run, run_args, spec};

/// One reconcile of the agent; returns the differences.
pub fn reconcile(nft: &Nft, spec: &FirewallSpec) -> Vec<String> {
    let wanted = ruleset(spec);
    let differ = found_changes(nft, spec, wanted.as_ref());
    match repair(wanted.as_ref(), &differ) {
        TableRepair::Nothing => {}
        TableRepair::Elements(elements) => nft.change_elements(&spec.table, &elements).unwrap(),
        TableRepair::Edits(edits) => nft.edit(&spec.table, &edits).unwrap(),
        TableRepair::Replace => nft.replace(wanted.as_ref().unwrap()).unwrap(),
        TableRepair::Delete => nft.delete(&spec.table).unwrap(),
    }
    assert_eq!(found_changes(nft, spec, wanted.as_ref()), [], "repaired at once");
    differ.iter().map(|change| change.line().to_string()).collect()
}

fn found_changes(nft: &Nft, spec: &FirewallSpec, wanted: Option<&Ruleset>) -> Vec<TableChange> {
    changes(wanted, nft.observe(&spec.table).unwrap().as_ref())
}

/// Changes a correct table; `wanted` is in one of the reported differences.
fn check(meddle: &str, wanted: &str) {
    let (meddle, wanted) = (meddle.to_owned(), wanted.to_owned());
    on_host(move |network| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        run_args("nft", &[&meddle]);
        let differ = reconcile(&nft, &spec());
        assert!(differ.iter().any(|line| line.contains(&wanted)), "{meddle}: {differ:?}");
        assert_eq!(network.seen_by(OUTSIDE[0]), HOST[0]);
    });
}

#[test]
fn a_table_is_read_again_after_any_foreign_change() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        let mut cached = CachedTable::default();
        let mut is_true = |what: &str| {
            let fresh = nft.observe("humanz").unwrap();
            assert_eq!(cached.observe(&nft, "humanz").unwrap(), fresh.as_ref(), "{what}");
            // Now from memory.
            assert_eq!(cached.observe(&nft, "humanz").unwrap(), fresh.as_ref(), "{what}");
        };
        is_true("no table");
        reconcile(&nft, &spec());
        is_true("made");
        run_args("nft", &["add element inet humanz nodes4 { 192.0.2.77 }"]);
        is_true("an element by hand");
        run_args("nft", &["flush set inet humanz nodes4"]);
        is_true("flushed");
        run_args("nft", &["flush chain inet humanz postrouting"]);
        is_true("a chain flushed");
        run_args("nft", &["flush ruleset"]);
        is_true("gone");
    });
}

#[test]
fn own_element_changes_update_the_cache_unless_a_foreign_change_interferes() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let mut cached = CachedTable::default();
        for (address, meddle) in
            [("192.0.2.70", false), ("192.0.2.71", true), ("192.0.2.72", false)]
        {
            let mut more = spec();
            more.node_addresses.insert(address.parse().unwrap());
            let wanted = ruleset(&more);
            let differ = changes(wanted.as_ref(), cached.observe(&nft, "humanz").unwrap());
            let TableRepair::Elements(elements) = repair(wanted.as_ref(), &differ) else {
                panic!("{differ:?}")
            };
            if meddle {
                run_args("nft", &["add element inet humanz nodes4 { 192.0.2.99 }"]);
            }
            nft.change_elements("humanz", &elements).unwrap();
            cached.note_changes(&nft, "humanz", &elements);
            let fresh = nft.observe("humanz").unwrap();
            assert_eq!(cached.observe(&nft, "humanz").unwrap(), fresh.as_ref(), "{address}");
        }
    });
}

#[test]
fn a_cached_table_stays_right_through_own_and_foreign_changes_of_others() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        run_args("nft", &["add table inet beside; add set inet beside a { type ipv4_addr; }"]);
        let (mut cached, mut beside) = (CachedTable::default(), CachedTable::default());
        let steps = ["own", "own", "beside", "own", "third", "own", "own and beside", "own"];
        for (number, step) in steps.into_iter().enumerate() {
            beside.observe(&nft, "beside").unwrap();
            let mut more = spec();
            more.node_addresses.insert([192, 0, 2, 100 + u8::try_from(number).unwrap()].into());
            let wanted = ruleset(&more);
            let differ = changes(wanted.as_ref(), cached.observe(&nft, "humanz").unwrap());
            let TableRepair::Elements(elements) = repair(wanted.as_ref(), &differ) else {
                panic!("{differ:?}")
            };
            if step.contains("own") {
                nft.change_elements("humanz", &elements).unwrap();
                cached.note_changes(&nft, "humanz", &elements);
            }
            if step.contains("beside") {
                let change = format!("add element inet beside a {{ 192.0.2.{number} }}");
                run_args("nft", &[&change]);
            }
            if step == "third" {
                run_args("nft", &["add table inet third"]);
            }
            for (table, cached) in [("humanz", &mut cached), ("beside", &mut beside)] {
                let fresh = nft.observe(table).unwrap();
                assert_eq!(
                    cached.observe(&nft, table).unwrap(),
                    fresh.as_ref(),
                    "{number}: {table}"
                );
            }
        }
    });
}

#[test]
fn a_flushed_ruleset_is_restored() {
    check("flush ruleset", "+ nft table inet humanz");
}

#[test]
fn a_deleted_table_is_restored() {
    check("delete table inet humanz", "+ nft table inet humanz");
}

#[test]
fn a_flushed_table_is_restored() {
    check("flush table inet humanz", "rule missing in chain forward: iifname \"humanz0\"");
}

#[test]
fn a_flushed_chain_is_restored() {
    check("flush chain inet humanz postrouting", "rule missing in chain postrouting: ip saddr");
}

#[test]
fn a_deleted_rule_is_restored() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let listed = run("nft -a list chain inet humanz postrouting");
        let handle = listed.lines().find(|line| line.contains("ip6 saddr")).unwrap();
        let handle = handle.rsplit_once("handle ").unwrap().1;
        run(&format!("nft delete rule inet humanz postrouting handle {handle}"));
        let differ = reconcile(&nft, &spec());
        assert_eq!(differ.len(), 1);
        let wanted = "rule missing in chain postrouting: ip6 saddr";
        assert!(differ[0].contains(wanted), "{differ:?}");
    });
}

#[test]
fn a_flushed_set_is_restored() {
    check("flush set inet humanz cluster4", "set cluster4: +10.244.0.0/16 +172.16.0.0/12");
    check("flush set inet humanz nodes4", "set nodes4: +192.0.2.1 +192.0.2.2");
}

#[test]
fn elements_added_by_hand_are_removed() {
    check("add element inet humanz nodes4 { 192.0.2.100 }", "set nodes4: -192.0.2.100");
    check("add element inet humanz cluster4 { 192.0.2.0/24 }", ": -192.0.2.0/24");
    check("add element inet humanz cluster6 { fe80::-fe80::9 }", ": -fe80::-fe80::9");
}

#[test]
fn rules_and_chains_added_by_hand_are_removed() {
    check(
        "insert rule inet humanz postrouting accept comment \"mine\"",
        "rule not ours in chain postrouting: handle",
    );
    check("add chain inet humanz mine", "chain mine not ours");
    check("add set inet humanz mine { type inet_service; }", "set mine not ours");
    check("add map inet humanz mine { type ipv4_addr : verdict; }", "set mine not ours");
}

#[test]
fn a_table_that_drops_or_is_dormant_is_repaired() {
    check("chain inet humanz forward { policy drop; }", "policy drop\" and not");
    check("add table inet humanz { flags dormant; }", ": dormant");
}

#[test]
fn a_table_written_by_nft_from_its_own_listing_is_not_trusted() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let listed = run("nft list table inet humanz");
        std::fs::write("/run/saved.nft", format!("flush ruleset\n{listed}")).unwrap();
        run("nft -f /run/saved.nft");
        assert_eq!(run("nft list table inet humanz"), listed);
        assert!(!reconcile(&nft, &spec()).is_empty());
    });
}

#[test]
fn a_correct_table_is_not_changed() {
    on_host(|network| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        network.seen_by(OUTSIDE[0]);
        let before = run("nft -a list ruleset");
        assert_eq!(reconcile(&nft, &spec()), [""; 0]);
        assert_eq!(run("nft -a list ruleset"), before, "handles and counters stay");
    });
}

#[test]
fn writing_twice_gives_one_table() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        let wanted = ruleset(&spec()).unwrap();
        nft.replace(&wanted).unwrap();
        let once = run("nft list ruleset");
        nft.replace(&wanted).unwrap();
        assert_eq!(run("nft list ruleset"), once);
    });
}

#[test]
fn foreign_tables_are_not_changed() {
    on_host(|_| {
        run_args(
            "nft",
            &[
                "add table inet other; add chain inet other c; add set inet other s { type ipv4_addr; }",
            ],
        );
        run_args("nft", &["add table ip humanz; add chain ip humanz c"]);
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        nft.delete("humanz").unwrap();
        let left = run("nft list tables");
        assert_eq!(left, "table inet other\ntable ip humanz\n");
        nft.delete("humanz").unwrap();
    });
}

#[test]
fn a_table_no_longer_wanted_is_removed() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let none = FirewallSpec { has_others: false, ..spec() };
        let off = FirewallSpec { masquerade: false, accept_forward: false, ..none };
        assert_eq!(reconcile(&nft, &off), ["- nft table inet humanz"]);
        assert_eq!(run("nft list tables"), "");
    });
}

#[test]
fn a_refused_table_leaves_the_old_one_and_names_the_rule() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let before = run("nft -a list ruleset");
        let mut broken = ruleset(&spec()).unwrap();
        let lost = Match::NotIn(Field::Destination(Family::V4), "lost".to_owned());
        broken.chains[1].rules[0].matches.push(lost);
        let error = nft.replace(&broken).unwrap_err();
        assert_eq!(error.errno(), Some(nix::errno::Errno::ENOENT));
        assert!(error.to_string().contains("ip daddr != @lost"), "{error}");
        assert_eq!(run("nft -a list ruleset"), before);
    });
}

/// Each is repaired in another way.
fn damages() -> [TableEdit; 4] {
    let chain = |name: &str| Chain { name: name.to_owned(), base: None, rules: Vec::new() };
    let wanted = ruleset(&spec()).unwrap();
    let postrouting = wanted.chains.iter().find(|chain| chain.name == "postrouting").unwrap();
    let [cluster4, nodes4] = ["cluster4", "nodes4"]
        .map(|name| wanted.sets.iter().find(|set| set.name == name).unwrap().clone());
    let foreign = AddressRange::single("203.0.113.1".parse().unwrap());
    let added = TableEdit::Elements(ElementChange {
        set: cluster4.name,
        shape: cluster4.shape,
        added: [foreign.into()].into(),
        removed: BTreeSet::new(),
    });
    let twice = [&postrouting.rules[..], &postrouting.rules].concat();
    [
        TableEdit::AddChain(chain("mine")),
        added,
        TableEdit::AddSet(Set { name: "mine".to_owned(), ..nodes4 }),
        TableEdit::Rules(Chain { rules: twice, ..postrouting.clone() }),
    ]
}

/// Ends the flood, also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_connection_gets_a_wrong_address_while_the_table_is_repaired() {
    const FLOOD: Duration = Duration::from_secs(4);
    on_host(|network| {
        let nft = Nft::open().unwrap();
        reconcile(&nft, &spec());
        let servers = [OTHER_POD, OUTSIDE].map(|addresses| {
            let address: IpAddr = addresses[0].parse().unwrap();
            let server = network.remote.inside(|| UdpSocket::bind((address, 0))).unwrap();
            server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            server
        });
        let targets = servers.each_ref().map(|server| server.local_addr().unwrap());
        let done = AtomicBool::new(false);
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        thread::scope(|scope| {
            // A socket is a connection of its own.
            scope.spawn(|| {
                network.pod.inside(|| {
                    while !done.load(Ordering::Relaxed) {
                        for target in targets {
                            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                            // Nobody may have time to listen.
                            drop(socket.send_to(b"hello", target));
                        }
                    }
                });
            });
            let expected = [POD[0], HOST[0]];
            let seen = [0, 1].map(|at| {
                let (server, count, done) = (&servers[at], &counts[at], &done);
                scope.spawn(move || {
                    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
                    loop {
                        // Before the end silence means that the sender has no time.
                        let is_last = done.load(Ordering::Relaxed);
                        match server.recv_from(&mut [0; 8]) {
                            Ok((_, from)) => {
                                *seen.entry(from.ip().to_string()).or_default() += 1;
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(_) if is_last => return seen,
                            Err(_) => {}
                        }
                    }
                })
            });
            let few = || counts.iter().any(|count| count.load(Ordering::Relaxed) <= 1000);
            let stop = SetOnDrop(&done);
            let start = Instant::now();
            let mut repaired = 0;
            // Where programs run slowly, until there were enough of both.
            let lasts = |time: Duration, repaired| {
                time < FLOOD || (time < 30 * FLOOD && (repaired <= 100 || few()))
            };
            while lasts(start.elapsed(), repaired) {
                for damage in damages() {
                    nft.edit("humanz", &[vec![damage]]).unwrap();
                    assert!(!reconcile(&nft, &spec()).is_empty());
                    repaired += 1;
                }
            }
            drop(stop);
            let seen = seen.map(|seen| seen.join().unwrap());
            println!("{repaired} repairs, connections by the address they came from: {seen:?}");
            for (seen, expected) in seen.iter().zip(expected) {
                assert_eq!(seen.keys().collect::<Vec<_>>(), [expected], "{seen:?}");
                assert!(seen[expected] > 1000, "{seen:?}");
            }
            assert!(repaired > 100, "{repaired}");
        });
    });
}

#[test]
fn what_cannot_be_repaired_in_parts_is_refused_as_a_whole() {
    on_host(|_| {
        let nft = Nft::open().unwrap();
        let wanted = ruleset(&spec());
        reconcile(&nft, &spec());
        // A chain without a name of its own goes only with its rule.
        run_args("nft", &["add rule inet humanz forward jump { accept; }"]);
        let differ = found_changes(&nft, &spec(), wanted.as_ref());
        let before = run("nft -a list ruleset");
        let TableRepair::Edits(edits) = repair(wanted.as_ref(), &differ) else { panic!() };
        match nft.edit("humanz", &edits) {
            Ok(()) => assert_eq!(found_changes(&nft, &spec(), wanted.as_ref()), []),
            Err(_) => assert_eq!(run("nft -a list ruleset"), before),
        }
    });
}
