//! The kubelet's side of the container runtime interface, as far as a pod's network goes.
//!
//! Messages carry the fields that a test looks at. Source: Kubernetes CRI API v1 (`runtime.v1`),
//! whose field numbers are fixed.

use std::collections::HashMap;

use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::support::Node;

/// A runtime that listens at a socket of a node.
pub struct Client<'a> {
    pub host: &'a Node,
    pub socket: &'a str,
}

impl Client<'_> {
    /// One call of the RuntimeService, on a connection of its own.
    ///
    /// # Errors
    /// The runtime's error, or that it does not answer.
    pub fn call<A, B>(&self, method: &'static str, request: A) -> Result<B, Status>
    where
        A: Message + 'static,
        B: Message + Default + 'static,
    {
        let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}")).unwrap();
        let talk = async {
            let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket)).unwrap();
            let refused = |e| Status::unavailable(format!("{}: {e:?}", self.socket));
            let channel = endpoint.connect().await.map_err(refused)?;
            let mut service = tonic::client::Grpc::new(channel);
            service.ready().await.map_err(|e| Status::unavailable(format!("{e:?}")))?;
            service.unary(Request::new(request), path, ProstCodec::default()).await
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        self.host.inside(|| runtime().unwrap().block_on(talk)).map(tonic::Response::into_inner)
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeState {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Conditions>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Conditions {
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "4")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PortMapping {
    /// 0 TCP, 1 UDP, 2 SCTP.
    #[prost(int32, tag = "1")]
    pub protocol: i32,
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    #[prost(int32, tag = "3")]
    pub host_port: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxSandbox {
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<SandboxMetadata>,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    #[prost(map = "string, string", tag = "7")]
    pub annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunSandbox {
    #[prost(message, optional, tag = "1")]
    pub config: Option<SandboxConfig>,
}

/// The identifier of a sandbox or container, as request and as response.
#[derive(Clone, PartialEq, Message)]
pub struct Id {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxState {
    #[prost(message, optional, tag = "1")]
    pub status: Option<SandboxStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxStatus {
    #[prost(message, optional, tag = "5")]
    pub network: Option<SandboxNetwork>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SandboxNetwork {
    #[prost(string, tag = "1")]
    pub ip: String,
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<Ip>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ip {
    #[prost(string, tag = "1")]
    pub ip: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: Option<Image>,
    #[prost(string, repeated, tag = "3")]
    pub command: Vec<String>,
    #[prost(string, tag = "11")]
    pub log_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainer {
    #[prost(string, tag = "1")]
    pub sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exec {
    #[prost(string, tag = "1")]
    pub container: String,
    #[prost(string, repeated, tag = "2")]
    pub command: Vec<String>,
    /// Seconds.
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExecEnded {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}
