//! Replay of the fuzzers' corpus, without a fuzzer.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first failure and may print"
)]

mod parsers;

use std::fs;
use std::path::Path;

/// Replays the inputs in `corpus/<name>`; how many.
fn replay(name: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in &paths {
        // Shown if the test fails: the last one is it.
        println!("{}", path.display());
        parsers::run(name, &fs::read(path).unwrap());
    }
    paths.len()
}

#[test]
fn the_fuzzing_corpus_and_past_failures_are_handled() {
    for (name, _) in parsers::TARGETS {
        let inputs = replay(name);
        assert!(inputs >= 5, "only {inputs} inputs for {name}: is the corpus there?");
    }
}

#[test]
fn truncated_inputs_of_the_corpus_are_handled() {
    for (name, target) in parsers::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
        for entry in fs::read_dir(folder).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            for length in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
                target(&bytes[..length]);
            }
        }
    }
}
