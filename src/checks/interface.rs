//! Pure. Interfaces that pass no packets.

use crate::netlink::link::Link;

/// What is wrong with `link`, as it is said behind its name, and what helps; `None` if it passes packets.
pub fn fault(link: &Link) -> Option<(&'static str, String)> {
    let name = &link.name;
    match (link.up, link.carrier) {
        (false, _) => Some(("is down", format!("ip link set {name} up"))),
        (true, false) => {
            let fix = format!("ip link show {name} # it is up: check its cable and the other end");
            Some(("has no carrier", fix))
        }
        (true, true) => None,
    }
}
