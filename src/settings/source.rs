//! Pure. Where the subnet comes from: etcd, Kubernetes or the operator.

use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::etcd::EtcdSettings;
use crate::kube::{KubeSettings, Server};
use crate::lease::records::Roots;
use crate::net::subnet::{self, Pool};
use crate::net::{Family, PerFamily};
use crate::settings::Source;
use crate::settings::choices::{SOURCES, SubnetSource};
use crate::settings::flags::VARIABLES;
use crate::settings::parse::Parser;
use crate::settings::values;

impl Parser<'_> {
    pub(super) fn source(&mut self, pools: &PerFamily<Pool>) -> Option<Source> {
        match self.value("SUBNET_SOURCE", |text| SOURCES.read(text))? {
            SubnetSource::Etcd => self.etcd(),
            SubnetSource::Kubernetes => self.kubernetes().map(Source::Kubernetes),
            SubnetSource::Operator => self.fixed(pools).map(Source::Static),
        }
    }

    /// How to reach the API.
    pub(super) fn kubernetes(&mut self) -> Option<KubeSettings> {
        let kubeconfig = self.optional("KUBECONFIG", values::absolute);
        let api = self.optional("KUBE_API", Server::parse);
        Some(KubeSettings { kubeconfig: kubeconfig?, api: api? })
    }

    fn etcd(&mut self) -> Option<Source> {
        if self.text("ETCD_HOST").is_empty() {
            self.fault("ETCD_HOST", "list the etcd members (host, host:port or URL), or serve this host alone with --standalone");
        }
        let endpoints = self.value("ETCD_HOST", values::endpoints);
        let cacert = self.optional("ETCD_CACERT", values::absolute);
        let cert = self.optional("ETCD_CERT", values::absolute);
        let key = self.optional("ETCD_KEY", values::absolute);
        let is_set = |variable: &&&str| !self.text(variable).is_empty();
        if let Some(file) = ["ETCD_CACERT", "ETCD_CERT", "ETCD_KEY"].iter().find(is_set) {
            self.refuse_plain(endpoints.as_deref().unwrap_or_default(), file);
        }
        self.needs("ETCD_CERT", "ETCD_KEY", "its key");
        self.needs("ETCD_KEY", "ETCD_CERT", "its certificate");
        let user = self.optional("ETCD_USER", |text| Ok(text.to_owned()));
        let password_file = self.optional("ETCD_PASSWORD_FILE", values::absolute);
        self.needs("ETCD_USER", "ETCD_PASSWORD_FILE", "the file with its password");
        self.needs("ETCD_PASSWORD_FILE", "ETCD_USER", "the name of the user");
        let bounds = Duration::from_secs(1)..=Duration::from_secs(60);
        let timeout = self.value("ETCD_TIMEOUT", |text| values::duration(text, bounds));
        let roots = self.roots();
        let server = EtcdSettings {
            // With an invalid setting nothing connects, but the files can be checked.
            endpoints: endpoints.unwrap_or_default(),
            ca: cacert?,
            cert: cert?,
            key: key?,
            user: user?,
            password_file: password_file?,
            timeout: timeout?,
        };
        Some(Source::Etcd { server, roots: roots? })
    }

    /// With a file for TLS, `file`, an unencrypted endpoint is invalid.
    fn refuse_plain(&mut self, endpoints: &[String], file: &str) {
        if let Some(plain) = endpoints.iter().find(|endpoint| !endpoint.starts_with("https://")) {
            let host = plain.trim_start_matches("http://");
            let problem = format!(
                "{file} is set, but the connection to {plain} would not be encrypted: write \
                 https://{host}"
            );
            self.fault("ETCD_HOST", problem);
        }
    }

    /// `variable` requires `other`, which is `what`.
    fn needs(&mut self, variable: &str, other: &'static str, what: &str) {
        if !self.text(variable).is_empty() && self.text(other).is_empty() {
            self.fault(other, format!("{variable} is set, so {what} is needed too"));
        }
    }

    fn roots(&mut self) -> Option<Roots> {
        let hosts = self.value("ETCD_PREFIX", values::key);
        let counter = self.value("ETCD_COUNTER_KEY", values::key);
        let humanz = self.value("HUMANZ_PREFIX", values::key);
        let (hosts, counter, humanz) = (hosts?, counter?, humanz?);
        let below = |key: &str, prefix: &str| key.starts_with(prefix);
        if below(&humanz, &hosts) || below(&hosts, &humanz) {
            self.fault(
                "HUMANZ_PREFIX",
                format!("{humanz} and ETCD_PREFIX {hosts} must not begin with each other"),
            );
        }
        for prefix in [&hosts, &humanz] {
            if below(&counter, prefix) {
                self.fault("ETCD_COUNTER_KEY", format!("must not begin with the prefix {prefix}"));
            }
        }
        Some(Roots { hosts, counter, humanz })
    }

    /// Where the operator's SUBNET lies outside the default pool, and no other is given, it is the pool.
    pub(super) fn pool_of_one(&self, family: Family, variable: &str) -> Option<Pool> {
        let is_alone = SOURCES.read(&self.text("SUBNET_SOURCE")) == Ok(SubnetSource::Operator);
        let known = VARIABLES.iter().find(|known| known.name == variable)?;
        if !is_alone || self.text(variable) != known.default {
            return None;
        }
        let subnets = values::subnet_per_family(&self.text("SUBNET")).ok()?;
        let subnet = *subnets.get(family)?;
        let default = subnet::parse(known.default).ok();
        let is_inside = default.is_some_and(|pool| subnet::contains(pool, subnet));
        (!is_inside).then(|| Pool::of_one(subnet))
    }

    fn fixed(&mut self, pools: &PerFamily<Pool>) -> Option<PerFamily<IpNetwork>> {
        let mut subnets = self.value("SUBNET", values::subnet_per_family)?;
        for family in Family::BOTH {
            match (subnets.get(family), pools.get(family)) {
                (None, Some(pool)) => subnets.set(family, Some(pool.subnet(1))),
                (Some(subnet), Some(pool)) if !subnet::contains(pool.network(), *subnet) => {
                    let pool = pool.network();
                    let variable = if family == Family::V4 { "IP_SUBNET" } else { "IPV6_SUBNET" };
                    let why = format!(
                        "{subnet} lies outside the pool {pool}: correct {variable}, or leave it out"
                    );
                    self.fault("SUBNET", why);
                }
                (Some(subnet), None) => {
                    self.fault(
                        "SUBNET",
                        format!("{subnet} is {family}, but there is no {family} pool"),
                    );
                }
                _ => {}
            }
        }
        Some(subnets)
    }
}
