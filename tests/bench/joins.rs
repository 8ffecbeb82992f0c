//! A thousand fresh hosts that start together on one etcd.
//!
//! Each host is a lease session as its agent runs it, in a thread of this process, which shares the
//! processors with etcd. `JOINS` is another number of hosts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use humanz::etcd::{self, Contact, EtcdHandle, EtcdSettings, EtcdStart, Update};
use humanz::lease::records::Backend;
use humanz::lease::{HostAttributes, Identity, Network, Roots};
use humanz::net::PerFamily;
use humanz::net::subnet::{self, Pool};
use humanz::os::heartbeat::Heartbeat;
use ipnetwork::IpNetwork;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

use crate::support::etcd::{EtcdServer, isolated};
use crate::table::{Row, Table};
use crate::workspace::Workspace;

const HOSTS: usize = 1_000;

/// The promise, on two processors of which nothing else takes a part.
const LIMIT: Duration = Duration::from_secs(10);
const PROCESSORS: u32 = 2;

/// Longest time for all of them to know each other.
const PATIENCE: Duration = Duration::from_secs(180);

pub fn measure(_: &mut Workspace, table: &mut Table) {
    let hosts = std::env::var("JOINS").ok().and_then(|text| text.parse().ok()).unwrap_or(HOSTS);
    for python in [false, true] {
        isolated(|| join(hosts, python, table));
    }
}

/// The hosts so far.
#[derive(Default)]
struct Joined {
    subnets: Mutex<Vec<(Instant, IpNetwork)>>,
    /// Those that know all others.
    complete: Mutex<usize>,
    more: Condvar,
}

fn join(hosts: usize, python: bool, table: &mut Table) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let etcd = EtcdServer::start();
    if python {
        etcd.put("/humanz/counter", "");
        etcd.put("/humanz/hosts/python", "11.0.1.0/24");
    }
    let others = hosts + usize::from(python);
    let joined = Arc::new(Joined::default());
    let (before, used) = (Usage::of(&etcd), processor_time());
    let begun = Instant::now();
    let handles: Vec<_> = (1..=hosts).map(|n| launch(&etcd, n, others, &joined)).collect();
    let subnets = joined.wait(|joined| {
        let subnets = joined.subnets.lock().unwrap();
        (subnets.len() >= hosts).then(|| subnets.clone())
    });
    let (then, hosts_used) = (Usage::of(&etcd), processor_time() - used);
    joined.wait(|joined| (*joined.complete.lock().unwrap() >= hosts).then_some(()));
    let (all_know, finally, all_used) =
        (begun.elapsed(), Usage::of(&etcd), processor_time() - used);
    let mut times: Vec<Duration> = subnets.iter().map(|(at, _)| *at - begun).collect();
    times.sort_unstable();
    let last = *times.last().unwrap();
    let different: BTreeSet<_> = subnets.iter().map(|(_, subnet)| *subnet).collect();
    assert_eq!(different.len(), hosts, "a subnet was given out twice");
    let name = if python { "hosts beside one with the Python agent" } else { "hosts" };
    let busy = then.cpu - before.cpu + hosts_used;
    table.push(Row {
        what: format!("{hosts} {name} join at once"),
        humanz: format!(
            "last subnet {:.1} s, half {:.1} s, {:.0} hosts/s",
            last.as_secs_f64(),
            times[times.len() / 2].as_secs_f64(),
            hosts as f64 / last.as_secs_f64()
        ),
        target: format!("CPU ≤ {} × {LIMIT:?}", PROCESSORS),
        reached: format!("{:.1} s", busy.as_secs_f64()),
        met: Some(busy <= LIMIT * PROCESSORS),
        ..Row::default()
    });
    for (what, until, hosts_used) in
        [("until the last subnet", &then, hosts_used), ("until all know all", &finally, all_used)]
    {
        table.push(Row {
            what: format!("  {what}"),
            humanz: format!(
                "CPU etcd {:.1} s, hosts {:.1} s; {}",
                (until.cpu - before.cpu).as_secs_f64(),
                hosts_used.as_secs_f64(),
                until.since(&before)
            ),
            ..Row::default()
        });
    }
    println!("  all know all after {:.1} s", all_know.as_secs_f64());
    for handle in handles {
        drop(handle);
    }
}

impl Joined {
    fn wait<T>(&self, mut probe: impl FnMut(&Joined) -> Option<T>) -> T {
        let begun = Instant::now();
        let lock = Mutex::new(());
        loop {
            if let Some(value) = probe(self) {
                return value;
            }
            let subnets = self.subnets.lock().unwrap().len();
            let complete = *self.complete.lock().unwrap();
            assert!(begun.elapsed() < PATIENCE, "{subnets} have a subnet, {complete} know all");
            let guard = lock.lock().unwrap();
            drop(self.more.wait_timeout(guard, Duration::from_millis(20)).unwrap());
        }
    }
}

fn launch(etcd: &EtcdServer, number: usize, others: usize, joined: &Arc<Joined>) -> EtcdHandle {
    let address = std::net::Ipv4Addr::from(0xac10_0000 + u32::try_from(number).unwrap()).into();
    let pool = Pool::new(subnet::parse("11.0.0.0/8").unwrap(), 16).unwrap();
    let start = EtcdStart {
        etcd: EtcdSettings {
            endpoints: vec![etcd.url()],
            timeout: Duration::from_secs(5),
            ..EtcdSettings::default()
        },
        network: Network {
            roots: Roots {
                hosts: "/humanz/hosts".to_owned(),
                counter: "/humanz/counter".to_owned(),
                humanz: "/humanz/v1".to_owned(),
            },
            pools: PerFamily { v4: Some(pool), v6: None },
            limits: PerFamily { v4: subnet::parse("11.0.0.0/8").ok(), v6: None },
            backend: Backend::Direct,
            tenants: Default::default(),
        },
        identity: Identity {
            name: format!("node-{number:04}.example.com").parse().unwrap(),
            machine_id: format!("{number:032x}"),
            boot_id: format!("{number:08x}-0000-4000-8000-000000000000"),
            version: "0.1.0".to_owned(),
        },
        attributes: HostAttributes {
            addresses: PerFamily { v4: Some(address), v6: None },
            mtu: 1500,
            ..HostAttributes::default()
        },
        saved: None,
        read_networks: humanz::sources::tenant_pools,
        follows_networks: false,
    };
    let joined = Arc::clone(joined);
    let mut complete = false;
    let publish = move |update| {
        match update {
            Update::Lease(lease) => {
                let subnet = lease.subnets.v4.unwrap();
                joined.subnets.lock().unwrap().push((Instant::now(), subnet));
            }
            Update::Snapshot(snapshot) if !complete && snapshot.hosts.len() >= others => {
                complete = true;
                *joined.complete.lock().unwrap() += 1;
            }
            Update::Fatal(error) => panic!("{error}"),
            _ => return,
        }
        joined.more.notify_all();
    };
    let contact = Arc::new(Contact::new(Arc::new(Heartbeat::new("etcd", PATIENCE))));
    etcd::spawn(start, contact, Arc::default(), publish).unwrap()
}

/// Processor time of all hosts.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let duration = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000)
    };
    duration(usage.user_time()) + duration(usage.system_time())
}

/// What etcd has done so far.
struct Usage {
    cpu: Duration,
    transactions: u64,
    /// Revisions: transactions that were committed.
    committed: u64,
    reads: u64,
    responses: u64,
    events: u64,
    sent: u64,
}

impl Usage {
    fn of(etcd: &EtcdServer) -> Usage {
        let metrics = metrics(&etcd.url());
        let sum = |name: &str, label: &str| {
            let lines =
                metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
            let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum::<f64>() as u64
        };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", etcd.pid())).unwrap();
        let ticks = stat.split(' ').skip(13).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
        let revision = etcd.call(async |client| client.get("x", None).await);
        Usage {
            cpu: Duration::from_millis(ticks.sum::<u64>() * 10),
            transactions: sum("grpc_server_handled_total", "grpc_method=\"Txn\""),
            committed: revision.header().unwrap().revision() as u64,
            reads: sum("grpc_server_handled_total", "grpc_method=\"Range\""),
            responses: sum("grpc_server_msg_sent_total", "grpc_method=\"Watch\""),
            events: sum("etcd_debugging_mvcc_events_total", ""),
            sent: sum("etcd_network_client_grpc_sent_bytes_total", ""),
        }
    }

    fn since(&self, before: &Usage) -> String {
        let transactions = self.transactions - before.transactions;
        format!(
            "{transactions} transactions, {} failed; {} reads; {} events in {} watch responses; {} MB sent",
            transactions.saturating_sub(self.committed - before.committed),
            self.reads - before.reads,
            self.events - before.events,
            self.responses - before.responses,
            (self.sent - before.sent) / 1_000_000
        )
    }
}

fn metrics(url: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
