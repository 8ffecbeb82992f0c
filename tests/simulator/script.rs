//! The events of a schedule: joins, failures, times.

use std::fmt;

use super::networks::NETWORKS;
use super::overwritten::Target;
use super::random::Random;

/// Something that happens to a host or to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The agent starts, on a host that is new or whose agent does not run.
    Start(usize),
    /// The agent is killed; pods run on.
    Kill(usize),
    /// The host is switched off: pods end, the disk stays. Its agent starts a moment later.
    Reboot(usize),
    /// The host is installed anew under its old name: nothing of it is left but in etcd.
    Reinstall(usize),
    /// The host does not reach etcd.
    Cut(usize),
    /// It reaches it again.
    Heal(usize),
    /// The host gets another address, and its agent starts anew.
    Move(usize),
    /// The host leaves permanently and deletes its keys.
    Leave(usize),
    /// The host starts with the subnet that a host had which left, as the operator wants.
    Inherit(usize),
    /// The machine is copied, disk and all, and the copy is started.
    Clone(usize),
    /// Somebody else writes to, or deletes, a key of the host.
    Overwrite(usize, Target),
    /// A stolen host takes the subnet of the host, as far as etcd lets it.
    Steal(usize),
    /// The operator configures the host with a wider pool.
    Widen(usize),
    /// A pod of that network starts on the host.
    Pod(usize, usize),
    /// A pod of the host ends.
    PodEnds(usize),
    /// The operator removes that network for a while, once no host has a block of it.
    Remove(usize),
    /// A host with the Python agent joins.
    Python(usize),
    /// etcd does not answer.
    Down,
    /// It answers again.
    Up,
    /// etcd forgets its history.
    Compact,
    /// etcd loses everything, and has a new store after a restart.
    Lose,
    /// All keys are deleted, and again after so many milliseconds.
    EmptyTwice(u64),
    /// A backup is made.
    Backup,
    /// etcd is restored from the backup.
    Restore,
    /// All keys are deleted.
    Empty,
}

/// An act and when it happens, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub at: u64,
    pub act: Act,
}

/// One schedule.
#[derive(Clone, Debug)]
pub struct Script {
    /// For delays and losses of messages.
    pub seed: u64,
    /// How many hosts there can be.
    pub hosts: usize,
    /// How many slots of the pool, in bits.
    pub margin: u8,
    /// Requests or answers that are lost, late or doubled, of a thousand.
    pub faults: u64,
    /// Of a thousand changes so many make a host rest its watch.
    pub rests: u64,
    /// Each host may write its own keys only.
    pub own_keys_only: bool,
    pub acts: Vec<Planned>,
}

impl Script {
    /// The schedule of a seed.
    pub fn of(seed: u64) -> Script {
        Script::in_style(seed, None)
    }

    pub fn has_pods(&self) -> bool {
        self.acts.iter().any(|planned| matches!(planned.act, Act::Pod(..)))
    }

    /// The same with events of that kind, if one is given.
    pub fn in_style(seed: u64, style: Option<u64>) -> Script {
        let mut random = Random::new(seed);
        let hosts = random.between(2, 5) as usize;
        let margin = if random.happens(100) { 3 } else { 4 };
        let faults = [0, 0, 30, 150][random.below(4) as usize];
        let drawn = random.below(9);
        let style = style.unwrap_or(drawn);
        let mut acts = Vec::new();
        let python = style == 0;
        if python {
            acts.push(Planned { at: 0, act: Act::Python(0) });
        }
        // Some together, some one after the other.
        let span = [20, 3_000, 60_000][random.below(3) as usize];
        if style == 6 {
            acts.extend(inherited(&mut random));
        }
        for host in (0..hosts).filter(|host| style != 6 || *host != 1) {
            let at = 1_000 + random.below(span);
            acts.push(Planned { at, act: Act::Start(host) });
        }
        for _ in 0..random.between(1, 9) {
            let at = 1_000 + random.below(90_000);
            acts.push(Planned { at, act: act(style, hosts, &mut random) });
        }
        acts.extend(pods(seed, hosts, style));
        acts.sort_by_key(|planned| planned.at);
        let rests = [0, 0, 300, 1_000][Random::new(seed ^ 0x4e57).below(4) as usize];
        let own_keys_only = Random::new(seed ^ 0x20135).happens(500);
        let own_keys_only = own_keys_only && [LOSSES, 2, 6].contains(&style);
        Script { seed, hosts, margin, faults, rests, own_keys_only, acts }
    }
}

/// [`Script::in_style`] with losses of data, and with keys that others overwrite.
pub const LOSSES: u64 = 1;
pub const OVERWRITING: u64 = 7;

/// [`Script::in_style`] with many pods of tenants' networks; no seed alone has it.
pub const PODS: u64 = 9;

/// `style`: 0 with hosts of the Python agent, 1 and 2 with losses of data, 3 with hosts that leave,
/// 4 with wider pools, 5 with copied machines, 6 with backups that have hosts that left, 7 with keys that
/// others overwrite, 8 with none of these.
fn act(style: u64, hosts: usize, random: &mut Random) -> Act {
    let host = random.below(hosts as u64) as usize;
    if random.happens(300) {
        match style {
            0 => return Act::Python(random.between(1, 3) as usize),
            1 => {
                let twice = Act::EmptyTwice(random.between(1, 60));
                return [Act::Lose, Act::Empty, twice][random.below(3) as usize];
            }
            2 => return [Act::Backup, Act::Backup, Act::Restore][random.below(3) as usize],
            3 => return Act::Leave(host),
            4 => return Act::Widen(host),
            5 => return Act::Clone(host),
            OVERWRITING => return overwriting(host, random),
            _ => {}
        }
    }
    match random.below(12) {
        0..=2 => Act::Kill(host),
        3..=5 => Act::Start(host),
        6 => Act::Reboot(host),
        7 => Act::Cut(host),
        8 => Act::Heal(host),
        9 => [Act::Move(host), Act::Reinstall(host)][random.below(2) as usize],
        10 => [Act::Down, Act::Up][random.below(2) as usize],
        _ => Act::Compact,
    }
}

/// Pods of tenants' networks: many in schedules of their style, some in one of six others.
fn pods(seed: u64, hosts: usize, style: u64) -> Vec<Planned> {
    let mut random = Random::new(seed ^ 0xb10c5);
    let count = [0, 0, 0, 0, 0, 16][random.below(6) as usize];
    let count = if style == PODS { 60 } else { count };
    let span = [3_000, 90_000][random.below(2) as usize];
    let planned = (0..count).map(|_| {
        let at = 1_500 + random.below(span);
        let host = random.below(hosts as u64) as usize;
        let network = random.below(NETWORKS as u64) as usize;
        let act = if random.happens(400) { Act::PodEnds(host) } else { Act::Pod(host, network) };
        Planned { at, act }
    });
    let mut planned: Vec<Planned> = planned.collect();
    for _ in 0..count / 8 {
        let at = 1_500 + random.below(span);
        planned.push(Planned { at, act: Act::Remove(random.below(NETWORKS as u64) as usize) });
    }
    planned
}

fn overwriting(host: usize, random: &mut Random) -> Act {
    let targets = [Target::Claim, Target::Host, Target::Node, Target::Alive];
    match random.below(5) as usize {
        4 => Act::Steal(host),
        target => Act::Overwrite(host, targets[target]),
    }
}

/// A host leaves after a backup, and the next one inherits its subnet before that is restored.
fn inherited(random: &mut Random) -> Vec<Planned> {
    let acts = [Act::Backup, Act::Leave(0), Act::Inherit(1), Act::Restore];
    let each = acts.iter().enumerate();
    let planned = each.map(|(step, act)| {
        let at = 15_000 + 18_000 * step as u64 + random.below(15_000);
        Planned { at, act: *act }
    });
    planned.collect()
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Script { seed, hosts, margin, faults, rests, own_keys_only, .. } = self;
        write!(f, "seed {seed}: {hosts} hosts, margin {margin}, ")?;
        writeln!(f, "{faults} faults and {rests} rests of 1000, own keys only: {own_keys_only}")?;
        for Planned { at, act } in &self.acts {
            writeln!(f, "  {:>7.3} s  {act:?}", *at as f64 / 1000.0)?;
        }
        Ok(())
    }
}
