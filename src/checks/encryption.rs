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
    /// This host wants a pre-shared key.
    pub preshared: bool,
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
        let secret = if self.preshared { "set" } else { "not set" };
        format!(
            "nft list ruleset # let UDP from and to port {port} of {address} through, at both hosts and between them; if it is \
             open, ENCRYPTION_PSK_FILE ({secret} here) may have another content there or be set on one of \
             both hosts alone; look with humanz-agent doctor there"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_has_ended_or_never_began_is_a_fault() {
        let to = "[fd99::12]:10401".parse().unwrap();
        let with = |age, preshared| Handshakes { to, age, preshared };
        let fault = |age| with(age, true).fault();
        assert_eq!(fault(Some(SESSION)), None);
        let ended = fault(Some(SESSION + Duration::from_secs(20))).unwrap();
        assert_eq!(ended, "no WireGuard handshake with [fd99::12]:10401 succeeded for 200 s");
        assert!(fault(None).unwrap().ends_with("succeeded since this host knows its key"));
        let fix = with(None, true).fix();
        assert!(
            fix.starts_with(
                "nft list ruleset # let UDP from and to port 10401 of fd99::12 through"
            ),
            "{fix}"
        );
        assert!(fix.contains("ENCRYPTION_PSK_FILE (set here) may have another content"), "{fix}");
        let fix = with(None, false).fix();
        assert!(fix.contains("ENCRYPTION_PSK_FILE (not set here)"), "{fix}");
    }
}
