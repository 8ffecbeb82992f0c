//! Pure. An end that is a pod with fixed addresses: which host has them.

use std::net::IpAddr;

use crate::checks::explain::hop::Hop;

/// The host that has a fixed address, as this host knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinHolder {
    ThisHost,
    Other(String),
    NoHost,
}

/// A pod with fixed addresses, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedEnd {
    /// `namespace/name`
    pub pod: String,
    pub address: IpAddr,
    /// `tenant/name`
    pub network: String,
    pub holder: PinHolder,
    /// The address of the pod that runs here.
    pub runs_with: Option<IpAddr>,
}

const HOP: &str = "pin";

/// Where the pod has its address, or what it waits for.
pub fn hop(end: &PinnedEnd) -> Hop {
    let PinnedEnd { pod, address, network, holder, runs_with } = end;
    match (runs_with, holder) {
        (Some(found), _) if found == address => {
            Hop::fine(HOP, pod, format!("{address} of network {network} is fixed for it"))
        }
        (Some(found), _) => Hop::odd(
            HOP,
            pod,
            format!("{address} of network {network} is fixed for it, and it runs with {found}"),
            "it gets the fixed address when it starts again",
        ),
        (None, PinHolder::Other(host)) => {
            let seen =
                format!("{address} of network {network} is fixed for it: host {host} has it");
            Hop::fine(HOP, pod, format!("{seen}, and no other host starts it meanwhile"))
        }
        (None, PinHolder::ThisHost) => Hop::lost(
            HOP,
            pod,
            format!("{address} is fixed for it; this host has it, and no pod of that name runs"),
            "if it does not start: the runtime's log has the error of its ADD. A host keeps the address for some \
             seconds after the pod's end",
        ),
        (None, PinHolder::NoHost) => Hop::lost(
            HOP,
            pod,
            format!("{address} is fixed for it, and no host has it: the pod does not run"),
            "start it: the host on which it starts takes the address; if that waits, humanz-agent status there says \
             why",
        ),
    }
}

/// A pod of that name here, whose pin is refused; `None`: it does not run, and does not start.
pub fn refused(pod: &str, why: &str, runs_with: Option<IpAddr>) -> Hop {
    let fix = format!(
        "humanz-agent pin ls # give it other addresses, by --address of pin set, or: humanz-agent pin rm {pod}"
    );
    match runs_with {
        Some(found) => Hop::odd(
            HOP,
            pod,
            format!("it runs with {found} and does not start again: pin of pod {pod}: {why}"),
            fix,
        ),
        None => Hop::lost(HOP, pod, format!("it does not start: pin of pod {pod}: {why}"), fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::explain::hop::HopVerdict;

    fn check(holder: PinHolder, runs_with: Option<&str>, words: &[&str], is_lost: bool) {
        let found = hop(&PinnedEnd {
            pod: "shop/db-0".into(),
            address: "10.32.255.2".parse().unwrap(),
            network: "blue/front".into(),
            holder,
            runs_with: runs_with.map(|text| text.parse().unwrap()),
        });
        assert_eq!((found.place.as_str(), found.is_lost()), ("shop/db-0", is_lost), "{found:?}");
        words.iter().for_each(|word| assert!(found.seen.contains(word), "{word}: {found:?}"));
    }

    #[test]
    fn a_pod_with_a_fixed_address_is_where_a_host_has_it() {
        use PinHolder::{NoHost, Other, ThisHost};
        check(ThisHost, Some("10.32.255.2"), &["10.32.255.2 of network blue/front is"], false);
        check(NoHost, Some("10.32.0.9"), &["it runs with 10.32.0.9"], false);
        check(Other("h2".into()), Some("10.32.0.9"), &["it runs with 10.32.0.9"], false);
        check(Other("h2".into()), None, &["host h2 has it"], false);
        check(ThisHost, None, &["this host has it, and no pod"], true);
        check(NoHost, None, &["no host has it"], true);
    }

    #[test]
    fn a_pod_whose_pin_is_refused_does_not_start_again() {
        let odd = refused("shop/db-0", "taken", Some("10.32.0.9".parse().unwrap()));
        let fix = "humanz-agent pin ls # give it other addresses, by --address of pin set, or: humanz-agent pin rm shop/db-0";
        assert_eq!(odd.verdict, HopVerdict::Odd(fix.into()));
        assert!(!odd.is_lost() && odd.seen.contains("does not start again"), "{odd:?}");
        assert!(refused("shop/db-0", "taken", None).is_lost());
    }
}
