//! The history of this host: a sample each minute, and its file in the state directory.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::agent::history::{FILE, History, LIMIT_BYTES, Sample};
use crate::agent::serve::agent::Agent;
use crate::agent::serve::sampling::Sampling;
use crate::inspect::pool_use::addresses;
use crate::net::gather::Gather;
use crate::net::node_name::NodeName;
use crate::net::subnet::gateway;
use crate::os::files;

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// What earlier lives of the agent on this machine have kept; a file that cannot be used is logged.
pub fn kept_history(state_dir: &Path, machine_id: &str) -> History {
    let path = path(state_dir);
    let read = match files::found(read(&path)) {
        Ok(None) => return History::new(machine_id),
        Ok(Some(text)) => History::from_text(&text, machine_id),
        Err(error) => Err(error.to_string()),
    };
    read.unwrap_or_else(|why| {
        log::warn!("{}: {why}; the history of this host begins anew", path.display());
        History::new(machine_id)
    })
}

/// At most [`LIMIT_BYTES`].
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    files::open(path)?.take(LIMIT_BYTES as u64).read_to_end(&mut text)?;
    Ok(text)
}

impl Agent {
    /// Takes a sample if one is due: the first as soon as the host is served.
    pub(super) fn follow_history(&mut self) {
        let problems = self.shared.problems.count();
        let sampling = &mut self.state.sampling;
        sampling.problems = sampling.problems.max(problems);
        let begins = self.state.ready && !sampling.is_begun;
        if begins || sampling.due <= Instant::now() {
            sampling.is_begun |= self.state.ready;
            self.note_history();
        }
    }

    /// The last sample, of a host that was served.
    pub(super) fn end_history(&mut self) {
        if self.state.sampling.is_begun {
            self.note_history();
        }
    }

    /// Takes a sample, and writes the file.
    fn note_history(&mut self) {
        let sample = self.sample();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = {
            let mut history = self.shared.history();
            history.note(now, sample);
            history.to_text(&self.shared.journal.all().0)
        };
        let path = path(&self.settings.state_dir);
        let written = files::replace(&path, text.as_bytes(), 0o600);
        if let Err(error) = &written
            && !self.state.sampling.failed
        {
            log::warn!("{error}: a restart of the agent loses the history of this host");
        }
        self.state.sampling = Sampling {
            failed: written.is_err(),
            is_begun: self.state.sampling.is_begun,
            ..Sampling::new(Instant::now())
        };
    }

    fn sample(&self) -> Sample {
        let uses = addresses(&self.settings, self.state.subnets);
        let pods = uses.iter().map(|of| of.used).max().unwrap_or_default();
        let hosts = self.state.peers.as_ref().map_or(0, |peers| peers.by_name.len());
        let number = |count: usize| count as u64;
        [
            number(self.state.sampling.problems),
            number(self.lost_hosts()),
            number(hosts),
            u64::try_from(pods).unwrap_or(u64::MAX),
        ]
    }

    /// Hosts without a path, and those that do not answer on it.
    fn lost_hosts(&self) -> usize {
        let (Some(peers), Some(routes)) = (&self.state.peers, self.state.cache.peer_routes.last())
        else {
            return 0;
        };
        let unreachable = routes.unreachable.iter().filter(|subnet| !subnet.is_pending());
        let without: BTreeSet<&NodeName> = unreachable.map(|subnet| &subnet.host).gather();
        let is_silent = |at| self.shared.probes.of(at).is_some_and(|seen| seen.fault(at).is_some());
        let lost = peers.by_name.iter().filter(|(name, peer)| {
            without.contains(name) || peer.subnets.iter().any(|subnet| is_silent(gateway(*subnet)))
        });
        lost.count()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_file_that_no_agent_has_written_begins_a_new_history() {
        let folder = tempfile::tempdir().unwrap();
        let empty = History::new("m1");
        let found = || kept_history(folder.path(), "m1");
        assert_eq!(found(), empty);
        let mut history = empty.clone();
        history.note(1000, [1, 2, 3, 4]);
        let text = history.to_text(&[]);
        fs::write(path(folder.path()), &text).unwrap();
        assert_eq!(found(), history);
        for garbage in [&text.as_bytes()[..30], b"", b"\xff\xfe", &[b'['; 2 * LIMIT_BYTES]] {
            fs::write(path(folder.path()), garbage).unwrap();
            assert_eq!(found(), empty);
        }
        fs::remove_file(path(folder.path())).unwrap();
        fs::create_dir(path(folder.path())).unwrap();
        assert_eq!(found(), empty, "a folder");
        fs::remove_dir(path(folder.path())).unwrap();
        mkfifo(&path(folder.path()), Mode::S_IRWXU).unwrap();
        assert_eq!(found(), empty, "a pipe without a writer");
    }
}
