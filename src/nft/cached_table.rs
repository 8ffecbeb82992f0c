//! A table that is read again only if it may have changed.

use crate::netlink::NetlinkError;
use crate::nft::{ElementChange, FoundTable, Nft};

/// A table as it was at one generation of the rules: the kernel counts every change of any table, so
/// that this one is unchanged as long as the number is, or has only grown by changes of ours of other tables.
#[derive(Debug, Default)]
pub struct CachedTable {
    cached: Option<(u32, Option<FoundTable>)>,
}

impl CachedTable {
    /// The table `name`, if it is there; read anew only if somebody else has changed some table.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn observe(&mut self, nft: &Nft, name: &str) -> Result<Option<&FoundTable>, NetlinkError> {
        let now = nft.generation()?;
        let is_unchanged = |then: u32| nft.own_steps.borrow().unchanged_until(name, then) == now;
        let found = match self.cached.take() {
            Some((then, found)) if then == now || is_unchanged(then) => found,
            _ => nft.observe(name)?,
        };
        Ok(self.cached.insert((now, found)).1.as_ref())
    }

    /// Applies changes of elements of the table `name` that were just made, if they are the only change since
    /// [`CachedTable::observe`].
    pub fn note_changes(&mut self, nft: &Nft, name: &str, changes: &[ElementChange]) {
        let Some((then, Some(table))) = &mut self.cached else { return };
        let next = then.wrapping_add(1);
        if !nft.generation().is_ok_and(|now| now == next) {
            return;
        }
        *then = next;
        nft.own_steps.borrow_mut().note(next, name);
        for change in changes {
            for set in table.sets.iter_mut().filter(|set| set.name == change.set) {
                set.elements.retain(|element| !change.removed.contains(element));
                set.elements.extend(change.added.iter().cloned());
            }
        }
    }
}
