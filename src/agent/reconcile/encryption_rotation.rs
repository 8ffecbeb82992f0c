//! Takes the steps of the change of this host's WireGuard key: each is one rename of the file of keys, and the next
//! reconcile makes devices and routes follow.

use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::agent::applier::Applier;
use crate::agent::encryption_key::{self, HostKeys};
use crate::agent::reconcile::Reconcile;
use crate::agent::reconcile::encryption::Encryption;
use crate::agent::trigger::Scope;
use crate::lease::{PeerFault, Peers};
use crate::net::{Object, Problem};
use crate::os::files;
use crate::plan::encryption::{
    EncryptedPeer, KeyState, Rotation, RotationStep, RotationWatch, Stage, device_name, is_old,
    is_pending, problem,
};
use crate::plan::peer_routes::PeerRoutes;

/// What is known from one reconcile to the next.
#[derive(Debug, Default)]
pub struct CachedRotation {
    began: Option<Instant>,
    watch: RotationWatch,
    state: Option<KeyState>,
    /// The kernel does not report what is waited for.
    pub look_soon: bool,
}

impl CachedRotation {
    /// That of the last reconcile; `None` where nothing is encrypted.
    pub fn state(&self) -> Option<KeyState> {
        self.state
    }
}

/// Takes the next step, if it is time and nothing would be lost. Gives what keeps it from that.
pub fn advance(
    run: &Reconcile<'_>,
    encryption: &Encryption,
    peer_routes: &PeerRoutes,
    known: &mut CachedRotation,
    applier: &mut Applier,
) -> Option<Problem> {
    let (Some(keys), Some(settings)) = (&encryption.keys, run.settings.encryption) else {
        *known = CachedRotation::default();
        return None;
    };
    let (stage, peers) = (keys.stage(), &peer_routes.encrypted);
    let made = UNIX_EPOCH + Duration::from_secs(keys.made_secs);
    known.state = Some(KeyState { stage, made });
    known.look_soon = is_pending(stage, peers, &encryption.sessions);
    if applier.is_dry() || !run.in_sync || !encryption.is_whole() || !applier.failures().is_empty()
    {
        return None;
    }
    // Hosts look at different times: the first one that is due goes first.
    if stage == Stage::Steady && run.scope != Scope::ALL {
        return blocked(known, stage, settings.rotation_port());
    }
    let seen = Rotation {
        own: stage,
        is_due: is_due(run, keys, peers),
        is_contested: run.peers.is_some_and(|peers| is_contested(peers)),
        peers,
        sessions: &encryption.sessions,
        now: known.began.get_or_insert_with(Instant::now).elapsed(),
    };
    if let Some(step) = known.watch.step(&seen) {
        take(run, keys, step, applier);
        known.look_soon = true;
    }
    blocked(known, stage, settings.rotation_port())
}

fn blocked(known: &CachedRotation, stage: Stage, port: u16) -> Option<Problem> {
    problem(stage, &known.watch.blocked(known.began?.elapsed()), port)
}

fn take(run: &Reconcile<'_>, keys: &HostKeys, step: RotationStep, applier: &mut Applier) {
    let what = match step {
        RotationStep::Begin => "a next one is made",
        RotationStep::TakeOver => "the next one takes over",
        RotationStep::Finish => "it is changed",
    };
    let (folder, machine_id) = (&run.settings.state_dir, &run.kernel.machine_id);
    let written = keys.after(step).and_then(|keys| {
        encryption_key::write(folder, machine_id, &keys)?;
        Ok(files::remove(&folder.join(encryption_key::REQUEST))?)
    });
    match written {
        Ok(()) => log::info!("the WireGuard key of this host: {what}"),
        Err(error) => applier.inspection_failed(Object::Tunnel(device_name()), &error),
    }
}

/// It was requested, or the key is old. Without other hosts, no host could have learnt it.
fn is_due(run: &Reconcile<'_>, keys: &HostKeys, peers: &[EncryptedPeer]) -> bool {
    let asked = run.settings.state_dir.join(encryption_key::REQUEST).exists();
    let limit = run.settings.encryption.and_then(|encryption| encryption.rotate);
    let is_old = |limit| is_old(keys.made_secs, keys.age(), limit);
    asked || !peers.is_empty() && limit.is_some_and(is_old)
}

fn is_contested(peers: &Peers) -> bool {
    peers.faults.iter().any(|fault| matches!(fault, PeerFault::SharedKey { is_own: true, .. }))
}
