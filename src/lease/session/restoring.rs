//! Pure. etcd lost its data: this host puts back what it knows, one transaction after the other.

use crate::lease::etcd_error::EtcdError;
use crate::lease::restore::Restoration;
use crate::lease::session::machine::{SessionMachine, State};
use crate::lease::session::messages::{Command, Event, SessionExit};
use crate::lease::snapshot::Snapshot;

impl SessionMachine {
    /// The next transaction of the restoration; the last one marks the store as rebuilt.
    pub(super) fn restore(&mut self, mut restoration: Box<Restoration>) -> Command {
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
            Ok(_) if restoration.marking => Ok(self.read()),
            Ok(_) => Ok(self.restore(restoration)),
            Err(EtcdError::Denied(why)) if !restoration.marking => {
                self.warnings
                    .push(format!("{why}; this host remembers the other hosts until they return"));
                self.absent = Some(Snapshot::clone(&restoration.known));
                restoration.only_mark();
                Ok(self.restore(restoration))
            }
            Err(EtcdError::Denied(why)) if restoration.has_settings => {
                self.warnings.push(why);
                self.last_known = None;
                Ok(self.read())
            }
            Err(error) => Err(error.into()),
        }
    }
}
