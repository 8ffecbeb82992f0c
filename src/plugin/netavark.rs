//! A call of podman (from version 5 on) or its netavark: served as the call of CNI that means the same.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::cni::config::NetConf;
use crate::cni::env::Verb;
use crate::cni::error::CniError;
use crate::cni::netavark::{
    self, API_VERSION, AskedNetwork, ContainerCall, HostNetwork, MAX_BYTES, NetavarkVerb,
};
use crate::inspect::runtimes;
use crate::plugin::invocation::Streams;
use crate::plugin::store;
use crate::plugin::{failure, panic};

/// Where the agent, `init` and people put configurations.
const FOLDER: &str = "/etc/cni/net.d";

/// Serves a call of CNI with this environment; gives the exit code.
type Serve<'a> = &'a dyn Fn(&dyn Fn(&str) -> Option<OsString>, Streams<'_>) -> i32;

/// The arguments are those of a call of netavark; CNI has none.
pub fn is_call(arguments: &[OsString]) -> bool {
    verb(arguments).is_some()
}

fn verb(arguments: &[OsString]) -> Option<NetavarkVerb> {
    NetavarkVerb::of(arguments.first()?.to_str()?)
}

/// Answers a panic of any thread as netavark reads it.
pub fn install_panic_hook() {
    panic::install_hook(|stdout, refused| {
        failure::answer(&mut NetavarkReply::new(stdout), refused)
    });
}

/// Serves the call of the plugin `name` with these arguments; gives the exit code.
pub fn run(name: &str, arguments: &[OsString], mut streams: Streams<'_>, serve: Serve<'_>) -> i32 {
    let served = match verb(arguments) {
        Some(NetavarkVerb::Create) => create(name, &mut streams).map(|()| 0),
        Some(NetavarkVerb::Setup) => container(Verb::Add, name, arguments, &mut streams, serve),
        Some(NetavarkVerb::Teardown) => container(Verb::Del, name, arguments, &mut streams, serve),
        Some(NetavarkVerb::Info) | None => {
            let (version, api) = (env!("CARGO_PKG_VERSION"), API_VERSION);
            print(streams.stdout, &json!({ "version": version, "api_version": api })).map(|()| 0)
        }
    };
    served.unwrap_or_else(|error| {
        // If stdout is closed, the exit code must do.
        print(streams.stdout, &netavark::failed(&error.msg, error.details.as_deref())).ok();
        1
    })
}

fn create(name: &str, streams: &mut Streams<'_>) -> Result<(), CniError> {
    let network = netavark::document(&read(streams.stdin)?)?;
    let asked = AskedNetwork::of(&network);
    let found = find(name, &asked)?.ok_or_else(|| missing(&asked))?.alone()?;
    print(streams.stdout, &netavark::created(network, &found)?)
}

fn container(
    verb: Verb,
    name: &str,
    arguments: &[OsString],
    streams: &mut Streams<'_>,
    serve: Serve<'_>,
) -> Result<i32, CniError> {
    let netns = arguments.get(1).and_then(|path| path.to_str()).unwrap_or_default();
    let mut call = ContainerCall::parse(&read(streams.stdin)?, verb, netns)?;
    let network = match find(name, &call.asked)? {
        // What was chained since a container started does not keep it from its end.
        Some(found) if verb == Verb::Del => found,
        Some(found) => found.alone()?,
        None if verb == Verb::Del => HostNetwork::gone(&call.asked),
        None => return Err(missing(&call.asked)),
    };
    if verb == Verb::Add && call.has_ports() && are_open(&call, &network)? {
        call.leave_ports_out();
    }
    let conf = call.stdin(&network);
    let mut reply = NetavarkReply::new(streams.stdout);
    let (mut stdin, stderr) = (&conf[..], &mut *streams.stderr);
    let streams = Streams { stdin: &mut stdin, stdout: &mut reply, stderr };
    Ok(serve(&|name| call.variable(name), streams))
}

/// netavark passes a container's ports with each of its networks: another interface of it has them already.
fn are_open(call: &ContainerCall, network: &HostNetwork) -> Result<bool, CniError> {
    let (conf, _) = NetConf::parse(&call.stdin(network), Verb::Add).map_err(|it| it.error)?;
    let store = store::open(&conf)?;
    let Some(locked) = store::lock_if_any(&store)? else { return Ok(false) };
    Ok(locked.entries()?.iter().any(|entry| {
        entry.container_id == call.container_id
            && entry.ifname != call.ifname
            && entry.ports.as_ref().is_some_and(|ports| !ports.mappings.is_empty())
    }))
}

/// The configuration that is asked for: the first one of humanz in the folder, unless the network says which. One of
/// humanz alone, if there is one.
fn find(plugin: &str, asked: &AskedNetwork) -> Result<Option<HostNetwork>, CniError> {
    let files = match &asked.file {
        Some(file) => vec![file.clone()],
        None => runtimes::configurations(Path::new(FOLDER)),
    };
    let mut chained = None;
    for file in files {
        let Some(text) = text(&file)? else { continue };
        match HostNetwork::read(&file, &text, plugin).filter(|found| asked.is(found)) {
            Some(found) if found.is_alone() => return Ok(Some(found)),
            found => chained = chained.or(found),
        }
    }
    Ok(chained)
}

/// At most as much of it as of stdin; `None` if there is no such file, or it is no text.
fn text(file: &Path) -> Result<Option<String>, CniError> {
    runtimes::text(file, MAX_BYTES as u64).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::PermissionDenied => {
                ": humanz serves containers of podman that root runs; rootless ones have a network of their own"
            }
            _ => "",
        };
        CniError::io(format!("read {}: {error}{why}", file.display()))
    })
}

fn missing(asked: &AskedNetwork) -> CniError {
    let file = asked.file.as_deref().unwrap_or(Path::new(FOLDER)).display();
    CniError::config(match &asked.network {
        Some(network) => format!(
            "{file} has no CNI network {network} of humanz any more; if it has another one now: \
             podman network rm {0}; podman network create --driver humanz {0}",
            asked.podman
        ),
        None => format!(
            "{file} has no CNI network of humanz: on one machine humanz-agent init makes one, on a host of a cluster the agent"
        ),
    })
}

fn read(stdin: &mut dyn Read) -> Result<Vec<u8>, CniError> {
    let mut bytes = Vec::new();
    let failed = |error: io::Error| CniError::io(format!("read stdin: {error}"));
    stdin.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn print(stdout: &mut dyn Write, reply: &Value) -> Result<(), CniError> {
    let text = format!("{reply}\n");
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| CniError::io(format!("write to stdout: {error}")))
}

/// Takes replies of CNI, each of which ends with a flush, and writes those of netavark.
struct NetavarkReply<'a> {
    stdout: &'a mut dyn Write,
    text: Vec<u8>,
}

impl<'a> NetavarkReply<'a> {
    fn new(stdout: &'a mut dyn Write) -> NetavarkReply<'a> {
        NetavarkReply { stdout, text: Vec::new() }
    }
}

impl Write for NetavarkReply<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let reply: Value = serde_json::from_slice(&std::mem::take(&mut self.text))?;
        let text = format!("{}\n", netavark::translated(&reply));
        self.stdout.write_all(text.as_bytes())?;
        self.stdout.flush()
    }
}
