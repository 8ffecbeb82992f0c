//! The queue that holds what a pod receives to the rate of its profile, at the host's end of its veth: where the pod's
//! own limit is, inside of that. Source: net/sched/sch_tbf.c.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Rtm, Tca};
use nix::errno::Errno;

use crate::netlink::qdisc::{self, HANDLE as OWN, ROOT, TokenBucket, header};
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// The number of the queue of a profile, 6877:0.
const HANDLE: u32 = 0x6877_0000;

/// That of what takes its place inside of the pod's own limit, 6878:0.
const PLAIN: u32 = 0x6878_0000;

/// The only class of a token bucket.
const INSIDE: u32 = OWN | 1;

/// Where a queue of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePlace {
    /// The pod's own limit.
    Own,
    /// The profile's, alone.
    Alone,
    /// The profile's, inside of the own one.
    Inside,
}

/// A queue of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortQueue {
    /// Index of the link.
    pub device: u32,
    pub place: QueuePlace,
    pub rate_bytes: u64,
    pub limit_bytes: u32,
}

/// Puts the queue of a profile there, or changes it in place. `has_own`: the pod has a limit of its own.
pub fn set(device: u32, bucket: &TokenBucket, has_own: bool) -> Message {
    let parent = if has_own { INSIDE } else { ROOT };
    qdisc::replace_at(device, HANDLE, parent, bucket)
}

/// Takes the queue of a profile away, which is alone. Gone: success.
pub fn delete(device: u32) -> Message {
    let what = format!("take the limit of link {device} by its profile away");
    let header = header(device, HANDLE, ROOT);
    Message::new(what, Rtm::Delqdisc, NlmF::empty(), &header, Attributes::new())
        .tolerating(Errno::ENOENT)
        .tolerating(Errno::EINVAL)
        .tolerating(Errno::ENODEV)
}

/// Puts a queue of bytes in the place of a profile's inside of the own limit: without any, nothing would pass.
pub fn make_plain(device: u32, limit_bytes: u32) -> Message {
    let attributes =
        Attributes::new().text(Tca::Kind, "bfifo").put(Tca::Options, limit_bytes.to_ne_bytes());
    let what = format!("take the limit of link {device} by its profile away (sch_fifo)");
    let flags = NlmF::CREATE | NlmF::REPLACE;
    Message::new(what, Rtm::Newqdisc, flags, &header(device, PLAIN, INSIDE), attributes)
        .tolerating(Errno::ENODEV)
}

/// Asks for the queue of a profile of one link, as [`qdisc::get`] does for the pod's own.
pub fn get(device: u32) -> Message {
    qdisc::get_at(device, HANDLE)
}

/// Asks for the queues of all links.
pub fn list() -> Message {
    Message::new("list queues", Rtm::Getqdisc, NlmF::empty(), &header(0, 0, 0), Attributes::new())
}

/// The queue in an answer; `None` if it is none of ours.
pub fn parse(reply: &Reply<'_>) -> Result<Option<PortQueue>, NetlinkError> {
    let (header, Some((rate_bytes, limit_bytes))) = qdisc::listed(reply)? else { return Ok(None) };
    let place = match (*header.tcm_handle(), *header.tcm_parent()) {
        (OWN, ROOT) => QueuePlace::Own,
        (HANDLE, ROOT) => QueuePlace::Alone,
        (HANDLE, INSIDE) => QueuePlace::Inside,
        _ => return Ok(None),
    };
    let device = header.tcm_ifindex().cast_unsigned();
    Ok(Some(PortQueue { device, place, rate_bytes, limit_bytes }))
}
