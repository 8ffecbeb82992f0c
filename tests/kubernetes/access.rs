//! Authentication of the agent: rotating tokens, certificates, the service account of a pod.

use crate::api::{TOKEN, URL};
use crate::support::{Agent, Node, facts, soon};
use crate::{KUBECONFIG, Scene, kubeconfig, node, routes_become, wait_logged, with};

const ACCOUNT: &str = "/run/secrets/kubernetes.io/serviceaccount";

#[test]
fn a_renewed_token_is_used_without_a_restart() {
    let scene = Scene::new(1, 0);
    let (api, host) = (&scene.api, scene.host(1));
    let agent = scene.serve(1, &[]);
    api.set_token("the-second-token");
    host.write("/etc/humanz/token", "the-second-token\n");
    let watches = api.watches();
    api.break_watches();
    soon("it watches again", || api.watches() > watches);
    api.put(node("n2", &["10.244.2.0/24"], &["192.0.2.92"]));
    routes_become(host, &[("10.244.2.0/24", "192.0.2.92")]);
    // An expired token is reported, and so is an invalid one.
    api.set_token("the-third-token");
    api.break_watches();
    wait_logged(&agent, "status 401 Unauthorized");
    wait_logged(&agent, "is the token (or client certificate) this cluster's, and not expired?");
    host.write("/etc/humanz/token", "two words");
    wait_logged(&agent, "/etc/humanz/token is not a token");
    routes_become(host, &[("10.244.2.0/24", "192.0.2.92")]);
    host.write("/etc/humanz/token", "the-third-token");
    api.delete("n2");
    routes_become(host, &[]);
    let log = agent.log();
    assert!(!log.contains("-token\"") && !log.contains("the-"), "no token is logged:\n{log}");
}

/// The environment that the kubelet gives a container.
fn give_account(scene: &Scene, host: &Node) {
    host.inside(|| std::fs::create_dir_all(ACCOUNT)).unwrap();
    host.write(&format!("{ACCOUNT}/ca.crt"), &scene.api.certificates.text("ca.pem"));
    host.write(&format!("{ACCOUNT}/token"), TOKEN);
}

#[test]
fn a_pod_uses_its_service_account() {
    let scene = Scene::new(1, 0);
    let host = scene.host(1);
    let service = [
        ("KUBECONFIG", ""),
        ("KUBERNETES_SERVICE_HOST", "192.0.2.2"),
        ("KUBERNETES_SERVICE_PORT", "6443"),
    ];
    let ended = Agent::run(host, "check-config", &with(&service));
    assert!(
        ended.status.code() == Some(2) && ended.to_string().contains("serviceaccount/ca.crt"),
        "{ended}"
    );
    give_account(&scene, host);
    let agent = scene.serve(1, &service);
    assert_eq!(facts::addresses(host, "humanz0"), ["10.244.1.1/24"]);
    agent.stop();
    // The service may lead nowhere: without kube-proxy, say.
    let elsewhere =
        [("KUBECONFIG", ""), ("KUBERNETES_SERVICE_HOST", "192.0.2.250"), ("KUBE_API", URL)];
    scene.serve(1, &elsewhere).stop();
    let ended = Agent::run(host, "check-config", &with(&[("KUBECONFIG", "")]));
    assert!(
        ended.status.code() == Some(2) && ended.to_string().contains("not in a pod"),
        "{ended}"
    );
}

#[test]
fn a_client_certificate_replaces_a_token() {
    let scene = Scene::new(1, 0);
    let host = scene.host(1);
    host.write("/etc/humanz/client.pem", &scene.api.certificates.text("client.pem"));
    host.write("/etc/humanz/client.key", &scene.api.certificates.text("client.key"));
    host.write(
        KUBECONFIG,
        &kubeconfig("client-certificate: client.pem\n    client-key: client.key"),
    );
    scene.serve(1, &[]).stop();
    // By another name than that in the URL.
    let text = kubeconfig("tokenFile: token");
    host.write(
        KUBECONFIG,
        &text.replace("    server:", "    tls-server-name: kubernetes\n    server:"),
    );
    scene.serve(1, &[]).stop();
}

#[test]
fn errors_of_the_access_are_reported() {
    let scene = Scene::new(1, 0);
    let host = scene.host(1);
    let refused = |text: &str, words: &str| {
        host.write(KUBECONFIG, text);
        let ended = Agent::run(host, "check-config", &with(&[]));
        assert_eq!(ended.status.code(), Some(2), "{ended}");
        assert!(ended.to_string().contains(words), "{ended}");
        assert!(ended.to_string().contains(KUBECONFIG), "{ended}");
    };
    let good = kubeconfig("tokenFile: token");
    refused(&kubeconfig("exec:\n      command: aws"), "exec (an external program)");
    refused(
        &good.replace("certificate-authority: ca.pem", "insecure-skip-tls-verify: true"),
        "anybody could impersonate",
    );
    refused(&good.replace("https://", "http://"), "must be a URL such as https://");
    refused(&good.replace("ca.pem", "gone.pem"), "read /etc/humanz/gone.pem: No such file");
    refused(&good.replace("ca.pem", "token"), "contains no PEM certificate");
    refused("no: [kubeconfig]", "is it a kubeconfig?");
    refused("no: [kubeconfig", "kubectl config view");
    let ended = Agent::run(host, "check-config", &with(&[("KUBE_API", "http://192.0.2.2")]));
    assert!(ended.status.code() == Some(2) && ended.to_string().contains("KUBE_API"), "{ended}");

    let expect_error = |text: &str, words: &str| {
        host.write(KUBECONFIG, text);
        let agent = Agent::start(host, &with(&[]));
        wait_logged(&agent, words);
        agent.kill();
    };
    host.write("/etc/humanz/other.pem", &scene.api.certificates.text("other.pem"));
    expect_error(&good.replace("ca.pem", "other.pem"), "was not signed by the authority");
    let named = good.replace("    server:", "    tls-server-name: elsewhere\n    server:");
    expect_error(&named, "its certificate is for other names");
    expect_error(&good.replace("6443", "6444"), "Connection refused");
}
