//! Many echoes at once, on the calling thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::os::echo::Echo;

/// Pending echoes.
#[derive(Default)]
pub struct Echoes {
    waiting: Vec<PendingEcho>,
}

struct PendingEcho {
    to: IpAddr,
    bytes: u32,
    echo: Echo,
    sent: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoOutcome {
    pub to: IpAddr,
    pub bytes: u32,
    /// The round trip time; `None` without a reply.
    pub time: Option<Duration>,
}

fn listen(waiting: &PendingEcho) -> PollFd<'_> {
    PollFd::new(waiting.echo.as_fd(), PollFlags::POLLIN)
}

impl Echoes {
    /// The number of pending echoes, each an open socket.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends one of `bytes`, IP header included.
    ///
    /// # Errors
    /// No route; no buffer space; no CAP_NET_RAW.
    pub fn send(&mut self, to: IpAddr, bytes: u32) -> io::Result<()> {
        let echo = Echo::open(to, None)?;
        let sent = Instant::now();
        echo.send(1, bytes)?;
        self.waiting.push(PendingEcho { to, bytes, echo, sent });
        Ok(())
    }

    /// Waits until `until` or the first outcomes: replies, and echoes without one within `patience`.
    ///
    /// # Errors
    /// poll(2).
    pub fn wait(&mut self, until: Instant, patience: Duration) -> io::Result<Vec<EchoOutcome>> {
        let first = self.waiting.iter().map(|waiting| waiting.sent + patience).min();
        let until = first.map_or(until, |first| first.min(until));
        // Rounded up: a poll of zero would spin.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let ready: Vec<bool> = {
            let mut fds: Vec<PollFd<'_>> = self.waiting.iter().map(listen).collect();
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
        };
        let now = Instant::now();
        let mut outcomes = Vec::new();
        let mut ready = ready.into_iter();
        self.waiting.retain(|waiting| {
            let answered =
                ready.next().unwrap_or(false) && matches!(waiting.echo.receive(), Ok(Some(_)));
            let late = now >= waiting.sent + patience;
            if answered || late {
                let time = answered.then(|| now - waiting.sent);
                outcomes.push(EchoOutcome { to: waiting.to, bytes: waiting.bytes, time });
            }
            !answered && !late
        });
        Ok(outcomes)
    }
}
