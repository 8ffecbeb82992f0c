//! Pure. How long a certificate holds: the one thing of it that is looked at here.
//! Source: RFC 5280 §4.1, RFC 7468.

/// From when to when it holds, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub begins: i64,
    /// Not after.
    pub ends: i64,
}

/// The validity of every certificate in a PEM file; what is none is passed over.
pub fn validities(pem: &str) -> Vec<Validity> {
    let mut found = Vec::new();
    for part in pem.split("-----BEGIN CERTIFICATE-----").skip(1) {
        let text = part.split("-----END").next().unwrap_or_default();
        found.extend(base64(text).and_then(|der| validity(&der)));
    }
    found
}

/// Certificate → TBSCertificate → [version], serial number, algorithm, issuer, validity.
fn validity(der: &[u8]) -> Option<Validity> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let (certificate, _) = element(der, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        (_, rest) = element(rest, VERSION)?;
    }
    for kind in [0x02, SEQUENCE, SEQUENCE] {
        (_, rest) = element(rest, kind)?;
    }
    let (validity, _) = element(rest, SEQUENCE)?;
    let (begins, rest) = time(validity)?;
    let (ends, _) = time(rest)?;
    Some(Validity { begins, ends })
}

/// The content of the first element, which is of this kind, and what follows it.
fn element(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            let add = |sum: usize, digit: &u8| sum.checked_mul(256)?.checked_add((*digit).into());
            (digits.iter().try_fold(0, add)?, rest)
        }
    };
    if *found == kind { rest.split_at_checked(length) } else { None }
}

/// UTCTime (two digits of the year) or GeneralizedTime (four), in UTC.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    const UTC: u8 = 0x17;
    const GENERALIZED: u8 = 0x18;
    let (text, rest) = element(bytes, UTC).or_else(|| element(bytes, GENERALIZED))?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest_of) = match text.len() {
        12 => {
            let year: i64 = text.get(..2)?.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        14 => (text.get(..4)?.parse().ok()?, text.get(4..)?),
        _ => return None,
    };
    let two = |at: usize| rest_of.get(at..at + 2)?.parse::<i64>().ok();
    let days = days(year, two(0)?, two(2)?)?;
    Some((((days * 24 + two(4)?) * 60 + two(6)?) * 60 + two(8)?, rest))
}

/// Days from 1970 to a date. Source: H. Hinnant, "chrono-compatible low-level date algorithms".
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Source: RFC 4648 §4. White space is passed over.
fn base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl req -x509 -newkey ed25519 -nodes -subj /CN=t -not_before … -not_after …`, with the
    /// dates 2024-02-29 12:00:00 and 2051-01-01 00:00:01.
    #[test]
    fn dates_are_read() {
        assert_eq!(days(1970, 1, 1), Some(0));
        assert_eq!(days(2024, 2, 29), Some(19_782));
        assert_eq!(days(2024, 13, 1), None);
        let utc = [&[0x17, 13][..], b"240229120000Z"].concat();
        assert_eq!(time(&utc), Some((19_782 * 86_400 + 43_200, &[][..])));
        let generalized = [&[0x18, 15][..], b"20510101000001Z"].concat();
        assert_eq!(time(&generalized).unwrap().0, 2_556_144_001);
    }

    #[test]
    fn a_certificate_is_walked_through_as_far_as_its_validity() {
        let sequence = |parts: &[&[u8]]| {
            let body = parts.concat();
            [&[0x30, 0x82, (body.len() >> 8) as u8, body.len() as u8][..], &body].concat()
        };
        let utc = |text: &str| [&[0x17, 13][..], text.as_bytes()].concat();
        let dates = sequence(&[&utc("240229120000Z"), &utc("250229120000Z")]);
        let (version, serial) = ([0xa0, 3, 2, 1, 2], [2, 1, 7]);
        let empty = sequence(&[]);
        let tbs = sequence(&[&version, &serial, &empty, &empty, &dates, &empty]);
        let whole = sequence(&[&tbs, &empty]);
        let found = validity(&whole).unwrap();
        assert_eq!(found.begins, 19_782 * 86_400 + 43_200);
        assert!(found.ends > found.begins);
        for cut in 0..whole.len() {
            let _whatever = validity(&whole[..cut]);
        }
    }

    #[test]
    fn what_is_no_certificate_is_passed_over() {
        assert_eq!(validities(""), []);
        assert_eq!(validities("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----"), []);
        assert_eq!(validities("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"), []);
        assert_eq!(base64("aHVtYW56").unwrap(), b"humanz");
        assert_eq!(base64("aHVtYQ==\n").unwrap(), b"huma");
    }
}
