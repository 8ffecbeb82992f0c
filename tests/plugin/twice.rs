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

/// Two ADDs of `c1`: the first one stops after its system call `name` number `when`, the second one comes meanwhile.
fn two_adds(host: &PluginHost, name: &str, when: usize) -> [Answer; 2] {
    let delay = STOP.as_micros();
    let strace = format!(
        "strace -f -qq -o /run/trace -e trace={name} -e inject={name}:delay_exit={delay}:when={when}"
    );
    let first = Call::new("ADD", &everything("c1"), "c1").under(&strace);
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| first.run(host));
        // The moment is the input of this test.
        thread::sleep(STOP / 2);
        let second = Call::new("ADD", &everything("c1"), "c1").run(host);
        (first.join().unwrap(), second)
    });
    let trace =
        host.read("/run/trace").unwrap_or_else(|| panic!("strace is needed: {}", first.ended));
    assert!(trace.contains("DELAYED"), "no call {name} {when}: {}", first.ended);
    [first, second]
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
            let stop = format!("{name} {when}");
            host.netns("c1");
            let answers = two_adds(&host, name, when);
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
            assert_eq!((files, veths(&host).len()), (given.len(), 1), "{stop}: {left:?}");
            let has = |of: &str| left.iter().any(|left| left.starts_with(of));
            assert!(has("owner c1:eth0") && has("port ") && has("guard "), "{stop}: {left:?}");
            Call::new("DEL", &everything("c1"), "c1").run(&host).ok();
            host.assert_clean(&stop);
            host.run("ip netns del c1").ok();
        }
    }
}
