//! Pure. The command line of the agent itself: flags of the same meaning as the variables.

use std::collections::BTreeMap;

use argh::{ArgsInfo, FromArgs, SubCommands};

use crate::net::gather::Gather;
use crate::settings::Texts;
use crate::settings::choices;

/// A setting of the agent as its users know it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name in the environment; the flag is the same in lower case with dashes.
    pub name: &'static str,
    /// What holds when neither flag nor variable is given; empty for "nothing".
    pub default: &'static str,
    /// What it means, one line.
    pub help: &'static str,
    /// All that can be written for it; empty where that cannot be listed.
    pub choices: &'static [&'static str],
}

/// The names of the choices, or none.
macro_rules! names {
    () => {
        &[]
    };
    ($choices:ident) => {
        &choices::$choices.names()
    };
}

/// Declares every setting once: the variable, its default, its flag, and the choices if there are some.
macro_rules! settings {
    ($($name:literal $field:ident $default:literal $help:literal $(in $choices:ident)?)*) => {
        /// Every setting, in the order of the documentation.
        pub const VARIABLES: &[Variable] =
            &[$(Variable {
                name: $name,
                default: $default,
                help: $help,
                choices: names!($($choices)?),
            }),*];

        /// humanz: pod network for Kubernetes and plain containers. Without a subcommand it
        /// serves this host until it is stopped. Every option can also be given as an
        /// environment variable (--etcd-host is ETCD_HOST); options win.
        #[derive(FromArgs, ArgsInfo, Debug)]
        #[argh(usage = "[<options>] [<command> [<args>]]")]
        #[argh(note = "Examples:
  humanz-agent --etcd-host 192.0.2.1,192.0.2.2      serve this host
  humanz-agent --standalone --subnet 10.244.1.0/24  serve one host without etcd
  humanz-agent --etcd-host 192.0.2.1 --dry-run      print what would change
  humanz-agent config --check                       report every error
  humanz-agent config                               print settings and sources
  humanz-agent uninstall --dry-run                  print what would be removed")]
        #[argh(error_code(0, "done, or stopped by a signal"))]
        #[argh(error_code(1, "a failure while running; standard error says which"))]
        #[argh(error_code(2, "a setting is invalid; every error is listed"))]
        #[argh(error_code(69, "etcd cannot be reached (with --once or --dry-run), or this user lacks permission"))]
        #[argh(error_code(70, "a bug in humanz; please report it"))]
        #[argh(error_code(75, "no free subnet in the pool: try again when one is released"))]
        pub struct Arguments<C: SubCommands + ArgsInfo> {
            $(#[argh(option, description = $help)]
            $field: Option<String>,)*
            /// file with the same variables, one NAME=value a line (default: /etc/humanz/agent.env
            /// if it is there); environment and options win
            #[argh(option)]
            pub env_file: Option<String>,
            /// serve one host without any etcd (the same as --subnet-source static)
            #[argh(switch)]
            pub standalone: bool,
            /// reconcile once and exit
            #[argh(switch)]
            pub once: bool,
            /// print what would change as +, - and ~ lines; change nothing
            #[argh(switch)]
            pub dry_run: bool,
            /// print the version
            #[argh(switch)]
            pub version: bool,
            #[argh(subcommand)]
            /// what to do instead of serving
            pub command: Option<C>,
        }

        impl<C: SubCommands + ArgsInfo> Arguments<C> {
            /// The settings given as flags, by the name of their variable.
            pub fn given(&self) -> BTreeMap<&'static str, String> {
                let mut given = BTreeMap::new();
                $(if let Some(value) = &self.$field {
                    given.insert($name, value.clone());
                })*
                if self.standalone {
                    given.insert("SUBNET_SOURCE", "static".to_owned());
                }
                given
            }
        }
    };
}

settings! {
    "ETCD_HOST" etcd_host "" "etcd members: host, host:port or URL (https://… for TLS), several with commas"
    "ETCD_CACERT" etcd_cacert "" "file with the authority that signed the members' certificates (PEM)"
    "ETCD_CERT" etcd_cert "" "file with this host's client certificate (PEM)"
    "ETCD_KEY" etcd_key "" "file with the key of the client certificate (PEM)"
    "ETCD_USER" etcd_user "" "etcd user name"
    "ETCD_PASSWORD_FILE" etcd_password_file "" "file with the password of the etcd user"
    "ETCD_TIMEOUT" etcd_timeout "5s" "longest wait for one answer of etcd: 1s to 60s"
    "ETCD_PREFIX" etcd_prefix "/humanz/hosts" "key prefix of the hosts' subnets"
    "ETCD_COUNTER_KEY" etcd_counter_key "/humanz/counter" "key whose version counts allocations"
    "HUMANZ_PREFIX" humanz_prefix "/humanz/v1" "key prefix of everything else"
    "NODE_NAME" node_name "" "name of this host in etcd (default: the kernel's host name)"
    "NODE_IP" node_ip "" "address of this host for the other hosts, IPv4 and/or IPv6 with a comma (default: source of the default route)"
    "IP_SUBNET" ip_subnet "10.244.0.0/16" "the pool of pod addresses, or none for IPv6 only"
    "IP_SUBNET_MARGIN" ip_subnet_margin "8" "extra prefix bits: /16 + 8 gives each host a /24"
    "IP_SUBNET_LIMIT" ip_subnet_limit "" "the widest pool to accept from the network when it grows (default: IP_SUBNET)"
    "IPV6_SUBNET" ipv6_subnet "" "the IPv6 pool; empty for IPv4 only"
    "IPV6_SUBNET_MARGIN" ipv6_subnet_margin "16" "extra prefix bits: /48 + 16 gives each host a /64"
    "IPV6_SUBNET_LIMIT" ipv6_subnet_limit "" "the widest IPv6 pool to accept from the network (default: IPV6_SUBNET)"
    "SUBNET_SOURCE" subnet_source "etcd" "where this host's subnet comes from: etcd, kubernetes (podCIDRs of the nodes) or static" in SOURCES
    "SUBNET" subnet "" "with SUBNET_SOURCE=static: this host's subnet, IPv4 and/or IPv6 with a comma"
    "KUBECONFIG" kubeconfig "" "with SUBNET_SOURCE=kubernetes or POLICY=kubernetes: kubeconfig file (default: the service account of the pod)"
    "KUBE_API" kube_api "" "URL of the Kubernetes API, if another than in KUBECONFIG or the service kubernetes"
    "BRIDGE_NAME" bridge_name "humanz0" "the bridge the pods are plugged into"
    "MTU" mtu "auto" "MTU of pods and bridge: auto (that of the path to the other hosts) or 576 to 65535"
    "BACKEND" backend "auto" "how pods of other hosts are reached: direct, vxlan, or auto (direct to hosts on the same segment, VXLAN to the others)" in BACKENDS
    "VXLAN_VNI" vxlan_vni "104" "VXLAN network identifier, the same on all hosts: 1 to 16777215"
    "VXLAN_PORT" vxlan_port "10400" "UDP port of this host's VXLAN tunnels: 1 to 65535"
    "ENCRYPTION" encryption "off" "encrypt what pods send to pods of other hosts: off or wireguard (WireGuard of the kernel)" in ENCRYPTIONS
    "ENCRYPTION_STRICT" encryption_strict "true" "with ENCRYPTION=wireguard: nothing to or from pods of other hosts in clear text; false while hosts are changed over"
    "ENCRYPTION_PORT" encryption_port "10401" "UDP port of this host's WireGuard device: 1 to 65535; the one after it is used while keys are changed"
    "ENCRYPTION_ROTATE" encryption_rotate "168h" "how old this host's WireGuard key becomes before another one takes its place, without loss: 1h to 8760h, or off"
    "ENCRYPTION_PSK_FILE" encryption_psk_file "" "with ENCRYPTION=wireguard: file of a secret (wg genpsk) that is the same on all hosts and of which each pair of them makes a pre-shared key"
    "IP_MASQ" ip_masq "true" "masquerade pods that send to addresses outside the pool"
    "NON_MASQ_CIDRS" non_masq_cidrs "" "further destinations that see the pod's own address"
    "MANAGE_FORWARD" manage_forward "true" "accept forwarded pod traffic where the host's own rules drop it"
    "FLOWTABLE" flowtable "false" "let packets of established connections pass by forward chains, where the kernel has flow tables: faster"
    "POD_GUARD" pod_guard "on" "let pods send under their own MAC and addresses only: on or off" in GUARDS
    "POD_ROUTING" pod_routing "host" "how pods of this host reach each other: host (routed, through its forward hook) or bridge" in ROUTINGS
    "ALLOWED_ADDRESSES" allowed_addresses "" "further subnets that pods may send from (VRRP, nested networks), and groups that they may send to, with commas"
    "POLICY" policy "off" "enforce policies between pods: off, on, or kubernetes (with SUBNET_SOURCE=etcd: those of the Kubernetes API, beside those in etcd)" in POLICIES
    "POLICY_OBJECTS" policy_objects "etcd" "with POLICY=kubernetes: where groups, their policies, profiles, networks and rules of namespaces are made: etcd, or kubernetes (custom resources); with SUBNET_SOURCE=kubernetes always there" in OBJECTS
    "POLICY_FILE" policy_file "" "with POLICY=on: file of policies, groups, namespaces and pods (YAML or JSON), read again when it changes"
    "POLICY_GROUP" policy_group "" "with POLICY=on: group of pods that nothing else puts into one, NAME or TENANT/NAME; the same on all hosts"
    "POLICY_ON_AGENT_DOWN" policy_on_agent_down "quarantine" "a pod that starts while the agent is away: quarantine (no network until the agent is back), fail (the runtime tries again) or open (no policies until then)" in AGENT_DOWN
    "POLICY_MARK" policy_mark "0xffff0000" "with POLICY=on: the bits of a connection's mark that policies use, at least 16 beside each other"
    "FLOWS" flows "off" "with POLICY=on: count who connects to what, for humanz-agent flows: on or off" in FLOWS
    "MANAGE_SYSCTL" manage_sysctl "true" "turn on forwarding in the kernel"
    "CNI_VERSION" cni_version "1.0.0" "cniVersion of the configuration: 0.3.1, 0.4.0, 1.0.0 or 1.1.0" in CNI_VERSIONS
    "CNI_NAME" cni_name "humanz" "name of the network"
    "CNI_TYPE" cni_type "humanz" "name of the plugin"
    "CNI_CONFIG_LOCATION" cni_config_location "/etc/cni/net.d/05-humanz.conflist" "the configuration to write; .conf gives the single-plugin form"
    "CNI_PLUGIN_LOCATION" cni_plugin_location "" "the plugin to install (default: /opt/cni/bin/$CNI_TYPE)"
    "PLUGIN_LOG_FILE" plugin_log_file "/var/log/humanz.log" "log of the plugin; none for no log"
    "IPAM_DIR" ipam_dir "/run/humanz/ipam" "the store of pod addresses"
    "SOCKET" socket "/run/humanz/agent.sock" "socket for status, metrics and health of the agent; none for no socket"
    "METRICS_ADDR" metrics_addr "" "loopback address and port for metrics and health, as in 127.0.0.1:9104"
    "STATE_DIR" state_dir "/var/lib/humanz" "last known good state of the agent"
    "RESYNC_INTERVAL" resync_interval "60s" "time between full checks that need no event: 1s to 3600s"
    "BLOCK_RELEASE_AFTER" block_release_after "600s" "a block of a tenant's network without pods is given back after this time: 1s to 24h (86400s)"
    "PROBE_INTERVAL" probe_interval "60s" "time between two echo requests to each other host: 1s to 3600s, or 0 for none"
    "CLEANUP_ON_STOP" cleanup_on_stop "false" "remove bridge, routes and rules when stopped; running pods lose their network"
}

/// remove from this host what humanz made
#[derive(FromArgs, ArgsInfo, Clone, Debug)]
#[argh(
    subcommand,
    name = "uninstall",
    example = "{command_name} --dry-run",
    note = "Bridge, routes, firewall, changed sysctls, CNI configuration and plugin. Stop the agent before."
)]
pub struct Uninstall {
    /// remove the agent's state, the pods' addresses and the log, too
    #[argh(switch)]
    pub purge: bool,
    /// give this host's subnet back: remove its keys from etcd
    #[argh(switch)]
    pub release: bool,
    /// do it although pods are attached: they lose their network
    #[argh(switch)]
    pub force: bool,
    /// print what would be removed; change nothing
    #[argh(switch)]
    pub dry_run: bool,
    /// print one JSON object
    #[argh(switch)]
    pub json: bool,
}

/// Settings that were stored, but for what this release does not know.
pub fn known(mut stored: BTreeMap<String, String>) -> Texts {
    let texts = VARIABLES.iter().map(|it| Some((it.name, stored.remove(it.name)?)));
    texts.flatten().gather()
}

/// Settings that were stored or sent by an agent: what this release does not know is left out, and what
/// that one did not know has its default.
pub fn texts(mut stored: BTreeMap<String, String>) -> Texts {
    let texts = VARIABLES.iter().map(|variable| {
        let default = || variable.default.to_owned();
        (variable.name, stored.remove(variable.name).unwrap_or_else(default))
    });
    texts.gather()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// argh takes a help only as it is written here, so that it cannot be made of the choices.
    #[test]
    fn the_help_names_every_choice_and_no_other_word_of_that_kind() {
        let with = VARIABLES.iter().filter(|variable| !variable.choices.is_empty());
        let with: Vec<&Variable> = with.collect();
        assert_eq!(with.len(), 10);
        for Variable { name, default, help, choices } in with {
            assert!(choices.contains(default), "{name}={default}");
            let words: Vec<&str> = help.split(|c: char| c != '.' && !c.is_alphanumeric()).collect();
            assert!(choices.iter().all(|choice| words.contains(choice)), "{name}: {help}");
            let version = |word: &&&str| word.split('.').count() == 3;
            assert!(words.iter().filter(version).all(|word| choices.contains(word)), "{help}");
        }
    }
}
