//! Pure. What changed objects change on one host: its rules, and the verdicts between its pods and their peers.

mod compare;
mod other_ends;
mod replace;
mod services;
#[cfg(test)]
mod tests;

pub use compare::{ChangedVerdict, TooMany, compare, conditions, verdict};
pub use other_ends::{OtherEnd, Surroundings};
pub use replace::{Replaced, replaced};
pub use services::{PodKind, alike, in_family, services};
