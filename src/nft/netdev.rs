//! Tables of the family `netdev` in the kernel: chains at the ingress of devices.

use std::collections::{BTreeMap, BTreeSet};

use neli::consts::nl::NlmF;
use nix::errno::Errno;

use crate::net::gather::Gather;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};
use crate::nft::found;
use crate::nft::frame::edit::{self, FrameEdit, place};
use crate::nft::frame::{FoundFrameChain, FoundFrameRule, FoundFrames, FrameTable};
use crate::nft::handle::Nft;
use crate::nft::message;
use crate::nft::numbers::{chain, message as kind, rule, table};
use crate::nft::set::{Set, Value};
use crate::nft::userdata::Userdata;

/// How often a change is tried while tables change.
const TRIES: usize = 3;

/// Another generation than the one that was named. Source: `nfnetlink_rcv_batch` of the kernel.
const ERESTART: i32 = 85;

impl Nft {
    /// Makes all of these changes of a table of the family `netdev`, or none.
    ///
    /// # Errors
    /// [`NetlinkError`]; `ENOENT` if something that they need is not there, or the kernel has no
    /// nftables for devices.
    pub fn edit_frames(&self, table: &str, edits: &[FrameEdit]) -> Result<(), NetlinkError> {
        self.transact(edit::messages(table, edits))
    }

    /// Removes a table of the family `netdev`, be it there or not.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_frames(&self, table: &str) -> Result<(), NetlinkError> {
        self.edit_frames(table, &[FrameEdit::RemoveTable])
    }

    /// Makes the changes that `plan` gives, unless some table has changed meanwhile: then it plans
    /// anew. Gives how many there were; none while tables change all the time.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn edit_frames_as_seen(
        &self,
        table: &str,
        plan: impl Fn() -> Result<Vec<FrameEdit>, NetlinkError>,
    ) -> Result<usize, NetlinkError> {
        for _ in 0..TRIES {
            let generation = self.generation()?;
            let edits = plan()?;
            if edits.is_empty() {
                return Ok(0);
            }
            let messages = edit::messages(table, &edits);
            match self.socket().transact(&message::transaction_at(generation, messages)) {
                Err(error) if error.errno().map(|errno| errno as i32) == Some(ERESTART) => {}
                outcome => return outcome.map(|()| edits.len()),
            }
        }
        Ok(0)
    }

    /// The chains of a table of the family `netdev`, and the elements of those of `sets` that are
    /// there; `None` if the table is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn frames(&self, table: &str, sets: &[Set]) -> Result<Option<FoundFrames>, NetlinkError> {
        let Some(is_dormant) = self.is_dormant(table)? else { return Ok(None) };
        let chains = self.frame_chains(table)?;
        let mut found = FoundFrames { is_dormant, chains, ..FoundFrames::default() };
        let name = Attributes::new().text(rule::TABLE, table);
        for (chain, rule) in self.socket().dump(&get(table, kind::GET_RULE, name), frame_rule)? {
            found.chains.entry(chain).or_default().rules.push(rule);
        }
        for chain in found.chains.values_mut() {
            chain.references = chain.references.saturating_sub(chain.rules.len());
        }
        for set in sets {
            let request = message::get_elements(place(table), (&set.name, &set.shape), None);
            match self.socket().dump(&request, |reply| found::entries(reply).map(Some)) {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                entries => {
                    let elements = set.shape.elements(entries?.concat());
                    found.elements.insert(set.name.clone(), elements);
                }
            }
        }
        Ok(Some(found))
    }

    /// The table is awake, and has these chains as they shall be and these elements. What else it has costs
    /// nothing.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn has_frames(&self, table: &str, wanted: &FrameTable) -> Result<bool, NetlinkError> {
        if self.is_dormant(table)? != Some(false) {
            return Ok(false);
        }
        for chain in &wanted.chains {
            // One that others lead to is at no hook.
            let is_base = chain.device.is_some() && self.is_at_device(table, &chain.name)?;
            let rules = self.frame_rules(table, &chain.name)?;
            let found = FoundFrameChain { is_base, references: 0, rules };
            if !chain.is_whole(Some(&found)) {
                return Ok(false);
            }
        }
        for set in &wanted.sets {
            for element in &set.elements {
                if self.element(place(table), set, &element.key)?.as_ref() != Some(element) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The table is there and does nothing; `None`: it is not there.
    fn is_dormant(&self, table: &str) -> Result<Option<bool>, NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        self.ask_if_there(&get(table, kind::GET_TABLE, name), found::dormant)
    }

    fn is_at_device(&self, table: &str, name: &str) -> Result<bool, NetlinkError> {
        let of = Attributes::new().text(chain::TABLE, table).text(chain::NAME, name);
        let is_base = |reply: &Reply<'_>| Ok(found::parts(reply)?.1.get(chain::HOOK).is_some());
        let found = self.ask_if_there(&get(table, kind::GET_CHAIN, of), is_base)?;
        Ok(found.unwrap_or(false))
    }

    /// The rules of one chain of a table of the family `netdev`; none if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn frame_rules(
        &self,
        table: &str,
        chain: &str,
    ) -> Result<Vec<FoundFrameRule>, NetlinkError> {
        let of = Attributes::new().text(rule::TABLE, table).text(rule::CHAIN, chain);
        let rules = self.socket().dump(&get(table, kind::GET_RULE, of), frame_rule)?;
        Ok(rules.into_iter().filter(|(of, _)| of == chain).map(|(_, rule)| rule).collect())
    }

    /// Frames that a set of a table of the family `netdev` has counted, by the index of the device.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn frame_counts(&self, table: &str, set: &Set) -> Result<BTreeMap<u32, u64>, NetlinkError> {
        let request = message::get_elements(place(table), (&set.name, &set.shape), None);
        let entries = match self.socket().dump(&request, |reply| found::entries(reply).map(Some)) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(BTreeMap::new()),
            entries => entries?.concat(),
        };
        let count = |entry: &found::Entry| {
            let key = set.shape.elements(vec![entry.clone()]).pop_first()?.key;
            let [Value::InterfaceIndex(index)] = key[..] else { return None };
            Some((index, entry.packets()))
        };
        Ok(entries.iter().filter_map(count).gather())
    }

    /// The names of the chains of a table that are at a device; none if the table is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chain_names(&self, table: &str) -> Result<BTreeSet<String>, NetlinkError> {
        let base = self.frame_chains(table)?.into_iter().filter(|(_, chain)| chain.is_base);
        Ok(base.map(|(name, _)| name).gather())
    }

    fn frame_chains(&self, table: &str) -> Result<BTreeMap<String, FoundFrameChain>, NetlinkError> {
        let request = get(table, kind::GET_CHAIN, Attributes::new());
        let chains = self.socket().dump(&request, |reply| {
            let (_, attributes) = found::parts(reply)?;
            let is_base = attributes.get(chain::HOOK).is_some();
            let place = attributes.text(chain::TABLE).zip(attributes.text(chain::NAME));
            let uses = attributes.be32(chain::USE).unwrap_or(0) as usize;
            let chain = FoundFrameChain { is_base, references: uses, rules: Vec::new() };
            Ok(place.filter(|(of, _)| of == table).map(|(_, name)| (name, chain)))
        })?;
        Ok(chains.into_iter().gather())
    }
}

fn frame_rule(reply: &Reply<'_>) -> Result<Option<(String, FoundFrameRule)>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let Some(chain) = attributes.text(rule::CHAIN) else { return Ok(None) };
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    let Userdata { comment, fingerprint, .. } = userdata;
    Ok(Some((chain, FoundFrameRule { fingerprint, comment })))
}

/// A request about a table of the family `netdev`.
fn get(table: &str, kind: u16, attributes: Attributes) -> Message {
    let at = place(table);
    at.message(format!("list {at}"), kind, NlmF::empty(), attributes)
}
