//! Policies of the Kubernetes API, which a thread of its own follows.

use std::sync::mpsc::Sender;

use crate::agent::trigger::{self, Trigger};
use crate::os::event_loop::EventLoop;
use crate::sources::{self, Start};

/// What follows the Kubernetes API while policies of it are wanted.
pub struct PolicySource {
    triggers: Sender<Trigger>,
    /// What it was started with.
    running: Option<(Start, EventLoop)>,
}

impl PolicySource {
    pub fn new(triggers: Sender<Trigger>) -> PolicySource {
        PolicySource { triggers, running: None }
    }

    /// Nothing that was heard is revoked by another start, or by the end.
    pub fn follow(&mut self, wanted: Option<Start>) {
        if self.running.as_ref().map(|(start, _)| start) == wanted.as_ref() {
            return;
        }
        self.running = None;
        let Some(start) = wanted else { return };
        let triggers = self.triggers.clone();
        let publish = move |update| trigger::send(&triggers, Trigger::Policy(update));
        match sources::spawn(start.clone(), publish) {
            Ok(event_loop) => self.running = Some((start, event_loop)),
            Err(error) => log::error!("follow policies of the Kubernetes API: {error}"),
        }
    }
}
