//! Pure. What the kernel keeps beside a table, a rule or an element without reading it: comments,
//! marks.
//!
//! Type, length and value, a byte each for the first two, as libnftnl writes it (its `udata.h`);
//! at most 256 bytes in all. Types that a reader does not know it passes over.

/// NFTNL_UDATA_RULE_COMMENT and its like for a table and for an element: a text with its final zero.
const COMMENT: u8 = 0;

/// NFTNL_UDATA_SET_KEYBYTEORDER: in which order nft reads the bytes of a set's keys; its numbers
/// are a set's own.
const KEY_BYTE_ORDER: u8 = 0;

/// BYTEORDER_HOST_ENDIAN of nft's `datatype.h`.
const HOST_ENDIAN: u32 = 1;

/// Ours: the 8 bytes of a rule's fingerprint, network order.
const FINGERPRINT: u8 = 104;

/// Ours: the name of a link.
const LINK: u8 = 105;

/// The longest comment that nft reads, in bytes (its NFTNL_UDATA_COMMENT_MAXLEN less the zero).
const COMMENT_MAX_BYTES: usize = 127;

/// A comment alone, for a table.
pub fn of_table(comment: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_comment(&mut bytes, comment);
    bytes
}

/// For a set of interfaces' names. Without it nft reads a name from its end and lists it as "",
/// and refuses its own listing.
pub fn of_names() -> Vec<u8> {
    let mut bytes = vec![KEY_BYTE_ORDER, 4];
    bytes.extend(HOST_ENDIAN.to_ne_bytes());
    bytes
}

/// A comment and a fingerprint.
pub fn of_rule(comment: &str, fingerprint: u64) -> Vec<u8> {
    let mut bytes = of_table(comment);
    bytes.extend([FINGERPRINT, 8]);
    bytes.extend(fingerprint.to_be_bytes());
    bytes
}

/// A comment, a fingerprint and the name of a link (at most 15 bytes), for an element.
pub fn of_port(comment: &str, fingerprint: u64, link: &str) -> Vec<u8> {
    let mut bytes = of_rule(comment, fingerprint);
    bytes.extend([LINK, link.len() as u8]);
    bytes.extend(link.bytes());
    bytes
}

/// The fingerprint and the name in userdata that [`of_port`] wrote.
pub fn port(bytes: &[u8]) -> Option<(u64, String)> {
    let link = entries(bytes).find(|(kind, _)| *kind == LINK)?.1;
    Some((fingerprint(bytes)?, String::from_utf8_lossy(link).into_owned()))
}

/// The comment in userdata written by anyone.
pub fn comment(bytes: &[u8]) -> Option<String> {
    let value = entries(bytes).find(|(kind, _)| *kind == COMMENT)?.1;
    let text = value.strip_suffix(&[0]).unwrap_or(value);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The fingerprint in userdata written by humanz.
pub fn fingerprint(bytes: &[u8]) -> Option<u64> {
    let value = entries(bytes).find(|(kind, _)| *kind == FINGERPRINT)?.1;
    value.try_into().ok().map(u64::from_be_bytes)
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
    fn what_is_written_is_read_back() {
        let bytes = of_rule("pods to the outside", 0x0102_0304_0506_0708);
        assert_eq!(comment(&bytes).unwrap(), "pods to the outside");
        assert_eq!(fingerprint(&bytes), Some(0x0102_0304_0506_0708));
    }

    #[test]
    fn an_element_has_the_name_of_a_link_too() {
        let bytes = of_port("net c1 eth0", 7, "hz0123456789abc");
        assert_eq!(port(&bytes), Some((7, "hz0123456789abc".to_owned())));
        assert_eq!(
            (comment(&bytes).unwrap(), port(&of_rule("x", 7))),
            ("net c1 eth0".into(), None)
        );
    }

    #[test]
    fn the_layout_is_that_of_nft() {
        assert_eq!(of_table("x"), [0, 2, b'x', 0]);
    }

    #[test]
    fn what_nft_writes_has_no_fingerprint() {
        assert_eq!(fingerprint(b"\x00\x02x\x00"), None);
        assert_eq!(comment(b"\x00\x02x\x00").unwrap(), "x");
    }

    #[test]
    fn a_long_comment_is_cut_at_a_character() {
        let bytes = of_table(&"ü".repeat(100));
        assert_eq!(comment(&bytes).unwrap(), "ü".repeat(63));
    }

    #[test]
    fn broken_bytes_give_nothing() {
        for broken in [&b""[..], b"\x00", b"\x00\x05ab", b"\x68\x02ab"] {
            assert_eq!(fingerprint(broken), None);
        }
        assert_eq!(comment(b"\x00\x05ab"), None);
    }
}
