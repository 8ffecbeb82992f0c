//! Pure. A moment as people and programs write it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `2026-11-20T18:49:45.123Z`.
pub fn timestamp(since_1970: Duration) -> String {
    format!("{}.{:03}Z", seconds(since_1970.as_secs()), since_1970.subsec_millis())
}

/// `2026-11-20T18:46:00Z`; times before 1970 are shown as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    format!("{}Z", seconds(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()))
}

/// The inverse of [`rfc3339`]; parts of a second are dropped.
pub fn read_rfc3339(text: &str) -> Option<SystemTime> {
    let (date, of_day) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, between: char| -> Option<[u64; 3]> {
        let parts: Result<Vec<u64>, _> = text.split(between).map(str::parse).collect();
        parts.ok()?.try_into().ok()
    };
    let [year @ 1970..=9999, month @ 1..=12, day @ 1..=31] = numbers(date, '-')? else {
        return None;
    };
    let of_day = of_day.split_once('.').map_or(of_day, |(seconds, _)| seconds);
    let [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] = numbers(of_day, ':')? else {
        return None;
    };
    let days = days_to(year, month, day)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// `2026-11-21 21:15 UTC`.
pub fn minute(since_1970: u64) -> String {
    let text = seconds(since_1970);
    format!("{} {} UTC", &text[..text.len() - 9], &text[text.len() - 8..text.len() - 3])
}

fn seconds(since_1970: u64) -> String {
    let (year, month, day) = civil(since_1970 / 86_400);
    let of_day = since_1970 % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Year, month, day of the day that many days after 1970-01-01.
///
/// Counts from March of year 0, so that the leap day is the last of its year: five months have 153
/// days, four years 1461, 400 years 146,097.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; none before. The inverse of [`civil`].
pub fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + of_year;
    days.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_texts_are_no_times() {
        for text in ["", "2026-11-20", "2026-13-20T18:46:00Z", "2026-11-20T18:46Z", "x-1-1T0:0:0Z"]
        {
            assert_eq!(read_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_827_696, "2000-02-29T12:34:56"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (1_735_689_600, "2025-01-01T00:00:00"),
            (1_795_200_360, "2026-11-20T18:46:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let moment = Duration::from_millis(seconds * 1000 + 7);
            assert_eq!(timestamp(moment), format!("{text}.007Z"));
            assert_eq!(rfc3339(UNIX_EPOCH + moment), format!("{text}Z"));
            let whole = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(read_rfc3339(&format!("{text}.007Z")), Some(whole));
            assert_eq!(read_rfc3339(&format!("{text}Z")), Some(whole));
            let minute = format!("{} {} UTC", &text[..10], &text[11..16]);
            assert_eq!(super::minute(seconds), minute);
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z");
    }
}
