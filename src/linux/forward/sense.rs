//! Pure. What a rule of nftables does, read from its expressions.

use crate::linux::netlink::{AttributeList, NetlinkError, Reply};
use crate::linux::nft::found;
use crate::linux::nft::numbers::{expression as n, rule, set};
use crate::linux::nft::userdata;

use super::chain::{Direction, ForwardRule, Sense};

/// An expression, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Changes nothing: a counter, a log entry, a comment.
    Passes,
    /// The packet's interface is loaded.
    Interface(Direction),
    /// What was loaded equals these bytes.
    Equals(Vec<u8>),
    Accepts,
    Stops,
    Other,
}

/// The rule in `reply`.
pub fn rule(reply: &Reply<'_>) -> Result<Option<ForwardRule>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let expressions = expressions(&attributes)?;
    let native = attributes.get(rule::USERDATA).and_then(userdata::comment);
    let comment = native.or_else(|| expressions.iter().find_map(xt_comment));
    let steps = expressions.iter().map(step).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(ForwardRule { handle: attributes.be64(rule::HANDLE), sense: sense(&steps), comment }))
}

/// The interfaces that the rule in `reply` compares with.
pub fn interfaces(reply: &Reply<'_>) -> Result<Option<Vec<String>>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let expressions = expressions(&attributes)?;
    let steps = expressions.iter().map(step).collect::<Result<Vec<_>, _>>()?;
    let named = steps.windows(2).filter_map(|pair| match pair {
        [Step::Interface(_), Step::Equals(name)] => Some(text(name)),
        _ => None,
    });
    Ok(Some(named.collect()))
}

/// The name of the set in `reply` if it holds interfaces.
pub fn interface_set(reply: &Reply<'_>) -> Result<Option<String>, NetlinkError> {
    let (_, attributes) = found::parts(reply)?;
    let interfaces = attributes.be32(set::KEY_TYPE) == Some(set::TYPE_IFNAME);
    Ok(attributes.text(set::NAME).filter(|_| interfaces))
}

/// A name as the kernel keeps it: up to the first zero.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn sense(steps: &[Step]) -> Sense {
    let steps: Vec<&Step> = steps.iter().filter(|step| **step != Step::Passes).collect();
    match steps[..] {
        [Step::Stops] => Sense::StopsAll,
        [Step::Interface(direction), Step::Equals(name), Step::Accepts] => match name.last() {
            // Without a final zero it is the start of names, as in `-i cni+`.
            Some(0) => Sense::Accepts(*direction, text(name)),
            _ => Sense::Other,
        },
        _ => Sense::Other,
    }
}

/// Name and data of each expression.
fn expressions(rule: &AttributeList) -> Result<Vec<(String, AttributeList)>, NetlinkError> {
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

fn step((name, data): &(String, AttributeList)) -> Result<Step, NetlinkError> {
    Ok(match name.as_str() {
        "counter" | "log" => Step::Passes,
        "match" if data.text(n::XT_NAME).as_deref() == Some("comment") => Step::Passes,
        "meta" => match data.be32(n::META_KEY) {
            Some(n::INPUT_NAME) => Step::Interface(Direction::In),
            Some(n::OUTPUT_NAME) => Step::Interface(Direction::Out),
            _ => Step::Other,
        },
        "cmp" if data.be32(n::COMPARE_OPERATION) == Some(n::EQUAL) => {
            let value = data.nested(n::COMPARE_DATA)?;
            let value = value.as_ref().and_then(|value| value.get(n::DATA_VALUE));
            value.map_or(Step::Other, |value| Step::Equals(value.to_vec()))
        }
        "immediate" => match verdict(data)? {
            Some(n::ACCEPT) => Step::Accepts,
            Some(n::DROP) => Step::Stops,
            _ => Step::Other,
        },
        "reject" => Step::Stops,
        "target" => match data.text(n::XT_NAME).as_deref() {
            Some("REJECT" | "DROP") => Step::Stops,
            Some("LOG" | "NFLOG") => Step::Passes,
            _ => Step::Other,
        },
        _ => Step::Other,
    })
}

fn verdict(immediate: &AttributeList) -> Result<Option<u32>, NetlinkError> {
    let Some(data) = immediate.nested(n::IMMEDIATE_DATA)? else { return Ok(None) };
    let Some(verdict) = data.nested(n::DATA_VERDICT)? else { return Ok(None) };
    Ok(verdict.be32(n::VERDICT_CODE))
}

/// The comment as iptables-nft writes it: an extension of its own.
fn xt_comment((name, data): &(String, AttributeList)) -> Option<String> {
    let comment = name == "match" && data.text(n::XT_NAME).as_deref() == Some("comment");
    comment.then(|| data.text(n::XT_INFO)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(steps: &[Step], wanted: Sense) {
        assert_eq!(sense(steps), wanted);
    }

    const IN: Step = Step::Interface(Direction::In);

    fn named(name: &[u8]) -> Step {
        Step::Equals(name.to_vec())
    }

    #[test]
    fn accepting_an_interface_is_seen_through_counter_and_comment() {
        let accepts = || Sense::Accepts(Direction::In, "humanz0".to_owned());
        check(&[IN, named(b"humanz0\0"), Step::Passes, Step::Accepts], accepts());
        check(&[Step::Passes, IN, named(b"humanz0\0\0\0\0"), Step::Accepts], accepts());
    }

    #[test]
    fn accepting_only_part_of_an_interface_is_something_else() {
        check(&[IN, named(b"humanz0\0"), Step::Other, Step::Accepts], Sense::Other);
        check(&[IN, named(b"hum"), Step::Accepts], Sense::Other);
    }

    #[test]
    fn only_a_drop_without_condition_stops_all() {
        check(&[Step::Passes, Step::Stops], Sense::StopsAll);
        check(&[IN, named(b"eth0\0"), Step::Stops], Sense::Other);
        check(&[Step::Other, Step::Stops], Sense::Other);
        check(&[], Sense::Other);
    }
}
