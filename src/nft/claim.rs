//! Tables that one handle alone changes: neither `nft flush ruleset` nor anything else of another program
//! reaches them while the handle is open. They stay when it is closed, and are anybody's then.

use nix::errno::Errno;

use crate::netlink::NetlinkError;
use crate::nft::{Nft, message};

impl Nft {
    /// Takes the table of this name for this handle alone, now or as soon as the handle makes it. False:
    /// the kernel cannot do that (before Linux 6.9), the table was made without, or another handle has it.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn claim(&self, table: &str) -> Result<bool, NetlinkError> {
        let is_there = self.tables()?.iter().any(|name| name == table);
        let messages = match is_there {
            true => message::claim(table),
            false => message::claim_and_delete(table),
        };
        let is_own = match self.transact(messages) {
            Ok(()) => true,
            // Unknown flags are invalid or not supported, and what is another's is not permitted.
            Err(error) => match error.errno() {
                Some(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EPERM) => false,
                _ => return Err(error),
            },
        };
        self.set_own(table, is_own);
        Ok(is_own)
    }
}
