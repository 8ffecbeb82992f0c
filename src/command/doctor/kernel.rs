//! The kernel: modules, tables, and programs that meddle.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checks::limits::neighbours;
use crate::command::doctor::context::DoctorContext;
use crate::inspect::nft_parts;
use crate::net::{Family, IfName, Object, Problem, ProblemKind};
use crate::os::sysctl;
use crate::settings::Source;

pub fn problems(context: &DoctorContext<'_>) -> Vec<Problem> {
    let mut problems = modules(context);
    for family in Family::BOTH {
        problems.extend(table(context, family));
    }
    problems.extend(reverse_path(context));
    problems.extend(networkd());
    problems.extend(network_manager());
    problems
}

/// Modules that are neither there nor can be loaded.
fn modules(context: &DoctorContext<'_>) -> Vec<Problem> {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else { return Vec::new() };
    let folder = PathBuf::from("/lib/modules").join(release.trim());
    if !folder.exists() {
        let others = fs::read_dir("/lib/modules").is_ok_and(|mut entries| entries.next().is_some());
        let what = format!("{} is gone: no module can be loaded any more", folder.display());
        let fix = "ls /lib/modules # the kernel was upgraded: reboot";
        let subject = Object::File("directory", folder);
        let problem = Problem::new(ProblemKind::KernelReplaced, subject, what).with_fix(fix);
        return others.then_some(problem).into_iter().collect();
    }
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (builtin, loadable) = (read("modules.builtin"), read("modules.dep"));
    let settings = context.settings();
    let tunnels = settings.has_tunnels() && matches!(settings.source, Source::Etcd { .. });
    let wanted = ["bridge", "veth", "nf_tables", "nf_conntrack"];
    let wanted = wanted.into_iter().chain(tunnels.then_some("vxlan"));
    let wanted = wanted.chain(settings.encryption.and(Some("wireguard")));
    let missing = wanted.filter(|module| {
        let file = format!("/{module}.ko");
        let known = builtin.contains(&file) || loadable.contains(&file);
        !known && !Path::new("/sys/module").join(module).exists()
    });
    let problem = |module: &str| {
        let what = format!("this kernel has no module {module}");
        let fix = format!(
            "modprobe {module} # after the package with it is installed (linux-modules-extra?)"
        );
        let subject = Object::named(format!("module {module}"));
        Problem::new(ProblemKind::Modules, subject, what).with_fix(fix)
    };
    let of_nft = nft_parts::missing(&context.host.kernel.nft, settings.policy.is_some());
    // A user without rights cannot ask, and is shown that elsewhere.
    missing.map(problem).chain(of_nft.into_iter().flatten()).collect()
}

/// Room for neighbours: one for each pod and each host of the segment.
fn table(context: &DoctorContext<'_>, family: Family) -> Option<Problem> {
    let host = context.host;
    host.subnets.get(family)?;
    let has = |address: &std::net::IpAddr| Family::of(*address) == family;
    let pods = host.attachments().iter().filter(|pod| pod.entry.addresses.iter().any(has)).count();
    let hosts = host.others().count();
    let version = match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let threshold = sysctl::read(&format!("net/{version}/neigh/default/gc_thresh3")).ok();
    neighbours(family, threshold.and_then(|text| text.parse().ok()), (pods + hosts) as u64)
}

/// A strict filter on one of several uplinks drops what comes by the other.
fn reverse_path(context: &DoctorContext<'_>) -> Option<Problem> {
    let value = |name: &str| -> u8 {
        let text = sysctl::read(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    let host = context.host;
    let routes = host.kernel.rtnl.all_routes().ok()?;
    let default = routes.iter().filter(|route| {
        route.destination.is_ipv4() && route.destination.prefix() == 0 && route.gateway.is_some()
    });
    let mut devices: Vec<u32> = default.filter_map(|route| route.device).collect();
    devices.sort_unstable();
    devices.dedup();
    if devices.len() < 2 {
        return None;
    }
    let names =
        devices.into_iter().filter_map(|index| host.kernel.rtnl.link_by_index(index).ok()?);
    let names: Vec<IfName> = names.map(|link| link.name).collect();
    let strict = names.into_iter().find(|name| value("all").max(value(name.as_str())) == 1)?;
    let key = format!("net.ipv4.conf.{strict}.rp_filter");
    let what = format!("{strict} is one of several uplinks, and its reverse path filter is strict");
    let fix = format!("sysctl -w {key}=2");
    let subject = Object::Sysctl(key.replace('.', "/"));
    Some(Problem::new(ProblemKind::ReversePath, subject, what).with_fix(fix))
}

/// It removes routes that are not its own, unless it is configured not to.
fn networkd() -> Option<Problem> {
    if !Path::new("/run/systemd/netif/state").exists() {
        return None;
    }
    let folders = ["/etc", "/run", "/usr/local/lib", "/usr/lib"];
    let configured = folders.iter().any(|folder| {
        let own = Path::new(folder).join("systemd/networkd.conf");
        let dropped = Path::new(folder).join("systemd/networkd.conf.d");
        let files = fs::read_dir(dropped).into_iter().flatten().flatten().map(|entry| entry.path());
        let says = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|line| {
                let line = line.replace(' ', "").to_ascii_lowercase();
                matches!(
                    line.strip_prefix("manageforeignroutes="),
                    Some("no" | "false" | "0" | "off")
                )
            })
        };
        files.chain([own]).any(says)
    });
    (!configured).then(|| {
        let what = "systemd-networkd runs and removes routes that are not its own";
        let fix = "systemctl restart systemd-networkd # once make install, or the package, has put 50-humanz.conf \
            into networkd.conf.d";
        Problem::new(ProblemKind::Networkd, Object::named("systemd-networkd"), what).with_fix(fix)
    })
}

/// It manages links that are not its own, unless it is configured not to.
fn network_manager() -> Option<Problem> {
    if !Path::new("/run/NetworkManager/devices").exists() {
        return None;
    }
    let folders = ["/etc", "/run", "/usr/lib"];
    let configured = folders.iter().any(|folder| {
        let files = fs::read_dir(Path::new(folder).join("NetworkManager/conf.d"));
        let files = files.into_iter().flatten().flatten().map(|entry| entry.path());
        let mut texts = files.map(|path| fs::read_to_string(path).unwrap_or_default());
        texts.any(|text| text.contains("unmanaged-devices") && text.contains("humanz"))
    });
    (!configured).then(|| {
        let what = "NetworkManager runs and manages links of pods";
        let fix = "systemctl reload NetworkManager # once make install, or the package, has put 50-humanz.conf \
            into NetworkManager/conf.d";
        let subject = Object::named("NetworkManager");
        Problem::new(ProblemKind::NetworkManager, subject, what).with_fix(fix)
    })
}
