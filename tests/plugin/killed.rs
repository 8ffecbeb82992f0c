//! A plugin killed at every system call and at random moments.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::everything;
use crate::support::Place;
use crate::support::plugin_host::{Call, PluginHost};

fn gc(valid: Value) -> Call {
    let call =
        Call::new("GC", &everything("c1"), "").with("CNI_CONTAINERID", "").with("CNI_NETNS", "");
    call.with("CNI_IFNAME", "").key("cni.dev/valid-attachments", valid)
}

/// `verb` of the container `c1` killed before system call number `when`; `false` if it made fewer.
pub fn killed_at(host: &PluginHost, verb: &str, conf: &Value, when: usize) -> bool {
    let calls = "?open,openat,?link,linkat,?rename,renameat,?unlink,unlinkat,sendto,write,writev,socket,setns,flock,close";
    let strace = format!(
        "strace -f -qq -o /run/trace -e trace={calls} -e inject={calls}:signal=KILL:when={when}"
    );
    let answer = Call::new(verb, conf, "c1").under(&strace).run(host);
    assert!(host.read("/run/trace").is_some(), "strace is needed: apt-get install strace");
    !answer.ended.succeeded()
}

#[test]
fn an_add_killed_at_any_system_call_leaves_nothing_after_del_or_gc() {
    let host = PluginHost::new();
    host.add(&everything("alive"), "alive");
    let before = host.leftovers();
    let valid = json!([{ "containerID": "alive", "ifname": "eth0" }]);
    let mut kills = 0;
    for when in 1.. {
        host.netns("c1");
        if !killed_at(&host, "ADD", &everything("c1"), when) {
            break;
        }
        kills += 1;
        match when % 3 {
            0 => Call::new("DEL", &everything("c1"), "c1").run(&host).ok(),
            1 => Call::new("DEL", &everything("c1"), "c1").with("CNI_NETNS", "").run(&host).ok(),
            _ => gc(valid.clone()).run(&host).ok(),
        };
        assert_eq!(host.leftovers(), before, "ADD killed at call {when}");
        host.run("ip netns del c1").ok();
    }
    println!("ADD killed {kills} times");
    // 17 where the executable is static; the C library's loader makes more.
    assert!(kills > 12, "{kills}");
}

#[test]
fn a_del_killed_at_any_system_call_is_finished_by_the_next() {
    let host = PluginHost::new();
    host.add(&everything("alive"), "alive");
    let before = host.leftovers();
    let mut kills = 0;
    for when in 1.. {
        host.add(&everything("c1"), "c1");
        let killed = killed_at(&host, "DEL", &everything("c1"), when);
        Call::new("DEL", &everything("c1"), "c1").run(&host).ok();
        assert_eq!(host.leftovers(), before, "DEL killed at call {when}");
        host.run("ip netns del c1").ok();
        if !killed {
            break;
        }
        kills += 1;
    }
    println!("DEL killed {kills} times");
    // 13 where the executable is static.
    assert!(kills > 9, "{kills}");
}

#[test]
fn plugins_killed_at_any_moment_leave_nothing_after_del_and_gc() {
    let host = PluginHost::new();
    let names: Vec<String> = (0..8).map(|number| format!("c{number}")).collect();
    for name in &names {
        host.netns(name);
    }
    let mut seed = u64::from(std::process::id());
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut held: Vec<Option<Vec<String>>> = vec![None; names.len()];
    for _ in 0..150 {
        // Four calls at once, of different containers; each is killed after a while.
        let first = random(names.len() as u64) as usize;
        let chosen: Vec<usize> = (0..4).map(|step| (first + step) % names.len()).collect();
        let mut running = Vec::new();
        for number in chosen {
            let verb = if random(3) == 0 { "DEL" } else { "ADD" };
            let call = Call::new(verb, &everything(&names[number]), &names[number]);
            let mut command = call.command();
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = host.spot().inside(|| command.spawn()).unwrap();
            std::io::Write::write_all(
                &mut child.stdin.take().unwrap(),
                call.conf.to_string().as_bytes(),
            )
            .unwrap();
            running.push((number, verb, child));
        }
        // The moment is the input of this test, not a wait for something.
        std::thread::sleep(Duration::from_micros(random(6000)));
        for (number, verb, mut child) in running {
            if random(4) != 0 {
                child.kill().unwrap();
            }
            let output = child.wait_with_output().unwrap();
            let result = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            match (verb, output.status.success()) {
                ("ADD", true) => held[number] = Some(addresses(&result)),
                ("DEL", _) => held[number] = None,
                // Refused as attached already, or killed: what a runtime does then is DEL.
                _ if held[number].is_none() => {
                    Call::new("DEL", &everything(&names[number]), &names[number]).run(&host).ok();
                }
                _ => {}
            }
        }
        let mut all: Vec<&String> = held.iter().flatten().flatten().collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "an address was given twice: {held:?}");
    }
    for (number, name) in names.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        Call::new("DEL", &everything(name), name).run(&host).ok();
        held[number] = None;
    }
    gc(json!([])).run(&host).ok();
    host.assert_clean("after DEL and GC");
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}
