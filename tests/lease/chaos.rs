//! Anything that can happen to etcd and to agents, in random order: no host ever changes subnet, no
//! two have one.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use humanz::lease::Saved;
use humanz::net::hash;

use crate::host::{HOSTS, Host, SOON, start};
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::eventually;

const HOSTS_IN_ALL: usize = 8;

/// Duration; etcd needs about half a second for a restart.
const LONG: Duration = Duration::from_secs(20);

enum Agent {
    Runs(Box<Host>),
    Stopped(Saved),
}

#[test]
fn whatever_happens_every_host_keeps_its_own_subnet() {
    let seed = std::env::var("CHAOS_SEED").unwrap_or_else(|_| std::process::id().to_string());
    println!("CHAOS_SEED={seed}");
    isolated(|| {
        let mut etcd = EtcdServer::start();
        let names: Vec<_> = (1..=HOSTS_IN_ALL).map(|n| format!("h{n}")).collect();
        let mut agents: Vec<_> = names
            .iter()
            .map(|name| Agent::Runs(Box::new(Host::launch(start(&etcd, name)))))
            .collect();
        let mut subnets = BTreeMap::new();
        for agent in &agents {
            let Agent::Runs(host) = agent else { unreachable!("all run") };
            host.until("all", |found| found.nodes.len() == HOSTS_IN_ALL);
            subnets.insert(host.identity.name.to_string(), host.subnet());
        }
        let mut draws = 0u32;
        let mut draw = |below: usize| {
            draws += 1;
            (hash::stable(&[&seed, &draws.to_string()]) % below as u64) as usize
        };
        let begin = Instant::now();
        while begin.elapsed() < LONG {
            match draw(10) {
                0 => etcd.restart(),
                1 => etcd.restart_empty(),
                2 => {
                    etcd.freeze();
                    thread::sleep(Duration::from_millis(draw(2000) as u64));
                    etcd.thaw();
                }
                3 => drop(etcd.delete_all("/humanz/")),
                4 => drop(etcd.delete_all(&format!("{HOSTS}/{}", names[draw(HOSTS_IN_ALL)]))),
                5 => etcd.compact(),
                _ => {
                    let index = draw(HOSTS_IN_ALL);
                    let agent = agents.swap_remove(index);
                    agents.push(match agent {
                        Agent::Runs(host) => Agent::Stopped(host.stop()),
                        Agent::Stopped(known) => {
                            let mut start = start(&etcd, known.host.as_str());
                            start.saved = Some(known);
                            Agent::Runs(Box::new(Host::launch(start)))
                        }
                    });
                }
            }
        }
        for agent in &mut agents {
            if let Agent::Stopped(known) = agent {
                let mut start = start(&etcd, known.host.as_str());
                start.saved = Some(known.clone());
                *agent = Agent::Runs(Box::new(Host::launch(start)));
            }
        }
        eventually("etcd says what it said", SOON, || {
            let now: BTreeMap<_, _> = etcd.list(&format!("{HOSTS}/")).into_iter().collect();
            let wrong = subnets
                .iter()
                .find(|(name, subnet)| now.get(&format!("{HOSTS}/{name}")) != Some(subnet));
            wrong.map_or(Ok(()), |(name, subnet)| Err(format!("{name} had {subnet}: {now:?}")))
        });
        for agent in &agents {
            let Agent::Runs(host) = agent else { unreachable!("all run") };
            host.until_peers("all others", |peers| {
                peers.by_name.len() == HOSTS_IN_ALL - 1 && peers.faults.is_empty()
            });
            assert_eq!(
                host.leases(),
                BTreeSet::from([subnets[host.identity.name.as_str()].clone()])
            );
        }
    });
}
