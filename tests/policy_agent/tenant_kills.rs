//! Pods of networks of tenants start and end while plugin, agent, etcd or the host is killed at each step:
//! no address is given twice, and none is left, nor a block.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::etcd::apply;
use crate::support::cni::{Attachment, Network};
use crate::support::pod::make_netns;
use crate::support::wait::SOON;
use crate::support::{Agent, Cluster, Node, Place, eventually, facts, local};
use crate::tenants::{SOON_GIVEN_BACK, blocks, namespace, network};

const IPAM: &str = "/run/humanz/ipam";

/// So many networks of two blocks, so that each pod needs a block that its host has not.
const NETWORKS: usize = 60;

/// The plugin's calls that change something or ask somebody.
const STEPS: &str = "?open,openat,?link,linkat,?rename,renameat,?unlink,unlinkat,sendto,write,writev,\
                     socket,connect,shutdown,setns,flock,close";

/// Networks `blue/n0`, … whose names pods of the namespace `shop` may say.
pub fn many_networks() -> Vec<Value> {
    let spec = |number| json!({"subnets": [format!("10.40.{number}.0/28")], "blocks": {"v4": 29}});
    let networks = (0..NETWORKS).map(|number| network(&format!("blue/n{number}"), spec(number)));
    let rule = namespace("shop", json!({"tenant": "blue", "network": "n0", "allow": ["*"]}));
    networks.chain([rule]).collect()
}

/// One pod of the namespace `shop`.
pub struct Call<'a> {
    host: &'a Node,
    plugins: Network,
    attachment: Attachment,
}

impl<'a> Call<'a> {
    /// In the network `blue/nNUMBER`, its namespace made anew.
    pub fn new(host: &'a Node, name: &str, number: usize) -> Call<'a> {
        let word = json!({"humanz.io/network": format!("n{}", number % NETWORKS)});
        Call::saying(host, name, &word)
    }

    /// With an interface in each of three networks.
    fn in_three(host: &'a Node, name: &str, number: usize) -> Call<'a> {
        let [one, two, three] = [0, 1, 2].map(|place| (number * 3 + place) % NETWORKS);
        let word = json!({"humanz.io/networks": format!("n{one},n{two}@eth1,n{three}")});
        Call::saying(host, name, &word)
    }

    fn saying(host: &'a Node, name: &str, word: &Value) -> Call<'a> {
        host.run(&format!("ip netns del {name}"));
        make_netns(host, name);
        let attachment = Attachment {
            args: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"),
            runtime: json!({"io.kubernetes.cri.pod-annotations": word}),
            ..Attachment::new(name)
        };
        Call { host, plugins: Network::of(host), attachment }
    }

    fn command(&self, verb: &str) -> (Command, String) {
        let plugin = &self.plugins.plugins[0];
        self.plugins.invocation(verb, plugin, Some(&self.attachment), &Value::Null)
    }

    /// Its first address, or why it has none.
    pub fn add(&self) -> Result<IpAddr, String> {
        let result = self.plugins.add(self.host, &self.attachment);
        result.map(|result| first_address(&result)).map_err(|error| error.to_string())
    }

    /// DEL, which always ends with 0.
    pub fn delete(&self, when: &str) {
        self.delete_after(&Value::Null, when);
    }

    /// The same for a runtime that knows the result of ADD.
    fn delete_after(&self, result: &Value, when: &str) {
        let deleted = self.plugins.del(self.host, &self.attachment, result);
        deleted.unwrap_or_else(|error| panic!("DEL {when}: {error}"));
    }

    /// `verb` killed before system call number `at`; `false` if it made fewer.
    fn is_killed_at(&self, verb: &str, at: usize) -> bool {
        let (plugin, input) = self.command(verb);
        let mut strace = crate::support::node::command(&format!(
            "strace -f -qq -o /run/trace -e trace={STEPS} -e inject={STEPS}:signal=KILL:when={at}"
        ));
        strace.arg(plugin.get_program());
        let variables = plugin.get_envs();
        strace.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        let ended = self.host.run_command(&mut strace, &input);
        assert!(self.host.read("/run/trace").is_some(), "strace is needed: {ended}");
        !ended.succeeded()
    }

    /// `verb`, not waited for.
    pub fn start(&self, verb: &str) -> Child {
        let (mut command, input) = self.command(verb);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = self.host.spot().inside(|| command.spawn()).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        child
    }
}

fn first_address(result: &Value) -> IpAddr {
    let address = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result}"));
    address.split('/').next().unwrap().parse().unwrap()
}

/// What is left of pods: interfaces, addresses and their owners, guards of interfaces, neighbours, unfinished
/// files.
pub fn leftovers(host: &Node) -> BTreeSet<String> {
    let veths = facts::veths(host);
    let mut left: BTreeSet<String> = veths.iter().map(|veth| format!("link {veth}")).collect();
    let store = format!("{IPAM}/humanz");
    let is_address = |name: &String| name.parse::<IpAddr>().is_ok() || name == "quarantine";
    left.extend(host.list(&store).into_iter().filter(is_address));
    left.extend(host.list(&format!("{store}/owners")));
    let is_unfinished = |name: &String| name.ends_with('~') || name.contains(".new");
    left.extend(host.list(IPAM).into_iter().filter(is_unfinished));
    let guards = host.run("nft list table netdev humanz").stdout;
    left.extend(veths.iter().filter(|veth| guards.contains(veth.as_str())).cloned());
    let neighbours = host.run("ip neigh show dev humanz0").stdout;
    let known = neighbours.lines().filter_map(|line| line.split_once(" lladdr "));
    left.extend(known.map(|(address, _)| address.to_owned()).filter(|it| it.starts_with("10.")));
    left
}

/// Without pods every block goes back, and nothing of it stays on a host.
pub fn wait_for_no_blocks(cluster: &Cluster) {
    eventually("all blocks to be given back", SOON, || match blocks(cluster) {
        held if held.is_empty() => Ok(()),
        held => Err(format!("{held:?}")),
    });
    for host in &cluster.hosts {
        eventually("gateways and files of former blocks to go", SOON, || {
            let gateways = facts::addresses(host, "humanz0");
            let files = [format!("{IPAM}/.networks.json"), "/var/lib/humanz/blocks.json".into()];
            let files = files.map(|path| host.read(&path).unwrap_or_default());
            let plans: Value = serde_json::from_str(&files[0]).unwrap();
            let kept: Value = serde_json::from_str(&files[1]).unwrap();
            let mut open = plans["networks"].as_array().unwrap().iter();
            let has_none = gateways.iter().all(|it| !it.starts_with("10.40."))
                && open.all(|network| network[1]["blocks"] == json!([]))
                && kept["own"] == json!([]);
            if has_none { Ok(()) } else { Err(format!("{gateways:?} {plans} {kept}")) }
        });
        assert_eq!(leftovers(host), BTreeSet::new(), "{}", host.name());
    }
}

/// Both pods run.
pub fn assert_apart(one: &Result<IpAddr, String>, other: &Result<IpAddr, String>, when: &str) {
    if let (Ok(one), Ok(other)) = (one, other) {
        assert_ne!(one, other, "{when}: an address was given twice");
    }
}

/// ADD of each of `calls` is killed one system call later than that of the one before, until one is not.
pub fn kill_adds<'a>(host: &'a Node, call: impl Fn(usize) -> Call<'a>) -> usize {
    for at in 1.. {
        let killed = call(at);
        let is_killed = killed.is_killed_at("ADD", at);
        match at % 4 {
            0 => killed.plugins.with_version("1.1.0").gc(host, &[]).unwrap(),
            1 => killed.delete(&format!("after ADD killed at call {at}")),
            2 => {
                let (mut command, input) = killed.command("DEL");
                let ended = host.run_command(command.env("CNI_NETNS", ""), &input);
                assert!(ended.succeeded(), "DEL without a namespace after call {at}: {ended}");
            }
            // The runtime tries again, in another namespace, and for another network.
            _ => {
                let again = call(at + 1);
                // The kernel takes its time for the interfaces of the former namespace.
                eventually(&format!("ADD after the one killed at call {at}"), SOON, || again.add());
                again.delete(&format!("of the ADD after the one killed at call {at}"));
            }
        }
        assert_eq!(leftovers(host), BTreeSet::new(), "ADD killed at call {at}");
        if !is_killed {
            return at - 1;
        }
    }
    unreachable!("an ADD makes a number of calls")
}

#[test]
fn an_add_that_asks_for_a_block_killed_at_any_system_call_leaves_nothing() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &many_networks());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let kills = [
        kill_adds(host, |at| Call::new(host, "c1", at)),
        kill_adds(host, |at| Call::in_three(host, "c1", at)),
    ];
    println!("ADD killed {kills:?} times");
    // An executable that is linked dynamically makes four more.
    assert!(kills[0] > 15 && kills[1] > 40, "{kills:?}");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

/// DEL of each of `calls` is killed one system call later than that of the one before, until one is not.
pub fn kill_dels<'a>(host: &'a Node, call: impl Fn() -> Call<'a>) -> usize {
    for at in 1.. {
        let call = call();
        eventually("ADD", SOON, || call.add());
        let is_killed = call.is_killed_at("DEL", at);
        call.delete(&format!("after DEL killed at call {at}"));
        assert_eq!(leftovers(host), BTreeSet::new(), "DEL killed at call {at}");
        if !is_killed {
            return at - 1;
        }
    }
    unreachable!("a DEL makes a number of calls")
}

#[test]
fn a_del_of_a_networks_pod_killed_at_any_system_call_is_finished_by_the_next() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &many_networks());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let kills = [
        kill_dels(host, || Call::new(host, "c1", 0)),
        kill_dels(host, || Call::in_three(host, "c1", 0)),
    ];
    println!("DEL killed {kills:?} times");
    assert!(kills[0] > 9 && kills[1] > 20, "{kills:?}");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

/// The agent, killed before a thread of it makes its call number `at` of these, until the end of `task`;
/// `false` if it lives.
pub fn agent_killed_at<T>(
    agent: &Agent,
    calls: &str,
    at: usize,
    task: impl FnOnce() -> T,
) -> (T, bool) {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-p", &agent.process.pid().to_string()]);
    strace.args(["-e", &format!("trace={calls}")]);
    strace.args(["-e", &format!("inject={calls}:signal=KILL:when={at}")]);
    let strace = crate::support::process::Process::start(&mut strace, Command::spawn);
    eventually("strace to have every thread of the agent", SOON, || {
        let log = strace.log();
        if log.contains("attached") || agent.process.ended().is_some() { Ok(()) } else { Err(log) }
    });
    let done = task();
    drop(strace);
    // What was to be killed has been by the time at which it answers.
    let is_killed = eventually("the agent to answer or to be dead", SOON, || {
        let answers = answers(&agent.host);
        match agent.process.ended() {
            None if !answers => Err("it does neither".to_owned()),
            ended => Ok(ended.is_some()),
        }
    });
    (done, is_killed)
}

/// An agent serves its socket: one that is stopped takes connections, too.
fn answers(host: &Node) -> bool {
    let Ok(mut stream) = local::connect(host) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let asked = stream.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n");
    asked.and_then(|()| stream.read(&mut [0; 64])).is_ok_and(|length| length > 0)
}

/// Two hosts want one block each of a network that has two.
#[test]
fn an_agent_killed_at_any_of_its_calls_while_pods_start_loses_and_doubles_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &many_networks());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    let (mut kills, mut started, mut number) = (0, 0, 0);
    for calls in
        ["sendto,sendmsg", "write,writev", "?rename,renameat,?unlink,unlinkat,fsync,openat"]
    {
        for at in 1.. {
            number += 1;
            let [one, other] =
                [(h1, "c1"), (h2, "c2")].map(|(host, name)| Call::new(host, name, number));
            let when = format!("agent killed at call {at} of {calls}");
            let ((first, second), is_killed) = agent_killed_at(&agents[0], calls, at, || {
                std::thread::scope(|scope| {
                    let second = scope.spawn(|| other.add());
                    (one.add(), second.join().unwrap())
                })
            });
            assert_apart(&first, &second, &when);
            started += usize::from(first.is_ok());
            if number % 2 == 0 {
                // Before there is an agent again.
                one.delete(&when);
            }
            if is_killed {
                kills += 1;
                agents[0] = Agent::start(h1, SOON_GIVEN_BACK);
                agents[0].wait_ready();
            }
            if number % 2 == 1 {
                let first = eventually(&when, SOON, || first.clone().or_else(|_| one.add()));
                assert_apart(&Ok(first), &second, &when);
                one.delete(&when);
            }
            other.delete(&when);
            assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
            if !is_killed || at > 40 {
                break;
            }
        }
    }
    println!("agent killed {kills} times in {number} ADDs, of which {started} succeeded");
    assert!(kills > 10, "{kills}");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn etcd_killed_at_any_moment_while_pods_start_loses_and_doubles_nothing() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &many_networks());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let mut refused = 0;
    for number in 0..24 {
        let calls = [(h1, "c1"), (h2, "c2")].map(|(host, name)| Call::new(host, name, number));
        let when = format!("etcd killed after {} ms", number * 3);
        let adds = std::thread::scope(|scope| {
            let adds = calls.each_ref().map(|call| scope.spawn(|| call.add()));
            // The moment is the input of this test, not a wait for something.
            std::thread::sleep(Duration::from_millis(number as u64 * 3));
            cluster.etcd.kill();
            adds.map(|add| add.join().unwrap())
        });
        assert_apart(&adds[0], &adds[1], &when);
        refused += adds.iter().filter(|add| add.is_err()).count();
        if number % 2 == 0 {
            calls[0].delete(&when);
        }
        cluster.etcd.restart();
        if number % 2 == 1 {
            let [first, second] = [0, 1].map(|at: usize| {
                eventually(&when, SOON, || adds[at].clone().or_else(|_| calls[at].add()))
            });
            assert_apart(&Ok(first), &Ok(second), &when);
            calls[0].delete(&when);
        }
        calls[1].delete(&when);
        assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
    }
    println!("{refused} of 48 ADDs refused");
    assert!(refused > 0, "etcd was always faster");
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

#[test]
fn a_host_that_loses_power_while_a_pod_starts_has_no_address_twice_and_keeps_no_block() {
    let cluster = Cluster::new(2);
    let [h1, h2] = [&cluster.hosts[0], &cluster.hosts[1]];
    apply(h1, &many_networks());
    let mut agents = cluster.start_agents(SOON_GIVEN_BACK);
    for number in 0..8 {
        let calls = [(h1, "c1"), (h2, "c2")].map(|(host, name)| Call::new(host, name, number));
        let when = format!("power lost after {} ms", number * 8);
        let mut child = calls[0].start("ADD");
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| calls[1].add());
            // The host is off once every process of it was waited for.
            scope.spawn(|| child.wait());
            // The moment is the input of this test, not a wait for something.
            std::thread::sleep(Duration::from_millis(number as u64 * 8));
            h1.power_off();
            second.join().unwrap()
        });
        drop(agents.remove(0));
        cluster.reboot(h1);
        // As it expires.
        cluster.etcd.delete("/humanz/v1/alive/h1");
        agents.insert(0, Agent::start(h1, SOON_GIVEN_BACK));
        agents[0].wait_ready();
        // A runtime removes the pods of before, and starts others.
        calls[0].delete(&when);
        let again = Call::new(h1, "c1", number);
        let first = eventually(&when, SOON, || again.add());
        assert_apart(&Ok(first), &second, &when);
        again.delete(&when);
        calls[1].delete(&when);
        assert_eq!(leftovers(h1), BTreeSet::new(), "{when}");
    }
    wait_for_no_blocks(&cluster);
    agents.iter().for_each(Agent::stop);
}

/// Whatever is missing or wrong.
#[test]
fn del_of_a_networks_pod_ends_with_0_without_agent_etcd_or_any_file() {
    let cluster = Cluster::new(1);
    let host = &cluster.hosts[0];
    apply(host, &many_networks());
    let agents = cluster.start_agents(SOON_GIVEN_BACK);
    let calls = [0, 1, 2, 3, 4, 5].map(|number| Call::new(host, &format!("c{number}"), number));
    let added = calls.each_ref().map(|call| {
        let added = call.plugins.add(host, &call.attachment);
        added.unwrap_or_else(|error| panic!("{error}"))
    });
    agents[0].kill();
    calls[0].delete("without an agent");
    cluster.etcd.kill();
    calls[1].delete("without etcd");
    let file = format!("{IPAM}/.networks.json");
    host.write(&file, "{\"networks\":[[");
    calls[2].delete("with a garbled file of networks");
    host.run(&format!("rm {file}")).ok();
    calls[3].delete("without a file of networks");
    host.run("ip netns del c4").ok();
    calls[4].delete("without its namespace");
    host.run(&format!("rm -r {IPAM}")).ok();
    calls[5].delete_after(&added[5], "without a store");
    calls[5].delete_after(&added[5], "once more");
    assert_eq!(facts::veths(host), Vec::<String>::new());
    // The agent finds no pod in its blocks.
    cluster.etcd.restart();
    let agent = Agent::start(host, SOON_GIVEN_BACK);
    agent.wait_ready();
    wait_for_no_blocks(&cluster);
    agent.stop();
}
