//! How long one ADD waits: for the agent, for locks, for the kernel. Each wait takes its time from what is left of all,
//! so that they do not add up, and is noted for the case that nothing is left.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::{Duration, Instant};

use crate::cni::error::{CniError, code};

/// How long an ADD waits in all: it ends within half a minute, what it undoes included.
const ADD: Duration = Duration::from_secs(22);

/// How long it waits in addition while it undoes what it has done.
const UNDO: Duration = Duration::from_secs(3);

/// With less time no question is sent any more.
const LEAST: Duration = Duration::from_millis(1);

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Blocks,
    Policies,
    Locks,
    UndoLocks,
}

#[derive(Debug, Default)]
struct Waits {
    begun: Option<Instant>,
    waited: Vec<(Wait, Duration)>,
}

thread_local! {
    static WAITS: RefCell<Waits> = RefCell::default();
    static IS_UNDOING: Cell<bool> = const { Cell::new(false) };
}

/// An ADD, whose waits have an end in common from now on. An error that comes of it says what they were for.
///
/// # Errors
/// Those of `add`.
pub fn of_add(add: impl FnOnce() -> Result<(), CniError>) -> Result<(), CniError> {
    WAITS.set(Waits { begun: Some(Instant::now()), ..Waits::default() });
    add().map_err(|error| match error.code {
        code::TRY_AGAIN if left(ADD) < LEAST => {
            let waited = WAITS.with_borrow(Waits::to_string);
            let msg = format!("{}; ADD waits {} s in all: {waited}", error.msg, ADD.as_secs());
            CniError { msg, ..error }
        }
        _ => error,
    })
}

/// What is left of the call's time, `most` at most. Only an ADD is limited so.
pub fn left(most: Duration) -> Duration {
    let Some(begun) = WAITS.with_borrow(|waits| waits.begun) else { return most };
    let all = if is_undoing() { ADD + UNDO } else { ADD };
    all.saturating_sub(begun.elapsed()).min(most)
}

/// The same for something that is to be waited for; `None`: nothing is left.
pub fn any_left(most: Duration) -> Option<Duration> {
    Some(left(most)).filter(|left| *left >= LEAST)
}

/// What `wait` gives, whose time is noted.
pub fn noted<T>(what: Wait, wait: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let outcome = wait();
    WAITS.with_borrow_mut(|waits| waits.waited.push((what, begun.elapsed())));
    outcome
}

/// How long this call has waited for `what`.
pub fn waited(what: Wait) -> Duration {
    WAITS.with_borrow(|waits| waits.of(what))
}

/// Locks that are waited for in `undo` have a time of their own.
pub fn undoing(undo: impl FnOnce()) {
    let before = IS_UNDOING.replace(true);
    undo();
    IS_UNDOING.set(before);
}

pub fn is_undoing() -> bool {
    IS_UNDOING.get()
}

impl Waits {
    fn of(&self, what: Wait) -> Duration {
        self.waited.iter().filter(|(of, _)| *of == what).map(|(_, took)| *took).sum()
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (Wait::Blocks, "blocks of networks"),
            (Wait::Policies, "the agent's answer about policies"),
            (Wait::Locks, "locks of other processes"),
        ];
        let text = |(what, name): (Wait, &str)| {
            let took = self.of(what);
            (took >= LEAST).then(|| format!("{:.1} s for {name}", took.as_secs_f32()))
        };
        let texts: Vec<String> = all.into_iter().filter_map(text).collect();
        f.write_str(&texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_take_their_time_from_that_of_the_call_and_are_named_where_none_is_left() {
        assert_eq!(any_left(UNDO), Some(UNDO), "no ADD");
        let refused = of_add(|| {
            let all = left(2 * ADD);
            assert!(all <= ADD && all > ADD / 2, "{all:?}");
            assert_eq!(left(UNDO), UNDO);
            noted(Wait::Blocks, || {
                WAITS.with_borrow_mut(|waits| waits.begun = waits.begun.map(|at| at - ADD))
            });
            WAITS.with_borrow_mut(|waits| {
                waits.waited.push((Wait::Locks, Duration::from_millis(4_600)))
            });
            assert_eq!(any_left(UNDO), None);
            undoing(|| assert!(left(2 * ADD) <= UNDO && is_undoing()));
            assert!(!is_undoing() && waited(Wait::Locks) > UNDO);
            Err(CniError::try_again("busy"))
        });
        let text = "busy; ADD waits 22 s in all: 4.6 s for locks of other processes";
        assert_eq!(refused.unwrap_err().msg, text);
        let refused = of_add(|| Err(CniError::try_again("busy")));
        assert_eq!(refused.unwrap_err().msg, "busy");
    }
}
