//! Hosts, etcd and what lies between them: delays, losses, doublets. One thing happens after the
//! other, in an order that follows from the seed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use humanz::lease::EtcdError;
use humanz::lease::claim::leave;
use humanz::lease::records::Key;
use humanz::lease::session::{Command, Event, Found, Pause, SessionExit, Settled, is_same_store};
use humanz::lease::transaction::{Condition, Transaction, Write};
use humanz::lease::{Lease, LeaseError, Saved, Snapshot};
use humanz::net::subnet::Pool;
use ipnetwork::IpNetwork;

use super::block_keys::KeyEvent;
use super::flaw::Flaw;
use super::host::{AgentState, Host, network, roots};
use super::judge::{Verdict, Violation};
use super::network_objects::ObjectEvent;
use super::networks::{BlockEvent, PodStart};
use super::overwritten::{Target, as_read};
use super::random::Random;
use super::script::{Act, Script};
use super::store::Store;

/// A call to etcd is given up after this.
pub const TIMEOUT: u64 = 5_000;
/// How long etcd may be silent while a host waits on it.
const PUT_BACK: u64 = 500;
/// The shortest and the longest rest of a watch.
const LEAST_REST: u64 = 500;
const MOST_REST: u64 = 4_000;
/// When everything is repaired, in milliseconds; and the time for the hosts to converge.
pub const REPAIRED: u64 = 100_000;
pub const REST: u64 = 200_000;

/// Something that will happen.
pub(super) enum Scheduled {
    Act(Act),
    Repair,
    Begin(usize, u32),
    /// A command arrives at etcd; if answered, the response is for that life and command.
    Execute(Box<Call>),
    Response(usize, u32, u32, Box<Result<Event, EtcdError>>),
    Received(usize, u32),
    Broken(usize, u32),
    Interrupted(usize, u32),
    Grant(usize, u32),
    Expire(usize, u32, i64),
    LastKnownGood(usize, u32),
    PythonReads(usize),
    PythonWrites(usize, i64),
    Leaves(usize),
    /// The stolen host overwrites another key.
    Wear(usize, Target),
    /// A foreign alive key expires.
    Forgotten(String),
    OperatorRemoves,
    Blocks(BlockEvent),
    Keys(KeyEvent),
    Objects(ObjectEvent),
    /// The second half of [`Flaw::PutThenGet`].
    Reads(usize, u32, u32),
}

/// A command in transit.
#[derive(Clone)]
pub(super) struct Call {
    host: usize,
    life: u32,
    sequence: u32,
    command: Command,
    found: Found,
    answered: bool,
}

pub struct World {
    pub script: Script,
    pub flaw: Flaw,
    pub now: u64,
    pub store: Store,
    /// Counts the stores: after a loss there is another one.
    pub epoch: u32,
    pub up: bool,
    /// When data was lost last, and when etcd answered again.
    pub lost: Option<u64>,
    pub back: u64,
    /// It came back with the keys of a backup.
    pub restored: bool,
    pub(super) backup: Option<Store>,
    pub hosts: Vec<Host>,
    /// Keys that nobody wrote since somebody else overwrote them.
    pub foreign: BTreeSet<String>,
    /// Hosts of the Python agent: whether each runs, and its subnet.
    pub pythons: BTreeMap<usize, Option<IpNetwork>>,
    queue: BTreeMap<(u64, u64), Scheduled>,
    scheduled: u64,
    pub(super) random: Random,
    /// For blocks: the rest happens as without them.
    pub(super) block_random: Random,
    pub(super) clock: Instant,
    pods: u32,
    pub(super) has_networks: bool,
    /// All pods have ended, and none starts any more.
    pub has_no_pods: bool,
    pub repaired: bool,
    leases: i64,
    pub wrong: Option<Violation>,
    /// The trace, if requested.
    pub trace: Option<Vec<String>>,
}

impl World {
    pub fn new(script: &Script, flaw: Flaw) -> World {
        let mut world = World {
            script: script.clone(),
            flaw,
            now: 0,
            store: Store::new(roots()),
            epoch: 0,
            up: true,
            lost: None,
            back: 0,
            restored: false,
            backup: None,
            hosts: (0..script.hosts).map(Host::new).collect(),
            foreign: BTreeSet::new(),
            pythons: BTreeMap::new(),
            queue: BTreeMap::new(),
            scheduled: 0,
            random: Random::new(script.seed ^ 0x5eed),
            block_random: Random::new(script.seed ^ 0xb10c),
            clock: Instant::now(),
            pods: 0,
            has_networks: script.has_pods(),
            has_no_pods: false,
            repaired: false,
            leases: 0,
            wrong: None,
            trace: None,
        };
        for planned in &script.acts {
            world.at(planned.at, Scheduled::Act(planned.act));
        }
        world.at(REPAIRED, Scheduled::Repair);
        world.plan_blocks();
        world.apply_networks();
        world
    }

    /// Lets everything happen.
    pub fn run(&mut self) -> Verdict {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            if at > REPAIRED + REST {
                self.wrong.get_or_insert_with(|| Violation::new("the hosts do not come to rest"));
            }
            self.happen(event);
            if let Some(wrong) = self.wrong.take() {
                return wrong.verdict();
            }
        }
        self.judge_rest();
        self.wrong.take().map_or(Verdict::Fine, Violation::verdict)
    }

    pub(super) fn at(&mut self, time: u64, event: Scheduled) {
        self.scheduled += 1;
        self.queue.insert((time, self.scheduled), event);
    }

    pub(super) fn after(&mut self, delay: u64, event: Scheduled) {
        self.at(self.now + delay, event);
    }

    pub fn note(&mut self, text: impl FnOnce(&World) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9.3}  {}", self.now as f64 / 1000.0, text(self));
            self.trace.get_or_insert_default().push(line);
        }
    }

    fn happen(&mut self, event: Scheduled) {
        match event {
            Scheduled::Act(act) => self.act(act),
            Scheduled::Repair => self.repair(),
            Scheduled::Begin(host, life) if self.lives(host, life) => self.begin(host),
            Scheduled::Execute(call) => self.execute(*call),
            Scheduled::Response(host, life, sequence, event) if self.lives(host, life) => {
                self.respond(host, sequence, *event);
            }
            Scheduled::Received(host, life) if self.lives(host, life) => self.received(host),
            Scheduled::Broken(host, life) if self.lives(host, life) => self.broken(host),
            Scheduled::Interrupted(host, life) if self.lives(host, life) => self.interrupted(host),
            Scheduled::Grant(host, life) if self.lives(host, life) => self.grant(host),
            Scheduled::Expire(host, life, lease) => self.expire(host, life, lease),
            Scheduled::LastKnownGood(host, life) if self.lives(host, life) => self.last_known(host),
            Scheduled::PythonReads(python) => self.python_reads(python),
            Scheduled::PythonWrites(python, number) => self.python_writes(python, number),
            Scheduled::Leaves(host) => self.leaves(host),
            Scheduled::Wear(host, target) => self.wear(host, target),
            Scheduled::Forgotten(key) => self.forget(&key),
            Scheduled::OperatorRemoves => self.operator_removes(),
            Scheduled::Blocks(event) => self.happen_to_blocks(event),
            Scheduled::Keys(event) => self.happen_to_keys(event),
            Scheduled::Objects(event) => self.happen_to_objects(event),
            Scheduled::Reads(host, life, sequence) if self.lives(host, life) => {
                let drawn = Event::TicketAllocated(self.store.counter);
                self.respond(host, sequence, Ok(drawn));
            }
            _ => {}
        }
    }

    pub(super) fn lives(&self, host: usize, life: u32) -> bool {
        self.hosts[host].life == life && self.hosts[host].agent.is_some()
    }

    fn act(&mut self, act: Act) {
        self.note(|_| format!("{act:?}"));
        match act {
            Act::Start(host) => self.start(host),
            Act::Kill(host) => self.kill(host),
            Act::Reboot(host) | Act::Reinstall(host) => {
                let reinstalls = matches!(act, Act::Reinstall(_)) && !self.has_copy(host);
                if self.hosts[host].exists && !self.hosts[host].left {
                    self.kill(host);
                    self.hosts[host].uses = None;
                    self.reboot_blocks(host);
                    if reinstalls {
                        self.hosts[host].blocks.kept = Default::default();
                        self.hosts[host].disk = None;
                        self.hosts[host].installed += 1;
                    }
                    let delay = self.random.between(100, 40_000);
                    self.after(delay, Scheduled::Act(Act::Start(host)));
                }
            }
            Act::Cut(host) => self.cut(host),
            Act::Heal(host) => self.heal(host),
            Act::Move(host) => {
                self.hosts[host].address += 32;
                match self.flaw {
                    Flaw::AddressIsIdentity if self.hosts[host].agent.is_some() => {
                        self.kill(host);
                        self.start(host);
                    }
                    _ => self.changed(host),
                }
            }
            Act::Inherit(host) => self.inherit(host),
            Act::Clone(host) => self.clone_machine(host),
            Act::Overwrite(host, target) => self.overwrite(host, target),
            Act::Steal(host) => self.steal(host),
            Act::Widen(host) => {
                self.hosts[host].wide = true;
                self.changed(host);
            }
            Act::Leave(host) => {
                if self.hosts[host].exists && !self.hosts[host].left {
                    self.kill(host);
                    self.hosts[host].uses = None;
                    self.reboot_blocks(host);
                    self.after(50, Scheduled::Leaves(host));
                }
            }
            Act::Pod(host, network) => {
                self.pods += 1;
                let pod = PodStart { number: self.pods, network, starts: 0 };
                self.happen_to_blocks(BlockEvent::Add(host, pod));
            }
            Act::PodEnds(host) => self.happen_to_blocks(BlockEvent::End(host)),
            Act::Remove(network) => self.happen_to_objects(ObjectEvent::Remove(network, 0)),
            Act::Python(python) => {
                if self.up && !self.pythons.contains_key(&python) {
                    self.pythons.insert(python, None);
                    self.store.count();
                    let delay = self.random.below(200);
                    self.after(delay, Scheduled::PythonReads(python));
                }
            }
            Act::Down => self.down(),
            Act::Up => self.come_up(),
            Act::Compact => self.store.compacted = self.store.revision,
            Act::Backup => self.backup = Some(self.store.clone()),
            Act::Lose => self.lose(Store::new(roots())),
            Act::Restore => {
                // Its etcd leases are there too, and expire later without keepalives.
                if let Some(backup) = self.backup.clone() {
                    self.lose(backup);
                }
            }
            Act::EmptyTwice(apart) => {
                self.act(Act::Empty);
                self.after(apart, Scheduled::Act(Act::Empty));
            }
            Act::Empty => {
                self.note_known_blocks();
                self.lost = Some(self.now);
                let keys: Vec<String> = self.store.keys.keys().cloned().collect();
                self.store.delete_now(&keys);
                self.apply_networks();
                // The versions of a key that is deleted begin anew.
                self.store.counter = 0;
                self.notify_watches();
                self.notify_block_watches();
            }
        }
    }

    /// etcd starts anew with other data.
    fn lose(&mut self, store: Store) {
        self.down();
        self.note_known_blocks();
        self.restored = !store.keys.is_empty();
        self.store = store;
        self.apply_networks();
        self.epoch += 1;
        self.lost = Some(self.now);
        let delay = self.random.between(100, 3_000);
        self.after(delay, Scheduled::Act(Act::Up));
    }

    fn down(&mut self) {
        self.up = false;
        for host in 0..self.hosts.len() {
            self.broken(host);
            self.blocks_broken(host);
            self.interrupted(host);
        }
    }

    /// A wait on an empty etcd ends when that does not answer.
    fn interrupted(&mut self, host: usize) {
        let unreachable = !self.up || self.hosts[host].cut.is_some();
        let Some(agent) = &self.hosts[host].agent else { return };
        if unreachable && agent.state == AgentState::WaitsOnEmpty {
            let why = EtcdError::Unreachable("it does not answer a host that waits".into());
            self.respond(host, agent.sequence, Err(why));
        }
    }

    fn come_up(&mut self) {
        if std::mem::replace(&mut self.up, true) {
            return;
        }
        self.back = self.now;
        for host in 0..self.hosts.len() {
            self.hold_lease(host);
        }
        // Leases of agents that do not run any more end now.
        for lease in self.store.leases.clone() {
            let holds = |host: &Host| host.agent.as_ref().is_some_and(|a| a.kept == Some(lease));
            if !self.hosts.iter().any(holds) {
                self.after(30_000, Scheduled::Expire(0, 0, lease));
            }
        }
    }

    pub(super) fn start(&mut self, host: usize) {
        if self.hosts[host].agent.is_some() || self.hosts[host].left {
            return;
        }
        self.make_role(host, None);
        let network = network(self.script.margin, self.hosts[host].wide);
        self.hosts[host].start(network, self.flaw, self.now);
        let life = self.hosts[host].life;
        self.after(3_000, Scheduled::LastKnownGood(host, life));
        let delay = self.random.between(1, 20);
        self.after(delay, Scheduled::Grant(host, life));
        if self.flaw == Flaw::RemovesBeforeReading && self.hosts[host].disk.is_some() {
            self.publish(host, &Snapshot::default());
        }
        self.start_blocks(host);
        self.begin(host);
    }

    fn kill(&mut self, host: usize) {
        let Some(agent) = self.hosts[host].agent.take() else { return };
        self.stop_blocks(host);
        self.hosts[host].disturbed = self.now;
        if let Some(lease) = agent.kept {
            let delay = self.random.between(20_000, 30_000);
            self.after(delay, Scheduled::Expire(host, 0, lease));
        }
    }

    fn cut(&mut self, host: usize) {
        if self.hosts[host].cut.is_some() {
            return;
        }
        self.hosts[host].cut = Some(self.now);
        self.hosts[host].disturbed = self.now;
        let life = self.hosts[host].life;
        if let Some(lease) = self.hosts[host].agent.as_ref().and_then(|agent| agent.kept) {
            let delay = self.random.between(20_000, 30_000);
            self.after(delay, Scheduled::Expire(host, life, lease));
        }
        let delay = self.random.between(3_000, 30_000);
        self.after(delay, Scheduled::Broken(host, life));
        self.after(PUT_BACK, Scheduled::Interrupted(host, life));
        self.blocks_cut(host);
    }

    fn heal(&mut self, host: usize) {
        if self.hosts[host].cut.take().is_some() {
            self.hosts[host].disturbed = self.now;
            self.hold_lease(host);
            let life = self.hosts[host].life;
            self.after(5, Scheduled::Received(host, life));
            self.blocks_heal(host);
        }
    }

    /// Everything works from now on, and every host that has not left comes back.
    fn repair(&mut self) {
        self.note(|_| "everything is repaired".to_owned());
        self.repaired = true;
        self.await_operator();
        self.come_up();
        self.apply_networks();
        for host in 0..self.hosts.len() {
            self.heal(host);
            if self.hosts[host].exists {
                self.start(host);
            }
        }
    }

    /// The operator or the kernel changed something that the agent learns of.
    fn changed(&mut self, host: usize) {
        let Some(agent) = &mut self.hosts[host].agent else { return };
        agent.changed = true;
        if let AgentState::Follows(_) = agent.state {
            self.begin(host);
        }
    }

    // Etcd leases.

    fn grant(&mut self, host: usize) {
        let life = self.hosts[host].life;
        if !self.up || self.hosts[host].cut.is_some() {
            let delay = self.random.between(500, 1_000);
            return self.after(delay, Scheduled::Grant(host, life));
        }
        self.leases += 1;
        let lease = self.leases;
        self.store.leases.push(lease);
        let Some(agent) = &mut self.hosts[host].agent else { return };
        agent.kept = Some(lease);
        self.note(|_| format!("h{host} is granted the etcd lease {lease}"));
        let Some(agent) = &mut self.hosts[host].agent else { return };
        if agent.state == AgentState::AwaitsLease {
            let sequence = agent.sequence;
            return self.respond(host, sequence, Ok(Event::LeaseKept(Some(lease))));
        }
        self.changed(host);
    }

    /// Has the agent notice, if its etcd lease is gone.
    fn hold_lease(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let Some(agent) = &self.hosts[host].agent else { return };
        if agent.kept.is_some_and(|kept| !self.store.leases.contains(&kept)) {
            let delay = self.random.between(1, 1_000);
            self.after(delay, Scheduled::Grant(host, life));
        }
    }

    fn expire(&mut self, host: usize, life: u32, lease: i64) {
        let kept = |host: &Host| host.agent.as_ref().is_some_and(|a| a.kept == Some(lease));
        let long = |host: &Host| host.cut.is_some_and(|since| self.now - since >= 20_000);
        let held = self.hosts.iter().any(|host| kept(host) && !long(host));
        if !self.up || held || !self.store.leases.contains(&lease) {
            return;
        }
        self.note(|_| format!("the etcd lease {lease} of h{host} ({life}) ends"));
        self.store.end_lease(lease);
        self.notify_watches();
    }

    // The agent's side.

    fn begin(&mut self, host: usize) {
        let Some(agent) = &mut self.hosts[host].agent else { return };
        let command = agent.machine.begin();
        self.execute_command(host, command);
    }

    fn execute_command(&mut self, host: usize, command: Command) {
        let new_store_id = self.random.mark();
        let configured = network(self.script.margin, self.hosts[host].wide);
        let attributes = self.hosts[host].attributes();
        let vacated = self.hosts[host].vacated();
        let life = self.hosts[host].life;
        let epoch = self.epoch;
        if !matches!(command, Command::Commit { .. } | Command::Follow(_)) {
            self.note(|_| format!("h{host}: {command:?}"));
        }
        let Some(agent) = &mut self.hosts[host].agent else { return };
        agent.sequence += 1;
        agent.state = AgentState::Waits;
        let (sequence, etcd_lease) = (agent.sequence, agent.kept);
        let response = |event| Scheduled::Response(host, life, sequence, Box::new(Ok(event)));
        match command {
            Command::Follow(settled) => {
                agent.state = AgentState::Follows(epoch);
                self.settled(host, settled);
            }
            Command::Pause(pause) => {
                if pause == Pause::Grace {
                    agent.state = AgentState::WaitsOnEmpty;
                }
                if !self.up {
                    self.after(1, Scheduled::Interrupted(host, life));
                }
                let time = match pause {
                    Pause::Grace if self.flaw == Flaw::NoGrace => 100,
                    Pause::Grace | Pause::Probation => 2_000,
                    Pause::Answer { same_boot: true, waits: 0, .. } => 500,
                    Pause::Answer { waits, .. } => 1_000 << waits,
                    Pause::LostRace(races) => self.random.below(10 << races.min(6)),
                };
                self.after(time, response(Event::Elapsed));
            }
            Command::AwaitLease => {
                agent.state = AgentState::AwaitsLease;
                self.after(500, response(Event::LeaseKept(etcd_lease)));
            }
            command => {
                if command == Command::Read {
                    agent.changed = false;
                }
                let found = Found {
                    snapshot: Snapshot::default(),
                    configured,
                    attributes,
                    vacated,
                    etcd_lease,
                    new_store_id,
                };
                self.send(Call { host, life, sequence, command, found, answered: true });
            }
        }
    }

    /// Sends a command, which may be lost, delayed or duplicated.
    fn send(&mut self, call: Call) {
        let host = call.host;
        let failed = |host: usize| {
            let why = EtcdError::Unreachable("no answer".into());
            Scheduled::Response(host, call.life, call.sequence, Box::new(Err(why)))
        };
        if self.hosts[host].cut.is_some() {
            return self.after(TIMEOUT, failed(host));
        }
        if !self.up {
            let delay = self.random.between(1, 50);
            return self.after(delay, failed(host));
        }
        let delay = self.random.between(1, 8);
        if self.repaired || !self.random.happens(self.script.faults) {
            return self.after(delay, Scheduled::Execute(Box::new(call)));
        }
        self.hosts[host].disturbed = self.now + 3 * TIMEOUT;
        let unanswered = Call { answered: false, ..call.clone() };
        let late = self.random.between(TIMEOUT, 3 * TIMEOUT);
        match self.random.below(4) {
            0 => self.after(TIMEOUT, failed(host)),
            1 => {
                self.after(delay, Scheduled::Execute(Box::new(unanswered)));
                self.after(TIMEOUT, failed(host));
            }
            2 => {
                self.after(late, Scheduled::Execute(Box::new(unanswered)));
                self.after(TIMEOUT, failed(host));
            }
            _ => {
                self.after(delay, Scheduled::Execute(Box::new(unanswered)));
                self.after(late, Scheduled::Execute(Box::new(call)));
            }
        }
    }

    fn respond(&mut self, host: usize, sequence: u32, event: Result<Event, EtcdError>) {
        let Some(agent) = &mut self.hosts[host].agent else { return };
        if agent.sequence != sequence
            || matches!(agent.state, AgentState::Follows(_) | AgentState::Rests)
        {
            return;
        }
        match agent.machine.next(event) {
            Ok(command) => self.execute_command(host, command),
            Err(SessionExit::Failed(_)) => self.rest(host),
            Err(SessionExit::Refused(_)) if agent.machine.lease().is_some() => self.rest(host),
            Err(SessionExit::Refused(why)) if why.is_of_copy() => self.stand_back(host),
            Err(SessionExit::Refused(why)) => {
                self.note(|_| format!("h{host} ends: {why}"));
                self.kill(host);
                // As the service manager does.
                if !self.repaired || self.now < REPAIRED + REST / 2 {
                    self.after(5_000, Scheduled::Act(Act::Start(host)));
                }
            }
        }
    }

    fn rest(&mut self, host: usize) {
        let life = self.hosts[host].life;
        let Some(agent) = &mut self.hosts[host].agent else { return };
        agent.state = AgentState::Rests;
        agent.attempts += 1;
        let longest = (50 * agent.attempts * agent.attempts).min(500);
        let delay = self.random.between(longest / 2, longest);
        self.after(delay, Scheduled::Begin(host, life));
        self.serve_blocks(host);
    }

    fn settled(&mut self, host: usize, settled: Settled) {
        let Settled { lease, snapshot, .. } = settled;
        if let Some(lease) = lease {
            self.use_lease(host, &lease);
        }
        self.publish(host, &snapshot);
        let life = self.hosts[host].life;
        let compacted = self.store.compacted > snapshot.revision + 1;
        let behind = self.store.revision > snapshot.revision;
        let Some(agent) = &mut self.hosts[host].agent else { return };
        agent.attempts = 0;
        agent.rests_until = 0;
        if agent.changed {
            self.begin(host);
        } else if compacted {
            self.rest(host);
        } else if behind {
            self.rest_watch(host);
            self.after(1, Scheduled::Received(host, life));
        }
    }

    /// Many hosts change, perhaps: this one learns of it later.
    fn rest_watch(&mut self, host: usize) {
        if !self.random.happens(self.script.rests) {
            return;
        }
        let rest = self.random.between(LEAST_REST, MOST_REST);
        let (until, life) = (self.now + rest, self.hosts[host].life);
        if let Some(agent) = &mut self.hosts[host].agent {
            agent.rests_until = until;
        }
        self.note(|_| format!("h{host} rests its watch for {rest} ms"));
        self.after(rest, Scheduled::Received(host, life));
    }

    /// The watch of `host` rests, and nothing has happened that ends its rest.
    fn sleeps(&self, host: usize) -> bool {
        let Some(agent) = &self.hosts[host].agent else { return false };
        let name = || self.hosts[host].name(self.flaw);
        let urgent = [Key::Config, Key::Host(name()), Key::Contender(name())];
        let (roots, known) = (&self.store.roots, agent.machine.last_known());
        let has_changed = |key: &Key| {
            let now = self.store.keys.get(&roots.key(key)).map_or(0, |stored| stored.modified);
            known.is_none_or(|known| known.modified(roots, key) != now)
        };
        let receives = self.flaw != Flaw::RestsDeaf && urgent.iter().any(has_changed);
        self.now < agent.rests_until && !receives
    }

    fn use_lease(&mut self, host: usize, lease: &Lease) {
        let Some(subnet) = lease.subnets.v4 else { return };
        self.note(|_| format!("h{host} uses {subnet}"));
        self.judge_use(host, subnet);
        self.hosts[host].uses = Some(subnet);
    }

    /// etcd has not answered in time: the agent serves from its last known state.
    fn last_known(&mut self, host: usize) {
        let trouble = self.hosts[host].agent.as_ref().and_then(|a| a.machine.trouble());
        if matches!(trouble, Some(LeaseError::MayBeCopy { .. })) {
            let life = self.hosts[host].life;
            return self.after(1_000, Scheduled::LastKnownGood(host, life));
        }
        let waits = self.hosts[host].agent.as_ref().is_some_and(|a| {
            let copied = a.machine.trouble().is_some_and(LeaseError::is_of_copy);
            a.machine.lease().is_none() && !copied
        });
        if let Some(saved) = self.hosts[host].disk.clone().filter(|_| waits)
            && self.flaw != Flaw::AddressIsIdentity
        {
            self.use_lease(host, &saved.lease);
        }
    }

    fn publish(&mut self, host: usize, snapshot: &Snapshot) {
        self.judge_snapshot(host, snapshot);
        let name = self.hosts[host].name(self.flaw);
        let machine_id = self.hosts[host].machine_id();
        let Some(agent) = &self.hosts[host].agent else { return };
        if let Some(lease) = agent.machine.lease().cloned() {
            let snapshot = snapshot.clone().into();
            self.hosts[host].disk = Some(Saved {
                host: name,
                machine_id,
                lease,
                snapshot,
                resolved: Default::default(),
            });
        }
        self.serve_blocks(host);
    }

    pub(super) fn notify_watches(&mut self) {
        for host in 0..self.hosts.len() {
            let follows = |host: &Host| {
                let agent = host.agent.as_ref();
                agent.is_some_and(|agent| matches!(agent.state, AgentState::Follows(_)))
            };
            if follows(&self.hosts[host]) && self.hosts[host].cut.is_none() {
                let delay = self.random.between(5, 30);
                let life = self.hosts[host].life;
                self.after(delay, Scheduled::Received(host, life));
            }
        }
    }

    /// The watch delivers all events up to now.
    fn received(&mut self, host: usize) {
        let (up, epoch) = (self.up, self.epoch);
        if self.hosts[host].cut.is_some() || !up || self.sleeps(host) {
            return;
        }
        let Some(agent) = &mut self.hosts[host].agent else { return };
        if agent.state != AgentState::Follows(epoch) {
            return if let AgentState::Follows(_) = agent.state {
                self.broken(host)
            };
        }
        let known = agent.machine.last_known();
        let mirror = as_read(self.flaw, self.store.mirror(known.map(|known| &**known)));
        let removed =
            known.is_some_and(|known| known.hosts.keys().any(|h| !mirror.hosts.contains_key(h)));
        let modified = self.store.config_modified();
        if !agent.machine.agrees(&mirror) || removed && !is_same_store(&mirror, modified) {
            return self.begin(host);
        }
        if let Some(snapshot) = agent.machine.update(&mirror) {
            self.publish(host, &snapshot);
            self.rest_watch(host);
        }
    }

    /// The connection of the watch breaks.
    fn broken(&mut self, host: usize) {
        let Some(agent) = &self.hosts[host].agent else { return };
        let unreachable = !self.up || self.hosts[host].cut.is_some();
        let stale = agent.state != AgentState::Follows(self.epoch);
        if matches!(agent.state, AgentState::Follows(_)) && (unreachable || stale) {
            self.rest(host);
        }
    }

    // The side of etcd.

    fn execute(&mut self, mut call: Call) {
        let (host, life, sequence) = (call.host, call.life, call.sequence);
        if !self.up || self.hosts[host].cut.is_some() {
            let why = EtcdError::Unreachable("cut off".into());
            let failed = Scheduled::Response(host, life, sequence, Box::new(Err(why)));
            return if call.answered {
                self.after(3_000, failed)
            };
        }
        let event = match &call.command {
            Command::Read => {
                call.found.snapshot = as_read(self.flaw, self.store.read());
                Ok(Event::Found(Box::new(call.found)))
            }
            Command::ReadHosts => Ok(Event::FoundHosts(Box::new(self.store.read()))),
            Command::AllocateTicket => {
                let number = self.store.count();
                if self.flaw == Flaw::PutThenGet && call.answered {
                    return self.after(20, Scheduled::Reads(host, life, sequence));
                }
                Ok(Event::TicketAllocated(number))
            }
            Command::Commit { what, transaction } => self.commit(host, what, transaction),
            _ => return,
        };
        if call.answered {
            let delay = self.random.between(1, 8);
            self.after(delay, Scheduled::Response(host, life, sequence, Box::new(event)));
        }
    }

    fn commit(
        &mut self,
        host: usize,
        what: &str,
        transaction: &Transaction,
    ) -> Result<Event, EtcdError> {
        self.judge_transaction(host, transaction);
        if let Some(key) = self.denied(host, transaction) {
            self.note(|_| format!("h{host} may not write {key}: {what}"));
            return Err(EtcdError::Denied(format!("permission denied: {key}")));
        }
        if self.flaw == Flaw::LossUnnoticed && what == "put back lost hosts" {
            return Ok(Event::Committed(Some(self.store.revision)));
        }
        if self.flaw == Flaw::CopyUnnoticed && what.starts_with("ask") {
            return Ok(Event::Committed(Some(self.store.revision)));
        }
        if self.flaw == Flaw::OverwrittenStays && self.leaves_foreign(transaction) {
            return Ok(Event::Committed(Some(self.store.revision)));
        }
        if self.flaw == Flaw::RolledBackUnnoticed && what.starts_with("delete the keys") {
            return Ok(Event::Committed(Some(self.store.revision)));
        }
        let transaction = self.bent(host, what, transaction);
        self.judge_writes(host, &transaction);
        let before = self.store.revision;
        let made = self.store.commit(&transaction);
        if let Ok(Some(_)) = made {
            self.foreign.retain(|key| !writes(&transaction, key));
        }
        self.note(|_| format!("h{host} commits: {what}: {made:?}"));
        if self.store.revision > before {
            self.notify_watches();
        }
        made.map(Event::Committed).map_err(|_| EtcdError::NoLease("it is gone".to_owned()))
    }

    /// The transaction as a protocol with that flaw would make it.
    fn bent(&self, host: usize, what: &str, transaction: &Transaction) -> Transaction {
        let mut bent = transaction.clone();
        let kept = self.hosts[host].agent.as_ref().and_then(|agent| agent.kept);
        let expires = match self.flaw {
            Flaw::OwnershipExpires => true,
            Flaw::ReservationExpires => self.hosts[host].life > 1,
            _ => false,
        };
        let claims = what.starts_with("claim");
        for write in bent.writes.iter_mut().filter(|_| expires && claims) {
            if let (Write::Put { lease, .. }, Some(kept)) = (write, kept) {
                *lease = kept;
            }
        }
        match self.flaw {
            Flaw::PlainPut if claims => bent.conditions.clear(),
            Flaw::MarksAnything | Flaw::LossUnnoticed => {
                bent.conditions.retain(|c| !matches!(c, Condition::Exists { .. }));
            }
            Flaw::PutThenGet if claims => {
                let own = self.store.roots.key(&Key::Host(self.hosts[host].name(self.flaw)));
                bent.conditions
                    .retain(|c| matches!(c, Condition::Unchanged { key, .. } if *key == own));
            }
            _ => {}
        }
        bent
    }

    /// The host releases its subnet. If etcd does not answer, the operator tries again.
    fn leaves(&mut self, host: usize) {
        if self.hosts[host].agent.is_some() {
            return;
        }
        if !self.up || self.hosts[host].cut.is_some() {
            return self.after(1_000, Scheduled::Leaves(host));
        }
        let found = self.store.read();
        let identity = humanz::lease::Identity {
            name: self.hosts[host].name(self.flaw),
            machine_id: self.hosts[host].machine_id(),
            boot_id: String::new(),
            version: String::new(),
        };
        if let Ok(keys) = leave::keys(&found, &identity) {
            let transaction = leave::transaction(&found, &keys, &self.store.roots);
            self.judge_transaction(host, &transaction);
            let gone = self.store.commit(&transaction);
            self.note(|_| format!("h{host} leaves: {gone:?}"));
            self.remove_blocks(&identity.name);
        }
        self.hosts[host].left = true;
        self.hosts[host].disk = None;
        self.hosts[host].blocks.kept = Default::default();
        self.notify_watches();
    }

    // Hosts of the Python agent.

    fn python_reads(&mut self, python: usize) {
        let number = self.store.counter;
        let delay = self.random.below(200);
        self.after(delay, Scheduled::PythonWrites(python, number));
    }

    fn python_writes(&mut self, python: usize, number: i64) {
        let pool = network(self.script.margin, false).pools.v4.expect("a pool");
        let Some(slot) = u32::try_from(number).ok().filter(|slot| *slot < pool.slots()) else {
            return;
        };
        if !self.up {
            return;
        }
        let subnet = Pool::subnet(&pool, slot);
        let key = format!("{}/p{python}", self.store.roots.hosts);
        self.store.put_now(&key, &subnet.to_string());
        self.note(|_| format!("the Python host p{python} uses {subnet}"));
        self.judge_python(python, subnet);
        self.pythons.insert(python, Some(subnet));
        self.notify_watches();
    }
}

/// The transaction writes `key`.
fn writes(transaction: &Transaction, key: &str) -> bool {
    transaction.writes.iter().any(|write| match write {
        Write::Put { key: written, .. } | Write::Delete { key: written } => written == key,
        Write::Try(inner) => writes(inner, key),
    })
}
