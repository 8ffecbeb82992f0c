//! One connection with one member.

use std::time::Duration;

use etcd_client::{
    AuthClient, Certificate, Client, ClusterClient, ConnectOptions, Error, GetOptions,
    Identity as Pair, KvClient, LeaseClient, MaintenanceClient, TlsOptions, WatchClient,
};

use crate::etcd::settings::EtcdSettings;
use crate::etcd::tls::files::Files;

/// Largest answer accepted, in bytes. The server fragments watch responses at 2 MiB; a read requests
/// fewer keys if they are larger.
const ANSWER_LIMIT: usize = 16 * 1024 * 1024;

/// Longest time for a TCP connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Silence before a ping; etcd closes connections that ping more often than every 5 s (its
/// `--grpc-keepalive-min-time`).
const PING_AFTER: Duration = Duration::from_secs(6);

/// Longest wait for its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to one member.
#[derive(Clone)]
pub struct MemberConnection {
    pub kv: KvClient,
    pub watch: WatchClient,
    pub lease: LeaseClient,
    pub auth: AuthClient,
    pub maintenance: MaintenanceClient,
    pub cluster: ClusterClient,
}

pub struct Opened {
    pub member: MemberConnection,
    /// A problem that does not prevent its use.
    pub remark: Option<String>,
}

/// Connects, logs in, and reads `probe`: a member checks a certificate only at the first request. A
/// denied permission is not an error here.
pub async fn open(
    endpoint: &str,
    settings: &EtcdSettings,
    files: &Files,
    probe: &str,
) -> Result<Opened, Error> {
    let options = options(settings, files);
    let login = settings.user.as_ref().zip(files.password.as_ref());
    let mut remark = None;
    let client = match login {
        None => Client::connect([endpoint], Some(options)).await?,
        Some((user, password)) => {
            let with_user = options.clone().with_user(user, password);
            match Client::connect([endpoint], Some(with_user)).await {
                Err(error) if says(&error, "authentication is not enabled") => {
                    remark = Some(format!(
                        "etcd has authentication disabled: ETCD_USER {user} is not used until it is enabled"
                    ));
                    Client::connect([endpoint], Some(options)).await?
                }
                connected => connected?,
            }
        }
    };
    let member = MemberConnection {
        kv: client.kv_client().max_decoding_message_size(ANSWER_LIMIT),
        watch: client.watch_client().max_decoding_message_size(ANSWER_LIMIT),
        lease: client.lease_client(),
        auth: client.auth_client(),
        maintenance: client.maintenance_client(),
        cluster: client.cluster_client(),
    };
    let asked = GetOptions::new().with_serializable().with_count_only();
    match member.clone().kv.get(probe, Some(asked)).await {
        Err(error) if !says(&error, "permission denied") => Err(error),
        _ => Ok(Opened { member, remark }),
    }
}

fn options(settings: &EtcdSettings, files: &Files) -> ConnectOptions {
    let options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT.min(settings.timeout))
        .with_keep_alive(PING_AFTER, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true);
    let Some(ca) = &files.ca else { return options };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&ca.text));
    if let Some((certificate, key)) = &files.pair {
        tls = tls.identity(Pair::from_pem(&certificate.text, key));
    }
    options.with_tls(tls)
}

fn says(error: &Error, text: &str) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains(text))
}
