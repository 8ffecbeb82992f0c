//! Pure. What is known of the whole way: sizes, connections, and whether anything arrives.

use crate::checks::explain::hop::{HERE, Hop};
use crate::checks::explain::path::{EchoResult, EndPlace, Path, PortListener};
use crate::netlink::link::Link;

/// The rest of what is to be said.
pub fn all(path: &Path) -> Vec<Hop> {
    let hops = [other_host(path), sizes(path), connections(path), echo(path), listener(path)];
    hops.into_iter().flatten().collect()
}

/// What the other host says about itself.
fn other_host(path: &Path) -> Option<Hop> {
    let remote = [&path.to, &path.from].into_iter().find_map(|end| end.remote())?;
    let addresses: Vec<String> = remote.addresses.iter().map(ToString::to_string).collect();
    Some(Hop::fine("other-host", &remote.host, format!("has {}", addresses.join(", "))))
}

/// Whether a packet as large as the sender may send gets through. Where a router is between, it
/// reports it to the sender by ICMP; a bridge drops silently.
fn sizes(path: &Path) -> Option<Hop> {
    let name = "mtu";
    let steps = steps(path);
    let (first, least) = (steps.first()?, steps.iter().min_by_key(|(_, mtu)| *mtu)?);
    if least.1 < first.1 {
        let seen = format!(
            "packets of more than {} bytes are lost: {} takes no more, {} sends up to {}",
            least.1, least.0, first.0, first.1
        );
        let fix = format!("ip link set {} mtu {} # or lower that of the pod", least.0, first.1);
        return Some(Hop::lost(name, HERE, seen, fix));
    }
    let device = path.there.device().and_then(|index| path.host.links.get(&index));
    if let (Some(link), EndPlace::RemoteHost(remote), None) =
        (device, &path.to.place, &path.there.tunnel)
        && let Some(mtu) = remote.mtu.filter(|mtu| *mtu < link.mtu)
    {
        let seen =
            format!("host {} takes {mtu} bytes, {} sends {}", remote.host, link.name, link.mtu);
        let fix = "give all hosts of a segment the same MTU, or set MTU to the least of them";
        return Some(Hop::lost(name, HERE, seen, fix));
    }
    Some(Hop::fine(name, HERE, format!("{} bytes from {}", first.1, first.0)))
}

/// What frames of the sender pass without a router between: name and MTU of each, in order.
fn steps(path: &Path) -> Vec<(String, u32)> {
    let of = |link: &Link| (link.name.to_string(), link.mtu);
    let pod = |end: &crate::checks::explain::path::PathEnd| {
        let pod = end.pod()?;
        let inside = pod.inside.as_ref().ok()?.link.as_ref()?;
        let named = (format!("{} of {}", inside.name, end.name), inside.mtu);
        Some((named, of(pod.port.as_ref()?)))
    };
    let bridge = || path.host.bridge.as_ref().map(of);
    let mut steps = Vec::new();
    match (pod(&path.from), pod(&path.to)) {
        (Some((inside, port)), to) => {
            steps.extend([inside, port]);
            if let Some((inside, port)) = to.filter(|_| path.is_bridged()) {
                steps.extend([port, inside]);
            }
        }
        (None, Some((inside, port))) => {
            steps.extend(bridge());
            steps.extend([port, inside]);
        }
        (None, None) => {}
    }
    steps
}

const UDP: u8 = 17;

/// So many connections are written out.
const SHOWN: usize = 3;

/// What the kernel follows between the two.
fn connections(path: &Path) -> Option<Hop> {
    let name = "connections";
    let found = path.connections.as_ref()?;
    if found.is_empty() {
        return Some(Hop::fine(name, HERE, "the kernel follows none between them"));
    }
    let text = grouped(found.iter().map(ToString::to_string).collect());
    let silent = |connection: &crate::netlink::connections::Connection| !connection.answered;
    match found.iter().all(silent) {
        true => Some(Hop::odd(name, HERE, text, "check that a process listens there")),
        false => Some(Hop::fine(name, HERE, text)),
    }
}

/// The first few of `texts`, each once with how often it is there, and how many are left out.
fn grouped(texts: Vec<String>) -> String {
    let mut groups: Vec<(String, usize)> = Vec::new();
    for text in texts {
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => groups.push((text, 1)),
        }
    }
    let more: usize = groups.iter().skip(SHOWN).map(|(_, count)| count).sum();
    let shown = groups.iter().take(SHOWN).map(|(text, count)| match count {
        1 => text.clone(),
        count => format!("{count} × {text}"),
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    if more == 0 { shown } else { format!("{shown} (and {more} more)") }
}

/// Whether anybody takes in what comes to the port.
fn listener(path: &Path) -> Option<Hop> {
    let (name, at) = ("listener", &path.to.name);
    let (protocol, port) = path.transport?;
    let port = format!("{} port {port}", if protocol == UDP { "UDP" } else { "TCP" });
    let to = path.to.address;
    Some(match path.listener? {
        PortListener::Socket => Hop::fine(name, at, format!("a process listens at {port}")),
        PortListener::None => {
            let seen = format!("nothing listens there at {to}, {port}");
            let fix = format!(
                "start the process in the pod, or let it listen at {to} or at all addresses, or give the \
                 port that it listens at; a pod that is a virtual machine does not show its sockets"
            );
            Hop::lost(name, at, seen, fix)
        }
        PortListener::Rules => {
            let seen = format!("nothing listens there at {to}, {port}");
            let fix = "that is right if the pod's own firewall rules lead the port elsewhere, as \
                       sidecars do (nft list ruleset in the pod); else start the process";
            Hop::odd(name, at, seen, fix)
        }
    })
}

/// What came back.
fn echo(path: &Path) -> Option<Hop> {
    let name = "echo";
    let EchoResult { by, small, large } = path.echo.as_ref()?;
    let to = path.to.address;
    let unanswered = match path.to.place {
        EndPlace::RemoteHost(_) => {
            "this host does its part: run the same on the other host, the other way round"
        }
        _ => "not everybody answers to echoes; does it listen at all?",
    };
    Some(match (small, large) {
        (Err(error), _) => {
            Hop::odd(name, HERE, format!("no echo can be sent: {error}"), unanswered)
        }
        (Ok(None), _) => {
            Hop::odd(name, HERE, format!("{to} does not answer echoes of {by}"), unanswered)
        }
        (Ok(Some(time)), Some((bytes, false))) => {
            let seen = format!(
                "{to} answers {by} within {time:.1?}, but not to packets of {bytes} bytes: something on \
                 the way takes less and does not say so"
            );
            let fix = "set MTU lower, or let ICMP \"fragmentation needed\" through between hosts";
            Hop::lost("mtu", HERE, seen, fix)
        }
        (Ok(Some(time)), Some((bytes, true))) => Hop::fine(
            name,
            HERE,
            format!("{to} answers {by} within {time:.1?}, also {bytes} bytes"),
        ),
        (Ok(Some(time)), None) => {
            Hop::fine(name, HERE, format!("{to} answers {by} within {time:.1?}"))
        }
    })
}
