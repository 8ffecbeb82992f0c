//! Pure. Where container runtimes look for plugins and CNI configurations.

use std::path::{Path, PathBuf};

use toml::Table;

use crate::net::shell::word;
use crate::net::{Object, Problem, ProblemKind};

/// A container runtime, as its configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRuntime {
    pub name: &'static str,
    /// The first file of its configuration.
    pub file: PathBuf,
    /// Where it looks for plugins, in its order; empty for its default, which differs by distribution.
    pub plugin_dirs: Vec<PathBuf>,
    /// Where it looks for CNI configurations; `None` for /etc/cni/net.d.
    pub configuration_dir: Option<PathBuf>,
    /// Our plugin is in one of the directories.
    pub has_plugin: bool,
    /// A file of its configuration that is no TOML, and why.
    pub invalid: Option<(PathBuf, String)>,
}

impl ContainerRuntime {
    /// Takes over what a file of containerd's configuration says; a later file wins.
    ///
    /// Source: containerd's docs/cri/config.md: versions 1 to 3 of the format.
    pub fn read_containerd(&mut self, file: &Table) {
        let cri = file.get("plugins").and_then(|plugins| {
            ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"]
                .iter()
                .find_map(|name| plugins.get(name)?.get("cni"))
        });
        let Some(cni) = cri else { return };
        self.take(cni.get("bin_dirs").or_else(|| cni.get("bin_dir")), cni.get("conf_dir"));
    }

    /// The same of CRI-O's.
    ///
    /// Source: crio.conf(5), CRIO.NETWORK TABLE.
    pub fn read_crio(&mut self, file: &Table) {
        let network = file.get("crio").and_then(|crio| crio.get("network"));
        let Some(network) = network else { return };
        let plugins = network.get("plugin_dirs").or_else(|| network.get("plugin_dir"));
        self.take(plugins, network.get("network_dir"));
    }

    /// The problem of its file that is no TOML.
    fn invalid_file(&self) -> Option<Problem> {
        let (file, why) = self.invalid.as_ref()?;
        let (name, shown) = (self.name, file.display());
        let what = format!(
            "{shown} is no valid TOML ({why}): {name} may not start, and where it looks for plugins is not known"
        );
        let subject = Object::File("configuration", file.clone());
        let problem = Problem::new(ProblemKind::CniConfiguration, subject, what);
        Some(problem.with_fix(format!("cat {} # correct it, and restart {name}", word(shown))))
    }

    fn take(&mut self, plugin_dirs: Option<&toml::Value>, configuration_dir: Option<&toml::Value>) {
        let plugin_dirs = match plugin_dirs {
            Some(toml::Value::String(one)) => vec![one.as_str()],
            Some(toml::Value::Array(many)) => many.iter().filter_map(toml::Value::as_str).collect(),
            _ => Vec::new(),
        };
        let plugin_dirs: Vec<PathBuf> =
            plugin_dirs.into_iter().filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
        if !plugin_dirs.is_empty() {
            self.plugin_dirs = plugin_dirs;
        }
        let configuration_dir = configuration_dir.and_then(toml::Value::as_str);
        if let Some(dir) = configuration_dir.filter(|dir| !dir.is_empty()) {
            self.configuration_dir = Some(dir.into());
        }
    }
}

/// What of `runtimes` does not find our `plugin` and `configuration`. `set_place`: the command that sets a variable to
/// another place.
pub fn problems(
    runtimes: &[ContainerRuntime],
    plugin: &Path,
    configuration: &Path,
    set_place: impl Fn(&'static str, &Path) -> String,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for runtime in runtimes {
        let ContainerRuntime { name, file, .. } = runtime;
        problems.extend(runtime.invalid_file());
        if let Some(dir) = runtime.plugin_dirs.first().filter(|_| !runtime.has_plugin) {
            let dirs = runtime.plugin_dirs.iter().map(|dir| dir.display().to_string());
            let what = format!(
                "{name} looks for plugins in {} ({}), and {} is not there: it starts no pod",
                dirs.collect::<Vec<_>>().join(", "),
                file.display(),
                plugin.file_name().unwrap_or_default().to_string_lossy(),
            );
            let wanted = dir.join(plugin.file_name().unwrap_or_default());
            let problem =
                Problem::new(ProblemKind::CniPlugin, Object::Plugin(wanted.clone()), what);
            problems.push(problem.with_fix(set_place("CNI_PLUGIN_LOCATION", &wanted)));
        }
        let dir = runtime.configuration_dir.as_deref();
        if let Some(dir) = dir.filter(|dir| configuration.parent() != Some(dir)) {
            let what = format!(
                "{name} looks for CNI configurations in {} ({}), and not where ours is: {}",
                dir.display(),
                file.display(),
                configuration.display(),
            );
            let wanted = dir.join(configuration.file_name().unwrap_or_default());
            let subject = Object::Configuration(wanted.clone());
            let problem = Problem::new(ProblemKind::CniConfiguration, subject, what);
            problems.push(problem.with_fix(set_place("CNI_CONFIG_LOCATION", &wanted)));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::service_manager::ServiceManager;

    fn containerd(files: &[&str]) -> ContainerRuntime {
        let mut runtime = ContainerRuntime { name: "containerd", ..ContainerRuntime::default() };
        files.iter().for_each(|text| runtime.read_containerd(&text.parse().unwrap()));
        runtime
    }

    #[test]
    fn each_version_of_containerds_configuration_is_understood() {
        for (text, dirs) in [
            (
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/a\"",
                vec!["/a"],
            ),
            ("[plugins.cri.cni]\nbin_dir = \"/a\"", vec!["/a"]),
            (
                "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/a', '/b']",
                vec!["/a", "/b"],
            ),
            ("version = 2", vec![]),
            ("[plugins.cri.cni]\nbin_dir = 7", vec![]),
        ] {
            let dirs: Vec<PathBuf> = dirs.into_iter().map(PathBuf::from).collect();
            assert_eq!(containerd(&[text]).plugin_dirs, dirs, "{text}");
        }
        let later = containerd(&[
            "[plugins.cri.cni]\nbin_dir = \"/a\"\nconf_dir = \"/c\"",
            "[plugins.cri.cni]\nbin_dir = \"/b\"",
        ]);
        assert_eq!(later.plugin_dirs, [PathBuf::from("/b")]);
        assert_eq!(later.configuration_dir, Some(PathBuf::from("/c")));
    }

    #[test]
    fn crios_directories_are_understood() {
        let mut runtime = ContainerRuntime::default();
        let text = "[crio.network]\nplugin_dirs = [\"/usr/libexec/cni\"]\nnetwork_dir = \"/n\"";
        runtime.read_crio(&text.parse().unwrap());
        assert_eq!(runtime.plugin_dirs, [PathBuf::from("/usr/libexec/cni")]);
        assert_eq!(runtime.configuration_dir, Some(PathBuf::from("/n")));
    }

    #[test]
    fn a_runtime_that_looks_elsewhere_is_a_problem_with_the_setting_to_change() {
        let (plugin, configuration) =
            (Path::new("/opt/cni/bin/humanz"), Path::new("/etc/cni/net.d/05-humanz.conflist"));
        let systemd =
            |variable: &str, place: &Path| ServiceManager::Systemd.set_place(variable, place);
        let mut runtime = containerd(&["[plugins.cri.cni]\nbin_dir = \"/usr/lib/cni\""]);
        let found = problems(&[runtime.clone()], plugin, configuration, systemd);
        let kinds: Vec<_> = found.iter().map(Problem::key).collect();
        let wanted = Object::Plugin("/usr/lib/cni/humanz".into());
        assert_eq!(kinds, [(ProblemKind::CniPlugin, wanted)]);
        let fix = found[0].fix.as_deref().unwrap();
        assert!(fix.contains("echo CNI_PLUGIN_LOCATION=/usr/lib/cni/humanz >>"), "{fix}");

        let pod =
            |variable: &str, place: &Path| ServiceManager::Kubernetes.set_place(variable, place);
        let found = problems(&[runtime.clone()], plugin, configuration, pod);
        let fix = found[0].fix.as_deref().unwrap();
        let wanted = "-p '{\"data\":{\"CNI_PLUGIN_LOCATION\":\"/usr/lib/cni/humanz\"}}'";
        assert!(fix.contains(wanted) && fix.contains("node's /usr/lib/cni there"), "{fix}");

        runtime.has_plugin = true;
        assert_eq!(problems(&[runtime.clone()], plugin, configuration, systemd), []);
        runtime.configuration_dir = Some("/other".into());
        assert_eq!(problems(&[runtime], plugin, configuration, systemd).len(), 1);
        assert_eq!(problems(&[ContainerRuntime::default()], plugin, configuration, systemd), []);
    }
}
