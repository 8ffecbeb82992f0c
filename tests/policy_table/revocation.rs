//! Running connections, and floods, while policies and the table change.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use humanz::net::Protocol;
use humanz::nft::{Chain, ElementChange, Nft, TableEdit, Value};
use humanz::plan::policy_table::{FoundPolicy, plan};
use humanz::policy::compile::{POLICY_TABLE, compile};
use humanz::policy::{
    Direction, LabelSelector, Namespaces, Origin, PolicyKind, PolicyPeer, PolicyVerdict, PortRange,
    Rule, Rules, Selector, Service, Tier,
};
use humanz_test_support::wait::patience;

use super::kernel::{bring, observe};
use super::network::{Network, send_raw_icmp};
use super::random::Random;
use super::world::{World, name};

const PORT: u16 = 7777;

/// Ingress of every pod on the first host: what `rules` allow, and nothing else.
fn ingress(world: &World, rules: Vec<Rule>) -> World {
    let last = Rule { peers: None, services: None, verdict: PolicyVerdict::Deny, ..allow(None) };
    let last = Rule { priority: 9, origin: Origin { index: None, ..last.origin.clone() }, ..last };
    let rules = Rules::new(rules.into_iter().chain([last]).collect());
    World::new(world.endpoints.clone(), rules)
}

/// Allows [`PORT`] from this address.
fn allow(from: Option<IpAddr>) -> Rule {
    Rule {
        tier: Tier::NetworkPolicy,
        priority: 0,
        origin: Origin {
            source: PolicyKind::NetworkPolicy,
            namespace: Some(name("shop")),
            name: name("db"),
            index: Some(0),
        },
        direction: Direction::Ingress,
        subject: Selector::every_pod(),
        peers: from
            .map(|address| vec![PolicyPeer::Network { cidr: address.into(), except: Vec::new() }]),
        services: Some(vec![Service::Ports(Protocol::Tcp, PortRange::single(PORT))]),
        verdict: PolicyVerdict::Allow,
        audit: false,
    }
}

/// Three pods of the first host, and one of the second, by family.
fn addresses(family: usize) -> [IpAddr; 4] {
    [
        ["10.244.1.10", "fd00:10:1::10"],
        ["10.244.1.12", "fd00:10:1::12"],
        ["10.244.1.14", "fd00:10:1::14"],
        ["10.244.2.11", "fd00:10:2::11"],
    ]
    .map(|of| of[family].parse().unwrap())
}

fn open_world() -> World {
    let world = World::random(&mut Random::new(0));
    World::new(world.endpoints, Rules::default())
}

fn is_alive(client: &mut TcpStream, server: &mut TcpStream) -> bool {
    let mut buffer = [0; 1];
    server.set_read_timeout(Some(Duration::from_millis(600) * patience())).unwrap();
    client.write_all(b"x").is_ok() && matches!(server.read(&mut buffer), Ok(1))
}

#[test]
fn a_change_cuts_running_connections_that_lost_their_permission_and_no_others() {
    let network = Network::new();
    let world = open_world();
    let nft = network.hosts[0].inside(|| Nft::open().unwrap());
    for family in [0, 1] {
        let [server, near, stays, far] = addresses(family);
        let allowed =
            |from: &[IpAddr]| ingress(&world, from.iter().map(|from| allow(Some(*from))).collect());
        bring(&nft, &allowed(&[near, stays, far]).on_host(0, compile));
        let at = |address: IpAddr| &network.places[&address];
        let listener = at(server).inside(|| TcpListener::bind((server, PORT)).unwrap());
        let mut connected = [near, stays, far].map(|from| {
            let client = at(from).inside(|| TcpStream::connect((server, PORT)).unwrap());
            (client, listener.accept().unwrap().0)
        });
        let mut alive = || connected.each_mut().map(|(client, server)| is_alive(client, server));
        assert_eq!(alive(), [true; 3]);
        let start = Instant::now();
        bring(&nft, &allowed(&[stays]).on_host(0, compile));
        println!("observed, planned, changed and compared in {:?}", start.elapsed());
        assert_eq!(alive(), [false, true, false]);
        // The same sockets go on where they stopped.
        bring(&nft, &allowed(&[near, stays, far]).on_host(0, compile));
        for (client, server) in &mut connected {
            server.set_read_timeout(Some(Duration::from_secs(20) * patience())).unwrap();
            client.write_all(b"y").unwrap();
            server.read_exact(&mut [0; 1]).unwrap();
        }
    }
}

/// One connection over UDP.
struct Hello {
    sender: UdpSocket,
    receiver: UdpSocket,
    to: SocketAddr,
}

impl Hello {
    fn between(network: &Network, client: IpAddr, server: IpAddr) -> Hello {
        let bind = |address, port| {
            network.places[&address].inside(|| UdpSocket::bind((address, port)).unwrap())
        };
        let (receiver, sender) = (bind(server, PORT), bind(client, 0));
        receiver.set_read_timeout(Some(Duration::from_millis(500) * patience())).unwrap();
        Hello { sender, receiver, to: (server, PORT).into() }
    }

    fn arrives(&self) -> bool {
        // Not connected: an error about an earlier one would keep this one from being sent.
        self.sender.send_to(b"hello", self.to).ok();
        self.receiver.recv_from(&mut [0; 8]).is_ok()
    }
}

/// The same world, where nobody gets UDP from `client`.
fn without_udp(world: &World, client: IpAddr) -> World {
    let denied = Rule {
        services: Some(vec![Service::Protocol(17)]),
        verdict: PolicyVerdict::Deny,
        ..allow(Some(client))
    };
    World::new(world.endpoints.clone(), Rules::new(vec![denied]))
}

/// An ICMP error belongs to its connection; judged as ICMP, which no rule denies here, it would get
/// the connection the mark of what is allowed.
#[test]
fn an_icmp_error_does_not_revive_a_connection_that_was_cut() {
    let network = Network::new();
    let world = open_world();
    let nft = network.hosts[0].inside(|| Nft::open().unwrap());
    bring(&nft, &world.on_host(0, compile));
    let [server, client, ..] = addresses(0);
    let hello = Hello::between(&network, client, server);
    let from = hello.sender.local_addr().unwrap().port();
    assert!(hello.arrives());
    bring(&nft, &without_udp(&world, client).on_host(0, compile));
    // From the server, about what it got: the port cannot be reached.
    let (source, destination) = (octets(client), octets(server));
    let mut quoted = vec![0x45, 0, 0, 33, 0, 0, 0, 0, 63, 17, 0, 0];
    quoted.extend([source, destination].concat());
    let checksum = checksum(&quoted).to_be_bytes();
    quoted[10..12].copy_from_slice(&checksum);
    quoted.extend(from.to_be_bytes());
    quoted.extend(PORT.to_be_bytes());
    quoted.extend([0, 13, 0, 0]);
    let mut error = [&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[..]].concat();
    let checksum = self::checksum(&error).to_be_bytes();
    error[2..4].copy_from_slice(&checksum);
    network.places[&server].inside(|| send_raw_icmp(client, &error));
    assert!(!hello.arrives(), "the connection was revived");
}

/// As it is after as many changes as there are numbers of epochs.
#[test]
fn a_connection_that_was_cut_and_goes_on_to_send_has_no_epoch_that_comes_again() {
    let network = Network::new();
    let world = open_world();
    let host = &network.hosts[0];
    let nft = host.inside(|| Nft::open().unwrap());
    let run = |line: &str| {
        let done = host.inside(|| Command::new("sh").args(["-c", line]).output().unwrap());
        assert!(done.status.success(), "{line}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let rule = || {
        let listed = run("nft list chain inet humanz-policy judged");
        listed.lines().find(|line| line.contains("ct mark")).unwrap().trim().to_owned()
    };
    bring(&nft, &world.on_host(0, compile));
    let first = rule();
    let [server, client, ..] = addresses(0);
    let hello = Hello::between(&network, client, server);
    assert!(hello.arrives());
    bring(&nft, &without_udp(&world, client).on_host(0, compile));
    assert!(!hello.arrives(), "denied");
    assert_ne!(rule(), first, "another epoch");
    run("nft flush chain inet humanz-policy judged");
    run(&format!("nft 'add rule inet humanz-policy judged {first}'"));
    assert!(!hello.arrives(), "the number of the first epoch came again");
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("{address}"),
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// A pod that is denied sends all the time, on old and new connections, while other policies come
/// and go and the table is damaged by hand in ways that open nothing themselves.
#[test]
fn nothing_of_a_denied_pod_arrives_while_the_table_changes() {
    const FLOOD: Duration = Duration::from_secs(8);
    let network = Network::new();
    let world = open_world();
    let nft = network.hosts[0].inside(|| Nft::open().unwrap());
    let [server, denied, allowed, far] = addresses(0);
    let at = |address: IpAddr| &network.places[&address];
    let udp = |from| Rule { services: Some(vec![Service::Protocol(17)]), ..allow(Some(from)) };
    let fixed = || vec![udp(allowed)];
    bring(&nft, &ingress(&world, fixed()).on_host(0, compile));
    let receiver = at(server).inside(|| UdpSocket::bind((server, PORT)).unwrap());
    receiver.set_read_timeout(Some(Duration::from_millis(500) * patience())).unwrap();
    let done = AtomicBool::new(false);
    let flooded = AtomicU64::new(0);
    thread::scope(|scope| {
        for from in [denied, far] {
            let (done, flooded) = (&done, &flooded);
            scope.spawn(move || {
                at(from).inside(|| {
                    let old = UdpSocket::bind((from, 0)).unwrap();
                    while !done.load(Ordering::Relaxed) {
                        let new = UdpSocket::bind((from, 0)).unwrap();
                        for socket in [&old, &new] {
                            drop(socket.send_to(b"flood", (server, PORT)));
                        }
                        // More than the host's queue takes would cost the allowed pod its own.
                        if flooded.fetch_add(2, Ordering::Relaxed) % 200 == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            });
        }
        scope.spawn(|| {
            at(allowed).inside(|| {
                let socket = UdpSocket::bind((allowed, 0)).unwrap();
                for number in 0_u32.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    socket.send_to(&number.to_be_bytes(), (server, PORT)).unwrap();
                    thread::sleep(Duration::from_millis(1));
                }
            });
        });
        let seen = scope.spawn(|| {
            let mut from: Vec<SocketAddr> = Vec::new();
            let mut numbers: Vec<u32> = Vec::new();
            let mut buffer = [0; 8];
            while let Ok((length, peer)) = receiver.recv_from(&mut buffer) {
                match <[u8; 4]>::try_from(&buffer[..length]) {
                    Ok(bytes) if peer.ip() == allowed => numbers.push(u32::from_be_bytes(bytes)),
                    _ => from.push(peer),
                }
            }
            (from, numbers)
        });
        let stop = SetOnDrop(&done);
        let mut random = Random::new(11);
        let mut changed = 0;
        let start = Instant::now();
        // Where programs run slowly, until there were enough.
        let lasts = |time: Duration, changed| time < FLOOD || (time < 60 * FLOOD && changed <= 50);
        while lasts(start.elapsed(), changed) {
            let other = World::random(&mut random);
            // Rules of other pods, and of this one that allow something else.
            let mut rules = fixed();
            rules.extend(
                other
                    .rules
                    .iter()
                    .filter(|_| random.chance(50))
                    .cloned()
                    .map(|rule| Rule { tier: Tier::Baseline, ..rule }),
            );
            rules.extend(random.some(2, |_| allow(Some(denied))));
            rules.extend(random.some(1, |_| Rule {
                services: Some(vec![Service::Ports(Protocol::Udp, PortRange::single(53))]),
                peers: Some(vec![PolicyPeer::Selected(Selector::Pods {
                    namespaces: Namespaces::Labelled(LabelSelector::default()),
                    labels: LabelSelector::default(),
                })]),
                ..allow(None)
            }));
            let wanted = ingress(&world, rules).on_host(0, compile);
            let found = observe(&nft);
            damage(&nft, &mut random, found.as_ref().unwrap());
            let changes = plan(&wanted, observe(&nft).as_ref(), 1 << 16);
            nft.edit(POLICY_TABLE, &changes.transactions).unwrap();
            changed += 1;
        }
        drop(stop);
        let (intruders, numbers) = seen.join().unwrap();
        let lost = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        let sent = flooded.load(Ordering::Relaxed);
        println!(
            "{changed} changes, {sent} packets denied, {} of {} allowed ones lost",
            lost,
            numbers.len()
        );
        assert_eq!(intruders, [], "{changed} changes");
        assert!(changed > 50 && sent > 10_000 && numbers.len() > 500);
        // No pod was unknown for a moment.
        let counters = nft.counters(POLICY_TABLE).unwrap();
        assert_eq!((counters["unknown"].packets, counters["untracked"].packets), (0, 0));
    });
}

fn damage(nft: &Nft, random: &mut Random, found: &FoundPolicy) {
    let table = found.table();
    let sets: Vec<_> = table.sets.iter().filter(|set| set.name.starts_with("in")).collect();
    let edits = match random.below(4) {
        0 => vec![TableEdit::AddCounter("mine".to_owned())],
        // A foreign address in the map of the pods' programs.
        1 => {
            let map = sets[0];
            let mut element = map.elements.first().unwrap().clone();
            element.key = [Value::address(match map.name.as_str() {
                "in4" => "10.244.1.250".parse().unwrap(),
                _ => "fd00:10:1::250".parse().unwrap(),
            })]
            .into();
            let shape = map.shape.clone().unwrap();
            let (added, removed) = ([element].into(), BTreeSet::new());
            vec![TableEdit::Elements(ElementChange {
                set: map.name.clone(),
                shape,
                added,
                removed,
            })]
        }
        2 => {
            let mine = Chain { name: "mine".to_owned(), base: None, rules: Vec::new() };
            vec![TableEdit::AddChain(mine)]
        }
        _ => Vec::new(),
    };
    nft.edit(POLICY_TABLE, &[edits]).unwrap();
}

/// Ends the flood, also when the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
