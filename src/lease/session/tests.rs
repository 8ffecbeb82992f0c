use ipnetwork::IpNetwork;

use super::*;
use crate::lease::etcd_error::EtcdError;
use crate::lease::identity::node_record;
use crate::lease::key_owners;
use crate::lease::records::{Alive, Backend, Roots, WireguardEnd};
use crate::lease::snapshot::EtcdCluster;
use crate::lease::transaction::{Transaction, Write};
use crate::net::subnet::{self, Pool};
use crate::net::{PerFamily, PublicKey};

mod keys;

const SINCE: SystemTime = SystemTime::UNIX_EPOCH;

/// The agent of host h1, instance i1 of machine m1, and an etcd without other writers.
struct Scene {
    machine: SessionMachine,
    store: Snapshot,
    configured: Network,
    attributes: HostAttributes,
    vacated: PerFamily<IpNetwork>,
    tickets: i64,
    /// Keys that begin with this may not be written.
    denied: Option<&'static str>,
}

fn identity(name: &str, machine: &str) -> Identity {
    Identity {
        name: name.parse().unwrap(),
        machine_id: machine.to_owned(),
        boot_id: "b1".to_owned(),
        version: "0.1.0".to_owned(),
    }
}

fn v4(text: &str) -> PerFamily<IpNetwork> {
    PerFamily { v4: Some(subnet::parse(text).unwrap()), v6: None }
}

impl Scene {
    /// A network with the pool 10.0.0.0/22, cut into /24: three subnets.
    fn new() -> Scene {
        let pool = Pool::new(subnet::parse("10.0.0.0/22").unwrap(), 2).unwrap();
        let configured = Network {
            roots: Roots { hosts: "/h".into(), counter: "/c".into(), humanz: "/z".into() },
            pools: PerFamily { v4: Some(pool), v6: None },
            limits: PerFamily::default(),
            backend: Backend::Direct,
            tenants: Default::default(),
        };
        let mut scene = Scene {
            machine: Scene::machine(&configured, None),
            store: Snapshot::default(),
            configured,
            attributes: HostAttributes::default(),
            vacated: PerFamily::default(),
            tickets: 0,
            denied: None,
        };
        scene.put("/z/config", &scene.configured.config("a").to_json());
        scene
    }

    fn machine(configured: &Network, saved: Option<Saved>) -> SessionMachine {
        let attributes = HostAttributes::default();
        let identity = identity("h1", "m1");
        SessionMachine::new(identity, attributes, configured.clone(), saved, SINCE, "i1".to_owned())
    }

    fn put(&mut self, key: &str, value: &str) {
        let revision = self.store.revision + 1;
        let mut transaction = Transaction::default();
        transaction.put(key.to_owned(), value.to_owned());
        self.store.written(&self.configured.roots, &transaction, revision);
        self.store.revision = revision;
    }

    fn delete(&mut self, key: &str) {
        let revision = self.store.revision + 1;
        self.store.delete(&self.configured.roots, key.as_bytes(), revision);
    }

    /// The host `name` with this subnet: host key, claim and record.
    fn put_host(&mut self, name: &str, subnet: &str) {
        self.put(&format!("/h/{name}"), subnet);
        self.put(&format!("/z/subnets/4/{}", subnet.replace('/', "-")), name);
        let lease = Lease { subnets: v4(subnet) };
        let record =
            node_record(&identity(name, name), &HostAttributes::default(), &lease).to_json();
        self.put(&format!("/z/nodes/{name}"), &record);
    }

    /// The alive key of another agent of machine m1.
    fn put_other_alive(&mut self) {
        let alive = Alive::new("m1", SINCE).of("i2", None);
        self.put("/z/alive/h1", &alive.to_json());
    }

    /// Until the machine follows etcd or exits.
    fn run(&mut self) -> Result<Settled, SessionExit> {
        let mut command = self.machine.begin();
        for _ in 0..100 {
            let event = match command {
                Command::Follow(settled) => return Ok(settled),
                command => self.execute(command),
            };
            command = self.machine.next(event)?;
        }
        panic!("it does not come to an end: {:?}", self.machine.state);
    }

    fn execute(&mut self, command: Command) -> Result<Event, EtcdError> {
        Ok(match command {
            Command::Read => Event::Found(Box::new(Found {
                snapshot: self.store.clone(),
                configured: self.configured.clone(),
                attributes: self.attributes.clone(),
                vacated: self.vacated,
                etcd_lease: Some(1),
                new_store_id: format!("id{}", self.store.revision),
            })),
            Command::Commit { transaction, .. } => {
                if self.is_denied(&transaction) {
                    return Err(EtcdError::Denied("permission denied".to_owned()));
                }
                let revision = self.store.revision + 1;
                self.store.written(&self.configured.roots, &transaction, revision);
                // No other client writes, so that the conditions of nested ones hold.
                for write in &transaction.writes {
                    if let Write::Try(inner) = write {
                        self.store.written(&self.configured.roots, inner, revision);
                    }
                }
                self.store.revision = revision;
                Event::Committed(Some(revision))
            }
            Command::ReadHosts => Event::FoundHosts(Box::new(self.store.clone())),
            Command::AllocateTicket => {
                self.tickets += 1;
                Event::TicketAllocated(self.tickets)
            }
            Command::Pause(_) => Event::Elapsed,
            Command::AwaitLease => Event::LeaseKept(Some(1)),
            Command::Follow(_) => unreachable!("the end"),
        })
    }

    fn is_denied(&self, transaction: &Transaction) -> bool {
        transaction.writes.iter().any(|write| match write {
            Write::Put { key, .. } | Write::Delete { key } => {
                self.denied.is_some_and(|denied| key.starts_with(denied))
            }
            Write::Try(inner) => self.is_denied(inner),
        })
    }

    fn subnet(&self) -> String {
        let lease = self.machine.lease().expect("a lease");
        lease.subnets.v4.expect("an IPv4 subnet").to_string()
    }
}

#[test]
fn a_superseded_copy_that_may_not_ask_comes_to_an_end() {
    let mut scene = Scene::new();
    scene.denied = Some("/z/contenders/");
    scene.run().unwrap();
    let error = LeaseError::HeldByCopy {
        host: "h1".parse().unwrap(),
        machine_id: "m1".to_owned(),
        addresses: PerFamily::default(),
        since: "1970-01-01T00:00:00Z".to_owned(),
    };
    scene.put_other_alive();
    scene.machine.superseded = Some(error.clone());
    scene.run().unwrap();
    assert_eq!(scene.machine.trouble(), Some(&error));
}

#[test]
fn a_lost_subnet_stays_closed_while_no_other_is_free() {
    let mut scene = Scene::new();
    scene.run().unwrap();
    assert_eq!(scene.subnet(), "10.0.1.0/24");
    scene.delete("/h/h1");
    scene.delete("/z/nodes/h1");
    scene.delete("/z/subnets/4/10.0.1.0-24");
    for (name, subnet) in [("h2", "10.0.1.0/24"), ("h3", "10.0.2.0/24"), ("h4", "10.0.3.0/24")] {
        scene.put_host(name, subnet);
    }
    let lost = LeaseError::SubnetLost {
        subnet: subnet::parse("10.0.1.0/24").unwrap(),
        owner: "h2".parse().unwrap(),
    };
    for vacated in [PerFamily::default(), v4("10.0.1.0/24")] {
        scene.vacated = vacated;
        scene.run().unwrap();
        assert_eq!(scene.machine.trouble(), Some(&lost));
        assert!(scene.machine.agrees(&scene.store));
    }
    let pool = Pool::new(subnet::parse("10.0.0.0/22").unwrap(), 3).unwrap();
    let pools = scene.configured.pools.v4.replace(pool);
    assert!(matches!(scene.run(), Err(SessionExit::Refused(_))));
    assert_eq!(scene.machine.trouble(), Some(&lost), "a later refusal does not open it");
    scene.configured.pools.v4 = pools;
    for key in ["/h/h4", "/z/nodes/h4", "/z/subnets/4/10.0.3.0-24"] {
        scene.delete(key);
    }
    scene.run().unwrap();
    assert_eq!((scene.subnet().as_str(), scene.machine.trouble()), ("10.0.3.0/24", None));
}

#[test]
fn a_shared_subnet_is_given_up_only_for_another_one() {
    let mut scene = Scene::new();
    scene.run().unwrap();
    for (name, subnet) in [("py", "10.0.1.0/24"), ("py2", "10.0.2.0/24"), ("py3", "10.0.3.0/24")] {
        scene.put(&format!("/h/{name}"), subnet);
    }
    scene.vacated = v4("10.0.1.0/24");
    scene.run().unwrap();
    assert_eq!(scene.subnet(), "10.0.1.0/24");
    assert!(matches!(scene.machine.trouble(), Some(LeaseError::SubnetShared { .. })));
    assert!(scene.machine.agrees(&scene.store));
    scene.delete("/h/py3");
    assert!(!scene.machine.agrees(&scene.store));
    scene.run().unwrap();
    assert_eq!(scene.subnet(), "10.0.3.0/24");
}

#[test]
fn a_host_that_deletes_its_record_and_takes_a_subnet_later_is_none_of_the_python_agent() {
    let mut scene = Scene::new();
    scene.put_host("evil", "10.0.3.0/24");
    scene.run().unwrap();
    scene.delete("/z/nodes/evil");
    assert!(scene.machine.agrees(&scene.store), "its subnet is its own");
    let mirror = scene.store.clone();
    scene.machine.update(&mirror).unwrap();
    let own = scene.subnet();
    scene.put("/h/evil", &own);
    assert!(scene.machine.agrees(&scene.store));
    scene.run().unwrap();
    assert_eq!((scene.subnet(), scene.machine.trouble()), (own, None));
}

#[test]
fn a_restarted_host_remembers_which_host_lost_the_node_record() {
    let mut scene = Scene::new();
    scene.put_host("evil", "10.0.3.0/24");
    scene.run().unwrap();
    scene.delete("/z/nodes/evil");
    let mirror = scene.store.clone();
    let snapshot = scene.machine.update(&mirror).unwrap();
    let (own, lease) = (scene.subnet(), scene.machine.lease().unwrap().clone());
    let (host, machine_id) = ("h1".parse().unwrap(), "m1".to_owned());
    let saved = Saved { host, machine_id, lease, snapshot, resolved: Default::default() };
    let saved = Saved::from_text(&saved.to_text()).unwrap();
    scene.machine = Scene::machine(&scene.configured, Some(saved));
    scene.put("/h/evil", &own);
    scene.run().unwrap();
    assert_eq!((scene.subnet(), scene.machine.trouble()), (own, None));
}

#[test]
fn another_cluster_is_followed_only_with_something_of_this_network_or_at_another_address() {
    let cluster = |id, addresses| Some(EtcdCluster { id, addresses });
    let mut scene = Scene::new();
    scene.store.cluster = cluster(1, 1);
    scene.run().unwrap();
    let ours = scene.store.clone();
    let other = Snapshot { cluster: cluster(2, 1), ..Snapshot::default() };
    let mut refused = |store: &Snapshot| {
        scene.store = store.clone();
        matches!(scene.run(), Err(SessionExit::Failed(EtcdError::Refused(_))))
    };
    let mut foreign = other.clone();
    foreign.config = ours.config.clone();
    foreign.config.as_mut().unwrap().value.id = "foreign".into();
    foreign.hosts = ours.hosts.clone();
    assert!(refused(&foreign), "the same name has the same subnet in another network");
    assert!(!refused(&Snapshot { cluster: cluster(2, 1), ..ours.clone() }), "restored");
    let nodes = ours.nodes.clone();
    assert!(!refused(&Snapshot { cluster: cluster(3, 1), nodes, ..foreign.clone() }));
    assert!(!refused(&Snapshot { cluster: cluster(4, 2), ..foreign }), "other addresses");
    assert!(!refused(&other), "empty: it is filled again");
}

#[test]
fn an_agent_that_served_serves_again_once_the_one_that_took_its_name_is_gone() {
    let mut scene = Scene::new();
    scene.run().unwrap();
    scene.put_other_alive();
    scene.machine.superseded = Some(LeaseError::HeldByCopy {
        host: "h1".parse().unwrap(),
        machine_id: "m1".to_owned(),
        addresses: PerFamily::default(),
        since: "1970-01-01T00:00:00Z".to_owned(),
    });
    scene.run().unwrap();
    assert!(scene.machine.trouble().is_some());
    assert!(scene.machine.agrees(&scene.store));
    scene.delete("/z/alive/h1");
    assert!(!scene.machine.agrees(&scene.store));
    scene.run().unwrap();
    assert_eq!(scene.machine.trouble(), None);
}

#[test]
fn an_answer_is_only_what_comes_after_the_question() {
    let mut scene = Scene::new();
    scene.run().unwrap();
    scene.put_other_alive();
    scene.run().unwrap();
    assert_eq!(scene.machine.trouble(), None, "no answer: the alive key is taken over");
    assert_eq!(scene.machine.asked, None);
    scene.put_other_alive();
    scene.run().unwrap();
    assert_eq!(scene.machine.trouble(), None, "asked anew");
}

#[test]
fn a_restart_with_a_pool_that_cannot_grow_goes_on_with_the_lease() {
    let mut scene = Scene::new();
    let snapshot = scene.run().unwrap().snapshot;
    let lease = scene.machine.lease().unwrap().clone();
    let addresses = PerFamily { v4: "10.0.4.9".parse().ok(), v6: None };
    let attributes = HostAttributes { addresses, ..Default::default() };
    let record = node_record(&identity("h2", "m2"), &attributes, &Lease::default());
    scene.put("/z/nodes/h2", &record.to_json());
    let wide = Pool::new(subnet::parse("10.0.0.0/21").unwrap(), 3).unwrap();
    scene.configured.pools.v4 = Some(wide);
    let (host, machine_id) = ("h1".parse().unwrap(), "m1".to_owned());
    let saved = Saved { host, machine_id, lease, snapshot, resolved: Default::default() };
    let restarted = |saved| Scene::machine(&scene.configured, saved);
    let (fresh, again) = (restarted(None), restarted(Some(saved)));
    scene.machine = again;
    scene.run().unwrap();
    assert_eq!(scene.subnet(), "10.0.1.0/24");
    assert!(matches!(scene.machine.trouble(), Some(LeaseError::CannotGrow { .. })));
    scene.machine = fresh;
    assert!(matches!(scene.run(), Err(SessionExit::Refused(LeaseError::CannotGrow { .. }))));
}

fn names(found: &Snapshot) -> String {
    found.hosts.keys().map(|host| host.to_string()).collect::<Vec<_>>().join(" ")
}

/// A backup in which h9 has 10.0.2.0/24, and what h1 knew later, when h9 was removed and h2
/// had that subnet.
fn rolled_back() -> (Scene, Snapshot, Arc<Snapshot>) {
    let mut scene = Scene::new();
    scene.run().unwrap();
    scene.put_host("h9", "10.0.2.0/24");
    let backup = scene.store.clone();
    for key in ["/h/h9", "/z/nodes/h9", "/z/subnets/4/10.0.2.0-24"] {
        scene.delete(key);
    }
    scene.put_host("h2", "10.0.2.0/24");
    for _ in 0..40 {
        scene.put("/c", "");
    }
    let known = scene.run().unwrap().snapshot;
    assert_eq!(names(&known), "h1 h2");
    (scene, backup, known)
}

fn saved(snapshot: &Arc<Snapshot>) -> Saved {
    Saved {
        host: "h1".parse().unwrap(),
        machine_id: "m1".to_owned(),
        lease: Lease { subnets: v4("10.0.1.0/24") },
        snapshot: Arc::clone(snapshot),
        resolved: Default::default(),
    }
}

#[test]
fn what_a_host_may_not_put_back_is_remembered_by_all_and_after_a_restart() {
    let (mut scene, backup, known) = rolled_back();
    scene.store = backup;
    scene.denied = Some("/h/h2");
    let found = scene.run().unwrap().snapshot;
    assert_eq!(names(&found), "h1 h2", "not h9, which had been removed");
    let config = &scene.store.config.clone().unwrap().value;
    assert_ne!(config.id, known.config.as_ref().unwrap().value.id, "all hosts read again");
    assert_eq!(config.rebuilt_from, [], "a host that may puts h2 back");

    let alive = Alive::new("h9", SINCE).of("i9", None).to_json();
    scene.put("/z/alive/h9", &alive);
    let mut mirror = Snapshot::clone(&found);
    mirror.alive = Arc::clone(&scene.store.alive);
    assert!(!scene.machine.agrees(&mirror), "h9 lives");
    let found = scene.run().unwrap().snapshot;
    assert_eq!(names(&found), "h1 h9");
    scene.delete("/z/alive/h9");
    assert!(!scene.machine.agrees(&scene.store), "h9 is down again");
    let found = scene.run().unwrap().snapshot;
    assert_eq!(names(&found), "h1 h2");

    for (earlier, what) in [(&found, "restarted"), (&known, "not there when the loss was noted")] {
        scene.machine = Scene::machine(&scene.configured, Some(saved(earlier)));
        scene.delete("/z/alive/h1");
        let writes = scene.store.config.as_ref().unwrap().modified;
        assert_eq!(names(&scene.run().unwrap().snapshot), "h1 h2", "{what}");
        assert_eq!(scene.store.config.as_ref().unwrap().modified, writes, "once is enough");
    }
}

#[test]
fn a_starting_agent_waits_for_the_end_of_an_alive_key_from_before() {
    let (mut scene, backup, known) = rolled_back();
    scene.store = backup;
    scene.put("/z/alive/h9", &Alive::new("h9", SINCE).of("i9", None).to_json());
    scene.delete("/z/alive/h1");
    scene.machine = Scene::machine(&scene.configured, Some(saved(&known)));
    let found = scene.run().unwrap().snapshot;
    assert_eq!(names(&found), "h1 h9", "h9 may live");
    let rebuilt = &scene.store.config.as_ref().unwrap().value.rebuilt_from;
    assert_eq!(*rebuilt, [], "h2 is still lost");
    scene.delete("/z/alive/h9");
    assert!(!scene.machine.agrees(&scene.store));
    assert_eq!(names(&scene.run().unwrap().snapshot), "h1 h2");
}
