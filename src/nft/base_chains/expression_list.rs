//! Pure. The expressions of a rule of nftables.

use std::collections::BTreeSet;

use crate::net::gather::Gather;
use crate::netlink::{AttributeList, NetlinkError};
use crate::nft::numbers::{expression as n, rule};

/// Name and data of an expression.
pub type Expression<'a> = (String, AttributeList<'a>);

/// The expressions in the attributes of a rule.
///
/// # Errors
/// [`NetlinkError::Malformed`].
pub fn expressions<'a>(rule: &AttributeList<'a>) -> Result<Vec<Expression<'a>>, NetlinkError> {
    let Some(list) = rule.nested(rule::EXPRESSIONS)? else { return Ok(Vec::new()) };
    let mut expressions = Vec::new();
    for (_, expression) in list.iter() {
        let expression = AttributeList::parse(expression)?;
        let data = match expression.nested(n::DATA)? {
            Some(data) => data,
            None => AttributeList::parse(&[])?,
        };
        expressions.extend(expression.text(n::NAME).map(|name| (name, data)));
    }
    Ok(expressions)
}

/// The sets and maps that a rule looks into.
pub fn set_names(expressions: &[Expression]) -> BTreeSet<String> {
    let lookups = expressions.iter().filter(|(name, _)| name == "lookup");
    lookups.filter_map(|(_, data)| data.text(n::LOOKUP_SET)).gather()
}
