//! What the kernel can do: asked with changes that are never made.

use nix::errno::Errno;

use crate::netlink::NetlinkError;
use crate::nft::{Nft, TableEdit, edit, message};

/// No table of anybody has this name.
const TABLE: &str = "humanz-probe";

impl Nft {
    /// Whether the kernel has all that `edits` of a new table are made of; it loads modules for that if it can. The
    /// batch has no end, and so the kernel makes nothing of it. Source: `nfnetlink_rcv_batch` of Linux.
    ///
    /// # Errors
    /// [`NetlinkError`]: refused for another reason than that something is not there.
    pub fn can(&self, edits: &[TableEdit]) -> Result<bool, NetlinkError> {
        let table = [TableEdit::Table { comment: String::new() }];
        let asked = edit::messages(TABLE, 0, &[&table, edits].concat());
        let mut batch = message::transaction(asked);
        batch.pop();
        match self.socket().transact(&batch) {
            Ok(()) => Ok(true),
            Err(error) => match error.errno() {
                Some(Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => Ok(false),
                _ => Err(error),
            },
        }
    }
}
