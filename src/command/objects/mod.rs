//! `net`, `group`, `profile`, `ns`, `pin` and `tenant`: the objects of tenants in etcd, one at a time.

mod declare;
pub mod edit;
pub mod files;
mod found_pins;
mod group;
mod namespace;
mod net;
mod notes;
mod pin;
mod pin_release;
mod profile;
pub mod stored;
mod tenant;
pub mod verbs;

pub use group::GroupCommand;
pub use namespace::NamespaceCommand;
pub use net::NetCommand;
pub use pin::PinCommand;
pub use profile::ProfileCommand;
pub use tenant::{TenantCommand, names as tenants};

use crate::command::call::{Call, Outcome};
use crate::settings::exit::Exit;

/// Answers.
///
/// # Errors
/// What keeps an object from being shown or changed.
pub fn net(call: &mut Call<'_>, options: &NetCommand) -> Result<Outcome, Exit> {
    net::run(call, options)
}

/// Answers.
///
/// # Errors
/// As [`net`].
pub fn group(call: &mut Call<'_>, options: &GroupCommand) -> Result<Outcome, Exit> {
    group::run(call, options)
}

/// Answers.
///
/// # Errors
/// As [`net`].
pub fn profile(call: &mut Call<'_>, options: &ProfileCommand) -> Result<Outcome, Exit> {
    profile::run(call, options)
}

/// Answers.
///
/// # Errors
/// As [`net`].
pub fn pin(call: &mut Call<'_>, options: &PinCommand) -> Result<Outcome, Exit> {
    pin::run(call, options)
}

/// Answers.
///
/// # Errors
/// As [`net`].
pub fn namespace(call: &mut Call<'_>, options: &NamespaceCommand) -> Result<Outcome, Exit> {
    namespace::run(call, options)
}

/// Answers.
///
/// # Errors
/// As [`net`].
pub fn tenant(call: &mut Call<'_>, options: &TenantCommand) -> Result<Outcome, Exit> {
    tenant::run(call, options)
}
