//! Chains of others that forwarded packets meet: observed, and our rules put into iptables' own.

mod chain;
mod legacy;
mod legacy_text;
mod sense;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use neli::consts::nl::NlmF;
use nix::errno::Errno;

pub use chain::{Action, Direction, Edit, ForwardChain, ForwardRule, MARK, Place, Sense, Stop};

use super::netlink::{Attributes, Message, NetlinkError, NetlinkSocket, Protocol};
use super::nft::numbers::{family, message as kind, rule, set};
use super::nft::{
    ChainPlace, Hook, Policy, TableFamily, expression, found, message, numbers, userdata,
};
use crate::net::Family;
use legacy::LegacyTables;

/// Where iptables-legacy is looked for.
const PROGRAM_DIRS: [&str; 6] =
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"];

/// What was found of other people's chains at the hook `forward`.
#[derive(Debug, Default)]
pub struct FoundForward {
    /// The chains.
    pub chains: Vec<ForwardChain>,
    /// Chains that are there and cannot be read, and why.
    pub unreadable: Vec<(Place, ForwardError)>,
}

/// Why a chain could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// Of nftables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The list of older tables.
    #[error("read {}", path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// No program to read older tables with.
    #[error("the program {name} is not installed (package iptables)")]
    NoProgram {
        /// The program.
        name: &'static str,
    },
    /// It did not start.
    #[error("run {command}")]
    Run {
        /// The program and its arguments.
        command: String,
        /// What went wrong.
        source: io::Error,
    },
    /// It failed.
    #[error("{command}: {status}: {said}")]
    Program {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to stderr.
        said: String,
    },
}

/// A handle on the chains of one network namespace, to be used on a thread in that namespace.
pub struct Forward {
    socket: NetlinkSocket,
    legacy: LegacyTables,
}

impl Forward {
    /// Opens a handle on the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open() -> Result<Forward, NetlinkError> {
        let program_dirs = PROGRAM_DIRS.map(PathBuf::from).to_vec();
        Forward::with_programs(program_dirs)
    }

    /// The same with other places to look for iptables-legacy in.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn with_programs(program_dirs: Vec<PathBuf>) -> Result<Forward, NetlinkError> {
        let socket = NetlinkSocket::open(Protocol::Netfilter)?;
        Ok(Forward { socket, legacy: LegacyTables::new(program_dirs) })
    }

    /// The chains that forwarded packets of `families` meet, our own table's among them.
    ///
    /// # Errors
    /// [`NetlinkError`] of nftables; what older tables refuse is in the answer.
    pub fn observe(&self, families: &[Family]) -> Result<FoundForward, NetlinkError> {
        let mut seen = FoundForward::default();
        let met = |place: &ChainPlace| {
            families.iter().any(|family| Place::Nft(place.clone()).sees(*family))
        };
        for (place, policy) in self.nft_places()? {
            if met(&place) {
                seen.chains.extend(self.nft_chain(place, policy)?);
            }
        }
        for family in families {
            match self.legacy.observe(*family) {
                Ok(chain) => seen.chains.extend(chain),
                Err(error) => seen.unreadable.push((Place::Legacy(*family), error)),
            }
        }
        Ok(seen)
    }

    /// Inserts or removes one rule of ours. Removing one that is gone is no error.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub fn apply(&self, edit: &Edit) -> Result<(), ForwardError> {
        let message = match (&edit.place, edit.action) {
            (Place::Legacy(family), _) => return self.legacy.apply(*family, edit),
            (Place::Nft(place), Action::Insert) => insert(place, edit),
            (Place::Nft(place), Action::Remove(Some(handle))) => remove(place, edit, handle),
            // Without the number the kernel would remove every rule of the chain.
            (Place::Nft(_), Action::Remove(None)) => return Ok(()),
        };
        Ok(self.socket.transact(&message::transaction([message]))?)
    }

    /// Every base chain at the hook `forward`, and its policy.
    fn nft_places(&self) -> Result<Vec<(ChainPlace, Policy)>, NetlinkError> {
        let what = "look at nft chains".to_owned();
        let request = get(what, kind::GET_CHAIN, family::ANY, Attributes::new());
        let chains = self.socket.dump(&request, found::chain)?;
        let forward = chains.into_iter().filter_map(|(place, base)| {
            let base = base.filter(|base| base.hook == Hook::FORWARD)?;
            let routed = !matches!(place.family, TableFamily::Other(_));
            routed.then_some((place, base.policy))
        });
        Ok(forward.collect())
    }

    /// The chain with its rules; `None` if it went meanwhile.
    fn nft_chain(
        &self,
        place: ChainPlace,
        policy: Policy,
    ) -> Result<Option<ForwardChain>, NetlinkError> {
        let what = format!("look at chain {} of nft table {}", place.chain, place.table);
        let attributes =
            Attributes::new().text(rule::TABLE, &place.table).text(rule::CHAIN, &place.chain);
        let request = get(what, kind::GET_RULE, place.family.number(), attributes);
        let rules = match self.socket.dump(&request, sense::rule) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            rules => rules?,
        };
        let place = Place::Nft(place);
        let mut chain = ForwardChain { place, policy, rules, interfaces: BTreeSet::new() };
        if let Place::Nft(place) = &chain.place
            && !chain.place.is_iptables()
            && chain.stop().is_some()
        {
            chain.interfaces = self.interfaces(place)?;
        }
        Ok(Some(chain))
    }

    /// The interfaces that rules and sets of the chain's table name.
    fn interfaces(&self, place: &ChainPlace) -> Result<BTreeSet<String>, NetlinkError> {
        let family = place.family.number();
        let what = format!("look at nft table {}", place.table);
        let ask = |kind: u16, attributes| get(what.clone(), kind, family, attributes);
        let table = Attributes::new().text(rule::TABLE, &place.table);
        let rules = self.socket.dump(&ask(kind::GET_RULE, table), sense::interfaces)?;
        let mut names: BTreeSet<String> = rules.into_iter().flatten().collect();
        let table = Attributes::new().text(set::TABLE, &place.table);
        for name in self.socket.dump(&ask(kind::GET_SET, table), sense::interface_set)? {
            let list =
                Attributes::new().text(set::LIST_TABLE, &place.table).text(set::LIST_SET, &name);
            let keys = self
                .socket
                .dump(&ask(kind::GET_ELEMENT, list), |reply| found::keys(reply).map(Some))?;
            names.extend(keys.concat().iter().map(|(key, _)| sense::text(key)));
        }
        Ok(names)
    }
}

/// Our rule at the head of a chain, shaped as iptables-nft itself writes it, so that `iptables -S`
/// shows an ordinary rule; the comment goes where nft and iptables both look for one.
fn insert(place: &ChainPlace, edit: &Edit) -> Message {
    let meta_key = match edit.direction {
        Direction::In => numbers::expression::INPUT_NAME,
        Direction::Out => numbers::expression::OUTPUT_NAME,
    };
    let attributes = Attributes::new()
        .text(rule::TABLE, &place.table)
        .text(rule::CHAIN, &place.chain)
        .nest(rule::EXPRESSIONS, expression::accept_like_iptables(meta_key, &edit.bridge))
        .put(rule::USERDATA, userdata::of_table(&edit.direction.comment()));
    let header = message::header(place.family.number());
    Message::new(edit.to_string(), kind::NEW_RULE, NlmF::CREATE, &header, attributes)
}

fn remove(place: &ChainPlace, edit: &Edit, handle: u64) -> Message {
    let attributes = Attributes::new()
        .text(rule::TABLE, &place.table)
        .text(rule::CHAIN, &place.chain)
        .be64(rule::HANDLE, handle);
    let header = message::header(place.family.number());
    Message::new(edit.to_string(), kind::DELETE_RULE, NlmF::empty(), &header, attributes)
        .tolerating(Errno::ENOENT)
}

fn get(what: String, kind: u16, family: u8, attributes: Attributes) -> Message {
    Message::new(what, kind, NlmF::empty(), &message::header(family), attributes)
}
