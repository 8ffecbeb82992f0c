//! The last known good state, kept on this host's disk.

use humanz::lease::Saved;
use humanz::net::hash;

/// The bytes as the file, and as the state in a file whose checksum is right.
pub fn state(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    read(&text);
    let checksum = hash::stable(&[&text]);
    read(&format!(r#"{{"schema":1,"checksum":"{checksum:016x}","state":{text}}}"#));
}

fn read(text: &str) {
    let Ok(saved) = Saved::from_text(text) else { return };
    let again = Saved::from_text(&saved.to_text());
    assert_eq!(again.as_ref(), Ok(&saved), "it does not come back as it was read");
}
