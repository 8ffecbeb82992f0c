//! `ui`: a web page with this host's status.

mod groups;
mod pod_policies;
mod serve;
mod tenants;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use argh::{ArgsInfo, FromArgs};

use crate::command::call::{Call, Outcome};
use crate::command::explain;
use crate::command::flows;
use crate::command::host_pods;
use crate::command::ui::serve::{PageAddress, PageSources, serve};
use crate::settings::exit::{self, Exit};

/// serve a page that shows the cluster as this host knows it
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "ui",
    example = "{command_name}",
    example = "{command_name} --listen [::1]:8080",
    example = "{command_name} --listen /run/humanz/ui.sock",
    note = "The page has a map of the hosts and of which reach each other, the path to each, this host's pods with what \
        they send and the policies that hold for each, networks of tenants, groups, who may reach what, flows, \
        problems, and changes as they are made. It asks the agent, changes nothing and loads nothing from elsewhere.",
    note = "From another machine: ssh -L 8104:127.0.0.1:8104 HOST, then http://localhost:8104/. Every user of this \
        host can open the page on a loopback address; on a socket only root can.",
    error_code(2, "the address is no loopback address"),
    error_code(69, "cannot listen on the address")
)]
pub struct Ui {
    /// a loopback address and port, or the path of a socket to make (default: 127.0.0.1:8104)
    #[argh(option, default = "String::from(\"127.0.0.1:8104\")")]
    listen: String,
}

/// Serves until it is killed.
///
/// # Errors
/// A setting or the address is wrong, or it cannot listen there.
pub fn run(call: &mut Call<'_>, options: &Ui) -> Result<Outcome, Exit> {
    let place = place(&options.listen).map_err(|wrong| Exit::new(exit::SETTINGS, wrong))?;
    call.origin.set_default("ETCD_HOST", "localhost");
    let settings = call.load()?.settings;
    let Some(agent) = settings.socket.clone() else {
        return Err(Exit::new(
            exit::UNAVAILABLE,
            "SOCKET=none: the agent has no socket to read from",
        ));
    };
    let url = match &place {
        PageAddress::Loopback(address) => format!("http://{address}/"),
        PageAddress::Socket(path) => path.display().to_string(),
    };
    let settings = Arc::new(settings);
    let [of_flows, of_explain, of_tenants] = [(); 3].map(|()| Arc::clone(&settings));
    let explaining = Mutex::new(());
    let known_tenants = tenants::KnownTenants::default();
    let sources = PageSources {
        agent,
        flows: Arc::new(move || {
            flows::find(&of_flows).map(|it| it.json()).map_err(|exit| exit.why)
        }),
        tenants: Arc::new(move || known_tenants.get(&of_tenants)),
        // One after the other: it reads all firewalls, and every user of this host can ask.
        explain: Arc::new(move |words| match explaining.try_lock() {
            Ok(_alone) => explain::value(&of_explain, words).map_err(|exit| exit.why),
            Err(_) => Err("something else is being explained: ask again".to_owned()),
        }),
        pods: Arc::new(move || {
            host_pods::find(&settings).map(|it| it.json()).map_err(|exit| exit.why)
        }),
    };
    serve(&place, sources, || call.line(&url).map(drop)).map(|never| match never {})
}

/// No address that other hosts could reach.
fn place(text: &str) -> Result<PageAddress, String> {
    if text.starts_with('/') {
        return Ok(PageAddress::Socket(PathBuf::from(text)));
    }
    let address: Option<SocketAddr> = text.parse().ok();
    match address.filter(|address| address.ip().is_loopback()) {
        Some(address) => Ok(PageAddress::Loopback(address)),
        None => Err(format!(
            "--listen {text}: must be a loopback address and port (127.0.0.1:8104, [::1]:8104) or the \
             path of a socket: the page has no password"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_served() {
        assert!(matches!(place("127.0.0.1:80"), Ok(PageAddress::Loopback(_))));
        assert!(matches!(place("[::1]:80"), Ok(PageAddress::Loopback(_))));
        assert!(matches!(place("/run/ui.sock"), Ok(PageAddress::Socket(_))));
        for bad in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "localhost:80", "80", ""] {
            assert!(place(bad).unwrap_err().contains("loopback"), "{bad}");
        }
    }
}
