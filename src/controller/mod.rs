//! Keeps the custom resources `Network` of the Kubernetes API in etcd, and the status of all of humanz's.
//!
//! Hosts lease blocks of a network by its object in etcd, which they may not write, and agents may not write the
//! API's status: this runs once in a cluster, as an administrator of etcd. Two at once do no harm, and one may be
//! killed on any line: what is to be done is computed anew from etcd and the API each time, and every write depends
//! on what was read.
//!
//! - `rounds`: follows both, and looks at everything whenever one of them changed
//! - `settle`: brings one network to where it should be
//! - `writes`: changes of objects in the API
//! - `working`: says whether it works
//! - `start`, `seen`, `step`, `accepted`, `condition`: values and decisions, pure

mod accepted;
mod condition;
mod rounds;
mod seen;
mod settle;
mod start;
mod step;
mod working;
mod writes;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use tokio::task::LocalSet;

use crate::os::event_loop::EventLoop;

pub use start::ControllerStart;
pub use working::Working;

/// Starts it; `serve` answers probes, in the same event loop.
///
/// # Errors
/// The thread or its event loop cannot be created.
pub fn spawn(
    start: ControllerStart,
    serve: impl AsyncFnOnce(Arc<Working>) -> Infallible + Send + 'static,
) -> io::Result<EventLoop> {
    EventLoop::spawn("controller", async move |stopped| {
        let working = Arc::new(Working::default());
        let all = async {
            tokio::select! {
                _ = stopped => {}
                never = rounds::run(&start, &working) => match never {},
                never = serve(Arc::clone(&working)) => match never {},
            }
        };
        LocalSet::new().run_until(all).await;
    })
}
