//! One call of a program, timed from outside.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs it to its end with `input` on stdin; how long that took from the fork to the wait, and what
/// it wrote to stdout.
///
/// Both must fit into a pipe (64 KiB): they are read afterwards, so that no thread of ours takes
/// part.
///
/// # Panics
/// If it fails, with all it said.
pub fn timed(mut command: Command, input: &str) -> (Duration, String) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(input.as_bytes()).unwrap();
    drop(writer);
    command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let status = child.wait().unwrap();
    let took = start.elapsed();
    let (mut answer, mut complaint) = (String::new(), String::new());
    child.stdout.take().expect("a pipe").read_to_string(&mut answer).unwrap();
    if !status.success() {
        child.stderr.take().expect("a pipe").read_to_string(&mut complaint).unwrap();
        panic!("{command:?}: {status}\n{input}\n{answer}\n{complaint}");
    }
    (took, answer)
}
