//! Pure. What changed objects change on one host: its rules, and the verdicts between its pods and their peers.

mod compare;
mod costs;
mod other_ends;
mod replace;
mod services;
#[cfg(test)]
mod tests;

pub use compare::{ChangedVerdict, compare, verdict};
pub use costs::{RuleCosts, TooMany, refuse_looks};
pub use other_ends::{OtherEnd, Surroundings};
pub use replace::{Replaced, replaced};
pub use services::{PodKind, alike, by_family, concerning, in_family, named_ports, services};
