//! Policies in force on this host: what their sources say, and the pods that they concern.

mod asked;
mod file;
mod kept;
mod pods;
mod sources;

pub use asked::{Asked, listen};
pub use file::read;
pub use kept::{FILE as KEPT, keep, kept};
pub use pods::Pods;
pub use sources::Policies;
