//! The page, with nothing but a keyboard: every stop is in sight and has a ring.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::browser::{Browser, opened};
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Pod, eventually};
use crate::ui::{answer, is_left_out, page, put_host};

/// More stops than the page has.
const STOPS: usize = 150;

/// Where the keyboard is: a name, whether that is inside the window, and the ring around it.
const STOP: &str = r##"(() => {
    const it = document.activeElement, style = getComputedStyle(it), box = it.getBoundingClientRect();
    const inner = it.querySelector("[id]");
    const ring = it.matches(":focus-visible") && style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2;
    return {
        name: it.id || (it.matches("summary") ? "summary" : it.matches("a, button") ? it.textContent : it.className + " " + (inner ? inner.id : "")),
        seen: box.width > 0 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth,
        ring: ring && style.outlineColor === "rgb(11, 87, 208)",
    };
})()"##;

const ROWS: &str = "document.querySelectorAll('#peers tr').length + ' ' + document.getElementById('peers').innerText";
const NOTE: &str = "document.getElementById('explain-note').textContent";

/// Someone without a pointer.
struct Keyboard {
    browser: Browser,
    session: String,
}

/// At the page of `host`, which has a thousand hosts, among them `name`, and the pods default/a and default/b.
pub fn walk_a_thousand_hosts(host: &Node, name: &str, to: IpAddr) {
    let mut keyboard = Keyboard::at(host);
    keyboard.walk(1000, Some(name), to);
    keyboard.follow_problem();
    keyboard.unfold_problems();
}

impl Keyboard {
    fn at(host: &Node) -> Keyboard {
        let (mut browser, session) = opened(host);
        browser.focus(&session);
        Keyboard { browser, session }
    }

    fn read(&mut self, script: &str) -> Value {
        self.browser.evaluate(&self.session, script)
    }

    fn press(&mut self, key: &str) {
        self.browser.press(&self.session, key);
    }

    fn write(&mut self, text: &str) {
        self.browser.write(&self.session, text);
    }

    /// Where the keyboard is.
    fn stop(&mut self) -> String {
        let stop = self.read(STOP);
        stop["name"].as_str().unwrap().to_owned()
    }

    /// Where the keyboard is, once the page has been drawn with it: what stands above may just be drawn anew.
    fn drawn_stop(&mut self) -> Value {
        let mut stop = self.read(STOP);
        for _ in 0..100 {
            if stop["seen"] == true {
                break;
            }
            sleep(Duration::from_millis(50));
            stop = self.read(STOP);
        }
        stop
    }

    /// Presses `key`, Tab forward or back, until the keyboard is at `wanted`. After the last stop comes the first.
    #[track_caller]
    fn go(&mut self, key: &str, wanted: &str) {
        let mut passed = Vec::new();
        for _ in 0..STOPS {
            self.press(key);
            let stop = self.drawn_stop();
            let name = stop["name"].as_str().unwrap().to_owned();
            // Between the last stop and the first one the browser's own buttons would be.
            let is_page = self.read("document.activeElement === document.body") == true;
            assert!(is_page || stop["seen"] == true, "out of sight: {stop}, after {passed:?}");
            assert!(is_page || stop["ring"] == true, "no ring: {stop}, after {passed:?}");
            if name == wanted {
                return;
            }
            passed.push(name);
        }
        panic!("{wanted} is not reached: {passed:?}");
    }

    #[track_caller]
    fn shows(&mut self, script: &str, is_right: impl Fn(&str) -> bool) -> String {
        eventually(&format!("{script} is right"), 3 * SOON, || {
            let found = self.read(script);
            let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
            if is_right(&found) { Ok(found) } else { Err(found) }
        })
    }

    /// Finds the host `name` among `hosts`, the pod default/a, and what is between that pod and `to`.
    fn walk(&mut self, hosts: usize, name: Option<&str>, to: IpAddr) {
        self.go("Tab", "filter");
        let all = format!("{} ", (hosts - 1).min(200));
        self.shows(ROWS, |rows| rows.starts_with(&all));
        if let Some(name) = name {
            self.write(name);
            self.shows(ROWS, |rows| rows.starts_with("1 ") && rows.contains(name));
            self.press("Escape");
            self.shows(ROWS, |rows| rows.starts_with(&all));
        }
        let pods = "document.getElementById('pods').innerText";
        self.go("Tab", "pods-filter");
        self.write("default/b");
        self.shows(pods, |pods| pods.contains("default/b") && !pods.contains("default/a"));
        self.press("Escape");
        self.shows(pods, |pods| pods.contains("default/a"));
        self.go("Shift+Tab", "filter");
        self.go("Tab", "explain-from");
        self.write("default/a");
        self.go("Tab", "explain-to");
        self.write(&to.to_string());
        self.go("Tab", "explain-port");
        self.go("Tab", "Explain");
        self.press("Enter");
        self.shows(NOTE, |note| {
            note.starts_with("default/a → ") && note.contains("nothing is wrong")
        });
        // What a field had is replaced by what is typed; Enter in a field asks, too.
        self.go("Shift+Tab", "explain-to");
        self.write("nothing-of-this-name");
        self.press("Enter");
        self.shows(NOTE, |note| note.contains("nothing-of-this-name"));
    }

    /// From a problem to its host, and its fix to the clipboard.
    fn follow_problem(&mut self) {
        // The name of a host without an address is looked up first, which may take as long as a name server.
        let problems = "document.getElementById('problems').textContent";
        self.shows(problems, |text| text.contains("show host"));
        self.go("Tab", "show host");
        self.press("Enter");
        let filter = "document.getElementById('filter').value";
        let name = self.shows(filter, |value| !value.is_empty());
        self.go("Tab", "filter");
        let is_problem =
            format!("document.getElementById('problems').innerText.includes({name:?})");
        assert_eq!(self.read(&is_problem), true, "{name}");
        self.shows(ROWS, |rows| rows.starts_with("1 ") && rows.contains(&name));
        self.press("Escape");
        self.go("Tab", "copy");
        self.press("Enter");
        self.shows("document.activeElement.textContent", |it| ["copied", "selected"].contains(&it));
    }

    /// Problems beyond the first ten are folded.
    fn unfold_problems(&mut self) {
        self.go("Tab", "summary");
        self.press("Enter");
        self.shows("String(document.getElementById('problems-more').open)", |open| open == "true");
        let rest = "document.getElementById('problems-rest').contains(document.activeElement)";
        self.press("Tab");
        assert_eq!(self.read(rest), true, "{}", self.stop());
        self.go("Shift+Tab", "summary");
        self.press("Enter");
    }
}

#[test]
fn hosts_pods_problems_and_paths_are_found_with_the_keyboard_alone() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new(2);
    let [host, two] = &cluster.hosts[..] else { unreachable!() };
    let every = [("PROBE_INTERVAL", "5s")];
    let agent = Agent::start(host, &every);
    agent.wait_ready();
    let pods = ["a", "b"].map(|name| Pod::add(host, name));
    let _server = page(host);
    let mut keyboard = Keyboard::at(host);
    let note = "document.getElementById('matrix-note').textContent";
    keyboard.shows(note, |note| note == "there are no other hosts");
    keyboard.walk(1, None, pods[1].v4());

    let other = Agent::start(two, &every);
    other.wait_ready();
    answer(two, 3..=59);
    cluster.etcd.put("/humanz/hosts/elsewhere", "10.244.255.0/24");
    let mut last = 2;
    for (hosts, name) in [(3, "h2"), (60, "n57")] {
        (last + 1..hosts).for_each(|n| put_host(&cluster, n, hosts, &[]));
        last = hosts - 1;
        let others = format!("{} hosts, ", hosts - 1);
        keyboard.shows(note, |note| note.starts_with(&others));
        keyboard.walk(hosts.into(), Some(name), pods[1].v4());
        keyboard.follow_problem();
        match hosts {
            3 => stays_on_a_link(&mut keyboard, &cluster),
            _ => keyboard.unfold_problems(),
        }
    }
    scrolls_a_narrow_window(&mut keyboard);
}

/// Problems that come and go are drawn anew.
fn stays_on_a_link(keyboard: &mut Keyboard, cluster: &Cluster) {
    keyboard.go("Tab", "show host");
    let held = "document.activeElement.closest('li').firstChild.textContent";
    let problem = keyboard.read(held);
    let problems = "document.getElementById('problems').innerText";
    cluster.etcd.put("/humanz/hosts/another", "10.244.254.0/24");
    keyboard.shows(problems, |problems| problems.contains("another"));
    assert_eq!(keyboard.stop(), "show host");
    assert_eq!(keyboard.read(held), problem);
    cluster.etcd.delete("/humanz/hosts/another");
}

fn scrolls_a_narrow_window(keyboard: &mut Keyboard) {
    let narrow = json!({"width": 390, "height": 600, "deviceScaleFactor": 1, "mobile": false});
    let session = keyboard.session.clone();
    keyboard.browser.call("Emulation.setDeviceMetricsOverride", narrow, Some(&session));
    for table in ["scroll peers", "scroll pods"] {
        keyboard.go("Tab", table);
        let scrolled = "String(document.activeElement.scrollLeft)";
        assert_eq!(keyboard.read(scrolled), "0");
        keyboard.press("ArrowRight");
        keyboard.shows(scrolled, |left| left != "0");
        // A key that comes while it still scrolls is lost, and it may seem to stand still between two frames.
        eventually(&format!("{table} is back"), 3 * SOON, || {
            keyboard.press("ArrowLeft");
            sleep(Duration::from_millis(300));
            let left = keyboard.read(scrolled);
            if left == "0" { Ok(()) } else { Err(left.to_string()) }
        });
    }
}
