//! The environment of a call of the plugin, `CNI_ARGS` in it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use humanz::cni::args::CniArgs;
use humanz::cni::env::{Environment, Operation};
use humanz::ipam::entry::file_name;

/// In the order of their values in the bytes.
const VARIABLES: [&str; 8] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
    "CNI_NETNS_OVERRIDE",
    "TRACEPARENT",
];

pub fn arguments(data: &[u8]) {
    let values: [&[u8]; VARIABLES.len()] = super::parts(data);
    let environment = Environment::parse(|name| {
        let place = VARIABLES.iter().position(|known| *known == name)?;
        Some(OsString::from_vec(values[place].to_vec()))
    });
    if let Ok(Some(environment)) = &environment
        && let Operation::Add(attachment, _) | Operation::Del(attachment, _) = &environment.call
    {
        let (id, ifname) = (attachment.container_id.to_string(), attachment.ifname.to_string());
        let name = file_name(&id, &ifname);
        assert!(name.len() <= 255 && !name.contains('/') && name != "." && name != "..", "{name}");
    }
    let Ok(text) = std::str::from_utf8(values[4]) else { return };
    match CniArgs::parse(text) {
        Ok(args) => {
            let names = [args.pod(), args.pod_uid, args.pod_name, args.pod_namespace];
            let forged = names.iter().flatten().any(|name| name.chars().any(char::is_control));
            assert!(!forged, "a control character reaches the log: {names:?}");
        }
        Err(error) => assert_eq!(error.code, 4, "{error}"),
    }
}
