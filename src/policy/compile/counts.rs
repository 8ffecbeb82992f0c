//! Pure. How many users something has, by name.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct UserCounts(BTreeMap<String, usize>);

impl UserCounts {
    /// One user more; true if it is the first.
    pub fn add(&mut self, name: &str) -> bool {
        match self.0.get_mut(name) {
            Some(users) => {
                *users += 1;
                false
            }
            None => self.0.insert(name.to_owned(), 1).is_none(),
        }
    }

    /// One user less; true if it was the last.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(users) = self.0.get_mut(name) else { return false };
        *users -= 1;
        *users == 0 && self.0.remove(name).is_some()
    }
}
