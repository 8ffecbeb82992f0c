//! Queues at the end of a link: the token bucket. Source: tc-tbf(8), linux/pkt_sched.h, and
//! net/sched/sch_tbf.c for what the kernel accepts and lists.

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Rtm, Tca};
use neli::rtnl::{Tcmsg, TcmsgBuilder};
use nix::errno::Errno;

use crate::netlink::{Attributes, Message, NetlinkError, Reply};

/// Bytes of `struct tcmsg`.
pub(super) const HEADER: usize = 20;

/// TC_H_ROOT: the queue that everything leaves by.
pub(super) const ROOT: u32 = 0xffff_ffff;

/// The number of our queue, 6875:0 ("hu").
pub(super) const HANDLE: u32 = 0x6875_0000;

/// TCA_TBF_PARMS, TCA_TBF_RATE64 and TCA_TBF_BURST.
const PARMS: u16 = 1;
const RATE64: u16 = 4;
const BURST: u16 = 6;

/// TC_LINKLAYER_ETHERNET: frames take as many bytes as they have, and no table says otherwise.
const ETHERNET: u8 = 1;

/// Bytes of `struct tc_tbf_qopt`: two `struct tc_ratespec` of 12, then limit, buffer and mtu.
const QOPT: usize = 36;

/// Where in it the link layer, the rate and the limit are.
const LINK_LAYER: usize = 1;
const RATE: usize = 8;
const LIMIT: usize = 24;

/// A queue that lets bytes pass at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes in a second, at least 1.
    pub rate_bytes: u64,
    /// What may pass at once after a silence, in bytes. A packet that is larger is dropped.
    pub burst_bytes: u32,
    /// What may wait, in bytes.
    pub limit_bytes: u32,
}

/// Puts a token bucket where everything leaves the link, in the place of whatever was there.
///
/// On a link that is up this waits for a grace period of the kernel (net/sched/sch_generic.c,
/// dev_deactivate); on one that is still down it does not.
pub fn replace(device: u32, bucket: &TokenBucket) -> Message {
    replace_at(device, HANDLE, ROOT, bucket)
}

/// Puts a token bucket with this number below `parent`, in the place of whatever was there.
pub(super) fn replace_at(device: u32, handle: u32, parent: u32, bucket: &TokenBucket) -> Message {
    let rate = u32::try_from(bucket.rate_bytes).unwrap_or(u32::MAX);
    let mut qopt = [0; QOPT];
    qopt[LINK_LAYER] = ETHERNET;
    qopt[RATE..RATE + 4].copy_from_slice(&rate.to_ne_bytes());
    qopt[LIMIT..LIMIT + 4].copy_from_slice(&bucket.limit_bytes.to_ne_bytes());
    let large = (rate == u32::MAX).then_some(bucket.rate_bytes.to_ne_bytes());
    let options =
        Attributes::new().put(PARMS, qopt).put_some(RATE64, large).u32(BURST, bucket.burst_bytes);
    let attributes = Attributes::new().text(Tca::Kind, "tbf").nest(Tca::Options, options);
    let flags = NlmF::CREATE | NlmF::REPLACE;
    let what = format!("limit link {device} to {} bytes a second (sch_tbf)", bucket.rate_bytes);
    Message::new(what, Rtm::Newqdisc, flags, &header(device, handle, parent), attributes)
}

/// Takes our queue away again; the link has the one it was born with. None there, or another:
/// success.
pub fn delete(device: u32) -> Message {
    let what = format!("take the limit of link {device} away");
    Message::new(
        what,
        Rtm::Delqdisc,
        NlmF::empty(),
        &header(device, HANDLE, ROOT),
        Attributes::new(),
    )
    .tolerating(Errno::ENOENT)
    .tolerating(Errno::EINVAL)
    .tolerating(Errno::ENODEV)
}

/// Asks for our queue of a link; `ENOENT` if there is none. The kernel answers by way of its
/// notifications, so only to those who want an echo.
pub fn get(device: u32) -> Message {
    get_at(device, HANDLE)
}

/// Asks for the queue with this number.
pub(super) fn get_at(device: u32, handle: u32) -> Message {
    let what = format!("get the limit of link {device}");
    Message::new(what, Rtm::Getqdisc, NlmF::ECHO, &header(device, handle, 0), Attributes::new())
}

/// The rate of the queue in an answer, bytes in a second; `None` if it is no token bucket.
pub fn parse(reply: &Reply<'_>) -> Result<Option<u64>, NetlinkError> {
    Ok(listed(reply)?.1.map(|(rate_bytes, _)| rate_bytes))
}

/// A queue in an answer, with rate and limit in bytes if it is a token bucket.
pub(super) fn listed(reply: &Reply<'_>) -> Result<(Tcmsg, Option<(u64, u32)>), NetlinkError> {
    let (header, attributes) = reply.parse::<Tcmsg>(HEADER)?;
    if attributes.text(Tca::Kind).as_deref() != Some("tbf") {
        return Ok((header, None));
    }
    let options = attributes.nested(Tca::Options)?;
    let large = options.as_ref().and_then(|options| options.array(RATE64)).map(u64::from_ne_bytes);
    let qopt: Option<[u8; QOPT]> = options.and_then(|options| options.array(PARMS));
    let number = |at: usize| Some(u32::from_ne_bytes(*qopt?[at..].first_chunk()?));
    let rate = large.or(number(RATE).map(u64::from));
    Ok((header, rate.zip(number(LIMIT))))
}

/// `struct tcmsg`.
pub(super) fn header(device: u32, handle: u32, parent: u32) -> Tcmsg {
    let header = TcmsgBuilder::default()
        .tcm_family(0)
        .tcm_ifindex(device.cast_signed())
        .tcm_handle(handle)
        .tcm_parent(parent)
        .tcm_info(0);
    header.build().expect("every field without a default is set")
}
