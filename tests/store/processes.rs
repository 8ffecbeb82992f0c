//! Many processes, killed processes, many addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use humanz::ipam::import::Sources;
use humanz::ipam::{Store, StoreError};

use crate::*;

/// Not a test: the program of the child processes of the tests below.
#[test]
fn child() {
    let Some(role) = std::env::var_os("HUMANZ_STORE_CHILD") else { return };
    let dir = PathBuf::from(std::env::var_os("HUMANZ_STORE_DIR").unwrap());
    let name = std::env::var("HUMANZ_STORE_NAME").unwrap();
    let store = Store::open(&dir, "net", BOOT, Sources::default());
    match role.to_str().unwrap() {
        "churn" => churn(&store, &dir, &name),
        "fill" => fill(&store, &name),
        "one" => drop(add(&store, &name, &[set(&["10.0.0.0/15"])], &[]).unwrap()),
        other => panic!("{other}"),
    }
}

fn spawn_child(role: &str, dir: &Path, name: &str, wrapper: &[&str]) -> Child {
    let exe = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(OsString::from).collect::<Vec<_>>();
    words.push(exe.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["processes::child", "--exact", "--nocapture"]);
    command.env("HUMANZ_STORE_CHILD", role).env("HUMANZ_STORE_DIR", dir);
    command.env("HUMANZ_STORE_NAME", name);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{:?} cannot be run: {error}", words[0]))
}

/// Sixty reservations, printed on standard output.
fn fill(store: &Store, name: &str) {
    for number in 0..60 {
        let given = add(store, &format!("{name}-{number}"), &[set(&["10.0.0.0/22"])], &[]).unwrap();
        println!("given {}", given[0]);
    }
}

#[test]
fn sixteen_processes_at_once_never_get_the_same_address() {
    let fixture = Fixture::new();
    let started = Instant::now();
    let spawn = |number| spawn_child("fill", fixture.dir.path(), &format!("p{number}"), &[]);
    let children: Vec<Child> = (0..16).map(spawn).collect();
    let mut given = BTreeSet::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let mine =
            text.lines().filter_map(|line| line.split_once("given ")).map(|(_, address)| address);
        for address in mine {
            assert!(given.insert(address.to_owned()), "{address} was given twice");
        }
    }
    assert_eq!(given.len(), 960);
    assert_eq!(fixture.addresses().len(), 960);
    let each = started.elapsed() / 960;
    println!("16 processes, 960 reservations: {each:?} each");
}

/// Reserves, gives back and releases until killed. What it did is appended to one file: gifts when
/// they were made, releases before they are, so that whose an address was can be read off it.
fn churn(store: &Store, dir: &Path, name: &str) {
    let mut log = fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
    // A killed process may leave half a line (a write across two pages is cut): a line begins on
    // one of its own and says where it ends.
    let mut note = |line: String| log.write_all(format!("\n{line} .").as_bytes()).unwrap();
    let sets = [set(&["10.1.2.0/26"]), set(&["fd00::/122"])];
    let mut seed = u64::from(std::process::id());
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let id = format!("{name}-{}", (seed >> 33) % 12);
        let locked = store.lock(WAIT).unwrap();
        if (seed >> 40) & 1 == 0 {
            note(format!("release {id}"));
            locked.release(&id, "eth0").unwrap();
            continue;
        }
        match locked.reserve(&owner(&id, "eth0"), &sets, &[]) {
            Ok(reservation) if (seed >> 41) & 1 == 0 => {
                for address in reservation.addresses() {
                    note(format!("given {id} {address}"));
                }
                reservation.commit();
            }
            Ok(reservation) => drop(reservation),
            Err(StoreError::Duplicate(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// No address was allocated twice.
fn check_log(dir: &Path) -> usize {
    let mut owner_of: BTreeMap<String, String> = BTreeMap::new();
    let text = fs::read_to_string(dir.join("log")).unwrap();
    for line in text.lines().filter_map(|line| line.strip_suffix(" .")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["release", id] => owner_of.retain(|_, owner| owner != id),
            ["given", id, address] => {
                let before = owner_of.insert(address.to_owned(), id.to_owned());
                assert_eq!(before, None, "{address} given to {id} as well");
            }
            _ => panic!("{line}"),
        }
    }
    text.lines().count()
}

#[test]
fn leftovers_of_killed_processes_are_removed_by_a_release() {
    let fixture = Fixture::new();
    let dir = fixture.dir.path();
    let mut seed = u64::from(std::process::id());
    for round in 0..200 {
        let mut children: Vec<Child> =
            ["x", "y"].iter().map(|name| spawn_child("churn", dir, name, &[])).collect();
        for child in &mut children {
            let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("ready")), "round {round}");
        }
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // The moment of the kill is the input of this test, not a wait for something.
        std::thread::sleep(Duration::from_micros(seed >> 51));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
    let events = check_log(dir);
    println!("400 processes killed during {events} events");
    let store = fixture.store();
    let locked = store.lock(WAIT).unwrap();
    for name in ["x", "y"] {
        for number in 0..12 {
            locked.release(&format!("{name}-{number}"), "eth0").unwrap();
        }
    }
    assert!(fixture.addresses().is_empty(), "{:?}", fixture.addresses());
    assert_eq!(fs::read_dir(fixture.path("owners")).unwrap().count(), 0);
    assert!(!fixture.path("quarantine").exists(), "no entry was ever half there");
}

/// The system calls on the store's files while one more address is reserved.
fn calls_of_one_reservation(dir: &Path) -> Vec<String> {
    let trace = dir.join("trace");
    let wrapper = ["strace", "-f", "-y", "-qq", "-o", trace.to_str().unwrap()];
    let child = spawn_child("one", dir, "one", &wrapper);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "strace is needed: apt-get install strace");
    let text = fs::read_to_string(&trace).unwrap();
    let net = dir.join("net");
    // strace prints an interrupted call twice: as it begins and as it resumes.
    let began = text.lines().filter(|line| !line.contains(" resumed>"));
    let calls = began.filter(|line| line.contains(net.to_str().unwrap()));
    let call =
        |line: &str| line.split_whitespace().nth(1).unwrap().split('(').next().unwrap().to_owned();
    calls.map(call).collect()
}

#[test]
fn a_reservation_costs_the_same_at_250_and_at_60_000_addresses() {
    let mut calls = Vec::new();
    for size in [250, 60_000] {
        let fixture = Fixture::new();
        let (store, sets) = (fixture.store(), [set(&["10.0.0.0/15"])]);
        for number in 0..size {
            add(&store, &format!("c{number}"), &sets, &[]).unwrap();
        }
        let mut times: Vec<Duration> = (0..200)
            .map(|number| {
                let started = Instant::now();
                add(&store, &format!("more{number}"), &sets, &[]).unwrap();
                started.elapsed()
            })
            .collect();
        times.sort();
        println!(
            "{size} addresses: {:?} (p99 {:?}) for lock, reserve, commit",
            times[100], times[197]
        );
        calls.push(calls_of_one_reservation(fixture.dir.path()));
    }
    println!("{} calls: {}", calls[0].len(), calls[0].join(" "));
    assert_eq!(calls[0], calls[1]);
    assert!(calls[0].len() <= 32, "{} calls", calls[0].len());
}
