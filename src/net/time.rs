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

#[cfg(test)]
mod tests {
    use super::*;

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
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z");
    }
}
