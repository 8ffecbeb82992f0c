//! Pure. A block with the network that its host took it for.

use ipnetwork::IpNetwork;

use crate::lease::records::{NodeName, Roots};
use crate::net::shown::shown;

/// Characters of a network's name that are kept.
const NAME_SHOWN: usize = 200;

/// A key of a block, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    pub host: NodeName,
    pub block: IpNetwork,
    /// As the host wrote it: `tenant/name`.
    pub network: Box<str>,
}

impl HeldBlock {
    /// `None`: it is no key of a block.
    pub fn read(roots: &Roots, key: &[u8], value: &[u8]) -> Option<HeldBlock> {
        let (host, block) = roots.held_block(key)?;
        let network = shown(&String::from_utf8_lossy(value), NAME_SHOWN).into();
        Some(HeldBlock { host, block, network })
    }
}
