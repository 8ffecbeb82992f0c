//! Pure. One netlink message: written for the kernel, sliced out of what it answered.

use std::io::Cursor;

use neli::consts::nl::{NlmF, Nlmsg};
use neli::{FromBytesWithInput, ToBytes};
use nix::errno::Errno;

use crate::netlink::attributes::{AttributeList, Attributes};
use crate::netlink::error::{NetlinkError, Refused};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;

/// NLMSGERR_ATTR_MSG of linux/netlink.h: the extended acknowledgement's text.
const ACK_TEXT: u16 = 1;

/// A message for the kernel, not yet numbered.
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) what: String,
    pub(super) acked: bool,
    pub(super) tolerated: Vec<Errno>,
    kind: u16,
    flags: NlmF,
    body: Result<Vec<u8>, String>,
}

impl Message {
    /// `what` it asks for (for its refusal), type, flags (REQUEST and ACK are added), the family's
    /// fixed header, attributes.
    pub fn new(
        what: impl Into<String>,
        kind: impl Into<u16>,
        flags: NlmF,
        header: &impl ToBytes,
        attributes: Attributes,
    ) -> Message {
        let body = body(header, attributes);
        let tolerated = Vec::new();
        Message { what: what.into(), acked: true, tolerated, kind: kind.into(), flags, body }
    }

    /// No acknowledgement is asked for (begin and end of an nftables transaction).
    pub fn without_ack(self) -> Message {
        Message { acked: false, ..self }
    }

    /// This refusal counts as success.
    pub fn tolerating(mut self, errno: Errno) -> Message {
        self.tolerated.push(errno);
        self
    }

    /// Appends the message with its number to `bytes`, padded.
    pub(super) fn encode(
        &self,
        sequence: u32,
        extra: NlmF,
        bytes: &mut Vec<u8>,
    ) -> Result<(), NetlinkError> {
        let malformed = |reason| NetlinkError::Malformed(format!("{}: {reason}", self.what));
        let body = self.body.as_ref().map_err(malformed)?;
        let flags = self.flags | extra | NlmF::REQUEST;
        bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.bits().to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The kernel fills in the port.
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(aligned(bytes.len()), 0);
        Ok(())
    }
}

fn body(header: &impl ToBytes, attributes: Attributes) -> Result<Vec<u8>, String> {
    let mut bytes = Cursor::new(Vec::new());
    header.to_bytes(&mut bytes).map_err(|error| error.to_string())?;
    header.pad(&mut bytes).map_err(|error| error.to_string())?;
    let mut bytes = bytes.into_inner();
    match attributes.finish() {
        (_, Some(fault)) => Err(fault),
        (attributes, None) => {
            bytes.extend_from_slice(&attributes);
            Ok(bytes)
        }
    }
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// Its type, as in RTM_NEWLINK.
    pub kind: u16,
    /// Number of the message that it answers; 0 for a notification.
    pub sequence: u32,
    /// Of a notification: the port of the socket that asked for the change, if the kernel says it.
    pub sender: u32,
    flags: u16,
    body: &'a [u8],
}

impl<'a> Reply<'a> {
    /// The family's fixed header, `header_size` bytes long, and the attributes behind it.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if the message is shorter or its attributes are broken.
    pub fn parse<H>(&self, header_size: usize) -> Result<(H, AttributeList<'a>), NetlinkError>
    where
        H: FromBytesWithInput<Input = usize>,
    {
        let malformed = |reason: String| {
            NetlinkError::Malformed(format!("message of type {}: {reason}", self.kind))
        };
        let Some((header, attributes)) = self.body.split_at_checked(header_size) else {
            return Err(malformed(format!("only {} bytes", self.body.len())));
        };
        let header = H::from_bytes_with_input(&mut Cursor::new(header), header_size)
            .map_err(|error| malformed(error.to_string()))?;
        Ok((header, AttributeList::parse(attributes)?))
    }

    /// What follows the netlink header.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The list changed while it was read.
    pub(super) fn interrupted(&self) -> bool {
        self.flags & NlmF::DUMP_INTR.bits() != 0
    }

    /// It ends a list, well or not.
    pub(super) fn is_end_of_list(&self) -> bool {
        self.kind == u16::from(Nlmsg::Done)
    }

    /// What the message says about its request.
    ///
    /// # Errors
    /// [`NetlinkError::Malformed`] if it is an error without its code.
    pub fn verdict(&self) -> Result<ReplyState, NetlinkError> {
        let done = self.is_end_of_list();
        if !done && self.kind != u16::from(Nlmsg::Error) {
            return Ok(ReplyState::Content);
        }
        // The end of a list carries its error code; old kernels leave it out.
        let code = match self.body.first_chunk::<4>() {
            Some(code) => i32::from_ne_bytes(*code),
            None if done => 0,
            None => return Err(NetlinkError::Malformed("an error without its code".to_owned())),
        };
        match code {
            0 => Ok(ReplyState::Done),
            code => {
                Ok(ReplyState::Refused(Errno::from_raw(code.wrapping_neg()), self.ack_text(done)))
            }
        }
    }

    /// The extended acknowledgement's text. An error repeats the refused message before its
    /// attributes: only the header if the flag CAPPED is set.
    fn ack_text(&self, done: bool) -> Option<String> {
        if self.flags & NlmF::ACK_TLVS.bits() == 0 {
            return None;
        }
        let rest = self.body.get(4..)?;
        let repeated = match done {
            true => 0,
            false if self.flags & NlmF::CAPPED.bits() != 0 => HEADER,
            false => aligned(u32::from_ne_bytes(*rest.first_chunk()?) as usize),
        };
        AttributeList::parse(rest.get(repeated..)?).ok()?.text(ACK_TEXT)
    }
}

/// What a message says about its request.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyState {
    /// Part of the answer.
    Content,
    /// Done as asked; or the end of a list.
    Done,
    /// Not done, and why.
    Refused(Errno, Option<String>),
}

/// How `message`, the one of that place, was refused.
pub(super) fn refusal(
    message: &Message,
    index: usize,
    errno: Errno,
    text: Option<String>,
) -> Refused {
    Refused { what: message.what.clone(), errno, message: text, index }
}

/// The messages in one datagram.
///
/// Sliced here by their length field and not by the codec: its parser loses the rest of the
/// datagram after an acknowledgement that carries a warning.
#[derive(Clone, Debug)]
pub struct Replies<'a>(pub &'a [u8]);

impl<'a> Iterator for Replies<'a> {
    type Item = Result<Reply<'a>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.0;
        if bytes.is_empty() {
            return None;
        }
        self.0 = &[];
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Some(Err(NetlinkError::Malformed(format!("{} bytes at the end", bytes.len()))));
        };
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(body) = bytes.get(HEADER..length) else {
            let got = bytes.len();
            return Some(Err(NetlinkError::Malformed(format!("length {length} in {got} bytes"))));
        };
        self.0 = bytes.get(aligned(length)..).unwrap_or(&[]);
        Some(Ok(Reply {
            kind: u16::from_ne_bytes([k0, k1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            sender: u32::from_ne_bytes([p0, p1, p2, p3]),
            flags: u16::from_ne_bytes([f0, f1]),
            body,
        }))
    }
}

/// `length` up to the next multiple of 4 (NLMSG_ALIGN of linux/netlink.h).
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A datagram of one message: type, flags, number 5, body.
    pub fn datagram(kind: u16, flags: NlmF, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.bits().to_ne_bytes());
        bytes.extend_from_slice(&5u32.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn verdict(kind: Nlmsg, flags: NlmF, body: &[u8]) -> ReplyState {
        let bytes = datagram(kind.into(), flags, body);
        Replies(&bytes).next().unwrap().unwrap().verdict().unwrap()
    }

    #[test]
    fn the_smallest_number_is_an_error_like_any_other() {
        let verdict = verdict(Nlmsg::Error, NlmF::empty(), &i32::MIN.to_ne_bytes());
        assert_eq!(verdict, ReplyState::Refused(Errno::UnknownErrno, None));
    }

    #[test]
    fn an_acknowledgement_with_a_warning_does_not_hide_the_next_message() {
        let warning = Attributes::new().text(ACK_TEXT, "deprecated").into_bytes();
        let ack = [&0i32.to_ne_bytes()[..], &[0; HEADER], &warning].concat();
        let mut bytes = datagram(Nlmsg::Error.into(), NlmF::CAPPED | NlmF::ACK_TLVS, &ack);
        bytes.extend(datagram(16, NlmF::empty(), &[1, 2, 3]));
        let replies: Vec<_> = Replies(&bytes).map(Result::unwrap).collect();
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[0].verdict().unwrap(), ReplyState::Done);
        assert_eq!((replies[1].kind, replies[1].body()), (16, &[1, 2, 3][..]));
    }

    #[test]
    fn the_text_of_a_refusal_is_found_behind_the_repeated_message() {
        let text = Attributes::new().text(ACK_TEXT, "no").into_bytes();
        let capped = [&(-95i32).to_ne_bytes()[..], &[0; HEADER], &text].concat();
        let refused = || ReplyState::Refused(Errno::EOPNOTSUPP, Some("no".to_owned()));
        assert_eq!(verdict(Nlmsg::Error, NlmF::CAPPED | NlmF::ACK_TLVS, &capped), refused());
        let repeated = datagram(16, NlmF::empty(), &[9; 8]);
        let whole = [&(-95i32).to_ne_bytes()[..], &repeated, &text].concat();
        assert_eq!(verdict(Nlmsg::Error, NlmF::ACK_TLVS, &whole), refused());
    }

    #[test]
    fn the_end_of_a_list_carries_its_error() {
        let failed = (-22i32).to_ne_bytes();
        let invalid = ReplyState::Refused(Errno::EINVAL, None);
        assert_eq!(verdict(Nlmsg::Done, NlmF::MULTI, &failed), invalid);
        assert_eq!(verdict(Nlmsg::Done, NlmF::MULTI, &[0; 4]), ReplyState::Done);
        assert_eq!(verdict(Nlmsg::Done, NlmF::MULTI, &[]), ReplyState::Done);
    }

    #[test]
    fn a_cut_datagram_is_malformed() {
        let bytes = datagram(16, NlmF::empty(), &[1, 2, 3, 4]);
        assert!(Replies(&bytes[..18]).next().unwrap().is_err());
        assert!(Replies(&bytes[..10]).next().unwrap().is_err());
    }
}
