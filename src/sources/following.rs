//! Follows the Kubernetes API while policies of it are wanted.

use std::sync::Arc;

use crate::os::event_loop::EventLoop;
use crate::policy::Update;
use crate::sources::kubernetes::{Start, spawn};

/// What follows the API, and what it was started with.
pub struct Following {
    publish: Arc<dyn Fn(Update) + Send + Sync>,
    running: Option<(Start, EventLoop)>,
}

impl Following {
    /// Nothing is followed yet. `publish`: see [`spawn`].
    pub fn new(publish: impl Fn(Update) + Send + Sync + 'static) -> Following {
        Following { publish: Arc::new(publish), running: None }
    }

    /// Follows `wanted` alone. Nothing that was heard is revoked by that.
    pub fn set(&mut self, wanted: Option<Start>) {
        if self.running.as_ref().map(|(start, _)| start) == wanted.as_ref() {
            return;
        }
        self.running = None;
        let Some(start) = wanted else { return };
        let publish = Arc::clone(&self.publish);
        match spawn(start.clone(), move |update| publish(update)) {
            Ok(event_loop) => self.running = Some((start, event_loop)),
            Err(error) => log::error!("follow policies of the Kubernetes API: {error}"),
        }
    }
}
