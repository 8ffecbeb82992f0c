//! Pure. A list from the kernel, datagram by datagram.

use crate::netlink::error::NetlinkError;
use crate::netlink::message::{Message, Replies, Reply, ReplyState, refusal};

/// What has come of a list so far.
pub(super) struct DumpReader<'r, T> {
    request: &'r Message,
    sequence: u32,
    found: Vec<T>,
    /// It did not change while it was read.
    steady: bool,
    is_ended: bool,
    failure: Option<NetlinkError>,
}

impl<'r, T> DumpReader<'r, T> {
    /// Of the answers to `request`, which was sent with that number.
    pub fn new(request: &'r Message, sequence: u32) -> DumpReader<'r, T> {
        let found = Vec::new();
        DumpReader { request, sequence, found, steady: true, is_ended: false, failure: None }
    }

    /// Nothing of it is to come.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Takes the list's messages out of a datagram. `parse` gives `None` for what does not belong into it.
    pub fn read(
        &mut self,
        replies: Replies<'_>,
        parse: impl Fn(&Reply<'_>) -> Result<Option<T>, NetlinkError>,
    ) {
        for reply in replies {
            let taken = reply.and_then(|reply| match reply.sequence == self.sequence {
                true => self.take(&reply, &parse),
                // An earlier request's, which was abandoned.
                false => Ok(()),
            });
            if let Err(error) = taken {
                self.fail(error);
            }
        }
    }

    /// Part of the list is lost.
    pub fn fail(&mut self, error: NetlinkError) {
        self.failure.get_or_insert(error);
    }

    /// The whole list, or `None` if it changed while it was read.
    ///
    /// # Errors
    /// The first thing that was wrong.
    pub fn found(self) -> Result<Option<Vec<T>>, NetlinkError> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self.steady.then_some(self.found)),
        }
    }

    fn take(
        &mut self,
        reply: &Reply<'_>,
        parse: impl Fn(&Reply<'_>) -> Result<Option<T>, NetlinkError>,
    ) -> Result<(), NetlinkError> {
        self.steady &= !reply.interrupted();
        let verdict = reply.verdict();
        self.is_ended = !matches!(verdict, Ok(ReplyState::Content));
        match verdict? {
            ReplyState::Content => self.found.extend(parse(reply)?),
            ReplyState::Done if reply.is_end_of_list() => {}
            ReplyState::Done => {
                let what = &self.request.what;
                return Err(NetlinkError::Malformed(format!("{what}: done, but no list")));
            }
            ReplyState::Refused(errno, text) => {
                return Err(refusal(self.request, 0, errno, text).into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use neli::consts::nl::{NlmF, Nlmsg};

    use super::*;
    use crate::netlink::Attributes;
    use crate::netlink::message::tests::datagram;

    const LINK: u16 = 16;

    /// The first byte of each message; a 9 cannot be parsed.
    fn read(datagrams: &[Vec<u8>]) -> (bool, Result<Option<Vec<u8>>, String>) {
        let request = Message::new("list links", LINK, NlmF::empty(), &0u32, Attributes::new());
        let mut list = DumpReader::new(&request, 5);
        for bytes in datagrams {
            list.read(Replies(bytes), |reply| match reply.body() {
                [9, ..] => Err(NetlinkError::Malformed("a nine".to_owned())),
                [first, ..] => Ok(Some(*first)),
                [] => Ok(None),
            });
        }
        (list.is_ended(), list.found().map_err(|error| error.to_string()))
    }

    fn link(flags: NlmF, number: u8) -> Vec<u8> {
        datagram(LINK, NlmF::MULTI | flags, &[number; 4])
    }

    fn end(flags: NlmF) -> Vec<u8> {
        datagram(Nlmsg::Done.into(), NlmF::MULTI | flags, &[0; 4])
    }

    #[test]
    fn a_list_is_whole_at_its_end() {
        let none = NlmF::empty();
        assert!(!read(&[[link(none, 1), link(none, 2)].concat()]).0);
        let whole = [[link(none, 1), link(none, 2)].concat(), end(none)];
        assert_eq!(read(&whole), (true, Ok(Some(vec![1, 2]))));
    }

    #[test]
    fn a_list_that_changed_while_it_was_read_is_none_wherever_the_kernel_says_so() {
        let (none, changed) = (NlmF::empty(), NlmF::DUMP_INTR);
        assert_eq!(read(&[link(changed, 1), link(none, 2), end(none)]), (true, Ok(None)));
        assert_eq!(read(&[link(none, 1), end(changed)]), (true, Ok(None)));
    }

    #[test]
    fn what_is_wrong_in_the_middle_is_an_error_at_the_end() {
        let none = NlmF::empty();
        let wrong = [link(none, 1), link(none, 9), link(none, 2)].concat();
        assert!(!read(std::slice::from_ref(&wrong)).0, "the rest is still to come");
        let (ended, found) = read(&[wrong, end(none)]);
        assert!(ended && found.is_err_and(|why| why.contains("a nine")));
        let cut = link(none, 1)[..18].to_vec();
        assert!(read(&[cut, end(none)]).1.is_err());
    }

    #[test]
    fn an_acknowledgement_is_no_list() {
        let ack = datagram(Nlmsg::Error.into(), NlmF::CAPPED, &[0; 20]);
        let (ended, found) = read(&[link(NlmF::empty(), 1), ack]);
        assert!(ended && found.is_err_and(|why| why.contains("no list")));
    }
}
