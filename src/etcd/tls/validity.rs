//! Pure. The validity period of a certificate.

use std::fmt;
use std::time::Duration;

use crate::net::time;

/// The validity period of a certificate, in seconds since 1970; years 1970 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: u64,
    pub until: u64,
}

/// A certificate is old this long before its end, or in the last fifth of its period if that is shorter
/// (renewal is usual at two thirds).
const OLD: u64 = 14 * DAY;

const DAY: u64 = 24 * 60 * 60;

impl Validity {
    /// Parses the DER form of a certificate; `None` if invalid.
    ///
    /// Source: RFC 5280 §4.1: `SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer,
    /// SEQUENCE { from, until }, …`.
    pub fn of(certificate: &[u8]) -> Option<Validity> {
        let mut outer = DerReader(certificate);
        let mut signed = DerReader(DerReader(outer.of(SEQUENCE)?).of(SEQUENCE)?);
        if signed.tag() == Some(VERSION) {
            signed.of(VERSION)?;
        }
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            signed.of(tag)?;
        }
        let mut times = DerReader(signed.of(SEQUENCE)?);
        Some(Validity { from: times.time()?, until: times.time()? })
    }

    /// It should have been renewed already.
    pub fn is_old(&self, now: Duration) -> bool {
        let left = self.until.saturating_sub(now.as_secs());
        left < OLD.min(self.until.saturating_sub(self.from) / 5)
    }

    pub fn is_over(&self, now: Duration) -> bool {
        self.until < now.as_secs()
    }

    pub fn is_to_come(&self, now: Duration) -> bool {
        self.from > now.as_secs()
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// The rest of a DER text (ITU-T X.690 §8.1).
struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next value, if that has `tag`.
    fn of(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&[found, first], mut rest) = self.0.split_first_chunk::<2>()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            let (bytes, after) = rest.split_at_checked(count).filter(|_| count <= 4)?;
            length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            rest = after;
        }
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (found == tag).then_some(content)
    }

    /// `YYMMDDhhmmssZ` (1950 to 2049) or `YYYYMMDDhhmmssZ`, in seconds since 1970.
    fn time(&mut self) -> Option<u64> {
        let (short, text) = match self.tag()? {
            UTC_TIME => (true, self.of(UTC_TIME)?),
            GENERALIZED_TIME => (false, self.of(GENERALIZED_TIME)?),
            _ => return None,
        };
        let digits = text.strip_suffix(b"Z").filter(|text| text.iter().all(u8::is_ascii_digit))?;
        let pairs = digits
            .chunks_exact(2)
            .map(|two| u64::from(two[0] - b'0') * 10 + u64::from(two[1] - b'0'));
        let (year, rest): (u64, Vec<u64>) = match (short, pairs.collect::<Vec<_>>().as_slice()) {
            (true, [year, rest @ ..]) => (year + if *year < 50 { 2000 } else { 1900 }, rest.into()),
            (false, [century, year, rest @ ..]) => (century * 100 + year, rest.into()),
            _ => return None,
        };
        let [month @ 1..=12, day @ 1..=31, hour, minute, second] = rest[..] else { return None };
        let days = time::days_to(year, month, day)?;
        Some(days * DAY + hour * 3600 + minute * 60 + second)
    }
}

/// A time in seconds since 1970, shown as `2026-11-21 21:15 UTC`.
pub struct Date(pub u64);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time::minute(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate as far as it is read, with these times.
    fn certificate(from: &[u8], until: &[u8]) -> Vec<u8> {
        let value = |tag: u8, content: &[u8]| {
            let length = u8::try_from(content.len()).unwrap();
            [&[tag, 0x81, length], content].concat()
        };
        let times = value(SEQUENCE, &[from, until].concat());
        let parts = [
            value(VERSION, &[2, 1, 2]),
            value(INTEGER, &[7]),
            value(SEQUENCE, &[]),
            value(SEQUENCE, &[]),
            times,
        ];
        value(SEQUENCE, &value(SEQUENCE, &parts.concat()))
    }

    fn time(text: &str) -> Vec<u8> {
        let tag = if text.len() == 13 { UTC_TIME } else { GENERALIZED_TIME };
        [&[tag, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }

    #[test]
    fn both_forms_of_time_are_read() {
        let read = Validity::of(&certificate(&time("700101000000Z"), &time("20000229235959Z")));
        assert_eq!(read, Some(Validity { from: 0, until: 951_868_799 }));
        let read = Validity::of(&certificate(&time("491231235959Z"), &time("99991231235959Z")));
        assert_eq!(read, Some(Validity { from: 2_524_607_999, until: 253_402_300_799 }));
    }

    #[test]
    fn invalid_certificates_are_refused() {
        let whole = certificate(&time("261121000000Z"), &time("271121000000Z"));
        assert!(Validity::of(&whole).is_some());
        for end in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..end]), None, "cut at {end}");
        }
        for bad in ["261321000000Z", "260021000000Z", "26112100000xZ", "2611210000000"] {
            assert_eq!(
                Validity::of(&certificate(&time(bad), &time("271121000000Z"))),
                None,
                "{bad}"
            );
        }
        assert_eq!(
            Validity::of(&certificate(&time("601121000000Z"), &time("271121000000Z"))),
            None
        );
        assert_eq!(Validity::of(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn dates_are_shown_as_written() {
        for (text, shown) in [
            ("700101000000Z", "1970-01-01 00:00 UTC"),
            ("20000229235959Z", "2000-02-29 23:59 UTC"),
            ("20241231120100Z", "2024-12-31 12:01 UTC"),
            ("261121211500Z", "2026-11-21 21:15 UTC"),
            ("21000301000000Z", "2100-03-01 00:00 UTC"),
            ("99991231235959Z", "9999-12-31 23:59 UTC"),
        ] {
            let read = Validity::of(&certificate(&time("700101000000Z"), &time(text))).unwrap();
            assert_eq!(Date(read.until).to_string(), shown);
        }
    }

    #[test]
    fn a_certificate_is_old_in_its_last_fifth_and_two_weeks_at_most() {
        let old = |days: u64, left: u64| {
            let validity = Validity { from: 1000 * DAY, until: (1000 + days) * DAY };
            validity.is_old(Duration::from_secs((1000 + days - left) * DAY))
        };
        assert!(old(365, 13) && !old(365, 15));
        assert!(old(30, 5) && !old(30, 7));
        assert!(!Validity { from: 0, until: 10 }.is_over(Duration::from_secs(10)));
        assert!(Validity { from: 0, until: 10 }.is_over(Duration::from_secs(11)));
        assert!(Validity { from: 5, until: 10 }.is_to_come(Duration::from_secs(4)));
    }
}
