//! Pure. Netlink attributes: written into a message, read from one.

use crate::netlink::error::NetlinkError;

/// Bytes of `struct nlattr`: length (its own 4 included) and type.
const HEADER: usize = 4;

/// The longest payload: the length field has 16 bits.
const MAX_PAYLOAD: usize = u16::MAX as usize - HEADER;

/// NLA_F_NESTED of linux/netlink.h; with NLA_F_NET_BYTEORDER it is not part of the type.
const NESTED: u16 = 1 << 15;
const TYPE: u16 = (1 << 14) - 1;

/// Attributes to send, in the order they were put.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    bytes: Vec<u8>,
    fault: Option<String>,
}

impl Attributes {
    /// None yet.
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// Adds an attribute whose payload is `payload`, padded to 4 bytes. Longer than 65,531 bytes
    /// makes the whole message unsendable: sending it gives [`NetlinkError::Malformed`].
    pub fn put(self, kind: impl Into<u16>, payload: impl AsRef<[u8]>) -> Attributes {
        self.write(kind.into(), payload.as_ref())
    }

    /// Adds an attribute if there is a value for it.
    pub fn put_some(self, kind: impl Into<u16>, payload: Option<impl AsRef<[u8]>>) -> Attributes {
        match payload {
            Some(payload) => self.put(kind, payload),
            None => self,
        }
    }

    /// Adds a text with its final zero byte.
    pub fn text(self, kind: impl Into<u16>, text: &str) -> Attributes {
        self.put(kind, [text.as_bytes(), &[0]].concat())
    }

    /// Adds a byte.
    pub fn u8(self, kind: impl Into<u16>, value: u8) -> Attributes {
        self.put(kind, [value])
    }

    /// Adds a number in the host's byte order (rtnetlink).
    pub fn u32(self, kind: impl Into<u16>, value: u32) -> Attributes {
        self.put(kind, value.to_ne_bytes())
    }

    /// Adds a number in network byte order (nftables).
    pub fn be32(self, kind: impl Into<u16>, value: u32) -> Attributes {
        self.put(kind, value.to_be_bytes())
    }

    /// Adds a number in network byte order (nftables).
    pub fn be64(self, kind: impl Into<u16>, value: u64) -> Attributes {
        self.put(kind, value.to_be_bytes())
    }

    /// Adds attributes inside an attribute.
    pub fn nest(mut self, kind: impl Into<u16>, inner: Attributes) -> Attributes {
        self.fault = self.fault.or(inner.fault);
        self.write(kind.into() | NESTED, &inner.bytes)
    }

    /// Adds all of `others` behind these.
    pub fn append(&mut self, others: Attributes) {
        self.bytes.extend(others.bytes);
        self.fault = self.fault.take().or(others.fault);
    }

    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// As bytes, for a payload that holds a header before its attributes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes, or what makes them unsendable.
    pub(super) fn finish(self) -> (Vec<u8>, Option<String>) {
        (self.bytes, self.fault)
    }

    fn write(mut self, kind: u16, payload: &[u8]) -> Attributes {
        if payload.len() > MAX_PAYLOAD {
            let (kind, length) = (kind & TYPE, payload.len());
            let fault = format!("attribute {kind}: {length} bytes are too many ({MAX_PAYLOAD})");
            self.fault = self.fault.or(Some(fault));
            return self;
        }
        let length = (HEADER + payload.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }
}

/// Attributes received, in the kernel's order. Flags in the type (nested, byte order) are taken off.
///
/// Where they came, in one piece: there are 60,000 of them in the routes to 10,000 hosts.
#[derive(Clone, Copy, Debug)]
pub struct AttributeList<'a>(&'a [u8]);

impl<'a> AttributeList<'a> {
    /// The attributes that `bytes` hold.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if a length points outside.
    pub fn parse(bytes: &'a [u8]) -> Result<AttributeList<'a>, NetlinkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some((_, _, behind)) = first(rest) else {
                let (at, of) = (bytes.len() - rest.len(), bytes.len());
                return Err(NetlinkError::Malformed(format!("attribute at byte {at} of {of}")));
            };
            rest = behind;
        }
        Ok(AttributeList(bytes))
    }

    /// Type and payload of each; a type can occur more than once.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (kind, payload, behind) = first(rest)?;
            rest = behind;
            Some((kind, payload))
        })
    }

    /// The payload of the first attribute of this type.
    pub fn get(&self, kind: impl Into<u16>) -> Option<&'a [u8]> {
        let kind = kind.into();
        self.iter().find(|(found, _)| *found == kind).map(|(_, payload)| payload)
    }

    /// The attributes inside the first attribute of this type.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if they are none.
    pub fn nested(&self, kind: impl Into<u16>) -> Result<Option<AttributeList<'a>>, NetlinkError> {
        self.get(kind).map(AttributeList::parse).transpose()
    }

    /// The payload as N bytes; `None` if absent or of another length.
    pub fn array<const N: usize>(&self, kind: impl Into<u16>) -> Option<[u8; N]> {
        self.get(kind)?.try_into().ok()
    }

    /// A byte.
    pub fn u8(&self, kind: impl Into<u16>) -> Option<u8> {
        self.array(kind).map(u8::from_ne_bytes)
    }

    /// A number in the host's byte order (rtnetlink).
    pub fn u32(&self, kind: impl Into<u16>) -> Option<u32> {
        self.array(kind).map(u32::from_ne_bytes)
    }

    /// A number in network byte order (nftables).
    pub fn be32(&self, kind: impl Into<u16>) -> Option<u32> {
        self.array(kind).map(u32::from_be_bytes)
    }

    /// A number in network byte order (nftables).
    pub fn be64(&self, kind: impl Into<u16>) -> Option<u64> {
        self.array(kind).map(u64::from_be_bytes)
    }

    /// A text without its final zero byte; bytes that are no UTF-8 are replaced.
    pub fn text(&self, kind: impl Into<u16>) -> Option<String> {
        let payload = self.get(kind)?;
        let end = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
        Some(String::from_utf8_lossy(&payload[..end]).into_owned())
    }
}

/// Type and payload of the first attribute, and what is behind it; `None` if its length points
/// outside. The last one may lack its padding.
fn first(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let [l0, l1, k0, k1] = *bytes.first_chunk()?;
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let payload = bytes.get(HEADER..length)?;
    let behind = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((u16::from_ne_bytes([k0, k1]) & TYPE, payload, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let inner = Attributes::new().u8(7u16, 9).be32(8u16, 0x0102_0304);
        let bytes =
            Attributes::new().text(3u16, "eth0").u32(4u16, 1500).nest(5u16, inner).into_bytes();
        let read = AttributeList::parse(&bytes).unwrap();
        assert_eq!(read.text(3u16).unwrap(), "eth0");
        assert_eq!(read.u32(4u16), Some(1500));
        let inner = read.nested(5u16).unwrap().unwrap();
        assert_eq!(inner.u8(7u16), Some(9));
        assert_eq!(inner.be32(8u16), Some(0x0102_0304));
        assert_eq!(inner.u32(7u16), None, "a byte is no number of four bytes");
        assert_eq!(read.get(6u16), None);
    }

    #[test]
    fn the_layout_is_length_type_payload_padding() {
        let text = Attributes::new().text(3u16, "eth0").into_bytes();
        assert_eq!(text, [9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0]);
        let nest = Attributes::new().nest(5u16, Attributes::new().u8(1u16, 2)).into_bytes();
        assert_eq!(nest, [12, 0, 5, 0x80, 5, 0, 1, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn a_payload_too_long_for_its_length_field_is_a_fault() {
        let long = vec![0; MAX_PAYLOAD + 1];
        let (_, fault) = Attributes::new().nest(1u16, Attributes::new().put(2u16, long)).finish();
        assert_eq!(fault.unwrap(), "attribute 2: 65532 bytes are too many (65531)");
    }

    #[test]
    fn a_length_that_points_outside_is_malformed() {
        assert!(AttributeList::parse(&[200, 0, 1, 0]).is_err());
        assert!(AttributeList::parse(&[2, 0, 1, 0]).is_err());
        assert!(AttributeList::parse(&[]).unwrap().iter().next().is_none());
    }
}
