//! Pure. Requests: environment and configuration, validated for the command.

use std::collections::BTreeSet;

use crate::cni::args::CniArgs;
use crate::cni::attachment::Attachment;
use crate::cni::config::NetConf;
use crate::cni::env::{Environment, Netns, Operation};
use crate::cni::error::{CniError, RefusedRequest};
use crate::cni::json::{self, FieldError};
use crate::cni::requested::RequestedAddresses;
use crate::cni::result::CniResult;
use crate::cni::version::Version;
use crate::cni::words::Words;
use crate::net::IfName;

/// The plugin that the program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The pod network.
    Network,
    /// The loopback plugin.
    Loopback,
}

/// A validated request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Add(Box<Add>),
    Del(Box<Del>),
    Check(Box<Check>),
    Gc(Box<Gc>),
    Status(Box<NetConf>),
    Version,
}

/// ADD: attach a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    pub attachment: Attachment,
    pub netns: Netns,
    /// For [`Role::Network`] it has at least one range set, or addresses are requested, or it has a
    /// `prevResult` and neither.
    pub conf: NetConf,
    pub args: CniArgs,
    /// What the container requests, from all sources.
    pub requested: RequestedAddresses,
    /// What it says of itself for policies.
    pub words: Words,
    /// Interfaces that the container gets beside this one: the runtime does not know of them.
    pub further: Vec<IfName>,
}

/// DEL: detach a container. It is served with the values that are valid, so that an invalid
/// configuration does not keep a dead container from being removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Del {
    pub attachment: Attachment,
    /// `None` if the namespace is gone.
    pub netns: Option<Netns>,
    /// Invalid values have their defaults.
    pub conf: NetConf,
    /// Empty if invalid.
    pub args: CniArgs,
    /// The ignored errors, for the log.
    pub ignored: Vec<String>,
}

/// CHECK: is the container attached as ADD answered?
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    pub attachment: Attachment,
    pub netns: Netns,
    pub conf: NetConf,
    pub args: CniArgs,
    /// The result of ADD, with the changes of later plugins of the chain.
    pub prev_result: CniResult,
}

/// GC: remove what belongs to no valid attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Gc {
    pub conf: NetConf,
    /// The valid attachments of this network.
    pub valid: BTreeSet<Attachment>,
}

impl Request {
    /// The request of `environment` and the bytes from stdin, which VERSION ignores.
    ///
    /// # Errors
    /// [`RefusedRequest`]: those of [`NetConf::parse`]; code 7 with every error of the configuration,
    /// no range and no requested address, or keys that only the first plugin of a chain has (ADD), no
    /// `prevResult` (CHECK), or no list of valid attachments (GC); code 2 if all errors are
    /// unsupported fields; code 4 for `CNI_ARGS`. DEL is refused only for version and name.
    pub fn parse(
        role: Role,
        environment: Environment,
        stdin: &[u8],
    ) -> Result<Request, RefusedRequest> {
        if environment.call == Operation::Version {
            return Ok(Request::Version);
        }
        let (conf, faults) = NetConf::parse(stdin, environment.command())?;
        let version = conf.version;
        let args = CniArgs::parse(&environment.args);
        let sound = |args| if faults.is_empty() { args } else { Err(json::error(&faults)) };
        let request = match environment.call {
            Operation::Add(attachment, netns) => {
                sound(args).and_then(|args| add(role, attachment, netns, conf, args))
            }
            Operation::Del(attachment, netns) => Ok(del(attachment, netns, conf, &faults, args)),
            Operation::Check(attachment, netns) => {
                sound(args).and_then(|args| check(attachment, netns, conf, args))
            }
            Operation::Gc => sound(args).and_then(|_| gc(conf)),
            Operation::Status => sound(args).map(|_| Request::Status(Box::new(conf))),
            Operation::Version => Ok(Request::Version),
        };
        request.map_err(|error| RefusedRequest { version, error })
    }

    /// The version of the reply.
    pub fn version(&self) -> Version {
        match self {
            Request::Add(add) => add.conf.version,
            Request::Del(del) => del.conf.version,
            Request::Check(check) => check.conf.version,
            Request::Gc(gc) => gc.conf.version,
            Request::Status(conf) => conf.version,
            Request::Version => Version::LATEST,
        }
    }
}

fn add(
    role: Role,
    attachment: Attachment,
    netns: Netns,
    conf: NetConf,
    args: CniArgs,
) -> Result<Request, CniError> {
    let requested = requested(&conf, &args);
    let is_chained = role == Role::Network && conf.prev_result.is_some();
    if is_chained {
        refuse_keys_of_the_first_plugin(&conf)?;
    } else if role == Role::Network && conf.ranges.is_empty() && requested.ips.is_empty() {
        return Err(CniError::config(
            "the configuration has no addresses, and none was requested: set subnet (as in \
             \"10.244.1.0/24\") or ranges",
        ));
    }
    let annotations = conf.runtime.words.annotations.clone();
    let words = Words { annotations, ..conf.labels.clone() }.with(&args);
    let further = Vec::new();
    Ok(Request::Add(Box::new(Add { attachment, netns, conf, args, requested, words, further })))
}

/// After a plugin that has created the interface, the keys for creating one would have no effect.
fn refuse_keys_of_the_first_plugin(conf: &NetConf) -> Result<(), CniError> {
    let keys = [
        ("subnet or ranges", !conf.ranges.is_empty()),
        ("routes", !conf.routes.is_empty()),
        ("ipMasq", conf.ip_masq),
        ("portIsolation", conf.port_isolation),
        ("macspoofchk", conf.mac_spoof_check),
        ("vlan or vlanTrunk", conf.vlans.is_any()),
    ];
    let Some((key, _)) = keys.into_iter().find(|(_, given)| *given) else { return Ok(()) };
    Err(CniError::config(format!(
        "{key} and prevResult: only the plugin that creates the interface has this key, and another one \
         did; put humanz first in the chain, or remove the key"
    )))
}

fn check(
    attachment: Attachment,
    netns: Netns,
    mut conf: NetConf,
    args: CniArgs,
) -> Result<Request, CniError> {
    let missing = "prevResult is missing: CHECK compares with what ADD answered";
    let prev_result = conf.prev_result.take().ok_or_else(|| CniError::config(missing))?;
    Ok(Request::Check(Box::new(Check { attachment, netns, conf, args, prev_result })))
}

fn gc(mut conf: NetConf) -> Result<Request, CniError> {
    let missing = "cni.dev/valid-attachments is missing, and without it GC would remove every \
                   attachment; an empty list means that none is valid";
    let valid = conf.valid_attachments.take().ok_or_else(|| CniError::config(missing))?;
    Ok(Request::Gc(Box::new(Gc { conf, valid })))
}

fn del(
    attachment: Attachment,
    netns: Option<Netns>,
    conf: NetConf,
    faults: &[FieldError],
    args: Result<CniArgs, CniError>,
) -> Request {
    let mut ignored: Vec<String> = faults.iter().map(FieldError::to_string).collect();
    let args = args.unwrap_or_else(|error| {
        ignored.push(error.msg);
        CniArgs::default()
    });
    Request::Del(Box::new(Del { attachment, netns, conf, args, ignored }))
}

/// What the container requests; precedence: `runtimeConfig`, `args.cni`, `CNI_ARGS`, the pod's
/// annotations, `mac`.
fn requested(conf: &NetConf, args: &CniArgs) -> RequestedAddresses {
    let network = RequestedAddresses { ips: Vec::new(), mac: conf.mac };
    let runtime = conf.runtime.requested.clone();
    let annotated = conf.runtime.annotated.clone();
    runtime.or(conf.args.clone()).or(args.requested.clone()).or(annotated).or(network)
}

#[cfg(test)]
mod tests;
