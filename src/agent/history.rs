//! Pure. What this host was like over time, in bounded room: the page draws it, and it outlives the agent.

use std::collections::VecDeque;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::agent::journal::JournalEntry;

/// In the state directory.
pub const FILE: &str = "history.json";

/// Of such a file, and some room.
pub const LIMIT_BYTES: usize = 512 << 10;

/// A day in which no minute is like the one before.
const SPANS: usize = 1440;

/// Changes of earlier lives of the agent.
const CHANGES: usize = 100;

/// Characters of each text of a change.
const TEXT: usize = 300;

/// Two samples further apart have a time without an agent between them.
const GAP_SECS: u64 = 150;

/// The year 10000: later times have no text.
const TIMES: u64 = 253_402_300_800;

const SCHEMA: u32 = 1;

/// At one moment: problems (the most since the last sample), hosts that are not reached, other hosts, pods.
pub type Sample = [u64; 4];

/// From, until (seconds since 1970), and what was so all that time.
type Span = (u64, u64, Sample);

/// When (seconds since 1970), what, why, and whether it was a repair.
type PastChange = (u64, String, String, bool);

/// What is kept of earlier times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    schema: u32,
    /// A machine whose disk was copied has a history of its own.
    machine_id: String,
    /// In the order in which they were noted: if the clock was set back, not that of their times.
    spans: VecDeque<Span>,
    /// Of earlier lives of the agent, oldest first.
    changes: Vec<PastChange>,
}

impl History {
    pub fn new(machine_id: &str) -> History {
        History { schema: SCHEMA, machine_id: machine_id.to_owned(), ..History::default() }
    }

    /// That of a file of this machine.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn from_text(text: &[u8], machine_id: &str) -> Result<History, String> {
        let read: History = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let is_text =
            |text: &str| text.chars().count() <= TEXT && !text.chars().any(char::is_control);
        let is_change =
            |(at, what, why, _): &PastChange| *at < TIMES && is_text(what) && is_text(why);
        if read.schema != SCHEMA {
            return Err(format!("its schema is {}, not {SCHEMA}", read.schema));
        }
        if read.machine_id != machine_id {
            return Err("it is of another machine".to_owned());
        }
        let is_bounded = read.spans.len() <= SPANS && read.changes.len() <= CHANGES;
        let spans = read.spans.iter().all(|(from, until, _)| from <= until && *until < TIMES);
        if !is_bounded || !spans || !read.changes.iter().all(is_change) {
            return Err("it holds what no agent has written".to_owned());
        }
        Ok(read)
    }

    /// Notes `sample` at `now`, seconds since 1970. A time that goes on as it was takes no room.
    pub fn note(&mut self, now_secs: u64, sample: Sample) {
        if let Some((_, until, last)) = self.spans.back_mut()
            && (*until..=*until + GAP_SECS).contains(&now_secs)
        {
            *until = now_secs;
            if *last == sample {
                return;
            }
        }
        if self.spans.len() == SPANS {
            self.spans.pop_front();
        }
        self.spans.push_back((now_secs, now_secs, sample));
    }

    /// The text of a file that has `changes` of this life, too.
    pub fn to_text(&self, changes: &[JournalEntry]) -> String {
        let mut whole = self.clone();
        whole.changes.extend(changes.iter().map(past));
        let surplus = whole.changes.len().saturating_sub(CHANGES);
        whole.changes.drain(..surplus);
        serde_json::to_string(&whole).expect("numbers and texts are JSON") + "\n"
    }
}

fn past(entry: &JournalEntry) -> PastChange {
    let text = |text: &str| text.chars().filter(|c| !c.is_control()).take(TEXT).collect();
    let at = entry.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (at, text(&entry.what), text(&entry.why), entry.repair)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WELL: Sample = [0, 0, 3, 10];
    const BAD: Sample = [2, 1, 3, 10];

    fn noted(samples: &[(u64, Sample)]) -> Vec<Span> {
        let mut history = History::new("m1");
        samples.iter().for_each(|(at, sample)| history.note(*at, *sample));
        history.spans.into()
    }

    fn entry(at: u64, what: &str) -> JournalEntry {
        let at = UNIX_EPOCH + Duration::from_secs(at);
        JournalEntry { number: 1, at, what: what.to_owned(), why: "w".to_owned(), repair: true }
    }

    #[test]
    fn a_steady_time_is_one_span_and_a_change_leaves_no_hole() {
        let spans = noted(&[(1000, WELL), (1060, WELL), (1120, BAD), (1180, BAD)]);
        assert_eq!(spans, [(1000, 1120, WELL), (1120, 1180, BAD)]);
    }

    #[test]
    fn a_time_without_an_agent_is_a_gap() {
        assert_eq!(noted(&[(1000, WELL), (9000, WELL)]), [(1000, 1000, WELL), (9000, 9000, WELL)]);
    }

    #[test]
    fn a_clock_that_went_back_costs_nothing_of_what_was() {
        // A machine without a clock of its own begins in 1970 until it knows better.
        let spans = noted(&[(5000, WELL), (0, WELL), (60, WELL), (5300, WELL), (5240, WELL)]);
        let expected = [(5000, 5000, WELL), (0, 60, WELL), (5300, 5300, WELL), (5240, 5240, WELL)];
        assert_eq!(spans, expected);
    }

    #[test]
    fn the_room_is_bounded_and_what_is_written_is_read_back() {
        let mut history = History::new("m1");
        (0..5000).for_each(|minute| history.note(minute * 60, [minute, u64::MAX, 0, u64::MAX]));
        let long = "\u{1b}[2J".to_owned() + &"ü".repeat(9000);
        let changes: Vec<JournalEntry> = (0..500).map(|at| entry(at, &long)).collect();
        let text = history.to_text(&changes);
        assert!(text.len() < LIMIT_BYTES, "{} bytes", text.len());
        let mut read = History::from_text(text.as_bytes(), "m1").unwrap();
        assert_eq!((read.spans.len(), read.changes.len()), (SPANS, CHANGES));
        assert_eq!(read.spans.back(), history.spans.back());
        assert_eq!(read.changes[99].0, 499);
        // In the next life as well.
        read.note(300_000, WELL);
        let text = read.to_text(&[entry(7, "newest")]);
        let read = History::from_text(text.as_bytes(), "m1").unwrap();
        assert_eq!((read.changes.len(), &*read.changes[99].1), (CHANGES, "newest"));
    }

    #[test]
    fn what_no_agent_has_written_is_refused() {
        let of = |spans: &str, changes: &str| {
            format!(r#"{{"schema":1,"machineId":"m1","spans":[{spans}],"changes":[{changes}]}}"#)
        };
        let long = "x".repeat(TEXT + 1);
        let read = |text: &str| History::from_text(text.as_bytes(), "m1");
        read(&of("[1,2,[0,0,0,0]]", r#"[1,"a","b",false]"#)).unwrap();
        for text in [
            String::new(),
            "{".to_owned(),
            "[]".to_owned(),
            "[".repeat(100_000),
            of("", "").replace("\"schema\":1", "\"schema\":2"),
            of("", "").replace("m1", "m2"),
            of("[2,1,[0,0,0,0]]", ""),
            of("[1,2,[0,0,0]]", ""),
            of("[1,2,[0,0,0,-1]]", ""),
            of("[1,1e300,[0,0,0,0]]", ""),
            of("[1,18446744073709551615,[0,0,0,0]]", ""),
            of(&["[1,2,[0,0,0,0]]"; SPANS + 1].join(","), ""),
            of("", &[r#"[1,"a","b",false]"#; CHANGES + 1].join(",")),
            of("", &format!(r#"[1,"{long}","b",false]"#)),
            of("", r#"[1,"\u001b[2J","b",false]"#),
            of("", r#"[18446744073709551615,"a","b",false]"#),
        ] {
            let shown: String = text.chars().take(80).collect();
            assert!(read(&text).is_err(), "{shown}");
        }
    }
}
