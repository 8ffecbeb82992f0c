//! Keeps the plugin installed: a copy of this executable and its names.
//!
//! A copy, because a link out of a container's image leads nowhere on the host; relative links,
//! because a runtime may see the directory under another path.

use std::path::{Path, PathBuf};

use crate::agent::applier::Applier;
use crate::net::Object;
use crate::os::files;
use crate::plan::Line;
use crate::settings::Settings;

/// The copy's name in the plugin directory.
pub const COPY: &str = "humanz-agent";

/// The plugin that containerd runs for the loopback interface.
const LOOPBACK: &str = "loopback";

/// Where podman looks for plugins of netavark, in this order, unless its `netavark_plugin_dirs` says otherwise.
///
/// Source: containers.conf(5).
const NETAVARK: [&str; 4] = [
    "/usr/local/libexec/netavark",
    "/usr/libexec/netavark",
    "/usr/local/lib/netavark",
    "/usr/lib/netavark",
];

/// The name of the driver for podman. Packages put a link of this name to their executable in place.
pub const DRIVER: &str = "humanz";

/// Where a link for netavark may be.
pub fn netavark_links() -> [PathBuf; 4] {
    NETAVARK.map(|folder| Path::new(folder).join(DRIVER))
}

/// The files that are kept: the copy, and its names.
pub fn files(settings: &Settings) -> [PathBuf; 3] {
    let plugin = &settings.cni.plugin;
    [plugin.with_file_name(COPY), plugin.clone(), plugin.with_file_name(LOOPBACK)]
}

/// Installs what is missing or different; true if all is there. `loopback` is taken only if the
/// name is free.
pub fn install(settings: &Settings, applier: &mut Applier) -> bool {
    let before = applier.failures().len();
    let [copy, plugin, loopback] = files(settings);
    let own = Path::new("/proc/self/exe");
    match files::is_copy(own, &copy) {
        Ok(true) => {}
        Ok(false) => {
            let line = Line::added(Object::Plugin(copy.clone()));
            applier.apply(&line, || files::copy_executable(own, &copy));
        }
        Err(error) => applier.inspect_failed(Object::Plugin(copy.clone()), error),
    }
    link(&plugin, applier);
    if loopback.symlink_metadata().is_err() {
        link(&loopback, applier);
    }
    applier.failures().len() == before
}

/// Lets podman's netavark find the plugin, unless it does already.
pub fn install_for_netavark(settings: &Settings, applier: &mut Applier) {
    let links = netavark_links();
    if links.iter().any(|link| link.exists()) {
        return;
    }
    let ([copy, ..], [link, ..]) = (files(settings), links);
    let line =
        Line::added(Object::PluginLink(link.clone())).with(format!(" -> {}", copy.display()));
    applier.apply(&line, || files::replace_link(&copy, &link));
}

fn link(path: &Path, applier: &mut Applier) {
    if std::fs::read_link(path).is_ok_and(|target| target == Path::new(COPY)) {
        return;
    }
    let line = Line::added(Object::PluginLink(path.to_owned())).with(format!(" -> {COPY}"));
    applier.apply(&line, || files::replace_link(Path::new(COPY), path));
}
