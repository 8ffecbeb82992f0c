//! The table of host ports in the kernel: made, changed, looked at.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use crate::net::{HostPort, IfName};
use crate::netlink::{Attributes, NetlinkError};
use crate::nft::host_port_maps::{FoundPort, PortChange, PortMap};
use crate::nft::message;
use crate::nft::numbers::{message as kind, rule, table};
use crate::nft::ruleset::Ruleset;
use crate::nft::{Nft, found, get, host_port_maps, host_port_messages, with_hint};

/// The fingerprints of a table's rules, in order, by chain; `None` for a rule of somebody else.
pub type Fingerprints = BTreeMap<String, Vec<Option<u64>>>;

impl Nft {
    /// Makes the table, its sets and maps where they are missing, and the rules of its chains anew,
    /// in one transaction. What the maps hold stays; where something of another kind has one of
    /// the names, all is made anew, and they are empty.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn ensure_ports(&self, ruleset: &Ruleset) -> Result<(), NetlinkError> {
        let ensure = || host_port_messages::ensure(ruleset);
        match self.transact(ensure()) {
            Err(error) if is_of_another_kind(&error) => {
                let mut messages = message::delete(&ruleset.table);
                messages.extend(ensure());
                self.transact(messages).map_err(with_hint)
            }
            outcome => outcome.map_err(with_hint),
        }
    }

    /// Carries out all of `changes` or none. Removals of what is added again go first.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if somebody has a port that is added, `ENOENT` if one that is
    /// removed is not there, or the table.
    pub fn change_ports(&self, table: &str, changes: &[PortChange]) -> Result<(), NetlinkError> {
        self.transact(host_port_messages::change(table, changes))
    }

    /// The fingerprints of the table's rules; `None` if it is not there or dormant. In a number of
    /// steps that does not depend on other tables.
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
        let name = Attributes::new().text(rule::TABLE, table);
        let rules = self.socket.dump(&get(table, kind::GET_RULE, name), found::rule)?;
        let mut by_chain = Fingerprints::new();
        for (chain, rule) in rules {
            by_chain.entry(chain).or_default().push(rule.fingerprint);
        }
        Ok(Some(by_chain))
    }

    /// The element of `port`, if it is there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn port(&self, table: &str, port: &HostPort) -> Result<Option<FoundPort>, NetlinkError> {
        let map = PortMap::of(port);
        let question = host_port_messages::question(table, map, Some(port));
        match self.socket.ask(&question, |reply| host_port_maps::found(map, reply)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            found => Ok(found?.into_iter().find(|found| found.forward.from == *port)),
        }
    }

    /// Everything that the maps hold; nothing if they are not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn ports(&self, table: &str) -> Result<Vec<FoundPort>, NetlinkError> {
        let mut found = Vec::new();
        for map in PortMap::ALL {
            let question = host_port_messages::question(table, map, None);
            match self.socket.dump(&question, |reply| host_port_maps::found(map, reply).map(Some)) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                elements => found.extend(elements?.into_iter().flatten()),
            }
        }
        Ok(found)
    }

    /// The bridges of the table; none if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn port_bridges(&self, table: &str) -> Result<BTreeSet<IfName>, NetlinkError> {
        let question = host_port_messages::question_bridges(table);
        let keys = match self.socket.dump(&question, |reply| found::keys(reply).map(Some)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(BTreeSet::new()),
            keys => keys?.concat(),
        };
        let name = |key: &[u8]| {
            let text = key.split(|byte| *byte == 0).next().unwrap_or_default();
            IfName::found(std::str::from_utf8(text).ok()?).ok()
        };
        Ok(keys.iter().filter_map(|(key, _)| name(key)).collect())
    }
}

/// A set, a map or a chain of a name that is needed is there, and is another.
fn is_of_another_kind(error: &NetlinkError) -> bool {
    matches!(
        error.errno(),
        Some(Errno::EEXIST | Errno::EBUSY | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT)
    )
}
