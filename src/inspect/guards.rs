//! The ports of a network's pods with their guards.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ipam::{Store, StoreEntry, StoreError};
use crate::net::Mac;
use crate::net::gather::Gather;
use crate::netlink::NetlinkError;
use crate::netlink::link::Link;
use crate::netlink::neighbour::NeighbourState;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::frame::FoundFrames;
use crate::plan::guard::{FoundPorts, TABLE, all_sets};

/// What the kernel and the store have of the pods of a bridge.
pub struct FoundGuards {
    /// Links that are up were so before the guards were read: they have theirs, and one that comes
    /// meanwhile belongs to an ADD. All were still there when MACs and neighbours had been read.
    pub links: Vec<Link>,
    pub frames: Option<FoundFrames>,
    entries: Vec<StoreEntry>,
    pinned: Vec<(Mac, u32)>,
    neighbours: Vec<NeighbourState>,
}

/// Why they could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error(transparent)]
    Kernel(#[from] NetlinkError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FoundGuards {
    /// # Errors
    /// [`Unread`].
    pub fn observe(
        rtnl: &Rtnl,
        nft: &Nft,
        bridge: &Link,
        store: &Store,
    ) -> Result<FoundGuards, Unread> {
        let up: BTreeSet<u32> =
            rtnl.links(None)?.iter().filter(|link| link.up).map(|link| link.index).gather();
        let frames = nft.frames(TABLE, &all_sets())?;
        let mut links = rtnl.links(None)?;
        links.retain(|link| !link.up || up.contains(&link.index));
        let entries = store.contents()?.entries.into_iter().map(Arc::unwrap_or_clone).collect();
        let (pinned, neighbours) = (rtnl.pinned(bridge.index)?, rtnl.neighbours(bridge.index)?);
        let there: BTreeSet<u32> = rtnl.links(None)?.iter().map(|link| link.index).gather();
        links.retain(|link| there.contains(&link.index));
        Ok(FoundGuards { links, frames, entries, pinned, neighbours })
    }

    /// For [`crate::plan::guard::ports`].
    pub fn ports(&self) -> FoundPorts<'_> {
        let FoundGuards { links, entries, pinned, neighbours, .. } = self;
        FoundPorts { links, entries, pinned, neighbours }
    }
}
