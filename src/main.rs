//! humanz: the name that the program was called by decides its role.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use humanz::plugin;

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let env = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let (mut stdin, mut stdout, mut stderr) = (io::stdin(), io::stdout(), io::stderr());
    let code = match name.as_str() {
        "humanz-agent" => 2,
        "loopback" => plugin::loopback::run(&name, &env, &mut stdin, &mut stdout, &mut stderr),
        _ => plugin::run(&name, &env, &mut stdin, &mut stdout, &mut stderr),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
