//! Pure. etcd lost its data: this host puts back what it knows, one transaction after the other.

use std::sync::Arc;

use crate::lease::etcd_error::EtcdError;
use crate::lease::key_owners;
use crate::lease::restore::Restoration;
use crate::lease::restore::absent::Absent;
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Event, SessionExit};
use crate::lease::snapshot::Snapshot;

impl SessionMachine {
    /// The next transaction of the restoration; the last one marks the store as rebuilt.
    pub(super) fn restore(&mut self, mut restoration: Box<Restoration>) -> Command {
        if restoration.is_over() {
            return self.go_on_without(&restoration);
        }
        let transaction = restoration.next_transaction();
        let what = match restoration.marking {
            true => "mark etcd as rebuilt",
            false => "put back lost hosts",
        };
        self.commit(what, transaction, |_| State::Restoring(restoration))
    }

    /// A transaction of the restoration was committed or refused; one whose conditions do not hold means that
    /// what was read holds no longer.
    pub(super) fn restored(
        &mut self,
        mut restoration: Box<Restoration>,
        event: Result<Event, EtcdError>,
    ) -> Result<Command, SessionExit> {
        match event {
            Ok(Event::Committed(None)) => Ok(self.read()),
            Ok(_) if restoration.marking && restoration.is_partial => {
                Ok(self.go_on_without(&restoration))
            }
            Ok(_) if restoration.marking => Ok(self.read()),
            Ok(_) => Ok(self.restore(restoration)),
            Err(EtcdError::Denied(why)) if !restoration.marking => {
                self.warnings
                    .push(format!("{why}; this host remembers the other hosts until they return"));
                restoration.only_note();
                Ok(self.restore(restoration))
            }
            Err(EtcdError::Denied(why)) if restoration.has_settings => {
                self.warnings.push(why);
                Ok(self.go_on_without(&restoration))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// This host has done what it may; what is still lost in etcd it remembers.
    fn go_on_without(&mut self, restoration: &Restoration) -> Command {
        if restoration.is_partial {
            let old = self.rollback(&restoration.known).map(|rollback| rollback.old);
            self.absent = Some(Absent::new(Snapshot::clone(&restoration.known), old));
        }
        // Without the settings it is no loss of data any more.
        let mut known = Snapshot { config: None, ..Snapshot::clone(&restoration.known) };
        key_owners::outlive_loss(&mut known);
        self.last_known = Some(Arc::new(known));
        self.read()
    }
}
