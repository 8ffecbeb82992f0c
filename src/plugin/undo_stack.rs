//! What an ADD has done so far, and takes back if it fails.

use crate::ipam::Reservation;
use crate::plugin::attach::Attached;
use crate::plugin::host_ports::Ports;
use crate::plugin::sysctls::Written;

/// Something done: dropped, it is undone.
pub trait Guard {
    /// It stays until DEL.
    fn keep(self: Box<Self>);
}

/// The steps done so far, in their order. Dropped, they are undone, the last one first.
#[derive(Default)]
#[must_use = "what is done is undone when this is dropped"]
pub struct Done<'a>(Vec<Box<dyn Guard + 'a>>);

impl<'a> Done<'a> {
    /// Adds a step.
    pub fn hold(&mut self, step: impl Guard + 'a) {
        self.0.push(Box::new(step));
    }

    /// All of it stays.
    pub fn keep(mut self) {
        while let Some(step) = self.0.pop() {
            step.keep();
        }
    }
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.0.pop() {
            drop(step);
        }
    }
}

impl Guard for Attached<'_> {
    fn keep(self: Box<Self>) {
        Attached::keep(*self);
    }
}

impl Guard for Ports<'_> {
    fn keep(self: Box<Self>) {
        Ports::keep(*self);
    }
}

impl Guard for Reservation<'_> {
    fn keep(self: Box<Self>) {
        self.commit();
    }
}

impl Guard for Written<'_> {
    fn keep(self: Box<Self>) {
        Written::keep(*self);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Writes down what becomes of it.
    struct Step<'a>(&'static str, &'a RefCell<Vec<String>>);

    impl Guard for Step<'_> {
        fn keep(self: Box<Self>) {
            self.1.borrow_mut().push(format!("keep {}", self.0));
            std::mem::forget(self);
        }
    }

    impl Drop for Step<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push(format!("undo {}", self.0));
        }
    }

    fn fate(end: impl FnOnce(Done<'_>)) -> Vec<String> {
        let fates = RefCell::default();
        let mut done = Done::default();
        done.hold(Step("first", &fates));
        done.hold(Step("second", &fates));
        end(done);
        fates.into_inner()
    }

    #[test]
    fn what_is_not_kept_is_undone_from_the_last_step_to_the_first() {
        assert_eq!(fate(|done| drop(done)), ["undo second", "undo first"]);
        assert_eq!(fate(|done| done.keep()), ["keep second", "keep first"]);
    }
}
