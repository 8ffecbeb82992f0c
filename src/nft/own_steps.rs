//! Pure. Changes of ours among all changes of tables.

use std::collections::VecDeque;

/// How many are remembered: more than one reconcile makes.
const STEPS: usize = 16;

/// The generations that one change of ours, and nothing else, has led to, each with the table.
#[derive(Debug, Default)]
pub struct OwnSteps(VecDeque<(u32, String)>);

impl OwnSteps {
    pub fn note(&mut self, generation: u32, table: &str) {
        self.0.truncate(STEPS - 1);
        self.0.push_front((generation, table.to_owned()));
    }

    /// The last generation up to which, since `since`, only we have changed tables, and not this one.
    pub fn unchanged_until(&self, table: &str, since: u32) -> u32 {
        let mut until = since;
        for (generation, of) in self.0.iter().rev() {
            if *generation == until.wrapping_add(1) && of != table {
                until = *generation;
            }
        }
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_ours_of_other_tables_leave_a_table_as_it_was() {
        let mut steps = OwnSteps::default();
        assert_eq!(steps.unchanged_until("a", 4), 4);
        for (generation, table) in [(5, "b"), (6, "b"), (7, "a"), (9, "b")] {
            steps.note(generation, table);
        }
        assert_eq!(steps.unchanged_until("a", 4), 6, "7 is of this table");
        assert_eq!(steps.unchanged_until("a", 7), 7, "8 is of somebody else");
        assert_eq!(steps.unchanged_until("b", 6), 7);
        assert_eq!(steps.unchanged_until("c", 4), 7);
        assert_eq!(steps.unchanged_until("c", 8), 9);
        for generation in 10..10 + u32::try_from(STEPS).unwrap() {
            steps.note(generation, "b");
        }
        assert_eq!(steps.unchanged_until("c", 8), 8, "9 is forgotten");
        steps.note(0, "b");
        assert_eq!(steps.unchanged_until("c", u32::MAX), 0, "the number begins again");
    }
}
