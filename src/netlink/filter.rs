//! A filter at a link's ingress that no flush of nftables takes away. Source: tc-bpf(8),
//! linux/pkt_cls.h, linux/filter.h, and net/sched/cls_bpf.c (a classic program whose result is the
//! action).

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Rtm, Tca};
use neli::rtnl::{Tcmsg, TcmsgBuilder};
use nix::errno::Errno;

use crate::netlink::{Attributes, Message};

/// TC_H_CLSACT, which is TC_H_INGRESS too, and the place of its filters for what comes in.
const CLSACT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;

/// The number of the queueing discipline at [`CLSACT`].
const HANDLE: u32 = 0xffff_0000;

/// Ours among the filters: the first place, 6875 ("hu") as its number.
const PRIORITY: u32 = 1;
const FILTER: u32 = 0x6875;

/// ETH_P_IP of linux/if_ether.h.
const IPV4: u16 = 0x0800;

/// TCA_BPF_OPS_LEN, TCA_BPF_OPS, TCA_BPF_FLAGS; TCA_BPF_FLAG_ACT_DIRECT.
const LENGTH: u16 = 4;
const PROGRAM: u16 = 5;
const FLAGS: u16 = 8;
const RESULT_IS_ACTION: u32 = 1;

/// Instructions: BPF_LD|BPF_B|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K.
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// TC_ACT_SHOT and TC_ACT_UNSPEC.
const DROP: u32 = 2;
const NEXT_FILTER: u32 = u32::MAX;

/// Where the destination is in an IPv4 packet behind an Ethernet header.
const DESTINATION: u32 = 14 + 16;

/// Drops what comes in by a link for 127.0.0.0/8. May run twice.
///
/// For the ports of a bridge, not for the bridge: br_netfilter translates before a packet leaves the
/// bridge, so that what is answered to 127.0.0.1 would be dropped there.
pub fn drop_loopback(device: u32) -> [Message; 2] {
    let what = format!("add the ingress of link {device} (sch_ingress)");
    let kind = Attributes::new().text(Tca::Kind, "clsact");
    let create = NlmF::CREATE | NlmF::EXCL;
    let header_of_place = header(device, HANDLE, CLSACT, 0);
    let place = Message::new(what, Rtm::Newqdisc, create, &header_of_place, kind)
        // It is there, also as `ingress` by itself.
        .tolerating(Errno::EEXIST);
    // Code, jump if so, jump if not, value.
    let program: [(u16, u8, u8, u32); 4] = [
        (LOAD_BYTE, 0, 0, DESTINATION),
        (JUMP_IF_EQUAL, 0, 1, 127),
        (RETURN, 0, 0, DROP),
        (RETURN, 0, 0, NEXT_FILTER),
    ];
    let mut bytes = Vec::new();
    for (code, yes, no, value) in program {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(value.to_ne_bytes());
    }
    let options = Attributes::new()
        .put(LENGTH, (program.len() as u16).to_ne_bytes())
        .put(PROGRAM, bytes)
        .u32(FLAGS, RESULT_IS_ACTION);
    let attributes = Attributes::new().text(Tca::Kind, "bpf").nest(Tca::Options, options);
    let header = header(device, FILTER, INGRESS, PRIORITY << 16 | u32::from(IPV4.to_be()));
    let what = format!("drop packets for 127.0.0.0/8 at link {device} (cls_bpf)");
    let flags = NlmF::CREATE | NlmF::REPLACE;
    [place, Message::new(what, Rtm::Newtfilter, flags, &header, attributes)]
}

fn header(device: u32, handle: u32, parent: u32, info: u32) -> Tcmsg {
    let header = TcmsgBuilder::default()
        .tcm_family(0)
        .tcm_ifindex(device.cast_signed())
        .tcm_handle(handle)
        .tcm_parent(parent)
        .tcm_info(info);
    header.build().expect("every field without a default is set")
}
