//! A table that is read again only if it may have changed.

use crate::netlink::NetlinkError;
use crate::nft::{ElementChange, FoundTable, Nft};

/// A table as it was at one generation of the rules: the kernel counts every change of any table, so
/// that as long as the number is the same nobody has touched this one.
#[derive(Debug, Default)]
pub struct SeenTable {
    seen: Option<(u32, Option<FoundTable>)>,
}

impl SeenTable {
    /// The table `name`, if it is there; read anew only if some table has changed.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn look(&mut self, nft: &Nft, name: &str) -> Result<Option<&FoundTable>, NetlinkError> {
        let now = nft.generation()?;
        let (then, found) = match self.seen.take() {
            Some((then, found)) if then == now => (then, found),
            _ => (now, nft.observe(name)?),
        };
        Ok(self.seen.insert((then, found)).1.as_ref())
    }

    /// Takes in that elements of its sets were changed, if that was the only change since the look.
    pub fn take_in(&mut self, nft: &Nft, changes: &[ElementChange]) {
        let Some((then, Some(table))) = &mut self.seen else { return };
        let next = then.wrapping_add(1);
        if !nft.generation().is_ok_and(|now| now == next) {
            return;
        }
        *then = next;
        for change in changes {
            for set in table.sets.iter_mut().filter(|set| set.name == change.set.name) {
                set.elements.retain(|element| !change.removed.contains(element));
                set.elements.extend(&change.added);
            }
        }
    }
}
