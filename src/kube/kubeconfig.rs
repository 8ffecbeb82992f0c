//! Pure. The current context of a kubeconfig file.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::kube::yaml;

/// Not `Debug`: it holds secrets.
pub struct Kubeconfig {
    /// `https://…`
    pub server: String,
    /// The name in the server's certificate, if it differs from `server`.
    pub server_name: Option<String>,
    /// The authority of the server's certificate, PEM.
    pub ca: Option<PemSource>,
    /// Certificate and key of the client, PEM.
    pub client: Option<(PemSource, PemSource)>,
    pub token: Option<Token>,
}

/// PEM, or its file.
#[derive(Debug, PartialEq, Eq)]
pub enum PemSource {
    Inline(Vec<u8>),
    File(PathBuf),
}

/// A bearer token, or its file.
pub enum Token {
    Inline(String),
    File(PathBuf),
}

/// Authentication methods that are not supported.
const UNKNOWN: [(&str, &str); 7] = [
    ("exec", "an external program"),
    ("auth-provider", "a cloud provider"),
    ("username", "a password"),
    ("password", "a password"),
    ("as", "another user"),
    ("as-uid", "another user"),
    ("as-groups", "another group"),
];

/// Reads a kubeconfig, YAML or JSON. Paths in it are relative to `folder`.
///
/// # Errors
/// What is missing, invalid or unsupported, with the fix and without secrets.
pub fn parse(text: &str, folder: &Path) -> Result<Kubeconfig, String> {
    let document: Value = if text.trim_start().starts_with('{') {
        serde_json::from_slice(text.as_bytes()).map_err(|error| error.to_string())?
    } else {
        let convert = "kubectl config view --raw --flatten --minify -o json # prints it as JSON, which is \
            understood";
        yaml::parse(text).map_err(|error| format!("{error}; {convert}"))?
    };
    let context = current_context(&document)?;
    let named = |key: &str| context.get(key).and_then(Value::as_str).unwrap_or_default();
    let cluster = entry(&document, "clusters", "cluster", named("cluster"))?;
    let user = entry(&document, "users", "user", named("user"))?;
    for (key, value) in [cluster, user].into_iter().filter_map(Value::as_object).flatten() {
        if value.is_number() {
            return Err(format!("{key} is a number: put it in quotes"));
        }
    }
    if let Some((key, what)) = UNKNOWN.iter().find(|(key, _)| is_set(user, key)) {
        return Err(format!(
            "user {:?} has {key} ({what}), which is not supported: use a token, a tokenFile or a client certificate",
            named("user")
        ));
    }
    if is_set(cluster, "insecure-skip-tls-verify") {
        return Err(
            "insecure-skip-tls-verify is refused: anybody could impersonate the API and redirect \
             every pod's packets; set certificate-authority"
                .to_owned(),
        );
    }
    if is_set(cluster, "proxy-url") {
        return Err("proxy-url is not supported: hosts must reach the API directly".to_owned());
    }
    Ok(Kubeconfig {
        server: text_of(cluster, "server").ok_or("the cluster has no server")?.to_owned(),
        server_name: text_of(cluster, "tls-server-name").map(str::to_owned),
        ca: pem(cluster, "certificate-authority", folder)?,
        client: client(user, folder)?,
        token: token(user, folder),
    })
}

/// The context that is current, or the only one.
fn current_context(document: &Value) -> Result<&Value, String> {
    let current = text_of(document, "current-context");
    let all = document.get("contexts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match (current, all) {
        (Some(name), _) => entry(document, "contexts", "context", name),
        (None, [only]) => only.get("context").ok_or_else(|| "the context is empty".to_owned()),
        (None, []) => Err("no context found; is it a kubeconfig?".to_owned()),
        (None, _) => Err("current-context is not set, and there are several".to_owned()),
    }
}

/// The `part` of the entry called `name` in a list of entries.
fn entry<'a>(document: &'a Value, list: &str, part: &str, name: &str) -> Result<&'a Value, String> {
    let entries = document.get(list).and_then(Value::as_array);
    let mut entries = entries.into_iter().flatten();
    let found = entries.find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
    let found = found.and_then(|entry| entry.get(part));
    found.ok_or_else(|| format!("there is no {part} {name:?} in {list}"))
}

fn is_set(entry: &Value, key: &str) -> bool {
    !matches!(entry.get(key), None | Some(Value::Null | Value::Bool(false)))
}

fn text_of<'a>(entry: &'a Value, key: &str) -> Option<&'a str> {
    entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// `KEY-data` in base64, else the file `KEY`: in this order, as in kubectl.
fn pem(entry: &Value, key: &str, folder: &Path) -> Result<Option<PemSource>, String> {
    let data = format!("{key}-data");
    if let Some(text) = text_of(entry, &data) {
        let bytes = BASE64_STANDARD.decode(text);
        return match bytes {
            Ok(bytes) => Ok(Some(PemSource::Inline(bytes))),
            Err(_) => Err(format!("{data} is not base64")),
        };
    }
    Ok(text_of(entry, key).map(|path| PemSource::File(folder.join(path))))
}

fn client(user: &Value, folder: &Path) -> Result<Option<(PemSource, PemSource)>, String> {
    match (pem(user, "client-certificate", folder)?, pem(user, "client-key", folder)?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err("the user has a client-certificate without a client-key".to_owned()),
        (None, Some(_)) => Err("the user has a client-key without a client-certificate".to_owned()),
    }
}

fn token(user: &Value, folder: &Path) -> Option<Token> {
    let file = text_of(user, "tokenFile").map(|path| Token::File(folder.join(path)));
    file.or_else(|| text_of(user, "token").map(|token| Token::Inline(token.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBEADM: &str = "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Y2VydA==
    server: https://192.0.2.5:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: humanz
  name: humanz@kubernetes
current-context: humanz@kubernetes
kind: Config
preferences: {}
users:
- name: humanz
  user:
    client-certificate: pki/client.pem
    client-key: /pki/client.key
";

    fn read(text: &str) -> Result<Kubeconfig, String> {
        parse(text, Path::new("/etc/kubernetes"))
    }

    fn refused(text: &str, why: &str) {
        let error = read(text).err().unwrap_or_else(|| panic!("taken: {text}"));
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn the_current_context_is_read() {
        let read = read(KUBEADM).unwrap();
        assert_eq!(read.server, "https://192.0.2.5:6443");
        assert_eq!(read.ca, Some(PemSource::Inline(b"cert".to_vec())));
        let file = |path: &str| PemSource::File(path.into());
        let client = (file("/etc/kubernetes/pki/client.pem"), file("/pki/client.key"));
        assert_eq!(read.client, Some(client));
        assert!(read.token.is_none() && read.server_name.is_none());
    }

    #[test]
    fn json_is_read_too_and_a_file_goes_before_a_token() {
        let read = read(
            r#"{"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],
            "clusters":[{"name":"c","cluster":{"server":"https://api","tls-server-name":"kubernetes"}}],
            "users":[{"name":"u","user":{"token":"hunter2","tokenFile":"t"}}]}"#,
        )
        .unwrap();
        assert_eq!(read.server_name.as_deref(), Some("kubernetes"));
        let Some(Token::File(path)) = read.token else { panic!("a file") };
        assert_eq!(path, Path::new("/etc/kubernetes/t"));
    }

    #[test]
    fn errors_contain_no_secret() {
        let user = |line: &str| {
            let (before, _) = KUBEADM.split_once("    client-certificate").unwrap();
            format!("{before}    {line}\n")
        };
        refused(&user("exec:\n      command: aws"), "has exec");
        refused(&user("auth-provider:\n      name: gcp"), "auth-provider");
        refused(&user("username: root\n    password: hunter2"), "a password");
        refused(&user("client-key: k"), "without a client-certificate");
        refused(&user("client-key-data: hunter2 hunter2"), "client-key-data is not base64");
        refused(&user("token: [hunter2"), "kubectl config view");
        refused(&user("token: 12345"), "token is a number");
        let cluster =
            |line: &str| KUBEADM.replace("    server:", &format!("    {line}\n    server:"));
        refused(&cluster("insecure-skip-tls-verify: true"), "anybody could impersonate");
        refused(&cluster("proxy-url: http://proxy"), "proxy-url");
        assert!(read(&cluster("insecure-skip-tls-verify: false")).is_ok());
        refused(&KUBEADM.replace("server:", "sewer:"), "no server");
        refused(&KUBEADM.replace("cluster: kubernetes", "cluster: other"), "no cluster \"other\"");
        refused(&KUBEADM.replace("context: humanz@", "context: "), "no context \"kubernetes\"");
        refused("kind: Config", "is it a kubeconfig?");
        refused("", "is it a kubeconfig?");
        refused("{", "EOF");
    }
}
