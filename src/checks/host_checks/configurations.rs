//! Pure. Which CNI configurations a runtime prefers to ours.

/// The kinds of files that runtimes read (libcni, `ConfFiles`).
const KINDS: [&str; 3] = [".conf", ".conflist", ".json"];

/// A line if the first file in the order of names is not `ours`: containerd and CRI-O take it alone.
pub fn before(ours: &str, found: &[String]) -> Option<String> {
    let read = found.iter().filter(|name| KINDS.iter().any(|kind| name.ends_with(kind)));
    let first = read.min().filter(|first| first.as_str() < ours)?;
    Some(format!(
        "CNI configuration {first} comes before {ours}: the container runtime gives pods that \
         network; remove it or give it a later name"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: &[&str], wanted: Option<&str>) {
        let found: Vec<String> = found.iter().map(|name| (*name).to_owned()).collect();
        let line = before("05-humanz.conflist", &found);
        match wanted {
            Some(name) => {
                let line = line.unwrap();
                assert!(line.starts_with(&format!("CNI configuration {name} comes")), "{line}");
            }
            None => assert_eq!(line, None, "{found:?}"),
        }
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
