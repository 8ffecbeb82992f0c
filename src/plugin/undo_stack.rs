//! The undo actions of an ADD, run if the ADD fails.

use std::fmt::Display;

use crate::netlink::rtnl::Rtnl;
use crate::plugin::call_time;

/// What undoes the steps done so far. Dropped, it undoes them, the last one first.
#[derive(Default)]
#[must_use = "dropping it undoes every step"]
pub struct UndoStack<'a>(Vec<Box<dyn FnOnce() + 'a>>);

/// The link of this ADD, by its index: one of the same name may be of a later ADD.
#[derive(Clone, Copy)]
pub struct OwnLink<'a> {
    pub rtnl: &'a Rtnl,
    pub index: u32,
}

impl OwnLink<'_> {
    /// Somebody has removed it: what is of its pod may be of a later ADD.
    pub fn is_gone(&self) -> bool {
        matches!(self.rtnl.link_by_index(self.index), Ok(None))
    }
}

impl<'a> UndoStack<'a> {
    /// `undo` undoes the step that was just done; its failure is logged.
    pub fn push<E: Display>(&mut self, undo: impl FnOnce() -> Result<(), E> + 'a) {
        self.0.push(Box::new(|| {
            if let Err(error) = undo() {
                log::error!("undo: {error}");
            }
        }));
    }

    /// Keeps every step.
    pub fn commit(mut self) {
        self.0.clear();
    }
}

impl Drop for UndoStack<'_> {
    fn drop(&mut self) {
        call_time::undoing(|| {
            while let Some(undo) = self.0.pop() {
                undo();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn undone(end: impl FnOnce(UndoStack<'_>)) -> Vec<&'static str> {
        let undone = RefCell::default();
        let mut undo = UndoStack::default();
        for step in ["first", "second"] {
            let undone = &undone;
            undo.push(move || {
                RefCell::<Vec<_>>::borrow_mut(undone).push(step);
                Ok::<(), String>(())
            });
        }
        end(undo);
        undone.into_inner()
    }

    #[test]
    fn steps_that_are_not_committed_are_undone_last_to_first() {
        assert_eq!(undone(|undo| drop(undo)), ["second", "first"]);
        assert!(undone(|undo| undo.commit()).is_empty());
    }
}
