//! Whether anybody else has changed a table, by the kernel's notifications: the generation alone says
//! that some table has changed, and on a busy host one always has.

use std::time::Duration;

use nix::errno::Errno;

use crate::netlink::{Monitor, NetlinkError, NetlinkProtocol, Reply};
use crate::nft::{Nft, TableFamily, found};

/// NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const GROUP: u32 = 7;

/// NFT_MSG_NEWGEN of linux/netfilter/nf_tables.h: the end of a transaction's notifications.
const NEW_GENERATION: u16 = 10 << 8 | 15;

/// In every message the name of the table that it is about.
const TABLE: u16 = 1;

/// Hears all changes of a table of the family `inet`.
#[derive(Debug)]
pub struct TableWatch {
    monitor: Monitor,
    table: String,
    /// The netlink port of the handle whose changes are expected.
    own: u32,
    /// The transaction whose end has not come yet changes the table, and is somebody else's.
    is_foreign: bool,
}

impl TableWatch {
    /// Hears from now on of changes to `table`, but for those made by `nft`.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn open(nft: &Nft, table: &str) -> Result<TableWatch, NetlinkError> {
        let monitor = Monitor::open(NetlinkProtocol::Netfilter, &[GROUP])?;
        let own = nft.port()?;
        Ok(TableWatch { monitor, table: table.to_owned(), own, is_foreign: false })
    }

    /// The last generation up to which no other process has changed the table since the generation `since`;
    /// `None` if somebody has, or may have.
    pub fn unchanged_until(&mut self, since: u32) -> Option<u32> {
        let mut until = Some(since);
        loop {
            let mut is_silent = true;
            let (table, own, is_foreign) = (&self.table, self.own, &mut self.is_foreign);
            let received = self.monitor.wait(Duration::ZERO, |reply| {
                is_silent = false;
                if reply.kind != NEW_GENERATION {
                    *is_foreign |= reply.sender != own && concerns(reply, table);
                    return;
                }
                let was_foreign = std::mem::take(is_foreign);
                until = until.and_then(|until| next(reply, since, until, was_foreign));
            });
            match received {
                Ok(()) if is_silent => return until,
                Ok(()) => {}
                // Notifications were lost; where the socket is of no more use, all later ones are.
                Err(NetlinkError::Malformed(_)) => until = None,
                Err(error) if error.errno() == Some(Errno::ENOBUFS) => until = None,
                Err(_) => return None,
            }
        }
    }
}

/// What cannot be read may concern any table.
fn concerns(reply: &Reply<'_>, table: &str) -> bool {
    let Ok((family, attributes)) = found::parts(reply) else { return true };
    family == TableFamily::Inet && attributes.text(TABLE).is_none_or(|name| name == table)
}

/// The generation after the end of a transaction; `None` if one was missed.
fn next(reply: &Reply<'_>, since: u32, until: u32, is_foreign: bool) -> Option<u32> {
    let generation = found::generation(reply).ok()?;
    let is_old = since.wrapping_sub(generation) < u32::MAX / 2;
    match generation {
        _ if is_old => Some(until),
        next if next == until.wrapping_add(1) && !is_foreign => Some(next),
        _ => None,
    }
}
