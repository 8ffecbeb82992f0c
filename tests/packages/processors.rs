//! For which processor a package or an image is.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// As Debian names it.
pub fn of_deb(package: &Path) -> String {
    let output = output(Command::new("dpkg-deb").arg("--field").arg(package).arg("Architecture"));
    String::from_utf8(output).unwrap().trim().to_owned()
}

/// As rpm names it.
pub fn of_rpm(package: &Path) -> String {
    let output = output(Command::new("rpm").args(["-qp", "--queryformat", "%{ARCH}"]).arg(package));
    String::from_utf8(output).unwrap()
}

/// One of the images of an index.
pub struct Image {
    /// As the index and the image itself name it.
    pub processor: String,
    pub executable: Vec<u8>,
}

/// The images of an archive that has one index, by the name of the manifests.
///
/// Source: image-layout.md and image-index.md of the OCI image specification.
pub fn images(archive: &Path) -> Vec<Image> {
    let layout = tempfile::tempdir().unwrap();
    output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(layout.path()));
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        layout.path().join("blobs").join(digest)
    };
    let read =
        |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let entry = read(&layout.path().join("index.json"));
    let [named] = &entry["manifests"].as_array().unwrap()[..] else { panic!("{entry}") };
    let name = concat!("localhost/humanz:", env!("CARGO_PKG_VERSION"));
    assert_eq!(named["annotations"]["org.opencontainers.image.ref.name"], name);
    assert_eq!(named["mediaType"], "application/vnd.oci.image.index.v1+json");
    let index = read(&blob(named));
    let images = index["manifests"].as_array().unwrap().iter().map(|descriptor| {
        let manifest = read(&blob(descriptor));
        let config = read(&blob(&manifest["config"]));
        assert_eq!(config["architecture"], descriptor["platform"]["architecture"]);
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/sbin/humanz-agent");
        let [layer] = &manifest["layers"].as_array().unwrap()[..] else { panic!("{manifest}") };
        let mut unpack = Command::new("tar");
        unpack.arg("-xzOf").arg(blob(layer)).arg("usr/sbin/humanz-agent");
        let processor = config["architecture"].as_str().unwrap().to_owned();
        Image { processor, executable: output(&mut unpack) }
    });
    images.collect()
}

fn output(command: &mut Command) -> Vec<u8> {
    let ended = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    ended.stdout
}
