//! nftables over netlink: tables of the family `inet` observed, replaced, changed, removed.

pub mod base_chains;

mod cached_table;
pub(super) mod expression;
pub mod found;
pub mod host_port_maps;
mod host_port_messages;
mod host_port_table;
pub(super) mod message;
pub(super) mod numbers;
mod ruleset;
pub mod userdata;

use std::collections::BTreeMap;

use neli::consts::nl::NlmF;
use nix::errno::Errno;

pub use cached_table::SeenTable;
pub use found::{ChainPlace, FoundChain, FoundRule, FoundSet, FoundTable, TableFamily};
pub use host_port_maps::{BRIDGES, FoundPort, PortChange, PortElement, PortMap, PortMark};
pub use host_port_table::Fingerprints;
pub use ruleset::{
    Base, Chain, ElementChange, Flowtable, Hook, Match, Policy, Rule, Ruleset, Set, SetKind,
    Verdict,
};

use crate::netlink::{Attributes, Message, NetlinkError, NetlinkSocket, Protocol};
use crate::nft::message::inet;
use crate::nft::numbers::{message as kind, rule, set, table};

/// A handle on nftables in one network namespace.
pub struct Nft {
    socket: NetlinkSocket,
}

impl Nft {
    /// Opens a handle on the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open() -> Result<Nft, NetlinkError> {
        Ok(Nft { socket: NetlinkSocket::open(Protocol::Netfilter)? })
    }

    /// Puts `ruleset` in the place of the table of its name, in one transaction: no packet sees
    /// anything between the old and the new, and a refusal changes nothing. Counters restart.
    ///
    /// # Errors
    /// [`NetlinkError`]; a refusal names the table, set, chain or rule that was refused, and what
    /// to do if the kernel seems to lack something.
    pub fn replace(&self, ruleset: &Ruleset) -> Result<(), NetlinkError> {
        self.transact(message::replace(ruleset)).map_err(with_hint)
    }

    /// Adds and removes elements of sets of a table, in one transaction.
    ///
    /// # Errors
    /// [`NetlinkError`]; `ENOENT` if an element to remove is gone or the table is.
    pub fn change_elements(
        &self,
        table: &str,
        changes: &[ElementChange],
    ) -> Result<(), NetlinkError> {
        self.transact(message::change_elements(table, changes))
    }

    /// Removes the table, be it there or not.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete(&self, table: &str) -> Result<(), NetlinkError> {
        self.transact(message::delete(table))
    }

    /// The table with everything in it; `None` if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn observe(&self, table: &str) -> Result<Option<FoundTable>, NetlinkError> {
        match self.observe_present(table) {
            // The table is not there, or went while it was read.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            observed => observed.map(Some).map_err(with_hint),
        }
    }

    /// A number that every change of any table of this network namespace makes another one.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn generation(&self) -> Result<u32, NetlinkError> {
        let request = get("*", kind::GET_GENERATION, Attributes::new());
        self.socket.ask(&request, found::generation)
    }

    /// The names of all tables of the family `inet`.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn tables(&self) -> Result<Vec<String>, NetlinkError> {
        let tables = self.tables_of_all_families()?.into_iter();
        let ours = tables.filter(|(family, _)| *family == TableFamily::Inet);
        Ok(ours.map(|(_, name)| name).collect())
    }

    /// Family and name of all tables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn tables_of_all_families(&self) -> Result<Vec<(TableFamily, String)>, NetlinkError> {
        let header = message::header(numbers::family::ANY);
        let request = Message::new(
            "look at nftables",
            kind::GET_TABLE,
            NlmF::empty(),
            &header,
            Attributes::new(),
        );
        self.socket.dump(&request, found::table_name)
    }

    fn observe_present(&self, table: &str) -> Result<FoundTable, NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        let request = get(table, kind::GET_TABLE, name);
        let dormant = self.socket.ask(&request, found::dormant)?;
        let mut rules = self.rules(table)?;
        let chains = self.chains(table)?.into_iter().map(|(name, base)| {
            let rules = rules.remove(&name).unwrap_or_default();
            FoundChain { name, base, rules }
        });
        let chains = chains.collect();
        let sets = self.sets(table)?;
        let flowtables = self.flowtables(table)?;
        Ok(FoundTable { name: table.to_owned(), dormant, sets, flowtables, chains })
    }

    fn chains(&self, table: &str) -> Result<Vec<(String, Option<Base>)>, NetlinkError> {
        let chains =
            self.socket.dump(&get(table, kind::GET_CHAIN, Attributes::new()), found::chain)?;
        let ours = chains.into_iter().filter(|(place, _)| place.table == table);
        Ok(ours.map(|(place, base)| (place.chain, base)).collect())
    }

    /// The table's rules by chain, in order.
    fn rules(&self, table: &str) -> Result<BTreeMap<String, Vec<FoundRule>>, NetlinkError> {
        let name = Attributes::new().text(rule::TABLE, table);
        let rules = self.socket.dump(&get(table, kind::GET_RULE, name), found::rule)?;
        let mut by_chain: BTreeMap<String, Vec<FoundRule>> = BTreeMap::new();
        for (chain, rule) in rules {
            by_chain.entry(chain).or_default().push(rule);
        }
        Ok(by_chain)
    }

    fn sets(&self, table: &str) -> Result<Vec<FoundSet>, NetlinkError> {
        let name = Attributes::new().text(set::TABLE, table);
        let mut sets = self.socket.dump(&get(table, kind::GET_SET, name), found::set)?;
        for found in &mut sets {
            let Some((_, set_kind)) = found.holds else { continue };
            let name =
                Attributes::new().text(set::LIST_TABLE, table).text(set::LIST_SET, &found.name);
            let request = get(table, kind::GET_ELEMENT, name);
            let keys = self.socket.dump(&request, |reply| found::keys(reply).map(Some))?;
            found.elements = found::ranges(set_kind, &keys.concat());
        }
        Ok(sets)
    }

    fn flowtables(&self, table: &str) -> Result<Vec<Flowtable>, NetlinkError> {
        let request = get(table, kind::GET_FLOWTABLE, Attributes::new());
        let found = self.socket.dump(&request, found::flowtable)?;
        let ours = found.into_iter().filter(|(of, _)| of == table);
        Ok(ours.map(|(_, flowtable)| flowtable).collect())
    }

    fn transact(&self, messages: Vec<Message>) -> Result<(), NetlinkError> {
        match messages.is_empty() {
            true => Ok(()),
            false => self.socket.transact(&message::transaction(messages)),
        }
    }
}

/// Adds to a refusal what to do about it.
fn with_hint(error: NetlinkError) -> NetlinkError {
    let NetlinkError::Refused(mut refused) = error else { return error };
    let hint = match refused.errno {
        Errno::EPERM => " (CAP_NET_ADMIN is needed)",
        // No such family, subsystem, kind of chain, or expression.
        Errno::EAFNOSUPPORT | Errno::EINVAL | Errno::ENOENT | Errno::EOPNOTSUPP => {
            " (Linux 5.2 with nftables and its NAT is needed; try: modprobe -a nf_tables \
             nft_chain_nat nft_masq)"
        }
        _ => "",
    };
    refused.what.push_str(hint);
    NetlinkError::Refused(refused)
}

/// A question about a table of the family `inet`.
fn get(table: &str, kind: u16, attributes: Attributes) -> Message {
    inet(format!("look at table inet {table}"), kind, NlmF::empty(), attributes)
}
