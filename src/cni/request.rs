//! Pure. Requests: environment and configuration together, checked for the command.

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

/// What the program was called as, which decides what a configuration must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The pod network.
    Network,
    /// The loopback plugin.
    Loopback,
}

/// A request with all that its command needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// ADD.
    Add(Box<Add>),
    /// DEL.
    Del(Box<Del>),
    /// CHECK.
    Check(Box<Check>),
    /// GC.
    Gc(Box<Gc>),
    /// STATUS.
    Status(Box<NetConf>),
    /// VERSION.
    Version,
}

/// ADD: attach a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// What is to be attached.
    pub attachment: Attachment,
    /// Where.
    pub netns: Netns,
    /// The network; for [`Role::Network`] it has at least one range set, or addresses are wished
    /// for, or it has a `prevResult` and none of that.
    pub conf: NetConf,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// What the container asks for, whoever said it.
    pub requested: RequestedAddresses,
}

/// DEL: detach a container. It is served with whatever could be read, so that a configuration
/// that was never good, or no longer is, does not keep a dead container from going.
#[derive(Clone, Debug, PartialEq)]
pub struct Del {
    /// What is to be detached.
    pub attachment: Attachment,
    /// Where, if that is still known.
    pub netns: Option<Netns>,
    /// The network; what is at fault has its default.
    pub conf: NetConf,
    /// `CNI_ARGS`; empty if it is at fault.
    pub args: CniArgs,
    /// The faults that were passed over, for the log.
    pub ignored: Vec<String>,
}

/// CHECK: is the container attached as ADD said?
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What is to be looked at.
    pub attachment: Attachment,
    /// Where.
    pub netns: Netns,
    /// The network.
    pub conf: NetConf,
    /// `CNI_ARGS`.
    pub args: CniArgs,
    /// What ADD said, with what later plugins of the chain made of it.
    pub prev_result: CniResult,
}

/// GC: remove what belongs to no attachment that is alive.
#[derive(Clone, Debug, PartialEq)]
pub struct Gc {
    /// The network.
    pub conf: NetConf,
    /// The attachments of this network that are alive.
    pub valid: BTreeSet<Attachment>,
}

impl Request {
    /// Puts `environment` and the bytes from stdin together. VERSION looks at no byte.
    ///
    /// # Errors
    /// [`RefusedRequest`]: those of [`NetConf::parse`]; code 7 with every fault of the configuration, no
    /// range to take addresses from and none wished for, or what only the first plugin of a chain
    /// does behind another one (ADD), no `prevResult` (CHECK), or no list of valid
    /// attachments (GC); code 2 if all that is wrong is something humanz does not have; code 4
    /// for `CNI_ARGS`. DEL is refused for version and name alone.
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

    /// The version to answer in.
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
        refuse_what_the_first_plugin_does(&conf)?;
    } else if role == Role::Network && conf.ranges.is_empty() && requested.ips.is_empty() {
        return Err(CniError::config(
            "the configuration has no address to give, and none was asked for: set subnet (as in \
             \"10.244.1.0/24\") or ranges",
        ));
    }
    Ok(Request::Add(Box::new(Add { attachment, netns, conf, args, requested })))
}

/// Behind another plugin, who has made the interface, nothing of what makes one is looked at: left
/// out in silence it would be missed.
fn refuse_what_the_first_plugin_does(conf: &NetConf) -> Result<(), CniError> {
    let keys = [
        ("subnet or ranges", !conf.ranges.is_empty()),
        ("routes", !conf.routes.is_empty()),
        ("ipMasq", conf.ip_masq),
        ("portIsolation", conf.port_isolation),
        ("macspoofchk", conf.mac_spoof_check),
    ];
    let Some((key, _)) = keys.into_iter().find(|(_, given)| *given) else { return Ok(()) };
    Err(CniError::config(format!(
        "{key} and prevResult: this is for the plugin that makes the interface, and another one has; \
         put humanz first in the chain, or leave it out"
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
                   attachment; an empty list says that none is alive";
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

/// The container's wishes: `runtimeConfig` before `args.cni` before `CNI_ARGS` before the pod's
/// annotations before `mac`.
fn requested(conf: &NetConf, args: &CniArgs) -> RequestedAddresses {
    let network = RequestedAddresses { ips: Vec::new(), mac: conf.mac };
    let runtime = conf.runtime.requested.clone();
    let annotated = conf.runtime.annotated.clone();
    runtime.or(conf.args.clone()).or(args.requested.clone()).or(annotated).or(network)
}

#[cfg(test)]
mod tests;
