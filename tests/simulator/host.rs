//! A host: the session state machine of its agent, and what is left of the host when the agent is
//! killed.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::UNIX_EPOCH;

use humanz::lease::records::{Backend, NodeName, Roots, WireguardEnd};
use humanz::lease::session::SessionMachine;
use humanz::lease::{HostAttributes, Identity, Network, Saved};
use humanz::net::subnet::{self, Pool};
use humanz::net::{PerFamily, PublicKey};
use ipnetwork::IpNetwork;

use super::flaw::Flaw;
use super::networks::HostBlocks;

pub struct Host {
    pub number: usize,
    /// The host whose machine was copied to this one.
    pub copy_of: Option<usize>,
    /// How often the machine was installed: each time it gets another machine id.
    pub installed: u32,
    /// The last part of its address.
    pub address: u8,
    /// It is configured with the wider pool.
    pub wide: bool,
    /// Counts starts and ends of the agent: messages for an earlier life are ignored.
    pub life: u32,
    /// The agent, while it runs.
    pub agent: Option<Agent>,
    /// Its host key was overwritten at some time: others may miss it for a moment.
    pub doubtful: bool,
    /// It was started at some time.
    pub exists: bool,
    /// It left permanently.
    pub left: bool,
    /// It does not reach etcd, and since when.
    pub cut: Option<u64>,
    /// Time of the last disturbance: a start, a cut, a lost message.
    pub disturbed: u64,
    /// The last known good state.
    pub disk: Option<Saved>,
    /// The subnet whose claim it may write, where it has a role of its own.
    pub reserved: Option<IpNetwork>,
    /// Its blocks of networks, and the pods there.
    pub blocks: HostBlocks,
    /// The subnet of its bridge and pods.
    pub uses: Option<IpNetwork>,
}

/// A running agent.
pub struct Agent {
    pub machine: SessionMachine,
    /// Counts commands: the response to an earlier one is ignored.
    pub sequence: u32,
    pub state: AgentState,
    /// The etcd lease that is kept alive.
    pub kept: Option<i64>,
    /// Something changed since everything was read.
    pub changed: bool,
    /// Failed attempts in a row.
    pub attempts: u64,
    /// Its watch rests until then.
    pub rests_until: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum AgentState {
    /// A response is awaited.
    Waits,
    /// Another etcd lease is awaited.
    AwaitsLease,
    /// It waits on an empty etcd, for as long as that answers.
    WaitsOnEmpty,
    /// It watches the store of that number.
    Follows(u32),
    /// It pauses after a failure.
    Rests,
}

impl Host {
    pub fn new(number: usize) -> Host {
        Host {
            number,
            copy_of: None,
            installed: 0,
            address: number as u8 + 1,
            wide: false,
            life: 0,
            agent: None,
            doubtful: false,
            exists: false,
            left: false,
            cut: None,
            disturbed: 0,
            disk: None,
            reserved: None,
            blocks: HostBlocks::default(),
            uses: None,
        }
    }

    pub fn name(&self, flaw: Flaw) -> NodeName {
        let name = match flaw {
            Flaw::AddressIsIdentity => format!("h{}-{}", self.identity(), self.address),
            _ => format!("h{}", self.identity()),
        };
        name.parse().expect("a name")
    }

    /// The host whose name and machine id it has.
    pub fn identity(&self) -> usize {
        self.copy_of.unwrap_or(self.number)
    }

    pub fn machine_id(&self) -> String {
        format!("m{}-{}", self.identity(), self.installed)
    }

    pub fn start(&mut self, network: Network, flaw: Flaw, now: u64) {
        let identity = Identity {
            name: self.name(flaw),
            machine_id: self.machine_id(),
            boot_id: format!("b{}", self.number),
            version: "0".to_owned(),
        };
        // flannel's file is in /run, and its daemon takes what the store says.
        let forgets = matches!(flaw, Flaw::OwnershipExpires);
        let known = self.disk.clone().filter(|_| !forgets);
        self.life += 1;
        let instance = format!("{}-{}", self.number, self.life);
        self.exists = true;
        self.disturbed = self.disturbed.max(now);
        self.agent = Some(Agent {
            machine: SessionMachine::new(
                identity,
                self.attributes(),
                network,
                known,
                UNIX_EPOCH,
                instance,
            ),
            sequence: 0,
            state: AgentState::Rests,
            kept: None,
            changed: false,
            attempts: 0,
            rests_until: 0,
        });
    }

    /// The subnets in which no pod runs, and none will start.
    pub fn vacated(&self) -> PerFamily<IpNetwork> {
        let saved = self.disk.as_ref().filter(|_| self.uses.is_none());
        saved.map(|saved| saved.lease.subnets).unwrap_or_default()
    }

    /// Every second machine encrypts, with a key of its own.
    pub fn wireguard(&self) -> Option<WireguardEnd> {
        let mut bytes = [1; 32];
        let id = self.machine_id().into_bytes();
        bytes.iter_mut().zip(id).for_each(|(to, from)| *to = from);
        let end = WireguardEnd::new(PublicKey(bytes), NonZeroU16::MIN);
        self.identity().is_multiple_of(2).then_some(end)
    }

    pub fn attributes(&self) -> HostAttributes {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, self.address));
        HostAttributes {
            addresses: PerFamily { v4: Some(address), v6: None },
            backend: Backend::Direct,
            tunnel: None,
            wireguard: self.wireguard(),
            mtu: 1500,
            policy_group: Box::default(),
        }
    }
}

pub fn roots() -> Roots {
    Roots { hosts: "/h".to_owned(), counter: "/c".to_owned(), humanz: "/z".to_owned() }
}

/// The network of a script, as wide as its operators say.
pub fn network(margin: u8, wide: bool) -> Network {
    let (pool, margin) = if wide { ("10.0.0.0/23", margin + 1) } else { ("10.0.0.0/24", margin) };
    let pool = Pool::new(subnet::parse(pool).expect("a pool"), margin).expect("a pool");
    let pools = PerFamily { v4: Some(pool), v6: None };
    let limits = PerFamily { v4: subnet::parse("10.0.0.0/23").ok(), v6: None };
    Network { roots: roots(), pools, limits, backend: Backend::Direct, tenants: Default::default() }
}
