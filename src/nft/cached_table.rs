//! A table that is read again only if it may have changed.

use crate::netlink::NetlinkError;
use crate::nft::{ElementChange, FoundTable, Nft};

/// A table as it was at one generation of the rules: the kernel counts every change of any table, so
/// that this one is unchanged as long as the number is.
#[derive(Debug, Default)]
pub struct CachedTable {
    cached: Option<(u32, Option<FoundTable>)>,
}

impl CachedTable {
    /// The table `name`, if it is there; read anew only if some table has changed.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn observe(&mut self, nft: &Nft, name: &str) -> Result<Option<&FoundTable>, NetlinkError> {
        let now = nft.generation()?;
        let (then, found) = match self.cached.take() {
            Some((then, found)) if then == now => (then, found),
            _ => (now, nft.observe(name)?),
        };
        Ok(self.cached.insert((then, found)).1.as_ref())
    }

    /// Applies changes of elements that were just made, if they are the only change since
    /// [`CachedTable::observe`].
    pub fn note_changes(&mut self, nft: &Nft, changes: &[ElementChange]) {
        let Some((then, Some(table))) = &mut self.cached else { return };
        let next = then.wrapping_add(1);
        if !nft.generation().is_ok_and(|now| now == next) {
            return;
        }
        *then = next;
        for change in changes {
            for set in table.sets.iter_mut().filter(|set| set.name == change.set) {
                set.elements.retain(|element| !change.removed.contains(element));
                set.elements.extend(change.added.iter().cloned());
            }
        }
    }
}
