//! humanz: the name that the program was called by decides its role.

mod allocator;
#[cfg(panic = "abort")]
mod backtrace;
#[cfg(any(test, all(target_env = "musl", not(debug_assertions))))]
mod memory;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process;

use humanz::plugin::Streams;
use humanz::{command, os, plugin};

#[global_allocator]
static ALLOCATOR: allocator::ArenaFirst = allocator::ArenaFirst::new();

fn main() {
    process::exit(run());
}

fn run() -> i32 {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let env = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let (mut stdin, mut stdout, mut stderr) = (io::stdin(), io::stdout(), io::stderr());
    match name.as_str() {
        "humanz-agent" if env("CNI_COMMAND").is_some() => called_as_plugin(Path::new(&called)),
        "humanz-agent" => {
            os::resolver::prepare();
            command::report_panics();
            command::main(arguments.into_iter())
        }
        "loopback" => {
            plugin::install_panic_hook();
            let streams = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
            plugin::loopback::run(&name, &env, streams)
        }
        _ if plugin::netavark::is_call(&arguments) => {
            plugin::netavark::install_panic_hook();
            let streams = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
            plugin::netavark::run(&name, &arguments, streams, &|env, streams| {
                plugin::run(&name, env, streams)
            })
        }
        _ => {
            plugin::install_panic_hook();
            let streams = Streams { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
            plugin::run(&name, &env, streams)
        }
    }
}

/// A runtime is configured to run the agent as a plugin.
fn called_as_plugin(called: &Path) -> i32 {
    let advice = format!(
        "humanz-agent is the host agent, not a CNI plugin: runtimes must call it by the plugin's \
         name.\nMake a symlink beside it and name that in the configuration's \"type\":\n  \
         ln -s humanz-agent {}\n(humanz-agent does this by itself when it serves a host.)\n",
        called.with_file_name("humanz").display()
    );
    // A closed stderr is no reason to do anything else.
    let _closed = io::stderr().write_all(advice.as_bytes());
    1
}
