//! Pure. Changes of parts of a table, which leave the rest of it as it is.

use neli::consts::nl::NlmF;

use crate::netlink::{Attributes, Message};
use crate::nft::message::{self, inet};
use crate::nft::numbers::{chain, expression as list, flowtable, message as kind, object, set};
use crate::nft::ruleset::Chain;
use crate::nft::set::{ElementChange, Set};

/// One change of a table of the family `inet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableEdit {
    /// The table is made if it is missing, and no longer dormant.
    Table {
        comment: String,
    },
    /// A set or map with its elements.
    AddSet(Set),
    Elements(ElementChange),
    AddCounter(String),
    /// A chain without its rules; made only if it is missing.
    AddChain(Chain),
    /// These rules, and no others.
    Rules(Chain),
    /// These rules behind those of the chain.
    MoreRules(Chain),
    /// No rules in the chain of this name.
    Flush(String),
    RemoveChain(String),
    RemoveSet(String),
    RemoveFlowtable(String),
    RemoveCounter(String),
}

/// The messages of `edits`, in their order. `flags`: of the table.
pub fn messages(table: &str, flags: u32, edits: &[TableEdit]) -> Vec<Message> {
    let numbered = (1..).zip(edits);
    let messages = |(number, edit): (u32, &TableEdit)| match edit {
        TableEdit::Table { comment } => vec![message::add_table(table, comment, flags)],
        edit => edit.inside(table, number),
    };
    numbered.flat_map(messages).collect()
}

impl TableEdit {
    /// Of what is in the table. `number`: unique in the transaction.
    fn inside(&self, table: &str, number: u32) -> Vec<Message> {
        match self {
            TableEdit::Table { .. } => Vec::new(),
            TableEdit::AddSet(set) => {
                let elements = message::add_elements(table, (&set.name, &set.shape), &set.elements);
                [vec![message::add_set(table, set, number)], elements].concat()
            }
            TableEdit::Elements(change) => {
                message::change_elements(table, std::slice::from_ref(change))
            }
            TableEdit::AddCounter(name) => {
                let counter =
                    Attributes::new().be64(list::COUNTER_BYTES, 0).be64(list::COUNTER_PACKETS, 0);
                let place = counter_of(table, name).nest(object::DATA, counter);
                let what = format!("add counter {name} to table inet {table}");
                vec![inet(what, kind::NEW_OBJECT, NlmF::CREATE, place)]
            }
            TableEdit::AddChain(chain) => vec![message::add_chain(table, chain)],
            TableEdit::Rules(chain) => {
                let rules = chain.rules.iter().map(|rule| message::add_rule(table, chain, rule));
                [message::flush_chain(table, &chain.name)].into_iter().chain(rules).collect()
            }
            TableEdit::MoreRules(chain) => {
                chain.rules.iter().map(|rule| message::add_rule(table, chain, rule)).collect()
            }
            TableEdit::Flush(name) => vec![message::flush_chain(table, name)],
            TableEdit::RemoveChain(name) => vec![remove(CHAIN, table, name)],
            TableEdit::RemoveSet(name) => vec![remove(SET, table, name)],
            TableEdit::RemoveFlowtable(name) => vec![remove(FLOWTABLE, table, name)],
            TableEdit::RemoveCounter(name) => {
                let what = format!("delete counter {name} of table inet {table}");
                vec![inet(what, kind::DELETE_OBJECT, NlmF::empty(), counter_of(table, name))]
            }
        }
    }
}

fn counter_of(table: &str, name: &str) -> Attributes {
    let place = Attributes::new().text(object::TABLE, table).text(object::NAME, name);
    place.be32(object::TYPE, object::COUNTER)
}

/// What can be removed by its name: the word for it, the message, and the attributes of its table and name.
type Removable = (&'static str, u16, [u16; 2]);

const CHAIN: Removable = ("chain", kind::DELETE_CHAIN, [chain::TABLE, chain::NAME]);
const SET: Removable = ("set", kind::DELETE_SET, [set::TABLE, set::NAME]);
const FLOWTABLE: Removable =
    ("flow table", kind::DELETE_FLOWTABLE, [flowtable::TABLE, flowtable::NAME]);

fn remove((what, kind, [of, named]): Removable, table: &str, name: &str) -> Message {
    let place = Attributes::new().text(of, table).text(named, name);
    inet(format!("delete {what} {name} of table inet {table}"), kind, NlmF::empty(), place)
}
