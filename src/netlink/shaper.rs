//! A device that what several pods send passes at the rate of each: hierarchical token buckets, a class for each
//! pod, found by the packet's priority. Source: tc-htb(8), linux/pkt_sched.h, and net/sched/sch_htb.c for what the
//! kernel accepts and lists.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifla, IflaInfo, RtAddrFamily, Rtm, Tca};
use neli::rtnl::Tcmsg;
use nix::errno::Errno;

use crate::net::IfName;
use crate::netlink::link::{self, LinkChange, LinkRef};
use crate::netlink::qdisc::header;
use crate::netlink::wire::link_header;
use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// What a device of this kind gets it takes in again, as from the link that it came in by.
pub const KIND: &str = "ifb";

/// Bytes of `struct tcmsg`.
const HEADER: usize = 20;

/// TC_H_ROOT.
const ROOT: u32 = 0xffff_ffff;

/// The number of the queueing discipline, 6876:0; a class has its own behind it.
const HANDLE: u32 = 0x6876_0000;

/// TCA_HTB_PARMS, TCA_HTB_INIT, TCA_HTB_RATE64 and TCA_HTB_CEIL64.
const PARMS: u16 = 1;
const INIT: u16 = 2;
const RATE64: u16 = 6;
const CEIL64: u16 = 7;

/// The version of `struct tc_htb_glob`, and its rate2quantum.
const VERSION: u32 = 3;
const RATE_TO_QUANTUM: u32 = 10;

/// Bytes that a class sends at a turn: of no matter, as no class borrows from another.
const QUANTUM: u32 = 10_000;

/// TC_LINKLAYER_ETHERNET: frames take as many bytes as they have.
const ETHERNET: u8 = 1;

/// Bytes of `struct tc_htb_opt`: two `struct tc_ratespec` of 12, then buffer, cbuffer, quantum, level and prio.
const OPTIONS: usize = 44;

/// Where in it link layer and rate of each ratespec are, and the buffer.
const LINK_LAYER: [usize; 2] = [1, 13];
const RATE: [usize; 2] = [8, 20];
const BUFFER: [usize; 2] = [24, 28];
const QUANTUM_AT: usize = 32;

/// Nanoseconds of the kernel's unit of such times (PSCHED_SHIFT).
const TICK_NANOS: u128 = 64;

/// The rate of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapedClass {
    /// Bytes in a second, at least 1.
    rate_bytes: u64,
    /// What may pass at once after a silence, as the time that it takes at the rate.
    burst_ticks: u32,
}

impl ShapedClass {
    pub fn new(rate_bytes: u64, burst_bytes: u32) -> ShapedClass {
        let rate_bytes = rate_bytes.max(1);
        let nanos = u128::from(burst_bytes) * 1_000_000_000 / u128::from(rate_bytes);
        let burst_ticks = u32::try_from(nanos / TICK_NANOS).unwrap_or(u32::MAX).max(1);
        ShapedClass { rate_bytes, burst_ticks }
    }
}

/// The priority that leads a packet to the class with this number; without such a class it passes at once.
pub fn priority(class: u16) -> u32 {
    HANDLE | u32::from(class)
}

/// Makes the device, with this text that says whose it is, and sets it up.
pub fn add_device(name: &IfName, alias: &str) -> [Message; 2] {
    let info = Attributes::new().text(IflaInfo::Kind, KIND);
    let attributes = Attributes::new()
        .text(Ifla::Ifname, name.as_str())
        .u32(Ifla::NumTxQueues, 1)
        .nest(Ifla::Linkinfo, info);
    let header = link_header(RtAddrFamily::Unspecified, 0, false);
    let what = format!("create device {name} (ifb)");
    let create = Message::new(what, Rtm::Newlink, NlmF::CREATE | NlmF::EXCL, &header, attributes);
    let mark = LinkChange { alias: Some(alias.to_owned()), up: true, ..LinkChange::default() };
    [create, link::change(LinkRef::Name(name), &mark)]
}

/// Makes the queueing discipline of the device; it is there: success.
pub fn add_root(device: u32) -> Message {
    let glob = [VERSION, RATE_TO_QUANTUM, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let options = Attributes::new().put(INIT, glob);
    let attributes = Attributes::new().text(Tca::Kind, "htb").nest(Tca::Options, options);
    let what = format!("add classes to device {device} (sch_htb)");
    let flags = NlmF::CREATE | NlmF::EXCL;
    Message::new(what, Rtm::Newqdisc, flags, &header(device, HANDLE, ROOT), attributes)
        .tolerating(Errno::EEXIST)
}

/// Makes the class with this number, or changes it.
pub fn set_class(device: u32, class: u16, wanted: &ShapedClass) -> Message {
    let rate = u32::try_from(wanted.rate_bytes).unwrap_or(u32::MAX);
    let mut parms = [0; OPTIONS];
    for at in LINK_LAYER {
        parms[at] = ETHERNET;
    }
    for (places, value) in [(RATE, rate), (BUFFER, wanted.burst_ticks)] {
        for at in places {
            parms[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
    }
    parms[QUANTUM_AT..QUANTUM_AT + 4].copy_from_slice(&QUANTUM.to_ne_bytes());
    let large = (rate == u32::MAX).then_some(wanted.rate_bytes.to_ne_bytes());
    let options =
        Attributes::new().put(PARMS, parms).put_some(RATE64, large).put_some(CEIL64, large);
    let attributes = Attributes::new().text(Tca::Kind, "htb").nest(Tca::Options, options);
    let what = format!("limit class {class} to {} bytes a second (sch_htb)", wanted.rate_bytes);
    let flags = NlmF::CREATE | NlmF::REPLACE;
    let header = header(device, priority(class), HANDLE);
    Message::new(what, Rtm::Newtclass, flags, &header, attributes)
}

/// Removes the class with this number; none there: success.
pub fn delete_class(device: u32, class: u16) -> Message {
    let header = header(device, priority(class), 0);
    let what = format!("remove the limit of class {class}");
    Message::new(what, Rtm::Deltclass, NlmF::empty(), &header, Attributes::new())
        .tolerating(Errno::ENOENT)
}

/// Asks for the classes of a device.
pub fn list(device: u32) -> Message {
    let header = header(device, 0, 0);
    let what = format!("list classes of device {device}");
    Message::new(what, Rtm::Gettclass, NlmF::empty(), &header, Attributes::new())
}

/// The class in an answer, with its number; `None` if it is none of ours.
pub fn parse(reply: &Reply<'_>) -> Result<Option<(u16, ShapedClass)>, NetlinkError> {
    let (header, attributes) = reply.parse::<Tcmsg>(HEADER)?;
    let handle = *header.tcm_handle();
    if handle & 0xffff_0000 != HANDLE {
        return Ok(None);
    }
    let Some(options) = attributes.nested(Tca::Options)? else { return Ok(None) };
    let Some(parms) = options.array::<OPTIONS>(PARMS) else { return Ok(None) };
    let number = |at: usize| parms[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let large = options.array(RATE64).map(u64::from_ne_bytes);
    let rate_bytes = large.or(number(RATE[0]).map(u64::from)).unwrap_or(0);
    let burst_ticks = number(BUFFER[0]).unwrap_or(0);
    let class = u16::try_from(handle & 0xffff).unwrap_or(0);
    Ok(Some((class, ShapedClass { rate_bytes, burst_ticks })))
}
