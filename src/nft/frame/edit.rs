//! Pure. Changes of a table of the family `netdev`, as messages.

use neli::consts::nl::NlmF;

use crate::net::IfName;
use crate::netlink::{Attributes, Message};
use crate::nft::expression;
use crate::nft::frame::{FrameChain, FrameRule};
use crate::nft::message::{self, TablePath};
use crate::nft::numbers::{chain, expression as list, family, message as kind, rule, table};
use crate::nft::set::{ElementChange, Set};
use crate::nft::userdata::Userdata;

/// One change; all of a transaction are made, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEdit {
    /// The table is made if it is missing, with this comment.
    Table(String),
    /// A set or map is made if it is missing, without its elements.
    Set(Set),
    /// The chain has these rules and no others; made if it is missing.
    Chain(FrameChain),
    Elements(ElementChange),
    RemoveChain(String),
    RemoveTable,
}

/// A table of the family `netdev`.
pub fn place(table: &str) -> TablePath<'_> {
    TablePath { family: family::NETDEV, table }
}

/// The messages of `edits`, in their order; an answer is asked for to the last one alone: a refusal
/// comes unasked.
pub fn messages(table: &str, edits: &[FrameEdit]) -> Vec<Message> {
    let numbered = (1..).zip(edits);
    let mut messages: Vec<Message> =
        numbered.flat_map(|(number, edit)| edit.messages(place(table), number)).collect();
    let last = messages.pop();
    messages.into_iter().map(Message::without_ack).chain(last).collect()
}

impl FrameEdit {
    /// `number`: unique in the transaction.
    fn messages(&self, at: TablePath<'_>, number: u32) -> Vec<Message> {
        match self {
            FrameEdit::Table(comment) => vec![add_table(at, Some(comment))],
            FrameEdit::Set(set) => vec![message::add_set(at, set, number)],
            FrameEdit::Chain(wanted) => {
                let head = [add_chain(at, wanted), flush_chain(at, &wanted.name)];
                let rules = wanted.rules.iter().map(|rule| add_rule(at, &wanted.name, rule));
                head.into_iter().chain(rules).collect()
            }
            FrameEdit::Elements(change) => {
                message::change_elements(at, std::slice::from_ref(change))
            }
            // Before Linux 6.2 or so a chain is refused as busy while it has rules.
            FrameEdit::RemoveChain(name) => {
                let attributes =
                    Attributes::new().text(chain::TABLE, at.table).text(chain::NAME, name);
                let what = format!("delete chain {name} of {at}");
                let delete = at.message(what, kind::DELETE_CHAIN, NlmF::empty(), attributes);
                vec![flush_chain(at, name), delete]
            }
            FrameEdit::RemoveTable => {
                let name = Attributes::new().text(table::NAME, at.table);
                let what = format!("delete {at}");
                let delete = at.message(what, kind::DELETE_TABLE, NlmF::empty(), name);
                vec![add_table(at, None), delete]
            }
        }
    }
}

fn add_table(at: TablePath<'_>, comment: Option<&str>) -> Message {
    let userdata = comment.map(|comment| Userdata::comment(comment).bytes());
    // Without flags a dormant table would stay so.
    let attributes = Attributes::new()
        .text(table::NAME, at.table)
        .be32(table::FLAGS, 0)
        .put_some(table::USERDATA, userdata);
    at.message(format!("add {at}"), kind::NEW_TABLE, NlmF::CREATE, attributes)
}

fn add_chain(at: TablePath<'_>, wanted: &FrameChain) -> Message {
    let attributes = Attributes::new().text(chain::TABLE, at.table).text(chain::NAME, &wanted.name);
    let hook = |device: &IfName| {
        Attributes::new()
            .be32(chain::HOOK_NUMBER, chain::INGRESS)
            .put(chain::HOOK_PRIORITY, 0i32.to_be_bytes())
            .text(chain::HOOK_DEVICE, device.as_str())
    };
    let attributes = match &wanted.device {
        None => attributes,
        Some(device) => attributes
            .nest(chain::HOOK, hook(device))
            .be32(chain::POLICY, list::DROP)
            .text(chain::TYPE, "filter"),
    };
    let what = format!("add chain {} to {at}", wanted.name);
    at.message(what, kind::NEW_CHAIN, NlmF::CREATE, attributes)
}

fn flush_chain(at: TablePath<'_>, name: &str) -> Message {
    let attributes = Attributes::new().text(rule::TABLE, at.table).text(rule::CHAIN, name);
    let what = format!("empty chain {name} of {at}");
    at.message(what, kind::DELETE_RULE, NlmF::empty(), attributes)
}

fn add_rule(at: TablePath<'_>, chain: &str, wanted: &FrameRule) -> Message {
    let attributes = Attributes::new()
        .text(rule::TABLE, at.table)
        .text(rule::CHAIN, chain)
        .nest(rule::EXPRESSIONS, expression::frame::of_frame_rule(wanted))
        .put(rule::USERDATA, wanted.userdata());
    let what = format!("add rule \"{wanted}\" to chain {chain} of {at}");
    at.message(what, kind::NEW_RULE, NlmF::CREATE | NlmF::APPEND, attributes)
}
