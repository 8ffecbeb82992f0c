//! A browser whose page is typed into, with keys that are pressed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::support::node::command;
use crate::support::wait::SOON;
use crate::support::{Node, Place, Process, eventually};
use crate::ui::{URL, start_browser};

/// A browser that is driven through a pipe, by the DevTools protocol: JSON messages that end with a zero byte.
pub struct Browser {
    to: File,
    answers: Receiver<Value>,
    last: u64,
    _process: Process,
}

impl Browser {
    pub fn start(host: &Node) -> Browser {
        host.run("mkfifo /tmp/to-browser /tmp/from-browser").ok();
        let mut shell = command("sh -c");
        shell.arg(format!(
            "exec {} --remote-debugging-pipe about:blank 3</tmp/to-browser 4>/tmp/from-browser",
            start_browser(host)
        ));
        let process = host.spawn(&mut shell);
        let (to, from) = host.inside(|| {
            let to = File::options().write(true).open("/tmp/to-browser").unwrap();
            (to, File::open("/tmp/from-browser").unwrap())
        });
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice::<Value>(&message) else { continue };
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        Browser { to, answers, last: 0, _process: process }
    }

    pub fn call(&mut self, method: &str, parameters: Value, session: Option<&str>) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer =
                self.answers.recv_timeout(3 * SOON).unwrap_or_else(|e| panic!("{method}: {e}"));
            if answer["id"] == self.last {
                return answer["result"].clone();
            }
        }
    }

    /// A session with a page at `url`.
    pub fn open(&mut self, url: &str) -> String {
        let target = self.call("Target.createTarget", json!({"url": url}), None);
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call("Target.attachToTarget", attach, None);
        session["sessionId"].as_str().unwrap().to_owned()
    }

    /// The value of a script there; `Null` while the page is being loaded.
    pub fn evaluate(&mut self, session: &str, script: &str) -> Value {
        let script = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", script, Some(session));
        assert!(answer["exceptionDetails"].is_null(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// Keys are pressed as if the window were in front.
    pub fn focus(&mut self, session: &str) {
        self.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true}), Some(session));
    }

    /// A key with a name, as `KeyboardEvent.key` has it, is pressed and let go; `+` after Shift or Control.
    ///
    /// # Panics
    /// If it is none of those below.
    pub fn press(&mut self, session: &str, key: &str) {
        let (modifiers, key) = match key.split_once('+') {
            Some(("Control", key)) => (2, key),
            Some(("Shift", key)) => (8, key),
            _ => (0, key),
        };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Home" => 36,
            _ => panic!("no key {key}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        let event = |kind: &str, text: &str| {
            json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                "modifiers": modifiers, "text": text})
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        self.call("Input.dispatchKeyEvent", event(down, text), Some(session));
        self.call("Input.dispatchKeyEvent", event("keyUp", ""), Some(session));
    }

    /// The keys of these characters.
    pub fn write(&mut self, session: &str, text: &str) {
        for char in text.chars() {
            let char = char.to_string();
            let down = json!({"type": "keyDown", "key": char, "text": char});
            self.call("Input.dispatchKeyEvent", down, Some(session));
            let up = json!({"type": "keyUp", "key": char});
            self.call("Input.dispatchKeyEvent", up, Some(session));
        }
    }
}

/// A browser on `host` that has loaded the page, and its session.
pub fn opened(host: &Node) -> (Browser, String) {
    let mut browser = Browser::start(host);
    let session = browser.open(URL);
    let loaded = "document.readyState === 'complete' && typeof offerPods === 'function'";
    eventually("the page is loaded", 3 * SOON, || match browser.evaluate(&session, loaded) {
        Value::Bool(true) => Ok(()),
        other => Err(other.to_string()),
    });
    (browser, session)
}
