//! Two calls of ADD for one interface of one container at once.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::everything;
use crate::support::Place;
use crate::support::facts::veths;
use crate::support::plugin_host::{Answer, Call, PluginHost};

/// How long the first one stops.
const STOP: Duration = Duration::from_millis(250);

/// Where an ADD stops: before its system call of this name and number or after it (`delay_enter`, `delay_exit`).
type Stop = (&'static str, &'static str, usize);

/// An ADD of `c1` that stops there, and leaves its trace in `/run/NAME`.
fn add(name: &str, (call, side, when): Stop) -> Call {
    let inject = format!("{call}:{side}={}:when={when}", STOP.as_micros());
    let strace = format!("strace -f -qq -o /run/{name} -e trace={call} -e inject={inject}");
    Call::new("ADD", &everything("c1"), "c1").under(&strace)
}

/// Two ADDs of `c1`: the first one stops, and the second one comes meanwhile.
fn two_adds(host: &PluginHost, stop: Stop, second: &Call) -> [Answer; 2] {
    let first = add("first", stop);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| first.run(host));
        // The moment is the input of this test.
        thread::sleep(STOP / 2);
        let second = second.run(host);
        (first.join().unwrap(), second)
    });
    let trace =
        host.read("/run/first").unwrap_or_else(|| panic!("strace is needed: {}", first.ended));
    assert!(trace.contains("DELAYED"), "no call {stop:?}: {}", first.ended);
    [first, second]
}

/// One of two ADDs was refused, and the other has what it was given.
fn check(host: &PluginHost, answers: [Answer; 2], stop: &str) {
    let (well, refused): (Vec<Answer>, Vec<Answer>) =
        answers.into_iter().partition(|answer| answer.ended.succeeded());
    assert_eq!((well.len(), refused.len()), (1, 1), "{stop}");
    assert!([11, 102].contains(&refused[0].code()), "{stop}: {}", refused[0].ended);
    let given = given(&well[0].value);
    let left = host.leftovers();
    for address in &given {
        assert!(left.contains(&format!("file {address}")), "{stop}: {address}: {left:?}");
    }
    let files = left.iter().filter(|left| left.starts_with("file ")).count();
    assert_eq!((files, veths(host).len()), (given.len(), 1), "{stop}: {left:?}");
    let has = |of: &str| left.iter().any(|left| left.starts_with(of));
    assert!(has("owner c1:eth0") && has("port ") && has("guard "), "{stop}: {left:?}");
    Call::new("DEL", &everything("c1"), "c1").run(host).ok();
    host.assert_clean(stop);
}

/// The addresses of the result.
fn given(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

#[test]
fn one_of_two_adds_at_once_is_refused_and_the_other_has_what_it_was_given() {
    let host = PluginHost::new();
    let stops = [("linkat", 3), ("rename", 1), ("flock", 4), ("sendto", 16)];
    for (name, last) in stops {
        for when in 1..=last {
            host.netns("c1");
            let second = Call::new("ADD", &everything("c1"), "c1");
            let answers = two_adds(&host, (name, "delay_exit", when), &second);
            check(&host, answers, &format!("{name} {when}"));
            host.run("ip netns del c1").ok();
        }
    }
}

/// The first one has found its entry and not yet locked it: the second one takes it for dead, and lets go of it. With a
/// lock on what is no entry any more the first one went on, and the entry of its pod was lost with the second one.
#[test]
fn an_entry_that_was_taken_over_is_not_held() {
    let host = PluginHost::new();
    for when in 1..=11 {
        host.netns("c1");
        let second = add("second", ("flock", "delay_exit", when));
        let answers = two_adds(&host, ("flock", "delay_enter", 3), &second);
        let stop = format!("flock {when} of the second one");
        match answers.iter().any(|answer| answer.ended.succeeded()) {
            true => check(&host, answers, &stop),
            // Each has found the other one at work.
            false => host.assert_clean(&stop),
        }
        host.run("ip netns del c1").ok();
    }
}
