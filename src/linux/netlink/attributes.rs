//! Pure. Netlink attributes: written into a message, read from one.

use std::io::Cursor;

use neli::genl::{AttrTypeBuilder, Nlattr, NlattrBuilder};
use neli::types::{Buffer, GenlBuffer};
use neli::{FromBytesWithInput, ToBytes};

use super::error::NetlinkError;

/// The longest payload: the length field has 16 bits and counts its own header of 4.
const MAX_PAYLOAD: usize = u16::MAX as usize - 4;

/// Attributes to send, in the order they were put.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    bytes: Cursor<Vec<u8>>,
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
        self.write(kind.into(), payload.as_ref(), false)
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
        self.write(kind.into(), inner.bytes.get_ref(), true)
    }

    /// As bytes, for a payload that holds a header before its attributes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_inner()
    }

    /// The bytes, or what makes them unsendable.
    pub(super) fn finish(self) -> (Vec<u8>, Option<String>) {
        (self.bytes.into_inner(), self.fault)
    }

    fn write(mut self, kind: u16, payload: &[u8], nested: bool) -> Attributes {
        let written = match payload.len() <= MAX_PAYLOAD {
            true => attribute(kind, payload, nested).and_then(|attribute| {
                attribute.to_bytes(&mut self.bytes).map_err(|error| error.to_string())
            }),
            false => Err(format!("{} bytes are too many (65531)", payload.len())),
        };
        if let Err(reason) = written {
            self.fault = self.fault.or(Some(format!("attribute {kind}: {reason}")));
        }
        self
    }
}

fn attribute(kind: u16, payload: &[u8], nested: bool) -> Result<Nlattr<u16, Buffer>, String> {
    let nla_type = AttrTypeBuilder::default().nla_type(kind).nla_nested(nested).build();
    NlattrBuilder::default()
        .nla_type(nla_type.map_err(|error| error.to_string())?)
        .nla_payload(payload)
        .build()
        .map_err(|error| error.to_string())
}

/// Attributes received, in the kernel's order. Flags in the type (nested, byte order) are taken off.
#[derive(Debug)]
pub struct AttributeList(GenlBuffer<u16, Buffer>);

impl AttributeList {
    /// The attributes that `bytes` hold.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if a length points outside.
    pub fn parse(bytes: &[u8]) -> Result<AttributeList, NetlinkError> {
        GenlBuffer::from_bytes_with_input(&mut Cursor::new(bytes), bytes.len())
            .map(AttributeList)
            .map_err(|error| NetlinkError::Malformed(format!("attributes: {error}")))
    }

    /// Type and payload of each; a type can occur more than once.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.0.iter().map(|found| (*found.nla_type().nla_type(), found.nla_payload().as_ref()))
    }

    /// The payload of the first attribute of this type.
    pub fn get(&self, kind: impl Into<u16>) -> Option<&[u8]> {
        let kind = kind.into();
        self.iter().find(|(found, _)| *found == kind).map(|(_, payload)| payload)
    }

    /// The attributes inside the first attribute of this type.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if they are none.
    pub fn nested(&self, kind: impl Into<u16>) -> Result<Option<AttributeList>, NetlinkError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let inner = Attributes::new().u8(7u16, 9).be32(8u16, 0x0102_0304);
        let bytes = Attributes::new().text(3u16, "eth0").u32(4u16, 1500).nest(5u16, inner);
        let read = AttributeList::parse(&bytes.into_bytes()).unwrap();
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
