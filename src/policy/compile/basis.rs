//! Pure. What every part of a table depends on.

use ipnetwork::IpNetwork;

use crate::net::{Family, subnet};
use crate::policy::compile::mark::MarkBits;
use crate::policy::compile::table::HostPolicy;
use crate::policy::rule::Rules;

/// The table is made anew where it changes.
#[derive(Debug, PartialEq, Eq)]
pub struct TableBasis {
    pub rules: Rules,
    pub families: Vec<Family>,
    pub mark_bits: MarkBits,
    pub log_group: u16,
}

impl TableBasis {
    pub fn of(host: &HostPolicy<'_>, networks: &[IpNetwork]) -> TableBasis {
        let has = |family: &Family| networks.iter().any(|it| subnet::family(*it) == *family);
        TableBasis {
            rules: host.known.rules.clone(),
            families: Family::BOTH.into_iter().filter(has).collect(),
            mark_bits: host.mark_bits,
            log_group: host.log_group,
        }
    }
}
