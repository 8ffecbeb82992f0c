//! Pure. Differences as a person reads them.

use std::collections::BTreeSet;
use std::fmt;

use crate::net::Object;
use crate::nft::{Element, ElementChange};
use crate::plan::firewall::changes::{TableChange, TableDifference};
use crate::plan::{Describe, Line};

/// How many elements of a set a line names before it only counts them.
const ELEMENTS_SHOWN: usize = 8;

impl Describe for TableChange {
    fn line(&self) -> Line {
        let table = Object::Table(self.table.clone());
        match &self.difference {
            TableDifference::Missing => Line::added(table),
            TableDifference::Unwanted => Line::removed(table),
            difference => Line::changed(table).with(format!(": {difference}")),
        }
    }
}

impl fmt::Display for TableDifference {
    /// What was found, as in `chain forward missing`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableDifference::Missing => f.write_str("missing"),
            TableDifference::Unwanted => f.write_str("not wanted"),
            TableDifference::Dormant => f.write_str("dormant"),
            TableDifference::ChainMissing(name) => write!(f, "chain {name} missing"),
            TableDifference::ChainForeign(name) => write!(f, "chain {name} not ours"),
            TableDifference::ChainDiffers(name, found, wanted) => {
                write!(f, "chain {name} is \"{found}\" and not \"{wanted}\"")
            }
            TableDifference::RuleMissing(chain, rule) => {
                write!(f, "rule missing in chain {chain}: {rule}")
            }
            TableDifference::RuleForeign(chain, handle, comment) => {
                write!(f, "rule not ours in chain {chain}: handle {handle}")?;
                comment.iter().try_for_each(|comment| write!(f, ", {comment:?}"))
            }
            TableDifference::RulesDisordered(chain) => {
                write!(f, "rules out of order in chain {chain}")
            }
            TableDifference::SetMissing(name) => write!(f, "set {name} missing"),
            TableDifference::SetForeign(name) => write!(f, "set {name} not ours"),
            TableDifference::SetDiffers(name) => write!(f, "set {name} is of another type"),
            TableDifference::Flowtable(found, wanted) => {
                write!(f, "flow table is {found} and not {wanted}")
            }
            TableDifference::Elements(ElementChange { set, added, removed, .. }) => {
                write!(f, "set {set}:{}{}", elements('+', added), elements('-', removed))
            }
        }
    }
}

/// ` +192.0.2.1 +192.0.2.2`, or ` +300 elements`; nothing for nothing.
fn elements(sign: char, all: &BTreeSet<Element>) -> String {
    match all.len() {
        0..=ELEMENTS_SHOWN => all.iter().map(|element| format!(" {sign}{element}")).collect(),
        count => format!(" {sign}{count} elements"),
    }
}
