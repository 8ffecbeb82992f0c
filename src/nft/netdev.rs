//! Tables of the family `netdev` in the kernel: chains at the ingress of devices.

use std::collections::{BTreeMap, BTreeSet};

use neli::consts::nl::NlmF;
use nix::errno::Errno;

use crate::net::IfName;
use crate::netlink::{AttributeList, Attributes, Message, NetlinkError, Reply};
use crate::nft::expression;
use crate::nft::found;
use crate::nft::frame::{DeviceChain, FoundChains, FoundFrameRule, FrameRule};
use crate::nft::handle::Nft;
use crate::nft::message;
use crate::nft::numbers::{chain, expression as list, family, message as kind, rule, table};
use crate::nft::userdata::Userdata;

/// How often chains are swept while tables change; the next sweep finds what is left.
const SWEEP_TRIES: usize = 3;

/// Another generation than the one that was named. Source: `nfnetlink_rcv_batch` of the kernel.
const ERESTART: i32 = 85;

impl Nft {
    /// Makes the table and these chains, with these rules and no others, in one transaction.
    ///
    /// # Errors
    /// [`NetlinkError`]; `ENOENT` if a device is not there, or the kernel has no nftables for devices.
    pub fn set_device_chains(
        &self,
        table: &str,
        comment: &str,
        chains: &[&DeviceChain],
    ) -> Result<(), NetlinkError> {
        let mut messages = vec![add_table(table, Some(comment))];
        for wanted in chains {
            messages.push(add_chain(table, &wanted.device));
            messages.push(flush_chain(table, wanted.device.as_str()));
            messages.extend(wanted.rules.iter().map(|rule| add_rule(table, &wanted.device, rule)));
        }
        // A refusal comes unasked; of success one answer is enough.
        let last = messages.pop();
        let first = messages.into_iter().map(Message::without_ack);
        self.transact(first.chain(last).collect())
    }

    /// Removes a chain, be it there or not.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_device_chain(&self, table: &str, name: &str) -> Result<(), NetlinkError> {
        match self.transact(delete_chain(table, name).into()) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Removes all chains without a device, in one transaction; gives their number. `devices` lists
    /// those that are there.
    ///
    /// A device that goes takes its chain with it up to Linux 6.15; later ones keep the chain, and give
    /// it to the next device of that name. So nothing is removed if tables change in between: the
    /// device may be there again, and its chain be wanted.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn sweep_device_chains(
        &self,
        table: &str,
        devices: impl Fn() -> Result<BTreeSet<IfName>, NetlinkError>,
    ) -> Result<usize, NetlinkError> {
        for _ in 0..SWEEP_TRIES {
            let generation = self.generation()?;
            let chains = self.device_chain_sizes(table)?;
            let devices = devices()?;
            let left: Vec<Message> = chains
                .keys()
                .filter(|name| !devices.iter().any(|device| device.as_str() == *name))
                .flat_map(|name| delete_chain(table, name))
                .collect();
            let count = left.len() / 2;
            if count == 0 {
                return Ok(0);
            }
            match self.socket().transact(&message::transaction_at(generation, left)) {
                Err(error) if error.errno().map(|errno| errno as i32) == Some(ERESTART) => {}
                outcome => return outcome.map(|()| count),
            }
        }
        Ok(0)
    }

    /// Removes a table of the family `netdev`, be it there or not.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_device_table(&self, table: &str) -> Result<(), NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        let what = format!("delete table netdev {table}");
        let delete = netdev(what, kind::DELETE_TABLE, NlmF::empty(), name);
        self.transact(vec![add_table(table, None), delete])
    }

    /// All chains of a table of the family `netdev`; `None` if the table is not there or dormant.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chains(&self, table: &str) -> Result<Option<FoundChains>, NetlinkError> {
        let name = Attributes::new().text(table::NAME, table);
        let request = get(table, kind::GET_TABLE, name);
        match self.socket().ask(&request, found::dormant) {
            Ok(true) => return Ok(None),
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            outcome => outcome?,
        };
        let sizes = self.device_chain_sizes(table)?;
        let mut found: FoundChains = sizes.into_keys().map(|name| (name, Vec::new())).collect();
        let name = Attributes::new().text(rule::TABLE, table);
        for (chain, rule) in self.socket().dump(&get(table, kind::GET_RULE, name), frame_rule)? {
            found.entry(chain).or_default().push(rule);
        }
        Ok(Some(found))
    }

    /// How many rules each chain of a table has; none if the table is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chain_sizes(&self, table: &str) -> Result<BTreeMap<String, u32>, NetlinkError> {
        let chains =
            self.socket().dump(&get(table, kind::GET_CHAIN, Attributes::new()), |reply| {
                let (_, attributes) = found::parts(reply)?;
                // One that is at no hook guards nothing.
                let hooked = attributes.get(chain::HOOK).is_some();
                let place = attributes.text(chain::TABLE).zip(attributes.text(chain::NAME));
                let size = attributes.be32(chain::USE).unwrap_or(0);
                Ok(place.filter(|(of, _)| hooked && of == table).map(|(_, name)| (name, size)))
            })?;
        Ok(chains.into_iter().collect())
    }

    /// The rules of one chain, in order; `None` if it is not there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn device_chain(
        &self,
        table: &str,
        device: &IfName,
    ) -> Result<Option<Vec<FoundFrameRule>>, NetlinkError> {
        let place = || Attributes::new().text(chain::TABLE, table);
        let asked = get(table, kind::GET_CHAIN, place().text(chain::NAME, device.as_str()));
        match self.socket().ask(&asked, |_| Ok(())) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(None),
            outcome => outcome?,
        }
        let asked = get(table, kind::GET_RULE, place().text(rule::CHAIN, device.as_str()));
        let rules = self.socket().dump(&asked, frame_rule)?.into_iter();
        let own = rules.filter(|(chain, _)| chain == device.as_str());
        Ok(Some(own.map(|(_, rule)| rule).collect()))
    }
}

fn frame_rule(reply: &Reply<'_>) -> Result<Option<(String, FoundFrameRule)>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let Some(chain) = attributes.text(rule::CHAIN) else { return Ok(None) };
    let userdata = Userdata::read(attributes.get(rule::USERDATA).unwrap_or_default());
    let mut packets = 0;
    if let Some(expressions) = attributes.nested(rule::EXPRESSIONS)? {
        for (_, bytes) in expressions.iter() {
            let expression = AttributeList::parse(bytes)?;
            if expression.text(list::NAME).as_deref() == Some("counter")
                && let Some(counter) = expression.nested(list::DATA)?
            {
                packets = counter.be64(list::COUNTER_PACKETS).unwrap_or(0);
            }
        }
    }
    let Userdata { comment, fingerprint, .. } = userdata;
    Ok(Some((chain, FoundFrameRule { fingerprint, comment, packets })))
}

fn netdev(what: String, kind: u16, flags: NlmF, attributes: Attributes) -> Message {
    Message::new(what, kind, flags, &message::header(family::NETDEV), attributes)
}

/// A request about a table of the family `netdev`.
fn get(table: &str, kind: u16, attributes: Attributes) -> Message {
    netdev(format!("list table netdev {table}"), kind, NlmF::empty(), attributes)
}

fn add_table(table: &str, comment: Option<&str>) -> Message {
    let userdata = comment.map(|comment| Userdata::comment(comment).bytes());
    let attributes = Attributes::new().text(table::NAME, table).put_some(table::USERDATA, userdata);
    netdev(format!("add table netdev {table}"), kind::NEW_TABLE, NlmF::CREATE, attributes)
}

fn add_chain(table: &str, device: &IfName) -> Message {
    let hook = Attributes::new()
        .be32(chain::HOOK_NUMBER, chain::INGRESS)
        .put(chain::HOOK_PRIORITY, 0i32.to_be_bytes())
        .text(chain::HOOK_DEVICE, device.as_str());
    let attributes = Attributes::new()
        .text(chain::TABLE, table)
        .text(chain::NAME, device.as_str())
        .nest(chain::HOOK, hook)
        .be32(chain::POLICY, list::DROP)
        .text(chain::TYPE, "filter");
    let what = format!("add chain {device} to table netdev {table}");
    netdev(what, kind::NEW_CHAIN, NlmF::CREATE, attributes)
}

fn flush_chain(table: &str, name: &str) -> Message {
    let attributes = Attributes::new().text(rule::TABLE, table).text(rule::CHAIN, name);
    let what = format!("empty chain {name} of table netdev {table}");
    netdev(what, kind::DELETE_RULE, NlmF::empty(), attributes)
}

/// Before Linux 6.2 or so a chain is refused as busy while it has rules.
fn delete_chain(table: &str, name: &str) -> [Message; 2] {
    let attributes = Attributes::new().text(chain::TABLE, table).text(chain::NAME, name);
    let what = format!("delete chain {name} of table netdev {table}");
    let delete = netdev(what, kind::DELETE_CHAIN, NlmF::empty(), attributes);
    [flush_chain(table, name), delete]
}

fn add_rule(table: &str, device: &IfName, wanted: &FrameRule) -> Message {
    let attributes = Attributes::new()
        .text(rule::TABLE, table)
        .text(rule::CHAIN, device.as_str())
        .nest(rule::EXPRESSIONS, expression::of_frame_rule(wanted))
        .put(rule::USERDATA, wanted.userdata());
    let what = format!("add rule \"{wanted}\" to chain {device} of table netdev {table}");
    netdev(what, kind::NEW_RULE, NlmF::CREATE | NlmF::APPEND, attributes)
}
