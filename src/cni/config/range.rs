//! Pure. Ranges of pod addresses as they stand in the configuration.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// One range as written, in the shape of host-local's `ranges[][]`; a range set is a list of them
/// and gives a pod one address.
///
/// Only its syntax has been looked at. Whether the subnet has host bits, is wide enough, contains
/// the three addresses, or meets another range, is for `ipam::pool` to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeConf {
    /// The subnet; host bits are kept as they were written.
    pub subnet: IpNetwork,
    /// First address to hand out; absent: the first host address.
    pub range_start: Option<IpAddr>,
    /// Last address to hand out; absent: the last host address.
    pub range_end: Option<IpAddr>,
    /// The gateway, never handed out; absent: the first host address.
    pub gateway: Option<IpAddr>,
}
