//! What is built for arm64, on a machine with another processor: the executable in qemu's user-mode emulation, which
//! is no kernel of that processor. `make test-arm64` builds it and runs this.
#![allow(clippy::unwrap_used, reason = "a test stops at the first failure")]

#[path = "packages/processors.rs"]
mod processors;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A file that `make packages image ARCH=arm64` leaves.
fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/arm64").join(name);
    assert!(path.exists(), "{} is missing: run make packages image ARCH=arm64", path.display());
    path
}

/// One call of the executable, by name, arguments, variables and stdin.
struct Call<'a> {
    name: &'a str,
    arguments: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
    stdin: &'a str,
}

impl Call<'_> {
    /// Without the libraries of any arm64: it is static.
    fn on_arm64(&self) -> Output {
        let mut qemu = Command::new("qemu-aarch64");
        qemu.args(["-L", "/nonexistent", "-0", self.name]).arg(built("humanz-agent"));
        self.output(&mut qemu)
    }

    fn on_this_machine(&self) -> Output {
        self.output(Command::new(env!("CARGO_BIN_EXE_humanz-agent")).arg0(self.name))
    }

    fn output(&self, command: &mut Command) -> Output {
        command.args(self.arguments).env_clear().envs(self.env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run qemu-aarch64 (package qemu-user)");
        // Who does not read it has ended.
        let _closed = child.stdin.take().unwrap().write_all(self.stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// What both processors answer.
    fn answer(&self) -> String {
        let (emulated, own) = (self.on_arm64(), self.on_this_machine());
        assert_eq!(emulated, own);
        String::from_utf8(emulated.stdout).unwrap()
    }
}

#[test]
fn the_executable_is_for_that_processor_and_below_8_mb() {
    let bytes = std::fs::read(built("humanz-agent")).unwrap();
    // e_machine is EM_AARCH64: elf(5).
    assert_eq!(bytes[18..20], 183_u16.to_le_bytes());
    println!("{} bytes", bytes.len());
    assert!(bytes.len() < 8_000_000, "{} bytes", bytes.len());
}

#[test]
fn the_agent_prints_its_version_help_and_settings() {
    let env = [("ETCD_HOST", "192.0.2.1")];
    let agent = |arguments| Call { name: "humanz-agent", arguments, env: &env, stdin: "" };
    assert_eq!(agent(&["--version"]).answer(), format!("humanz-agent {VERSION}\n"));
    assert!(agent(&["--help"]).answer().contains("connectivity"));
    assert!(agent(&["config"]).answer().contains("192.0.2.1"));
    agent(&["no-such-subcommand"]).answer();
}

#[test]
fn the_plugin_prints_its_versions_and_refuses_what_it_must() {
    let plugin = |verb, stdin| {
        let env = [("CNI_COMMAND", verb), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "eth0")];
        Call { name: "/opt/cni/bin/humanz", arguments: &[], env: &env, stdin }.answer()
    };
    let versions = plugin("VERSION", r#"{"cniVersion":"1.0.0"}"#);
    assert!(versions.contains("supportedVersions") && versions.contains("\"1.1.0\""), "{versions}");
    for stdin in ["", "{", r#"{"cniVersion":"1.0.0","name":"n","type":"humanz","subnet":"x"}"#] {
        let refused = plugin("ADD", stdin);
        assert!(refused.contains("\"code\""), "{stdin}: {refused}");
    }
}

#[test]
fn packages_and_image_are_for_that_processor_and_have_the_executable() {
    let executable = std::fs::read(built("humanz-agent")).unwrap();
    let (deb, rpm) =
        (format!("humanz_{VERSION}_arm64.deb"), format!("humanz-{VERSION}-1.aarch64.rpm"));
    assert_eq!(processors::of_deb(&built(&deb)), "arm64");
    assert_eq!(processors::of_rpm(&built(&rpm)), "aarch64");
    let images = processors::images(&built(&format!("humanz-{VERSION}.oci.tar")));
    let of = |processor| {
        let mut found = images.iter().filter(|image| image.processor == processor);
        let image = found.next().unwrap_or_else(|| panic!("no image for {processor}"));
        assert!(found.next().is_none(), "{processor}");
        &image.executable
    };
    assert!(*of("arm64") == executable);
    assert!(*of("amd64") == std::fs::read(built("../humanz-agent")).unwrap());
    assert_eq!(images.len(), 2);
    let bill = std::fs::read(built("humanz.cdx.json")).unwrap();
    let bill: serde_json::Value = serde_json::from_slice(&bill).unwrap();
    let sum = Command::new("sha256sum").arg(built("humanz-agent")).output().unwrap().stdout;
    let listed = bill["metadata"]["component"]["hashes"][0]["content"].as_str().unwrap();
    assert!(String::from_utf8(sum).unwrap().starts_with(listed), "{listed}");
}
