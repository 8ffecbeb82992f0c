//! What plugin and agent say to each other: lines over a socket, and the files that the agent writes for plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use humanz::inspect::local_socket::read_line;
use humanz::policy::ask::{Index, LIMIT, LocalPod, PolicyAnswer};
use humanz::policy::network_plan::{BlockAnswer, BlockQuestion, NetworkPlans};
use humanz::policy::{PodName, Scoped};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Nobody waits so long for what is there.
const PATIENCE: Duration = Duration::from_secs(20);

/// Parts: what comes over the socket, the file of networks, the index of namespaces, annotations of a pod.
pub fn questions(data: &[u8]) {
    let [sent, file, index, annotations] = super::parts(data);
    let line = received(sent);
    let (pod, block) = (same::<LocalPod>(&line), same::<BlockQuestion>(&line));
    assert!(pod.is_none() || block.is_none(), "a question with two meanings");
    let _answers = (same::<PolicyAnswer>(&line), same::<BlockAnswer>(&line));
    let plans = same::<NetworkPlans>(file);
    if let Some(plans) = &plans {
        self::plans(plans);
        let annotations = serde_json::from_slice(annotations).unwrap_or_default();
        chosen(plans, &annotations);
    }
    if let (Some(plans), Some(question)) = (&plans, &block) {
        let BlockQuestion { network, full, pinned } = question;
        let lacking = plans.lacking(network, full, pinned.as_ref());
        let is_none = lacking.as_ref().is_some_and(|lacking| lacking.first().is_none());
        assert!(!is_none || plans.get(network).is_some());
    }
    if let Some(pod) = &pod
        && let Some(index) = same::<Index>(index)
    {
        let name = pod.pod.as_deref().unwrap_or_default();
        assert!(
            !index.opens(name, &pod.addresses)
                || index.held.is_disjoint(&pod.addresses.iter().copied().collect())
        );
    }
}

/// The line as the other end reads it; empty if it gets none.
fn received(sent: &[u8]) -> Vec<u8> {
    let (mut from, mut to) = UnixStream::pair().expect("two ends");
    from.set_nonblocking(true).expect("an end");
    // As much as fits: nobody reads meanwhile.
    let written = from.write(sent).unwrap_or(0);
    from.shutdown(Shutdown::Write).expect("an end");
    let read = read_line(&mut to, LIMIT, Instant::now() + PATIENCE);
    let line = sent[..written].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_ended = line.len() < written;
    match &read {
        Ok(read) => assert!(is_ended && read == line, "it is not the line that was sent"),
        Err(error) => assert!(!is_ended || line.len() > LIMIT, "{error}"),
    }
    read.unwrap_or_default()
}

/// `bytes` as a `T`, which is written as it was read.
fn same<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let read = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_vec(&read).expect("names and addresses are always JSON");
    let again = serde_json::from_slice::<T>(&text);
    assert_eq!(again.as_ref().ok(), Some(&read), "{}", String::from_utf8_lossy(&text));
    Some(read)
}

/// What the agent writes for plugins is read by them, and has each block in a network of its own.
pub fn plans(plans: &NetworkPlans) {
    let text = serde_json::to_vec(plans).expect("names and addresses are always JSON");
    assert_eq!(serde_json::from_slice::<NetworkPlans>(&text).ok().as_ref(), Some(plans));
    let _networks: Vec<Option<&Scoped>> =
        plans.blocks().map(|block| plans.network_of(block.ip())).collect();
    chosen(plans, &BTreeMap::new());
}

/// A pod that says this gets a network that plugins know, and that is not refused, or none.
fn chosen(plans: &NetworkPlans, annotations: &BTreeMap<String, String>) {
    let names = ["shop", "web"].map(|name| name.parse().expect("a name"));
    let [namespace, name] = names;
    let pair = (namespace, name);
    let chosen = plans.choose(&pair, annotations, &BTreeMap::new(), |_| false);
    let (namespace, name) = pair.clone();
    let pod = PodName { namespace, name };
    match chosen {
        Err(error) => assert!(!error.to_string().chars().any(char::is_control), "{error:?}"),
        Ok(chosen) => {
            assert!(!chosen.is_empty(), "no interface");
            for (network, plan) in chosen.iter().filter_map(|one| one.network) {
                assert!(plan.refused.is_none(), "{network}: {plan:?}");
                let _lacking = plans.lacking(network, &BTreeSet::new(), Some(&pod));
            }
        }
    }
}
