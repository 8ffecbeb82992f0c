//! What a person types into the page.

use serde_json::{Value, json};

use crate::browser::{Browser, opened};
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Place, Pod, eventually};
use crate::ui::{URL, is_left_out, page};

/// The whole text, or that the browser keeps its clipboard and the text is selected instead.
const COPIED: &str = r##"(async () => {
    const button = document.querySelector("#problems .copy"), fix = button.previousElementSibling.textContent;
    button.click();
    await new Promise((done) => setTimeout(done, 300));
    if (button.textContent === "copied") return true;
    return button.textContent === "selected" && getSelection().toString() === fix;
})()"##;

#[test]
fn what_helps_against_a_problem_is_copied_and_its_host_is_shown() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[]);
    for (name, subnet) in [("elsewhere", "10.244.99.0/24"), ("nowhere", "10.244.98.0/24")] {
        cluster.etcd.put(&format!("/humanz/hosts/{name}"), subnet);
    }
    let _server = page(host);
    let (mut browser, session) = opened(host);
    let links = "[...document.querySelectorAll('#problems a')].map((link) => link.href).join()";
    eventually("the problems of both hosts", 3 * SOON, || {
        let found = browser.evaluate(&session, links).to_string();
        if found.matches("#hosts-box").count() == 2 { Ok(()) } else { Err(found) }
    });
    assert_eq!(browser.evaluate(&session, COPIED), true);
    let rows =
        "document.querySelector('#problems a').click(); document.getElementById('peers').innerText";
    let shown = browser.evaluate(&session, rows).to_string();
    assert!(shown.contains("elsewhere") != shown.contains("nowhere"), "{shown}");
}

const NOTE: &str = r#"(document.getElementById("explain-note") || {}).textContent"#;

#[test]
fn a_browser_explains_what_is_typed_and_nothing_for_other_pages() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[]);
    let [_a, b] = ["a", "b"].map(|name| Pod::add(host, name));
    let _server = page(host);
    let (mut browser, session) = opened(host);
    let explain = |browser: &mut Browser, from: &str, to: &str, says: &str| {
        eventually(&format!("{from} to {to}: {says}"), 3 * SOON, || {
            let typed = format!(
                r#"(() => {{
                    document.getElementById("explain-from").value = {from:?};
                    document.getElementById("explain-to").value = {to:?};
                    document.querySelector('#explain-form button').click();
                }})()"#
            );
            browser.evaluate(&session, &typed);
            eventually("an answer", SOON, || match browser.evaluate(&session, NOTE).to_string() {
                note if note.contains("looking") => Err(note),
                note => Ok(note),
            });
            let shown = browser.evaluate(&session, "document.body.innerText").to_string();
            if shown.contains(says) { Ok(shown) } else { Err(shown) }
        })
    };
    let to = b.v4().to_string();
    let shown =
        explain(&mut browser, "default/a", &to, "nothing is wrong as far as this host can see");
    assert!(shown.contains("forwarding") && shown.contains("net.ipv4.ip_forward"), "{shown}");
    let drops = format!(
        "nft add table inet mine; \
         nft add chain inet mine forward '{{ type filter hook forward priority 0; }}'; \
         nft add rule inet mine forward ip daddr {to} drop"
    );
    host.shell(&drops).ok();
    explain(&mut browser, "default/a", &to, "lost at firewall");
    // With an answer, on a phone: what is wider than that scrolls inside its box.
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone, Some(&session));
    let width = browser.evaluate(&session, "document.documentElement.scrollWidth");
    assert_eq!(width, 390, "the page is wider than a phone");
    explain(&mut browser, "default/nobody", &to, "default/nobody");
    explain(&mut browser, "<img src=x>", "$(id)", "<img src=x>");
    explain(&mut browser, "default/a", "a b c", "a b c");

    // Another page of the same browser: its requests get no answer, and nothing is explained for it.
    let other = browser.open("about:blank");
    eventually("it is loaded", SOON, || match browser.evaluate(&other, "document.readyState") {
        state if state == "complete" => Ok(()),
        state => Err(state.to_string()),
    });
    for headers in [json!({}), json!({"X-Humanz-Explain": format!("default/a {to}")})] {
        let asks = format!(
            r#"fetch("{URL}/v1/explain", {{headers: {headers}}}).then(() => "answered", () => "refused")"#
        );
        assert_eq!(browser.evaluate(&other, &asks), "refused", "{headers}");
    }
    let asks = |options: &str| {
        host.run(&format!("curl -sS -i --noproxy * -m 10 {options} {URL}/v1/explain")).ok()
    };
    assert!(asks("").starts_with("HTTP/1.1 403 "), "an image of another page");
    assert!(asks("-X OPTIONS").starts_with("HTTP/1.1 405 "), "a browser asks for consent");
    assert!(asks("-H X-Humanz-Explain:x").contains("two ends are needed"));
    let foreign = asks("-H Host:evil.example -H X-Humanz-Explain:x");
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
}

const NETWORKS: &str = r#"(() => {
    const text = (id) => document.getElementById(id).innerText;
    return [text("networks"), text("groups"), text("groups-more"), document.images.length,
            document.getElementById("networks-box").hidden, document.documentElement.scrollWidth].join("|");
})()"#;

#[test]
fn networks_and_groups_are_shown_with_what_this_host_knows_of_them() {
    if is_left_out() {
        return;
    }
    let settings = [("IPV6_SUBNET", ""), ("POLICY", "on")];
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&settings);
    let _server = page(host);
    let asked = host.run(&format!("curl -sS --noproxy * -m 10 {URL}/v1/tenants")).ok();
    let nothing = r#"{"groups":[],"networks":[],"pairs":[],"pods":[],"quarantined":[]}"#;
    assert_eq!(asked, nothing, "the panels stay hidden");
    let longest = "x".repeat(253);
    let object = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": "humanz.io/v1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "tenant": "blue"}})
    };
    let many = (0..220).map(|n| object("Group", &format!("g{n}"), json!({"default": "deny"})));
    let mut objects: Vec<Value> = many.collect();
    objects.extend([
        object("Network", "front", json!({"subnets": ["10.32.0.0/16"], "nat": false})),
        object(
            "GroupPolicy",
            "p",
            json!({"rules": [{"direction": "in", "action": "allow",
            "peer": {"group": "web"}}]}),
        ),
        object("Group", "web", json!({"policies": ["p"], "default": {"in": "deny"}})),
        object("Group", &longest, json!({"default": "deny"})),
        json!({"apiVersion": "humanz.io/v1", "kind": "NamespaceRule", "metadata": {"name": "shop"},
            "spec": {"tenant": "blue", "group": "web", "network": "front"}}),
    ]);
    host.write("/root/all.json", &json!(objects).to_string());
    Agent::run(host, "policy apply -f /root/all.json", &settings).ok();
    host.until_ok("grep -q front /run/humanz/ipam/.networks.json", 3 * SOON);
    let web = crate::ui::add(host, "web");
    let (mut browser, session) = opened(host);
    let shown = |browser: &mut Browser, words: &[&str]| {
        eventually(&format!("the page shows {words:?}"), 3 * SOON, || {
            let text = browser.evaluate(&session, NETWORKS);
            let text = text.as_str().unwrap_or_default().to_owned();
            if words.iter().all(|word| text.contains(word)) { Ok(text) } else { Err(text) }
        })
    };
    let gateway = web.gateways()[0];
    let block = format!("(gateway {gateway}): 1 of 61 used");
    let row = "blue/web\tblue/p\tdenied in\tshop/web\t0";
    let text = shown(&mut browser, &["blue/front\t10.32.0.0/16\t", &block, "… 22 more|0|false|"]);
    assert!(text.contains("blue/g0\t–\tdenied in and out\t–\tnot published"), "{text}");
    let pairs = r#"[document.getElementById("pairs").innerText, document.getElementById("pairs-box").hidden].join("|")"#;
    let text = browser.evaluate(&session, pairs).as_str().unwrap_or_default().to_owned();
    let own = format!("this host ({})\tshop/web\teverything\t–\t", host.v4());
    let stranger = "other IPv4 addresses\tshop/web\t–\teverything\t";
    assert!(text.contains(&own) && text.contains(stranger) && text.ends_with("|false"), "{text}");
    let pods = |browser: &mut Browser, words: &[&str]| {
        eventually(&format!("the table of pods has {words:?}"), 3 * SOON, || {
            let text = browser.evaluate(&session, "document.getElementById('pods').innerText");
            let text = text.as_str().unwrap_or_default().to_owned();
            if words.iter().all(|word| text.contains(word)) { Ok(()) } else { Err(text) }
        })
    };
    pods(
        &mut browser,
        &[
            "shop/web\t",
            "in: network blue/front, policy blue/p, group blue/web\nout: network blue/front",
        ],
    );
    let type_in = |text: &str| {
        format!(
            r#"(() => {{ const box = document.getElementById("groups-filter"); box.focus(); box.value = {text:?};
                box.dispatchEvent(new Event("input")); }})()"#
        )
    };
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone, Some(&session));
    browser.evaluate(&session, &type_in("shop/w"));
    let text = shown(&mut browser, &[row]);
    assert!(!text.contains("blue/g0") && text.ends_with("|0|false|390"), "{text}");
    browser.evaluate(&session, &type_in("xxx"));
    let text = shown(&mut browser, &[&longest]);
    assert!(text.ends_with("||0|false|390"), "{text}");
}

/// What no reader lets through, in place of the agent's answer.
#[test]
fn whatever_the_answer_says_of_tenants_is_shown_as_text() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    let _agents = cluster.start_agents(&[]);
    let _server = page(host);
    let (mut browser, session) = opened(host);
    let text = |field: &str| {
        format!("<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script>{field}")
    };
    let block = json!({"block": text("block"), "gateway": text("gateway"), "used": text("used"), "free": text("free")});
    let answer = json!({
        "networks": [{"name": text("network"), "subnets": [text("subnet")], "blocks": [block],
            "nat": text("nat"), "shared": text("shared"), "host_ports": text("ports")}],
        "groups": [{"name": text("group"), "policies": [text("policy")], "denies": [text("way")],
            "pods": [text("pod")], "elsewhere": text("elsewhere")}],
        "pairs": [{"from": text("from"), "to": text("to"), "allowed": [text("allowed")],
            "denied": [text("denied")], "unknown": [text("unknown")], "elsewhere": true}],
        "quarantined": [{"pod": text("held"), "why": text("why")}],
        "pods": [{"network": "net", "container": "c1", "interface": "eth0", "ingress": [text("in")], "egress": [text("out")]},
            {"network": "net", "container": "c2", "interface": "eth0", "quarantine": text("refused")},
            {"network": "net", "container": "c3", "interface": "eth0", "unknown": text("unjudged")}],
    });
    let pod = |container: &str| {
        json!({"network": "net", "container": container, "interface": "eth0", "addresses": [], "host_ports": [],
            "sent_bytes": null, "received_bytes": null, "state": "attached"})
    };
    let pods = json!({"problems": [], "pods": [pod("c1"), pod("c2"), pod("c3")]});
    let put = format!(
        r##"(async () => {{
            const ask = window.fetch, answers = {{"/v1/tenants": {}, "/v1/pods": {}}};
            window.fetch = (path, options) => path === "/v1/status" ? Promise.reject(new Error("not now")) :
                answers[path] ? Promise.resolve(new Response(answers[path])) : ask(path, options);
            await askPods();
            // An answer that was asked for before comes in between.
            for (let tries = 0; tries < 100 && !document.getElementById("networks").innerText.includes("<img"); tries++) {{
                await askTenants();
                await new Promise((done) => setTimeout(done, 100));
            }}
            await new Promise((done) => setTimeout(done, 300));
            // What was asked for before may have come after the first answer. Policies of this agent are off.
            await askPods();
            await askTenants();
            status = null;
            showPods();
            const shown = ["networks", "groups", "pairs", "quarantined", "pods"].map((id) => document.getElementById(id).innerText);
            const made = ["networks-box", "groups-box", "pairs-box", "pods-box"].map((id) => document.querySelectorAll("#" + id + " img, #" + id + " script").length);
            return [String(window.ran), made.join(), document.images.length, ...shown].join("|");
        }})()"##,
        json!(answer.to_string()),
        json!(pods.to_string())
    );
    let shown = browser.evaluate(&session, &put);
    let shown = shown.as_str().unwrap();
    assert!(shown.starts_with("undefined|0,0,0,0|0|"), "{shown}");
    for field in [
        "network",
        "subnet",
        "block",
        "gateway",
        "used",
        "group",
        "policy",
        "pod",
        "elsewhere",
        "from",
        "to",
        "allowed",
        "denied",
        "unknown",
        "held",
        "why",
        "in",
        "out",
        "refused",
        "unjudged",
    ] {
        assert!(shown.contains(&format!("</script>{field}")), "{field}: {shown}");
    }
}
