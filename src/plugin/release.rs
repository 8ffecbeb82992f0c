//! The reservation of an attachment that ends: looked up without the store's lock, released with it. Where another
//! process holds a lock, a note is left for whoever takes it next, so that a DEL ends with success all the same.

use std::net::IpAddr;

use crate::cni::attachment::Attachment;
use crate::cni::config::NetConf;
use crate::cni::error::{CniError, code};
use crate::cni::request::Del;
use crate::ipam::{LockedStore, SeenEntry, Store, StoreEntry, StoreError};
use crate::net::PortForward;
use crate::plan::pod::LinkIdentity;
use crate::plugin::store::lock_if_any;
use crate::plugin::{failure, host_ports, store};

/// The reservation of the attachment that `del` is about.
pub struct Release<'a> {
    store: &'a Store,
    del: &'a Del,
    seen: Option<SeenEntry>,
    /// Why its host ports are open still.
    ports_left: Option<CniError>,
}

/// The entry of an attachment, without the lock.
///
/// # Errors
/// Code 5: the store cannot be read.
pub fn seen(conf: &NetConf, attachment: &Attachment) -> Result<Option<SeenEntry>, CniError> {
    let (container_id, ifname) = (attachment.container_id.as_str(), attachment.ifname.as_str());
    Ok(store::open(conf)?.seen(container_id, ifname)?)
}

impl<'a> Release<'a> {
    /// Of `del` in `store`.
    pub fn new(store: &'a Store, del: &'a Del) -> Release<'a> {
        Release { store, del, seen: None, ports_left: None }
    }

    /// The entry, if there is one: the first lock of a boot imports it from older plugins.
    ///
    /// # Errors
    /// Code 5.
    pub fn entry(&mut self) -> Result<Option<StoreEntry>, CniError> {
        let (conf, attachment) = (&self.del.conf, &self.del.attachment);
        self.seen = seen(conf, attachment)?;
        if self.seen.is_none()
            && let Some(locked) = unless_held(lock_if_any(self.store))?.flatten()
        {
            // An invalid one goes to quarantine.
            locked.entry(attachment.container_id.as_str(), attachment.ifname.as_str())?;
            self.seen = seen(conf, attachment)?;
        }
        Ok(self.seen.as_ref().map(|seen| seen.entry().clone()))
    }

    /// Closes its host ports. Those whose lock another process holds stay open, and its addresses reserved. Without an
    /// entry, it gives those that the kernel had.
    ///
    /// # Errors
    /// Code 5; code 999: the kernel refused; code 11: the lock is held, and there is no entry to leave a note of.
    pub fn close_ports(&mut self) -> Result<Vec<PortForward>, CniError> {
        let Some(seen) = &self.seen else {
            let identity = LinkIdentity::of(&self.del.conf.name, &self.del.attachment);
            return host_ports::close_unknown(self.store, &identity.host_ifname());
        };
        match host_ports::close(self.store, &[seen.entry()]) {
            Err(error) if error.code == code::TRY_AGAIN => self.ports_left = Some(error),
            outcome => outcome?,
        }
        Ok(Vec::new())
    }

    /// The addresses in `prevResult` that no other pod has by now: for stores of older plugins, which kept no
    /// owners, and for a lost one. None, if their owner is not known.
    ///
    /// # Errors
    /// Code 5.
    pub fn previous_addresses(&self) -> Result<Vec<IpAddr>, CniError> {
        let addresses = previous(self.del);
        Ok(match unless_held(lock_if_any(self.store))? {
            Some(Some(locked)) => {
                let Attachment { container_id, ifname, .. } = &self.del.attachment;
                locked.without_others(container_id.as_str(), ifname.as_str(), addresses)?
            }
            Some(None) => addresses,
            None => Vec::new(),
        })
    }

    /// Releases it; gives the addresses. `reserved`: those that it was found to have, and `is_swept`, that no
    /// connection of them is left.
    ///
    /// # Errors
    /// Code 5; code 11: a lock is held, and no note could be left.
    pub fn run(self, reserved: &[IpAddr], is_swept: bool) -> Result<Vec<IpAddr>, CniError> {
        host_ports::close_ended(self.store);
        if let Some(held) = &self.ports_left {
            return self.leave_note(held).map(|()| Vec::new());
        }
        let released = match lock_if_any(self.store) {
            Ok(Some(locked)) => self.released(&locked, reserved).inspect(|released| {
                if is_swept && released.iter().all(|it| reserved.contains(it)) {
                    locked.note_swept(released);
                }
            }),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        match released {
            Err(held) if held.code == code::TRY_AGAIN => {
                self.leave_note(&held).map(|()| Vec::new())
            }
            released => released,
        }
    }

    fn released(
        &self,
        locked: &LockedStore<'_>,
        reserved: &[IpAddr],
    ) -> Result<Vec<IpAddr>, CniError> {
        let Attachment { container_id, ifname, .. } = &self.del.attachment;
        let released = locked.release(container_id.as_str(), ifname.as_str())?;
        match released.is_empty() {
            true => Ok(locked.release_unowned(reserved)?),
            false => Ok(released),
        }
    }

    /// For whoever takes the lock next.
    fn leave_note(&self, held: &CniError) -> Result<(), CniError> {
        let refused = |error: StoreError| {
            let why = failure::chain(&error);
            held.clone().with_details(format!("and no note can be left for its next holder: {why}"))
        };
        match self.note().map_err(refused)? {
            0 if self.store.awaits_import().map_err(refused)? => return Err(held.clone()),
            0 => log::warn!("{}: nothing is reserved for this attachment", held.msg),
            _ => log::warn!("{}: who takes it next releases this attachment", held.msg),
        }
        Ok(())
    }

    /// Gives the number of notes.
    fn note(&self) -> Result<usize, StoreError> {
        if let Some(seen) = &self.seen {
            return self.store.note_end(seen).map(|()| 1);
        }
        let unowned = self.store.seen_unowned(&previous(self.del))?;
        unowned.iter().try_for_each(|seen| self.store.note_end(seen))?;
        Ok(unowned.len())
    }
}

fn previous(del: &Del) -> Vec<IpAddr> {
    let ips = del.conf.prev_result.iter().flat_map(|result| &result.ips);
    ips.map(|ip| ip.address.ip()).collect()
}

/// `None` if another process holds the lock.
fn unless_held<T>(locked: Result<T, CniError>) -> Result<Option<T>, CniError> {
    match locked {
        Err(error) if error.code == code::TRY_AGAIN => Ok(None),
        locked => locked.map(Some),
    }
}
