//! Pure. Whether a host that does not answer is cut off below the encryption.

use std::net::SocketAddr;
use std::time::Duration;

/// A session carries packets for so long after its handshake. Source: WireGuard's `REJECT_AFTER_TIME`.
const SESSION: Duration = Duration::from_secs(180);

/// Handshakes with another host that packets are encrypted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshakes {
    /// Where they are sent.
    pub to: SocketAddr,
    /// Since the last one; `None`: there was none.
    pub age: Option<Duration>,
}

impl Handshakes {
    /// What is wrong with them; `None` while packets can be sent.
    pub fn fault(&self) -> Option<String> {
        let since = match self.age {
            Some(age) if age <= SESSION => return None,
            Some(age) => format!("for {} s", age.as_secs()),
            None => "since this host knows its key".to_owned(),
        };
        Some(format!("no WireGuard handshake with {} succeeded {since}", self.to))
    }

    /// What helps then.
    pub fn fix(&self) -> String {
        let (address, port) = (self.to.ip(), self.to.port());
        format!(
            "let UDP from and to port {port} of {address} through, at both hosts and between them; if it is \
             open, look with humanz-agent doctor there"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_has_ended_or_never_began_is_a_fault() {
        let to = "[fd99::12]:10401".parse().unwrap();
        let fault = |age| Handshakes { to, age }.fault();
        assert_eq!(fault(Some(SESSION)), None);
        let ended = fault(Some(SESSION + Duration::from_secs(20))).unwrap();
        assert_eq!(ended, "no WireGuard handshake with [fd99::12]:10401 succeeded for 200 s");
        assert!(fault(None).unwrap().ends_with("succeeded since this host knows its key"));
        let fix = Handshakes { to, age: None }.fix();
        assert!(fix.starts_with("let UDP from and to port 10401 of fd99::12 through"), "{fix}");
    }
}
