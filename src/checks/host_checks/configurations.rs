//! Pure. Which CNI configurations a runtime prefers to ours.

use crate::net::{Object, Problem, ProblemKind};

/// The kinds of files that runtimes read (libcni, `ConfFiles`).
const KINDS: [&str; 3] = [".conf", ".conflist", ".json"];

/// If the first file in the order of names is not `ours`: containerd and CRI-O take it alone.
pub fn before(ours: &str, found: &[String]) -> Option<Problem> {
    let read = found.iter().filter(|name| KINDS.iter().any(|kind| name.ends_with(kind)));
    let first = read.min().filter(|first| first.as_str() < ours)?;
    let what = format!(
        "CNI configuration {first} comes before {ours}: the container runtime gives pods that network"
    );
    let subject = Object::Configuration(first.into());
    let problem = Problem::new(ProblemKind::CniConfigurationOrder, subject, what);
    Some(problem.with_fix("humanz-agent config # remove it from the folder of CNI_CONFIG_LOCATION, or give it a later name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: &[&str], wanted: Option<&str>) {
        let found: Vec<String> = found.iter().map(|name| (*name).to_owned()).collect();
        let found = before("05-humanz.conflist", &found).map(|problem| problem.key());
        let wanted = wanted
            .map(|name| (ProblemKind::CniConfigurationOrder, Object::Configuration(name.into())));
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_first_name_wins() {
        check(&["05-humanz.conflist", "10-flannel.conflist", "87-podman.conflist"], None);
        check(&["05-humanz.conflist", "00-multus.conf", "01-a.json"], Some("00-multus.conf"));
        check(&["05-calico.conflist"], Some("05-calico.conflist"));
    }

    #[test]
    fn other_files_are_not_read() {
        check(&["00-old.conf.bak", ".tmp-humanz", "00-README", "05-humanz.conflist"], None);
    }
}
