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
//! - `served`: says whether it works, on a socket
//! - `start`, `seen`, `step`, `accepted`, `condition`: values and decisions, pure

mod accepted;
mod condition;
mod rounds;
mod seen;
mod served;
mod settle;
mod start;
mod step;
mod writes;

use std::io;

use crate::os::event_loop::EventLoop;

pub use start::ControllerStart;

/// Starts it.
///
/// # Errors
/// The socket, the thread or its event loop cannot be created.
pub fn spawn(start: ControllerStart) -> io::Result<EventLoop> {
    let listener = start.socket.as_deref().map(served::bind).transpose()?;
    EventLoop::spawn("controller", async move |stopped| {
        tokio::select! {
            _ = stopped => {}
            never = rounds::run(&start, listener) => match never {},
        }
    })
}
