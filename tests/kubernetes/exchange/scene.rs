//! Hosts that exchange members through a real etcd, by the library.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use humanz::etcd::EtcdSettings;
use humanz::lease::Roots;
use humanz::net::ProblemKind;
use humanz::policy::{Member, Members, Selector};
use humanz::sources::{
    Exchange, ExchangeInputs, ExchangeStart, Exchanged, ExchangedMembers, GroupId, HostAddresses,
    Hosts, exchange,
};

use crate::policies::find_problem;
use crate::support::process::lock;
use crate::support::wait::SOON;
use crate::support::{Cluster, Node, eventually};

pub fn roots() -> Roots {
    Roots {
        hosts: "/humanz/hosts".into(),
        counter: "/humanz/counter".into(),
        humanz: "/humanz/v1".into(),
    }
}

/// `app=NAME` of the namespace shop.
pub fn group(name: &str) -> Selector {
    let text = format!(
        r#"{{"pods":{{"namespaces":{{"named":"shop"}},"labels":[{{"In":["app",["{name}"]]}}]}}}}"#
    );
    Selector::parse(&text).unwrap()
}

pub fn member(address: &str) -> Member {
    Member { addresses: vec![address.parse().unwrap()], ports: Vec::new() }
}

/// Hosts that exchange members.
pub struct Scene {
    pub cluster: Cluster,
    states: tempfile::TempDir,
    pub hosts: Arc<Hosts>,
}

/// The exchange of one host.
pub struct Peer {
    pub name: String,
    exchange: Exchange,
    inputs: Mutex<ExchangeInputs>,
    received: Arc<Mutex<Vec<ExchangedMembers>>>,
}

impl Scene {
    /// Host h3 has 10.244.3.0/24.
    pub fn new(count: u8) -> Scene {
        let cluster = Cluster::new(count);
        let addresses = |number: usize, host: &Node| HostAddresses {
            subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
            nodes: vec![IpAddr::V4(host.v4())],
        };
        let hosts = (1..).zip(&cluster.hosts);
        let hosts =
            hosts.map(|(number, host)| (host.name().parse().unwrap(), addresses(number, host)));
        Scene { hosts: Arc::new(hosts.collect()), cluster, states: tempfile::tempdir().unwrap() }
    }

    pub fn peer(&self, number: usize) -> Peer {
        self.restarted(number, Members::new())
    }

    /// Host h1 has a member of the group "web", which h2 needs and knows.
    pub fn with_member(&self) -> (Peer, Peer, Selector) {
        let (a, b, web) = (self.peer(1), self.peer(2), group("web"));
        a.has(&web, &["10.244.1.2"]);
        b.needs(std::slice::from_ref(&web));
        b.becomes(&web, &["10.244.1.2"]);
        (a, b, web)
    }

    /// What a host starts that knew `kept` before.
    pub fn restarted(&self, number: usize, kept: Members) -> Peer {
        let host = &self.cluster.hosts[number - 1];
        let name = host.name().to_owned();
        let keys = &self.cluster.etcd;
        let record = format!("/humanz/v1/nodes/{name}");
        if keys.get(&record).is_none() {
            keys.put(&record, "{}");
        }
        let etcd = EtcdSettings {
            endpoints: vec![crate::support::store::Store::url()],
            timeout: Duration::from_secs(2),
            ..EtcdSettings::default()
        };
        let (host_name, state_dir) = (name.parse().unwrap(), self.states.path().join(&name));
        let start = ExchangeStart { etcd, roots: roots(), host: host_name, kept, state_dir };
        let received = Arc::new(Mutex::new(Vec::new()));
        let publish = {
            let received = Arc::clone(&received);
            move |exchanged| {
                if let Exchanged::Members(members) = exchanged {
                    lock(&received).push(members);
                }
            }
        };
        let exchange = host.with_namespace(|namespace| {
            namespace.on_its_network(|| exchange(start, publish).unwrap())
        });
        let record = keys.pairs(&record)[0].mod_revision();
        let inputs = ExchangeInputs {
            hosts: Arc::clone(&self.hosts),
            record: Some(record),
            ..ExchangeInputs::default()
        };
        exchange.set(inputs.clone());
        Peer { name, exchange, inputs: Mutex::new(inputs), received }
    }

    pub fn key(host: &str, selector: &Selector) -> String {
        roots().members(&host.parse().unwrap(), GroupId::of(selector).as_str())
    }
}

impl Peer {
    pub fn change(&self, change: impl FnOnce(&mut ExchangeInputs)) {
        let mut inputs = lock(&self.inputs);
        change(&mut inputs);
        self.exchange.set(inputs.clone());
    }

    /// Its own members of `selector` are these.
    pub fn has(&self, selector: &Selector, addresses: &[&str]) {
        let members: BTreeSet<Member> = addresses.iter().map(|address| member(address)).collect();
        self.change(|inputs| drop(inputs.own.insert(selector.clone(), Arc::new(members))));
    }

    pub fn needs(&self, selectors: &[Selector]) {
        self.change(|inputs| inputs.needed = selectors.iter().cloned().collect());
    }

    pub fn last(&self) -> ExchangedMembers {
        lock(&self.received).last().cloned().unwrap_or_default()
    }

    pub fn members(&self) -> Members {
        self.last().members
    }

    pub fn of(&self, selector: &Selector) -> Vec<String> {
        let members = self.members().remove(selector).unwrap_or_default();
        members.iter().flat_map(|it| &it.addresses).map(ToString::to_string).collect()
    }

    pub fn becomes(&self, selector: &Selector, wanted: &[&str]) {
        eventually(&format!("{}: {wanted:?}", self.name), 3 * SOON, || {
            let found = self.of(selector);
            if found == wanted { Ok(()) } else { Err(format!("{found:?} {:?}", self.last())) }
        });
    }

    pub fn wait_problem(&self, kind: ProblemKind, subject: &str) {
        eventually(subject, 12 * SOON, || find_problem(self.last().problems, kind, subject));
    }

    /// Until it is a problem of `host` for this reason: what a host publishes may be wrong in several ways.
    pub fn wait_reason(&self, host: &str, words: &str) {
        eventually(words, 12 * SOON, || {
            let problem = find_problem(self.last().problems, ProblemKind::Policy, host)?;
            if problem.what.contains(words) { Ok(()) } else { Err(problem.what) }
        });
    }
}
