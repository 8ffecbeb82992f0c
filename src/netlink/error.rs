//! Pure. What can go wrong in a talk with the kernel.

use std::io;

use nix::errno::Errno;

/// The kernel's refusal of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the message asked for, as in `create veth hz3f2a`.
    pub what: String,
    pub errno: Errno,
    /// The extended acknowledgement's text, if the kernel gave one.
    pub message: Option<String>,
    /// Which message of the batch, from 0.
    pub index: usize,
}

impl std::error::Error for Refused {}

impl std::fmt::Display for Refused {
    /// `create veth hz3f2a: Operation not supported (errno 95, kernel: "Unknown device type")`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} (errno {}", self.what, self.errno.desc(), self.errno as i32)?;
        match &self.message {
            Some(text) => write!(f, ", kernel: {text:?})"),
            None => f.write_str(")"),
        }
    }
}

/// Why an exchange with the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel understood and said no.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A system call on the socket failed.
    #[error("{what} on a netlink socket")]
    Io {
        /// The call, as in `send`.
        what: &'static str,
        source: io::Error,
    },
    /// Bytes that are no netlink, from the kernel or for it.
    #[error("netlink message not understood: {0}")]
    Malformed(String),
    /// A list that changed while it was read, every time it was read.
    #[error("{what}: the list kept changing while it was read ({tries} tries); try again later")]
    Unsteady {
        /// What was asked for.
        what: String,
        /// How often it was read.
        tries: usize,
    },
}

impl NetlinkError {
    /// The error number, for the place that acts on it (`ENODEV` on delete is success).
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Refused(refused) => Some(refused.errno),
            NetlinkError::Io { source, .. } => source.raw_os_error().map(Errno::from_raw),
            NetlinkError::Malformed(_) | NetlinkError::Unsteady { .. } => None,
        }
    }

    /// For `map_err`: the system call `what` failed.
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> NetlinkError {
        move |source| NetlinkError::Io { what, source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_failed_with_the_kernels_words() {
        let refused = Refused {
            what: "create veth hz3f2a".to_owned(),
            errno: Errno::EOPNOTSUPP,
            message: Some("Unknown device type".to_owned()),
            index: 0,
        };
        let text = "create veth hz3f2a: Operation not supported on transport endpoint (errno 95, \
                    kernel: \"Unknown device type\")";
        assert_eq!(refused.to_string(), text);
        assert_eq!(NetlinkError::from(refused).errno(), Some(Errno::EOPNOTSUPP));
    }
}
