//! The table of policies as it is known to be: read again only if somebody else may have changed it.

use crate::net::gather::Gather;
use crate::netlink::NetlinkError;
use crate::nft::{Nft, TableEdit, TableWatch};
use crate::plan::policy_table::FoundPolicy;
use crate::policy::compile::{POLICY_TABLE, PolicyTable};

/// The table at one generation of all rules (`None`: there is none), with what was changed here since.
#[derive(Debug, Default)]
pub struct KnownTable {
    known: Option<(u32, Option<FoundPolicy>)>,
    /// It was read, and not yet compared with what is wanted.
    is_read: bool,
    /// It was claimed, or cannot be.
    is_claimed: bool,
    watch: Option<TableWatch>,
}

impl KnownTable {
    /// The table, if it is there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn observe(&mut self, nft: &Nft) -> Result<Option<&FoundPolicy>, NetlinkError> {
        let now = nft.generation()?;
        let known = self.known.take();
        let known = known.and_then(|(then, found)| Some((self.unchanged(then, now)?, found)));
        let known = match known {
            Some(known) => known,
            None => {
                self.watch = TableWatch::open(nft, POLICY_TABLE).ok();
                (self.is_read, self.is_claimed) = (true, false);
                (nft.generation()?, read(nft)?)
            }
        };
        Ok(self.known.insert(known).1.as_ref())
    }

    /// The table, if it is there; parts of it that are as in `wanted` are the same values.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn compare(
        &mut self,
        nft: &Nft,
        wanted: &PolicyTable,
    ) -> Result<Option<&FoundPolicy>, NetlinkError> {
        self.observe(nft)?;
        let found = self.known.as_mut().and_then(|(_, found)| found.as_mut());
        if std::mem::take(&mut self.is_read)
            && let Some(found) = found
        {
            found.share(wanted);
        }
        Ok(self.known.as_ref().and_then(|(_, found)| found.as_ref()))
    }

    /// Makes these changes on the way to `wanted`, of which each is done whole or not at all.
    ///
    /// # Errors
    /// [`NetlinkError`]: which of them were made is not known.
    pub fn edit(
        &mut self,
        nft: &Nft,
        transactions: &[Vec<TableEdit>],
        wanted: &PolicyTable,
    ) -> Result<(), NetlinkError> {
        let known = self.known.take();
        nft.edit(POLICY_TABLE, transactions)?;
        self.known = known.map(|(then, found)| {
            let mut found = found.unwrap_or_else(FoundPolicy::empty);
            transactions.iter().for_each(|edits| found.note(edits, wanted));
            (then, Some(found))
        });
        Ok(())
    }

    /// No other process has changed it since it was compared with what is wanted.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn is_as_made(&mut self, nft: &Nft) -> Result<bool, NetlinkError> {
        self.observe(nft)?;
        Ok(!self.is_read)
    }

    /// No other program changes it from now on, where the kernel can see to that.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn claim(&mut self, nft: &Nft) -> Result<(), NetlinkError> {
        if !self.is_claimed {
            let is_own = nft.claim(POLICY_TABLE)?;
            log::debug!("table inet {POLICY_TABLE} is closed to other programs: {is_own}");
            self.is_claimed = true;
        }
        Ok(())
    }

    /// It is read again in any case.
    pub fn forget(&mut self) {
        *self = KnownTable::default();
    }

    /// A generation not before `now` in which the table is as it was in `then`, but for own changes.
    fn unchanged(&mut self, then: u32, now: u32) -> Option<u32> {
        if then == now {
            return Some(now);
        }
        let until = self.watch.as_mut()?.unchanged_until(then)?;
        Some(until).filter(|until| until.wrapping_sub(now) < u32::MAX / 2)
    }
}

fn read(nft: &Nft) -> Result<Option<FoundPolicy>, NetlinkError> {
    let Some(table) = nft.observe(POLICY_TABLE)? else { return Ok(None) };
    let counters = nft.counters(POLICY_TABLE)?.into_keys().gather();
    Ok(Some(FoundPolicy::new(table, counters)))
}
