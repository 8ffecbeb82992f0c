//! Pure. What the kernel keeps beside a table, a rule or an element without reading it: comments,
//! marks.
//!
//! Type, length and value, a byte each for the first two, as libnftnl writes it (its `udata.h`);
//! at most 256 bytes in all. Types that a reader does not know it passes over.

use crate::net::Family;
use crate::nft::inner;

/// NFTNL_UDATA_RULE_COMMENT and its like for a table and for an element: a text with its final zero.
const COMMENT: u8 = 0;

/// NFTNL_UDATA_SET_KEYBYTEORDER: in which order nft reads the bytes of a set's keys; its numbers
/// are a set's own.
const KEY_BYTE_ORDER: u8 = 0;

/// NFTNL_UDATA_SET_DATABYTEORDER: the same of a map's data.
const DATA_BYTE_ORDER: u8 = 1;

/// BYTEORDER_HOST_ENDIAN and _BIG_ENDIAN of nft's `datatype.h`.
const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;

/// NFTNL_UDATA_SET_KEY_TYPEOF: which fields of packets a set's keys are.
const KEY_TYPEOF: u8 = 3;

/// NFTNL_UDATA_SET_DATA_TYPEOF: which field a map's data are.
const DATA_TYPEOF: u8 = 4;

/// EXPR_PAYLOAD and EXPR_CONCAT; PROTO_BASE_LL_HDR and those that follow.
const PAYLOAD: u32 = 7;
const CONCATENATION: u32 = 13;
const LINK_LAYER: u32 = 1;
const NETWORK: u32 = 2;
const TRANSPORT: u32 = 3;

/// Ours: the 8 bytes of a rule's fingerprint, network order.
const FINGERPRINT: u8 = 104;

/// Ours: the name of a link.
const LINK: u8 = 105;

/// The longest comment that nft reads, in bytes (its NFTNL_UDATA_COMMENT_MAXLEN less the zero).
const COMMENT_MAX_BYTES: usize = 127;

/// For a set whose keys are the source of a VXLAN packet and the source of the packet inside, as nft
/// writes it for `typeof ip saddr . @th,336,32`: its numbers for these fields. Without it nft takes the
/// second for a plain number, and refuses its own listing.
pub fn sender(outer: Family, inner: Family) -> Vec<u8> {
    // PROTO_DESC_IP with IPHDR_SADDR, PROTO_DESC_IP6 with IP6HDR_SADDR.
    let (protocol, field) = match outer {
        Family::V4 => (12, 11),
        Family::V6 => (13, 8),
    };
    let source = expression(PAYLOAD, &[number(0, protocol), number(1, field)].concat());
    let inside = raw(TRANSPORT, 8 * inner::source(inner), inner.bits().into());
    [number(KEY_BYTE_ORDER, 0), entry(KEY_TYPEOF, &concatenation(&[source, inside]))].concat()
}

/// For a set whose keys are the index of a device, a MAC and perhaps an address, as nft writes it for
/// `typeof iif . @ll,48,48 . @nh,96,32`: so it takes them at whatever place of a frame.
pub fn sent_by_device(address: Option<Family>) -> Vec<u8> {
    let address = address.map(|family| match family {
        Family::V4 => raw(NETWORK, 96, 32),
        Family::V6 => raw(NETWORK, 64, 128),
    });
    let fields: Vec<_> =
        [input_index(), raw(LINK_LAYER, 48, 48)].into_iter().chain(address).collect();
    [number(KEY_BYTE_ORDER, 0), entry(KEY_TYPEOF, &concatenation(&fields))].concat()
}

/// For a map from the index of a device to a MAC, as nft writes it for `typeof iif : @ll,0,48`.
pub fn mac_of_device() -> Vec<u8> {
    let orders = [number(KEY_BYTE_ORDER, HOST_ENDIAN), number(DATA_BYTE_ORDER, BIG_ENDIAN)];
    let data = entry(DATA_TYPEOF, &raw(LINK_LAYER, 0, 48));
    [orders.concat(), entry(KEY_TYPEOF, &input_index()), data].concat()
}

fn input_index() -> Vec<u8> {
    /// EXPR_META, NFT_META_IIF.
    const META: u32 = 9;
    expression(META, &number(0, 4))
}

/// These bits of a header.
fn raw(base: u32, offset: u32, bits: u32) -> Vec<u8> {
    let place = [(0, 0), (1, 0), (2, base), (3, offset), (4, bits)];
    expression(PAYLOAD, &place.map(|(kind, value)| number(kind, value)).concat())
}

fn concatenation(fields: &[Vec<u8>]) -> Vec<u8> {
    let numbered = (0..).zip(fields).map(|(place, field)| entry(place, field));
    expression(CONCATENATION, &numbered.collect::<Vec<_>>().concat())
}

/// NFTNL_UDATA_TYPEOF_EXPR and _DATA.
fn expression(kind: u32, data: &[u8]) -> Vec<u8> {
    [number(0, kind), entry(1, data)].concat()
}

fn number(kind: u8, value: u32) -> Vec<u8> {
    entry(kind, &value.to_ne_bytes())
}

fn entry(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, value.len() as u8], value].concat()
}

/// What humanz writes and reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Userdata {
    /// Cut after 127 bytes.
    pub comment: Option<String>,
    pub fingerprint: Option<u64>,
    /// At most 15 bytes.
    pub link: Option<String>,
}

impl Userdata {
    pub fn comment(comment: &str) -> Userdata {
        Userdata { comment: Some(comment.to_owned()), ..Userdata::default() }
    }

    /// For a set of interfaces' names. Without it nft reads a name from its end and lists it as "",
    /// and refuses its own listing.
    pub fn host_byte_order() -> Vec<u8> {
        let mut bytes = vec![KEY_BYTE_ORDER, 4];
        bytes.extend(HOST_ENDIAN.to_ne_bytes());
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(comment) = &self.comment {
            put_comment(&mut bytes, comment);
        }
        if let Some(fingerprint) = self.fingerprint {
            bytes.extend([FINGERPRINT, 8]);
            bytes.extend(fingerprint.to_be_bytes());
        }
        if let Some(link) = &self.link {
            bytes.extend([LINK, link.len() as u8]);
            bytes.extend(link.bytes());
        }
        bytes
    }

    /// Of bytes that anybody wrote.
    pub fn read(bytes: &[u8]) -> Userdata {
        let value =
            |wanted| entries(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let fingerprint = value(FINGERPRINT).and_then(|value| value.try_into().ok());
        Userdata {
            comment: value(COMMENT).map(|value| text(value.strip_suffix(&[0]).unwrap_or(value))),
            fingerprint: fingerprint.map(u64::from_be_bytes),
            link: value(LINK).map(text),
        }
    }
}

fn put_comment(bytes: &mut Vec<u8>, comment: &str) {
    let fits = |(start, c): &(usize, char)| start + c.len_utf8() <= COMMENT_MAX_BYTES;
    let text: String = comment.char_indices().take_while(fits).map(|(_, c)| c).collect();
    bytes.extend([COMMENT, text.len() as u8 + 1]);
    bytes.extend(text.bytes());
    bytes.push(0);
}

/// Type and value of each entry, up to the first that points outside.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = bytes else { return None };
        let (value, rest) = rest.split_at_checked(usize::from(*length))?;
        bytes = rest;
        Some((*kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userdata_is_read_back_as_it_was_written() {
        let comment = Userdata::comment("net c1 eth0");
        let rule = Userdata { fingerprint: Some(0x0102_0304_0506_0708), ..comment.clone() };
        let element = Userdata { link: Some("hz0123456789abc".to_owned()), ..rule.clone() };
        for written in [Userdata::default(), comment, rule, element] {
            assert_eq!(Userdata::read(&written.bytes()), written);
        }
    }

    #[test]
    fn the_layout_is_that_of_nft() {
        assert_eq!(Userdata::comment("x").bytes(), [0, 2, b'x', 0]);
    }

    /// Taken from nft 1.0.6, `typeof iif . @ll,48,48` and `typeof iif : @ll,0,48`.
    #[test]
    fn fields_of_frames_are_those_of_nft() {
        let mac = sent_by_device(None);
        assert_eq!((mac.len(), sent_by_device(Some(Family::V4)).len()), (72, 112));
        assert_eq!(mac[..12], [0, 4, 0, 0, 0, 0, 3, 0x40, 0, 4, 13, 0]);
        let port = mac_of_device();
        assert_eq!(port[..14], [0, 4, 1, 0, 0, 0, 1, 4, 2, 0, 0, 0, 3, 0x0e]);
        assert_eq!(port.len(), 74 - 6);
    }

    #[test]
    fn a_long_comment_is_cut_at_a_character() {
        let bytes = Userdata::comment(&"ü".repeat(100)).bytes();
        assert_eq!(Userdata::read(&bytes).comment.unwrap(), "ü".repeat(63));
    }

    #[test]
    fn broken_bytes_give_nothing() {
        for broken in [&b""[..], b"\x00", b"\x00\x05ab", b"\x68\x02ab"] {
            assert_eq!(Userdata::read(broken), Userdata::default());
        }
    }
}
