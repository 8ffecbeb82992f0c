//! Pure. Everything was read: whose network it is, and whether something must come before the
//! claim.

use crate::lease::claim::refusal;
use crate::lease::growth;
use crate::lease::identity::Network;
use crate::lease::records::Key;
use crate::lease::restore::{self, Continuity};
use crate::lease::session::{Dialogue, End, Found, Lost, Pause, Place, Question};
use crate::lease::snapshot::Snapshot;
use crate::lease::transaction::Transaction;

impl Dialogue {
    /// Everything was read.
    pub(super) fn consider(&mut self, found: Found) -> Result<Question, End> {
        let Found { snapshot: found, told, attributes, kept, mark } = found;
        self.own.network = self.network(told, &found);
        self.own.attributes = attributes;
        self.kept = kept;
        self.mark = mark;
        let network = &self.own.network;
        let known = self.known.clone();
        let lost = known.filter(|known| restore::continuity(known, &found) == Continuity::Lost);
        if lost.is_none() && found.modified(&network.roots, &Key::Config) == 0 {
            if !std::mem::replace(&mut self.so_far.waited, true) {
                return Ok(self.pause(Pause::Grace));
            }
            let settings = self.settings();
            let founding = |transaction| Place::Founding(found, transaction);
            return Ok(self.commit("write the settings of the network", settings, founding));
        }
        self.so_far.waited = false;
        match lost.filter(|_| refusal::config(&found, network).is_none()) {
            Some(known) => {
                let lost = Lost::new(known, found, network, &self.mark);
                Ok(self.ask_back(Box::new(lost)))
            }
            None => self.claim(found),
        }
    }

    /// Writes the settings of the network, unless another host does.
    fn settings(&self) -> Transaction {
        let key = self.own.network.key(&Key::Config);
        let mut transaction = Transaction::default();
        transaction.unchanged(&key, 0);
        transaction.put(key, self.own.network.config(&self.mark).to_json());
        transaction
    }

    /// The network that this host was told, as wide as it is by now.
    fn network(&self, told: Network, found: &Snapshot) -> Network {
        let mut pools = growth::followed(&told.pools, found);
        if let Some(known) = &self.known {
            pools = growth::followed(&pools, known);
        }
        Network { pools, ..told }
    }
}
