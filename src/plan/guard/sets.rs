//! Pure. The sets that hold what each pod is, by the index of the host's end of its veth: an index is not
//! given to another link for a long time.

use crate::net::Family;
use crate::nft::{Set, Shape, Type};

/// Index, MAC, address: what unicast and ARP come from.
pub const OWN4: &str = "own4";
pub const OWN6: &str = "own6";
/// Index, MAC, address: what NDP comes from and speaks of, with the link-local address.
pub const ND6: &str = "nd6";
/// Index, MAC.
pub const MAC: &str = "mac";
/// The MAC of the host's end by its index, where the host routes.
pub const PORT: &str = "port";

/// Priority and device by the index, of pods with a limit: a table without such pods need not have it.
pub const SHAPED: &str = "shaped";

/// That map, without elements.
pub fn shaped() -> Set {
    let shape = Shape::map([Type::InterfaceIndex], [Type::Mark, Type::InterfaceIndex]);
    Set { name: SHAPED.to_owned(), shape, elements: Default::default() }
}

/// All others, without elements.
pub fn sets() -> Vec<Set> {
    let own = |address| Shape::set([Type::InterfaceIndex, Type::Mac, address]);
    [
        (OWN4, own(Type::Inner(Family::V4))),
        (OWN6, own(Type::Inner(Family::V6))),
        (ND6, own(Type::Inner(Family::V6))),
        (MAC, Shape::set([Type::InterfaceIndex, Type::Mac])),
        (PORT, Shape::map([Type::InterfaceIndex], [Type::Mac])),
    ]
    .map(|(name, shape)| Set { name: name.to_owned(), shape, elements: Default::default() })
    .into()
}
