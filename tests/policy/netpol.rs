//! Kubernetes' own cases, against `evaluate`; `tests/kubernetes/netpol.rs` has them with packets.

use std::collections::BTreeSet;
use std::sync::Arc;

use humanz::policy::{Endpoints, Namespace};

use crate::reachability::{cluster, understood};
use crate::upstream::cases;

/// How many cases upstream has: 42, and three each for UDP and SCTP.
const UPSTREAM: usize = 48;

fn label(endpoints: &mut Endpoints, what: &str, key: &str, value: &str) {
    for pod in &mut endpoints.pods {
        if pod.to_string() == what {
            pod.labels.insert(key.into(), value.into());
        }
        if pod.namespace.name().as_str() == what {
            let mut labels = pod.namespace.labels().clone();
            labels.insert(key.into(), value.into());
            pod.namespace = Arc::new(Namespace::new(pod.namespace.name().clone(), labels));
        }
    }
}

#[test]
fn every_case_of_kubernetes_own_tests_is_decided_as_they_say() {
    let of = |name: &str| {
        let pods = cluster().pods.into_iter();
        pods.filter(|pod| pod.to_string() == name).flat_map(|pod| pod.addresses).collect()
    };
    let all = cases(&of);
    let names: BTreeSet<&str> = all.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), UPSTREAM, "{names:#?}");
    for case in all {
        let mut endpoints = cluster();
        for step in case.steps {
            let labels = step.labels.into_iter();
            labels.for_each(|(what, key, value)| label(&mut endpoints, what, key, value));
            let rules = understood(&step.policies);
            for (transport, table) in step.reach {
                table.check_in(case.name, &rules, &endpoints, transport);
            }
        }
    }
}
