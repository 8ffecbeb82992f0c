//! A watch of the Kubernetes API: its lines, one event each.

use tokio::time::{Instant, timeout_at};
use tonic::body::Body;

use crate::kube::answer::{ApiError, next_bytes};
use crate::kube::object::Ended;
use crate::net::FailureReason;

/// Largest event accepted, in bytes.
const EVENT_LIMIT: usize = 16 * 1024 * 1024;

/// A watch that is under way.
pub struct WatchStream {
    /// What is watched, and where, for errors.
    what: String,
    body: Body,
    until: Instant,
    /// The beginning of an incomplete event.
    rest: Vec<u8>,
}

impl WatchStream {
    pub fn new(what: String, body: Body, until: Instant) -> WatchStream {
        WatchStream { what, body, until, rest: Vec::new() }
    }

    /// The next events, as `parse` reads their lines; `None` at the end of the watch. Cancel-safe.
    ///
    /// # Errors
    /// The watch broke, or `parse` failed.
    pub async fn next<E>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Result<E, Ended>, String>,
    ) -> Result<Option<Vec<E>>, ApiError> {
        loop {
            let more = match timeout_at(self.until, next_bytes(&mut self.body)).await {
                Ok(more) => more.map_err(|error| self.failed(error))?,
                Err(_) => return Err(self.failed("it does not end")),
            };
            let Some(more) = more else { return Ok(None) };
            let end = more.iter().rposition(|byte| *byte == b'\n');
            let end = end.map(|end| self.rest.len() + end);
            self.rest.extend_from_slice(&more);
            if self.rest.len() - end.map_or(0, |end| end + 1) > EVENT_LIMIT {
                return Err(self.failed(format!("an event of more than {EVENT_LIMIT} bytes")));
            }
            if let Some(end) = end {
                let lines: Vec<u8> = self.rest.drain(..=end).collect();
                let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                return lines
                    .map(|line| self.event(parse(line)))
                    .collect::<Result<_, _>>()
                    .map(Some);
            }
        }
    }

    fn event<E>(&self, parsed: Result<Result<E, Ended>, String>) -> Result<E, ApiError> {
        match parsed {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(Ended(410, why))) => Err(ApiError::Expired(why)),
            Ok(Err(Ended(_, why))) => Err(self.failed(why)),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, why: impl Into<FailureReason>) -> ApiError {
        ApiError::Failed(why.into().at(&self.what))
    }
}
