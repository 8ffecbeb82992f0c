//! Pure. The sign of life of an agent.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{RecordError, SCHEMA, json};

/// The value of `alive/<hostname>`. The key lives as long as its etcd lease; that it is there says
/// that the agent runs, its loss says nothing about who owns what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alive {
    schema: u32,
    /// Machine id of the host whose agent runs.
    pub machine_id: Box<str>,
    /// When that agent started, in its own clock, for people: `2026-11-20T18:46:00Z`.
    pub since: Box<str>,
}

impl Alive {
    /// The sign of life of an agent on `machine_id` that started at `since`.
    pub fn new(machine_id: &str, since: SystemTime) -> Alive {
        Alive { schema: SCHEMA, machine_id: machine_id.into(), since: rfc3339(since).into() }
    }

    /// # Errors
    /// [`RecordError`] if `value` is no such JSON object.
    pub fn parse(value: &[u8]) -> Result<Alive, RecordError> {
        json(value)
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always serialise")
    }
}

/// `2026-11-20T18:46:00Z`; times before 1970 are shown as 1970.
pub(in crate::lease) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month, day of the day that many days after 1970-01-01.
///
/// Counts from March of year 0, so that the leap day is the last of its year: five months have 153
/// days, four years 1461, 400 years 146,097.
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
    use std::time::Duration;

    #[test]
    fn times_are_written_for_people() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_200_360, "2026-11-20T18:46:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn it_comes_back_as_it_went_in() {
        let alive = Alive::new("0123", UNIX_EPOCH);
        assert_eq!(Alive::parse(alive.to_json().as_bytes()).unwrap(), alive);
        assert!(Alive::parse(b"2026").is_err());
    }
}
