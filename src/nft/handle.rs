//! Tables of the family `inet` in the kernel: observed, replaced, changed, removed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use neli::consts::nl::NlmF;
use nix::errno::Errno;

use crate::net::gather::Gather;
use crate::netlink::{Attributes, Message, NetlinkError, NetlinkProtocol, NetlinkSocket, Reply};
use crate::nft::edit::{self, TableEdit};
use crate::nft::found::{self, Count, FoundChain, FoundRule, FoundSet, FoundTable, TableFamily};
use crate::nft::message::{self, TablePath, inet};
use crate::nft::numbers::{family, message as kind, object, rule, set, table};
use crate::nft::own_steps::OwnSteps;
use crate::nft::ruleset::{Base, Flowtable, Ruleset};
use crate::nft::set::{Element, ElementChange, Set, Shape, Value};

/// The fingerprints of a table's rules, in order, by chain; `None` for a rule of others.
pub type Fingerprints = BTreeMap<String, Vec<Option<u64>>>;

/// A handle on nftables in one network namespace.
pub struct Nft {
    socket: NetlinkSocket,
    /// The tables that this handle alone changes.
    own_tables: RefCell<BTreeSet<String>>,
    pub(super) own_steps: RefCell<OwnSteps>,
}

impl Nft {
    /// Opens a handle on the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn open() -> Result<Nft, NetlinkError> {
        let socket = NetlinkSocket::open(NetlinkProtocol::Netfilter)?;
        Ok(Nft { socket, own_tables: RefCell::default(), own_steps: RefCell::default() })
    }

    /// Puts `ruleset` in the place of the table of its name, in one transaction: a refusal changes
    /// nothing. Counters restart. For some milliseconds the kernel finds nothing in sets of ranges
    /// that it has just made, whatever it does with their rules: [`Nft::edit`] makes such sets first.
    ///
    /// # Errors
    /// [`NetlinkError`]; a refusal names the table, set, chain or rule that was refused, and what
    /// to do if the kernel seems to lack something.
    pub fn replace(&self, ruleset: &Ruleset) -> Result<(), NetlinkError> {
        self.transact(message::replace(ruleset)).map_err(with_hint)
    }

    /// Makes changes of parts of a table, transaction by transaction: each as a whole or not at all,
    /// and none after one that is refused.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn edit(&self, table: &str, transactions: &[Vec<TableEdit>]) -> Result<(), NetlinkError> {
        let mut transactions = transactions.iter();
        transactions.try_for_each(|edits| {
            let mut messages = edit::messages(table, self.table_flags(table), edits);
            // A refusal is reported whether asked for or not; thousands of acknowledgements find no
            // room.
            let last = messages.pop();
            let messages = messages.into_iter().map(Message::without_ack).chain(last);
            self.transact(messages.collect()).map_err(with_hint)
        })
    }

    /// Adds and removes elements of sets of a table, in one transaction.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if a map has a key that is added, `ENOENT` if an element to remove
    /// or the table is not there.
    pub fn change_elements(
        &self,
        table: &str,
        changes: &[ElementChange],
    ) -> Result<(), NetlinkError> {
        self.transact(message::change_elements(table, changes))
    }

    /// Makes the table, its sets and maps where they are missing, and the rules of its chains anew,
    /// in one transaction. Elements stay; where something of another kind has one of the names,
    /// everything is made anew, and sets and maps are empty.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn ensure(&self, ruleset: &Ruleset) -> Result<(), NetlinkError> {
        match self.transact(message::ensure(ruleset)) {
            Ok(()) if self.has_sets(ruleset)? => Ok(()),
            Err(error) if !is_of_another_kind(&error) => Err(with_hint(error)),
            _ => {
                let mut messages = message::delete(&ruleset.table);
                messages.extend(message::ensure(ruleset));
                self.transact(messages).map_err(with_hint)
            }
        }
    }

    /// Linux 5.10 takes a set for added where one of another kind has its name; later ones refuse it.
    fn has_sets(&self, ruleset: &Ruleset) -> Result<bool, NetlinkError> {
        let name = Attributes::new().text(set::TABLE, &ruleset.table);
        let request = get(&ruleset.table, kind::GET_SET, name);
        let found = self.socket.dump(&request, found::set)?;
        let is_found = |wanted: &Set| {
            let same = |found: &FoundSet| {
                found.name == wanted.name && found.shape.as_ref() == Some(&wanted.shape)
            };
            found.iter().any(same)
        };
        Ok(ruleset.sets.iter().all(is_found))
    }

    /// The elements of a set or map; none if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn elements(&self, table: &str, set: &Set) -> Result<BTreeSet<Element>, NetlinkError> {
        match self.list(table, (&set.name, &set.shape)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(BTreeSet::new()),
            elements => elements,
        }
    }

    /// The element of a key, if it is there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn element<'a>(
        &self,
        table: impl Into<TablePath<'a>>,
        set: &Set,
        key: &[Value],
    ) -> Result<Option<Element>, NetlinkError> {
        let request = message::get_elements(table, (&set.name, &set.shape), Some(key));
        let entries = self.ask_if_there(&request, found::entries)?.unwrap_or_default();
        Ok(set.shape.elements(entries).into_iter().find(|found| *found.key == *key))
    }

    /// The fingerprints of the table's rules; `None` if it is not there or dormant. The number of
    /// requests does not depend on other tables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn fingerprints(&self, table: &str) -> Result<Option<Fingerprints>, NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        match self.socket.ask(&get(table, kind::GET_TABLE, name), found::dormant) {
            Ok(true) => return Ok(None),
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            outcome => outcome?,
        };
        let rules = self
            .rules(table)?
            .into_iter()
            .map(|(chain, rules)| (chain, rules.iter().map(|rule| rule.fingerprint).collect()));
        Ok(Some(rules.collect()))
    }

    /// The comments of the table's rules, with how many packets those have counted; none if it is not
    /// there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn counts(&self, table: &str) -> Result<Vec<(String, u64)>, NetlinkError> {
        let name = Attributes::new().text(rule::TABLE, table);
        match self.socket.dump(&get(table, kind::GET_RULE, name), found::count) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
            counts => counts,
        }
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

    /// The named counters of the table; none if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn counters(&self, table: &str) -> Result<BTreeMap<String, Count>, NetlinkError> {
        let name = Attributes::new().text(object::TABLE, table);
        let request = get(table, kind::GET_OBJECT, name.be32(object::TYPE, object::COUNTER));
        match self.socket.dump(&request, found::counter) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(BTreeMap::new()),
            counters => Ok(counters?.into_iter().gather()),
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
        let tables = self.all_tables()?.into_iter();
        let ours = tables.filter(|(family, _)| *family == TableFamily::Inet);
        Ok(ours.map(|(_, name)| name).collect())
    }

    /// Family and name of all tables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn all_tables(&self) -> Result<Vec<(TableFamily, String)>, NetlinkError> {
        let header = message::header(family::ANY);
        let request = Message::new(
            "list nftables",
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
            if let Some(shape) = &found.shape {
                found.elements = self.list(table, (&found.name, shape))?;
            }
        }
        Ok(sets)
    }

    fn list(
        &self,
        table: &str,
        (name, shape): (&str, &Shape),
    ) -> Result<BTreeSet<Element>, NetlinkError> {
        let request = message::get_elements(table, (name, shape), None);
        let entries = self.socket.dump(&request, |reply| found::entries(reply).map(Some))?;
        Ok(shape.elements(entries.concat()))
    }

    fn flowtables(&self, table: &str) -> Result<Vec<Flowtable>, NetlinkError> {
        let request = get(table, kind::GET_FLOWTABLE, Attributes::new());
        let found = self.socket.dump(&request, found::flowtable)?;
        let ours = found.into_iter().filter(|(of, _)| of == table);
        Ok(ours.map(|(_, flowtable)| flowtable).collect())
    }

    /// The netlink port that its changes come from.
    ///
    /// # Errors
    /// [`NetlinkError::Io`].
    pub fn port(&self) -> Result<u32, NetlinkError> {
        self.socket.port()
    }

    /// Whether this handle alone changes the table, as soon as there is one.
    pub(super) fn set_own(&self, table: &str, is_own: bool) {
        let mut own = self.own_tables.borrow_mut();
        match is_own {
            true => own.insert(table.to_owned()),
            false => own.remove(table),
        };
    }

    /// The flags with which this handle makes the table.
    fn table_flags(&self, table: &str) -> u32 {
        if self.own_tables.borrow().contains(table) { message::CLAIMED } else { 0 }
    }

    pub(super) fn socket(&self) -> &NetlinkSocket {
        &self.socket
    }

    /// The answer; `None`: there is no such thing.
    pub(super) fn ask_if_there<T>(
        &self,
        request: &Message,
        parse: impl Fn(&Reply<'_>) -> Result<T, NetlinkError>,
    ) -> Result<Option<T>, NetlinkError> {
        match self.socket.ask(request, parse) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            answer => answer.map(Some),
        }
    }

    pub(super) fn transact(&self, messages: Vec<Message>) -> Result<(), NetlinkError> {
        match messages.is_empty() {
            true => Ok(()),
            false => self.socket.transact(&message::transaction(messages)),
        }
    }
}

/// A set, a map or a chain of a name that is needed exists, and is another.
fn is_of_another_kind(error: &NetlinkError) -> bool {
    matches!(
        error.errno(),
        Some(Errno::EEXIST | Errno::EBUSY | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT)
    )
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

/// A request about a table of the family `inet`.
fn get(table: &str, kind: u16, attributes: Attributes) -> Message {
    inet(format!("list table inet {table}"), kind, NlmF::empty(), attributes)
}
