//! Build script: the page's files as they are sent, compressed; they are a third of their size in the executable.

#![expect(clippy::print_stdout, reason = "cargo reads what this says there")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::{Compression, GzBuilder};

fn main() -> io::Result<()> {
    let folder = Path::new("src/command/ui");
    let to = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    println!("cargo::rerun-if-changed=packaging/page.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    // What packaging/build gives to the linker.
    println!("cargo::rerun-if-changed=packaging/no-unwinding.ld");
    println!("cargo::rerun-if-changed=packaging/plugin-order/functions.ld");
    println!("cargo::rerun-if-changed=packaging/plugin-order/c");
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let (Some(name), Some(kind)) = (file.file_name(), file.extension()) else { continue };
        if !["html", "js", "css"].iter().any(|it| kind == *it) {
            continue;
        }
        // Without a name and a time: the same bytes from each build.
        let output = fs::File::create(to.join(format!("{}.gz", name.display())))?;
        let mut output = GzBuilder::new().write(output, Compression::best());
        output.write_all(&fs::read(&file)?)?;
        output.finish()?;
    }
    Ok(())
}
